"""torchtitan's checkpoint managers: ours that leaves it to the session, and its own, indexed."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torchtitan
from torch import nn
from torch.utils.data import IterableDataset
from torchtitan.components.checkpointer.base import BaseCheckpointManager
from torchtitan.components.checkpointer.dcp import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.optimizer import (
    LRSchedulersContainer,
    OptimizersContainer,
    ParamGroupConfig,
)

from tests.attach.keeping import digest_of, through_a_checkpoint
from wattmesh.errors import InputInvalid
from wattmesh.integrations import torchtitan as titan
from wattmesh.integrations.torchtitan.training import _Steps
from wattmesh.reconfig.checkpoint import foreign
from wattmesh.reconfig.checkpoint.checkpoint import load
from wattmesh.reconfig.checkpoint.header import header_of
from wattmesh.reconfig.checkpoint.own_saves import OwnSaves
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all, name_to_fill

# Both are torchtitan's own ways with torch 2.13: at each loader, and at each load of a schedule.
pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:To get the last learning rate:UserWarning"),
]

TRAINER = Path(torchtitan.__path__[0]) / "trainer.py"


def given_by_the_trainer() -> list[str]:
    """What torchtitan's Trainer gives every checkpoint manager, read from its source."""
    for node in ast.walk(ast.parse(TRAINER.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "config.checkpoint.build":
            return [str(each.arg) for each in node.keywords]
    raise AssertionError("torchtitan builds its checkpoint manager in another way now")


def test_the_session_s_manager_is_built_as_the_trainer_builds_it() -> None:
    """By torchtitan's own configuration machinery, with all that the real trainer passes."""
    assert {"dataloader", "model_parts", "optimizers", "states"} <= set(given_by_the_trainer())
    config = titan.SessionCheckpoints.Config(enable=True)
    manager = config.build(**dict.fromkeys(given_by_the_trainer()))
    assert type(manager) is titan.SessionCheckpoints
    assert isinstance(manager, BaseCheckpointManager)


def test_the_session_s_manager_leaves_everything_to_the_session() -> None:
    """Every public entry of the real base class may be called, and none does anything."""
    manager = titan.SessionCheckpoints.Config(enable=True).build(dataloader=None)
    assert manager.load() is False
    assert manager.save(10) is False
    assert manager.save(10, last_step=True) is False
    manager.maybe_wait_for_staging()
    manager.maybe_wait_for_saving()
    manager.close()


@pytest.mark.parametrize("hook", sorted(BaseCheckpointManager.__abstractmethods__))
def test_every_abstract_hook_has_torchtitan_s_signature(hook: str) -> None:
    """A hook that torchtitan adds or changes fails here."""
    wanted = inspect.signature(getattr(BaseCheckpointManager, hook))
    mine = inspect.signature(getattr(titan.SessionCheckpoints, hook))
    assert list(mine.parameters) == list(wanted.parameters)


class Numbers(IterableDataset[tuple[dict[str, torch.Tensor], torch.Tensor]]):
    """A dataset with a place of its own."""

    def __init__(self) -> None:
        """Begin."""
        self.at = 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Give the number that comes next."""
        while True:
            self.at += 1
            yield {"input": torch.tensor([self.at])}, torch.tensor([self.at])

    def state_dict(self) -> dict[str, int]:
        """Where it stands."""
        return {"at": self.at}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on there."""
        self.at = state_dict["at"]


def trainer(folder: Path, mode: str = "disabled") -> Any:
    """The parts of a trainer, each of torchtitan's own class."""
    part = nn.ModuleDict({"layers": nn.ModuleDict({"0": nn.Linear(4, 4), "1": nn.Linear(4, 4)})})
    groups = [
        ParamGroupConfig(
            pattern=pattern, optimizer_name="AdamW", optimizer_kwargs={"lr": 0.1, "weight_decay": w}
        )
        for pattern, w in ((r".*bias$", 0.0), (r".*", 0.1))
    ]
    config = OptimizersContainer.Config(param_groups=groups, implementation="for-loop")
    optimizers = config.build(model_parts=[part])
    schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(
        optimizers=optimizers, training_steps=20
    )
    loader = ParallelAwareDataloader(Numbers(), dp_rank=0, dp_world_size=1, batch_size=2)
    found = SimpleNamespace(
        model_parts=[part],
        optimizers=optimizers,
        lr_schedulers=schedulers,
        dataloader=loader,
        parallel_dims=SimpleNamespace(dp_replicate=1, dp_shard=1, cp=1),
        step=0,
        ntokens_seen=0,
        state_dict=Counter().state_dict,
        batches=iter(loader),
    )
    found.checkpointer = CheckpointManager.Config(
        enable=True, interval=2, async_mode=mode, keep_latest_k=0
    ).build(
        dataloader=loader,
        model_parts=[part],
        optimizers=optimizers,
        lr_schedulers=schedulers,
        states={"train_state": Counter()},
        sd_adapter=None,
        base_folder=str(folder),
    )
    return found


class Counter:
    """Stands for the trainer among its states."""

    def state_dict(self) -> dict[str, int]:
        """Give its counters."""
        return {"step": 2, "ntokens_seen": 8}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Take them."""


def trained(found: Any) -> State:
    """Two steps on what the loader gives."""
    (part,) = found.model_parts
    for _ in range(2):
        inputs, _ = next(found.batches)
        x_BD = inputs["input"].float().expand(-1, 4)
        torch.autograd.backward(part["layers"]["1"](part["layers"]["0"](x_BD)).sum())
        found.optimizers.step()
        found.optimizers.zero_grad()
        found.lr_schedulers.step()
        found.step += 1
        found.ntokens_seen += 2
    return titan.state_of(found)


@pytest.mark.usefixtures("one_rank")
def test_a_trainer_s_parts_come_back_through_the_session_s_checkpoint(tmp_path: Path) -> None:
    """Optimizers, schedules, counters, and the loader at the place where it stood."""
    torch.manual_seed(3)
    first, second = trainer(tmp_path), trainer(tmp_path)
    state, fresh = trained(first), titan.state_of(second)
    assert through_a_checkpoint(tmp_path, state, fresh) == digest_of(fresh)
    assert (second.step, second.ntokens_seen) == (2, 4)
    assert second.lr_schedulers.state_dict() == first.lr_schedulers.state_dict()
    ahead = [next(first.batches)[1].flatten().tolist() for _ in range(2)]
    again = iter(second.dataloader)
    assert [next(again)[1].flatten().tolist() for _ in range(2)] == ahead == [[5, 6], [7, 8]]


def test_tokens_seen_are_counted_over_all_ranks() -> None:
    """A rank counts its own: half as many where twice the ranks share the data."""
    counted = {}
    for shares in (2, 4):
        dims = SimpleNamespace(dp_replicate=1, dp_shard=shares // 2, cp=2)
        rank: Any = SimpleNamespace(
            parallel_dims=dims, step=3, ntokens_seen=40, state_dict=Counter().state_dict
        )
        counted[shares] = (rank, _Steps(rank))
    (_, two), (four, taken) = counted[2], counted[4]
    assert two.state_dict() == {"step": 3, "ntokens_seen_by_all": 80}
    taken.load_state_dict(two.state_dict())
    assert (four.step, four.ntokens_seen) == (3, 20)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_what_torchtitan_s_own_manager_wrote_is_indexed_and_loaded(
    tmp_path: Path, mode: str
) -> None:
    """The real CheckpointManager's files, under torchtitan's names, give the state in memory."""
    torch.manual_seed(4)
    found = trainer(tmp_path / "titan", mode)
    state = trained(found)
    state.parts.trainer = found
    header = header_of(
        run="r",
        attempt=1,
        position=Position(step=2),
        layout=Layout(),
        ranks=(0,),
        digest=digest_of(state),
    )
    folder = RunFolder(tmp_path / "ck")
    folder.path.mkdir()
    own = OwnSaves(titan.own_saves, folder, keep=3)
    own.begin(state, name_all(state), header)
    own.finish(leads=True, protected=set(), fence=lambda: None)
    fresh = titan.state_of(trainer(tmp_path / "other"))
    load(folder.checkpoint(2), name_to_fill(fresh), fresh)
    assert digest_of(fresh) == header.digest
    foreign.prove(folder.checkpoint(2), gentle=False)
    assert foreign.is_verified(folder.checkpoint(2))
    found.checkpointer.close()


@pytest.mark.usefixtures("one_rank")
def test_a_step_that_torchtitan_s_interval_leaves_out_is_refused(tmp_path: Path) -> None:
    """Its manager says no, and so do we, by the numbers."""
    found = trainer(tmp_path)
    state = trained(found)
    with pytest.raises(InputInvalid, match=r"step 3 \(interval 2\)"):
        titan.own_saves(state, 3)
