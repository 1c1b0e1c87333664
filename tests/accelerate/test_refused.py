"""What is not moved is refused in a sentence, before anything is trained."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration, DistributedType
from accelerate.state import AcceleratorState, GradientState
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, WeightedRandomSampler

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch import accelerate
from wattmesh.integrations.pytorch.accelerate_runtime import check_layout
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.position import Position


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    """Leave nothing of Accelerate's shared states behind."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class Stream(IterableDataset[torch.Tensor]):
    """Data that come one after the other."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Give some."""
        yield from torch.zeros(4, 2)


class OwnBatches(BatchSampler):
    """Batches that a script makes."""


class OwnOrder:
    """An order that a script makes of the epoch's number."""

    def __init__(self) -> None:
        """Begin with the first epoch."""
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Have the next pass be that of an epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """All samples."""
        return 4

    def __iter__(self) -> Iterator[int]:
        """Give them, from another one on in each epoch."""
        return ((self.epoch + at) % 4 for at in range(4))


def made(
    data: Any = None,
    *,
    shuffle: bool = False,
    drop_last: bool = False,
    order: dict[str, Any] | None = None,
    **loading: Any,
) -> accelerate.Prepared:
    """A model that a real Accelerator prepared in this process."""
    chosen = DataLoaderConfiguration(**{"split_batches": True, **loading})
    accelerator = Accelerator(cpu=True, dataloader_config=chosen)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    rows: Any = torch.zeros(4, 2) if data is None else data
    ordered = order or {"batch_size": 2, "shuffle": shuffle, "drop_last": drop_last}
    loader = DataLoader(rows, **ordered)
    prepared = accelerator.prepare(model, optimizer, schedule, loader)
    return accelerate._by_kind((accelerator, *prepared))


def test_what_is_plain_is_taken() -> None:
    """The twin of all refusals."""
    assert accelerate.refusal(made(), Layout()) == ""
    AcceleratorState._reset_state(reset_partial_state=True)
    assert accelerate.refusal(made(torch.zeros(5, 2), drop_last=True), Layout()) == ""
    AcceleratorState._reset_state(reset_partial_state=True)
    assert accelerate.refusal(made(shuffle=True, use_seedable_sampler=True), Layout()) == ""
    AcceleratorState._reset_state(reset_partial_state=True)
    ordered = made(torch.arange(4.0)[:, None], order={"batch_size": 2, "sampler": OwnOrder()})
    assert accelerate.refusal(ordered, Layout()) == ""
    rest = accelerate._Order(ordered.loader).batches(Position(samples=10))
    assert [each.flatten().tolist() for each in rest] == [[0.0, 1.0]], "not the third epoch's rest"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"shuffle": True}, "an order that cannot be made again"),
        ({"split_batches": False}, "its schedule would step once for every process"),
        ({"data": torch.zeros(5, 2)}, "its 5 samples fill no whole batches of 2"),
        ({"data": Stream()}, "cannot begin at a sample"),
        (
            {"order": {"batch_size": 2, "sampler": WeightedRandomSampler([1.0] * 4, 4)}},
            "ordered by a WeightedRandomSampler, whose order could not be made again",
        ),
        (
            {"order": {"batch_sampler": OwnBatches(range(4), 2, False)}},
            "its OwnBatches makes batches of its own",
        ),
        ({"data": Stream(), "dispatch_batches": True}, "leave dispatch_batches"),
    ],
)
def test_data_and_schedules_that_would_follow_the_layout_are_refused(
    given: dict[str, Any], words: str
) -> None:
    """Each by what to do instead."""
    assert words in accelerate.refusal(made(**given), Layout())


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (DistributedType.DEEPSPEED, "its DeepSpeed plugin is not moved"),
        (DistributedType.MEGATRON_LM, "Megatron-LM is not moved"),
        (DistributedType.FSDP, "FSDP1 is not moved; set fsdp_version=2"),
    ],
)
def test_a_strategy_that_is_not_moved_is_refused(kind: DistributedType, words: str) -> None:
    """By its name."""
    prepared = made()
    state = prepared.accelerator.state
    state.fsdp_plugin = type("Plugin", (), {"fsdp_version": 1, "cpu_offload": None})()
    state.distributed_type = kind
    assert words in accelerate.refusal(prepared, Layout())


def _under_fsdp2(offload: Any = None) -> accelerate.Prepared:
    prepared = made()
    state = prepared.accelerator.state
    state.fsdp_plugin = type("Plugin", (), {"fsdp_version": 2, "cpu_offload": offload})()
    state.distributed_type = DistributedType.FSDP
    return prepared


@pytest.mark.parametrize("pinned", [True, False])
def test_parameters_that_fsdp2_keeps_on_the_cpu_are_refused(pinned: bool) -> None:
    """In pinned memory or not. Its twin offloads nothing."""
    offloads = _under_fsdp2(CPUOffloadPolicy(pin_memory=pinned))
    assert "keeps on the CPU are not moved" in accelerate.refusal(offloads, Layout())
    AcceleratorState._reset_state(reset_partial_state=True)
    assert accelerate.refusal(_under_fsdp2(OffloadPolicy()), Layout()) == ""


def test_replicas_alone_are_refused_under_fsdp2() -> None:
    """Accelerate would shard, or leave its plugin aside."""
    prepared = _under_fsdp2()
    prepared.accelerator.state.num_processes = 2
    found = accelerate.refusal(prepared, Layout(dp_replicate=2))
    assert "only replicates, which Accelerate does without its FSDP2 plugin" in found


def test_a_loader_begins_without_a_draw_from_torch_s_stream() -> None:
    """Else dropout after a switch would be another than without it."""
    order = accelerate._Order(made().loader)
    before = torch.get_rng_state()
    assert len(list(order.batches(Position(samples=2)))) == 1
    assert torch.equal(torch.get_rng_state(), before)


def test_a_layout_that_the_script_does_not_shard_for_is_refused() -> None:
    """A script that nobody told about FSDP2, and one that found no other processes."""
    prepared = made()
    assert "has 1 processes and the layout dp2 has 2 ranks" in accelerate.refusal(
        prepared, Layout(dp_shard=2)
    )
    prepared.accelerator.state.num_processes = 2
    assert "has no FSDP2 plugin" in accelerate.refusal(prepared, Layout(dp_shard=2))


@pytest.mark.parametrize("layout", [Layout(tp=2), Layout(pp=2), Layout(cp=2)], ids=str)
def test_other_degrees_are_refused(layout: Layout) -> None:
    """At attach, and when they are ordered."""
    with pytest.raises(InputInvalid, match="moved over dp_replicate and dp_shard only"):
        check_layout(layout, "accelerate")


def test_a_run_that_would_end_between_two_save_steps_is_refused() -> None:
    """Before anything is joined."""
    with pytest.raises(InputInvalid, match="steps = 5 is no multiple of boundary_every = 2"):
        accelerate.attach("x", lambda: (), checkpoint_dir="/nowhere", steps=5, boundary_every=2)


class Counted:
    """What a script has Accelerate keep beside model and optimizer."""

    def state_dict(self) -> dict[str, int]:
        """Nothing of interest."""
        return {}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Forget it."""


def test_all_schedules_and_all_that_is_registered_are_carried() -> None:
    """Also what `prepare` does not give: a schedule of two, and one that is registered."""
    kept: list[Any] = []

    def prepare() -> tuple[Any, ...]:
        accelerator = Accelerator(
            cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True)
        )
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer)
        rows: Any = torch.zeros(4, 2)
        loader: Any = DataLoader(rows, 2)
        model, optimizer, loader, steps, warmup = accelerator.prepare(
            model, optimizer, loader, steps, warmup
        )
        kept.extend([steps, warmup, Counted(), Counted()])
        accelerator.register_for_checkpointing(*kept[1:])
        return accelerator, model, optimizer, loader, steps

    told = SimpleNamespace(tokens=1, steps=1)
    state = accelerate.build_state(
        prepare, told, 0.0, Layout(), Ranks(participants=(0,), global_rank=0)
    )
    names = ("schedule", "schedule.1", "registered", "registered.1")
    assert [state.extra[name] for name in names] == kept
    assert set(state.extra) == {"order", *names}


def test_a_second_optimizer_is_refused() -> None:
    """It might be of a model that nobody carries."""
    prepared = made()
    second = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    prepared.accelerator.prepare(second)
    assert "prepared 2 optimizers, and one is moved" in accelerate.refusal(prepared, Layout())


def test_what_prepare_leaves_out_is_named() -> None:
    """And a model that was prepared twice."""
    accelerator = Accelerator(cpu=True)
    with pytest.raises(InputInvalid, match="gave 0 of the kind model"):
        accelerate._by_kind((accelerator,))
