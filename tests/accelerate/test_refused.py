"""What is not moved is refused in a sentence, before anything is trained."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration, DistributedType
from accelerate.state import AcceleratorState, GradientState
from torch.utils.data import DataLoader, IterableDataset

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch import accelerate
from wattmesh.integrations.pytorch.accelerate_runtime import check_layout
from wattmesh.reconfig.layout import Layout


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


def made(
    data: Any = None, *, shuffle: bool = False, drop_last: bool = False, **loading: Any
) -> accelerate.Prepared:
    """A model that a real Accelerator prepared in this process."""
    chosen = DataLoaderConfiguration(**{"split_batches": True, **loading})
    accelerator = Accelerator(cpu=True, dataloader_config=chosen)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    rows: Any = torch.zeros(4, 2) if data is None else data
    loader = DataLoader(rows, 2, shuffle=shuffle, drop_last=drop_last)
    prepared = accelerator.prepare(model, optimizer, schedule, loader)
    return accelerate._by_kind((accelerator, *prepared))


def test_what_is_plain_is_taken() -> None:
    """The twin of all refusals."""
    assert accelerate.refusal(made(), Layout()) == ""
    AcceleratorState._reset_state(reset_partial_state=True)
    assert accelerate.refusal(made(torch.zeros(5, 2), drop_last=True), Layout()) == ""
    AcceleratorState._reset_state(reset_partial_state=True)
    assert accelerate.refusal(made(shuffle=True, use_seedable_sampler=True), Layout()) == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"shuffle": True}, "an order that cannot be made again"),
        ({"split_batches": False}, "its schedule would step once for every process"),
        ({"data": torch.zeros(5, 2)}, "its 5 samples fill no whole batches of 2"),
        ({"data": Stream()}, "cannot begin at a sample"),
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


def test_what_prepare_leaves_out_is_named() -> None:
    """And a model that was prepared twice."""
    accelerator = Accelerator(cpu=True)
    with pytest.raises(InputInvalid, match="gave 0 of the kind model"):
        accelerate._by_kind((accelerator,))
