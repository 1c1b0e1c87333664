"""A job whose own checkpointer writes: its files are indexed, hashed, and switched through."""

import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from tests.attach.keeping import digest_of
from tests.attach.running import UserRun
from tests.hook.harness import Zygote, worst_difference
from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.checkpoint import foreign
from wattmesh.reconfig.checkpoint.checkpoint import load
from wattmesh.reconfig.checkpoint.foreign import Written
from wattmesh.reconfig.checkpoint.header import Header, header_of
from wattmesh.reconfig.checkpoint.own_saves import OwnSaves
from wattmesh.reconfig.hook.launching.start import newest_whole
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launch.in_step import CheckpointNotSaved
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all, name_to_fill
from wattmesh.reconfig.universal.folder import CheckpointKind, read_manifest
from wattmesh.reconfig.universal.record import VERIFIED

DP2, TP2 = {"dp_shard": 2}, {"tp": 2}


def test_a_job_that_writes_its_own_checkpoints_switches_and_resumes(
    zygote: Zygote, tmp_path: Path, plain: dict[int, float]
) -> None:
    """In place at step 4, killed after step 7, resumed from its own files of step 4 in dp2."""
    run = UserRun(zygote, tmp_path, 2, layout=DP2, turns=[(4, TP2)], writer="sync", kill_at=7)
    assert run.supervised() == 0, (run.said, run.log())
    assert run.layouts() == ["dp2", "tp2", "dp2"]
    assert worst_difference(run.losses(), plain) <= 1e-5
    assert {line["attempt"] for line in run.tracked()} == {1, 2}
    newest = run.checkpoints / "step-00000012"
    assert read_manifest(newest).kind is CheckpointKind.VIRTUAL
    assert read_manifest(newest).source["folder"] == str(tmp_path / "own" / "step-12")


def test_an_async_save_in_flight_defers_the_boundary(
    zygote: Zygote, tmp_path: Path, plain: dict[int, float]
) -> None:
    """The save of step 4 ends at step 10: what was due at 8 is done then, and training went on."""
    run = UserRun(
        zygote,
        tmp_path,
        2,
        layout=DP2,
        turns=[(8, TP2), (10, TP2)],
        writer="async",
        hold_at=4,
        let_go_at=10,
    )
    assert run.once() == 0, run.log()
    saved = {line["step"]: line["saved"] for line in run.tracked()}
    assert saved[10] == []
    assert saved[11] == ["step-00000004", "step-00000010"]
    assert [line["step"] for line in run.tracked() if line["layout"] == "tp2"] == [11, 12]
    assert worst_difference(run.losses(), plain) <= 1e-5
    assert "still writing" in run.log()


def build() -> State:
    """A tiny model with an average and bytes of its own."""
    net = nn.Linear(3, 2)
    averages = {name: each.detach().clone() for name, each in net.named_parameters()}
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    return State(
        modules=[net],
        optimizers=[optimizer],
        averages={"ema": averages},
        extra={"note": Note()},
    )


class Note:
    """An extra state that no foreign file holds."""

    def __init__(self) -> None:
        """Begin empty."""
        self.data: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Give it."""
        return self.data

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it."""
        self.data = state_dict


def trained() -> State:
    """One step, and a note of bytes and a tensor."""
    state = build()
    torch.autograd.backward(state.modules[0](torch.ones(3)).sum())
    state.optimizers[0].step()
    state.optimizers[0].zero_grad()
    state.extra["note"].load_state_dict({"bytes": b"\x80abc", "mean": torch.arange(3.0)})
    return state


def header(state: State, step: int) -> Header:
    """What the session would write of it."""
    return header_of(
        run="r",
        attempt=1,
        position=Position(step=step),
        layout=Layout(),
        ranks=(0,),
        digest=digest_of(state),
    )


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., Path]:
    """Saves a state through a checkpointer of the job's own; gives the indexed checkpoint."""
    folder = RunFolder(tmp_path / "ck")
    folder.path.mkdir()

    def save(state: State, step: int = 1, *, leave_out: str = "", keep: int = 3) -> Path:
        def write(state: State, step: int) -> Written:
            tensors = {
                key: each
                for key, each in name_all(state).tensors.items()
                if not leave_out or leave_out not in key
            }
            target = tmp_path / "own" / f"step-{step}"
            dcp_save({**tensors, "also": 7}, checkpoint_id=target)
            return Written(folder=target)

        saves = OwnSaves(write, folder, keep)
        saves.begin(state, name_all(state), header(state, step))
        saves.finish(leads=True, protected=set(), fence=lambda: None)
        saves.wait(30.0)
        return folder.checkpoint(step)

    return save


@pytest.mark.usefixtures("one_rank")
def test_what_is_beside_the_tensors_lies_in_our_index(own: Callable[..., Path]) -> None:
    """Bytes and tensors of extra state; the whole state has memory's digest again."""
    state, fresh = trained(), build()
    path = own(state)
    load(path, name_to_fill(fresh), fresh)
    assert digest_of(fresh) == digest_of(state)
    note = fresh.extra["note"].state_dict()
    assert note["bytes"] == b"\x80abc"
    assert torch.equal(note["mean"], torch.arange(3.0))


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("lost", ["average.ema.weight", "weight.exp_avg_sq", "model.bias"])
def test_a_folder_that_lacks_a_tensor_is_no_checkpoint(
    own: Callable[..., Path], tmp_path: Path, lost: str
) -> None:
    """Whatever the checkpointer left out is named, and nothing is published."""
    with pytest.raises(
        CheckpointNotSaved, match=r"holds no weight \(|lacks the optimizer|no slot or"
    ):
        own(trained(), leave_out=lost)
    assert list((tmp_path / "ck").glob("step-*")) == []


@pytest.mark.usefixtures("one_rank")
def test_a_write_that_fails_is_no_checkpoint(tmp_path: Path) -> None:
    """At once or behind: training goes on, and the next save may be tried."""
    folder = RunFolder(tmp_path)
    state = trained()
    future: Future[None] = Future()
    future.set_exception(OSError(28, "No space left on device"))
    saves = OwnSaves(lambda state, step: Written(folder=tmp_path, future=future), folder, 3)
    saves.begin(state, name_all(state), header(state, 1))
    with pytest.raises(CheckpointNotSaved, match="No space left"):
        saves.finish(leads=True, protected=set(), fence=lambda: None)
    assert not saves.begun


@pytest.mark.usefixtures("one_rank")
def test_files_that_are_deleted_stay_and_files_that_change_are_damage(
    own: Callable[..., Path], tmp_path: Path
) -> None:
    """Hard links keep the bytes; a file rewritten in place is passed over at the next start."""
    older, newer = own(trained(), 1), own(trained(), 2)
    foreign.prove(older, gentle=False)
    shutil.rmtree(tmp_path / "own" / "step-1")
    assert newest_whole(RunFolder(tmp_path / "ck")) is not None
    (file,) = (tmp_path / "own" / "step-2").glob("*.distcp")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    found = newest_whole(RunFolder(tmp_path / "ck"))
    assert found is not None
    assert found[0] == older
    assert newer.exists()


@pytest.mark.usefixtures("one_rank")
def test_bytes_that_are_not_what_was_in_memory_never_count_as_verified(
    own: Callable[..., Path], tmp_path: Path
) -> None:
    """The checkpointer wrote something else than the state: found by memory's digest alone."""
    state = trained()
    wrong = trained()

    def lie(asked: State, step: int) -> Written:
        del asked
        target = tmp_path / "own" / f"lie-{step}"
        dcp_save(dict(name_all(wrong).tensors), checkpoint_id=target)
        return Written(folder=target)

    folder = RunFolder(tmp_path / "ck")
    saves = OwnSaves(lie, folder, 3)
    saves.begin(state, name_all(state), header(state, 5))
    saves.finish(leads=True, protected=set(), fence=lambda: None)
    with pytest.raises(CheckpointDamaged, match="do not hold what was in memory"):
        foreign.prove(folder.checkpoint(5), gentle=False)
    assert not foreign.is_verified(folder.checkpoint(5))
    saves.begin(state, name_all(state), header(state, 7))
    with pytest.raises(CheckpointNotSaved, match="do not hold what was in memory"):
        saves.finish(leads=True, protected=set(), fence=lambda: None, prove=True)
    assert own(state, 6).exists()


@pytest.mark.usefixtures("one_rank")
def test_nothing_older_goes_before_the_newest_is_verified(
    own: Callable[..., Path], tmp_path: Path
) -> None:
    """`keep` counts checkpoints that were hashed; those that were not are extra."""
    folder = RunFolder(tmp_path / "ck")
    paths = [own(trained(), step, keep=99) for step in (1, 2, 3)]
    (paths[2] / VERIFIED).unlink()
    saves = OwnSaves(lambda state, step: Written(folder=""), folder, 1)
    saves.prune(protected=set())
    assert [each.name for each in folder.checkpoints()] == ["step-00000003", "step-00000002"]
    foreign.prove(paths[2], gentle=False)
    saves.prune(protected={"step-00000002"})
    assert [each.name for each in folder.checkpoints()] == ["step-00000003", "step-00000002"]
    saves.prune(protected=set())
    assert [each.name for each in folder.checkpoints()] == ["step-00000003"]
    assert (tmp_path / "own" / "step-1").exists()
