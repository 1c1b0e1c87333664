"""`State(loader=...)`: batches from the run's position on, whichever layout trains."""

from collections.abc import Callable, Iterable

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

import wattmesh
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.state import State

LENGTH, BATCH = 10, 4


def epoch(position: Position) -> Iterable[range]:
    """Batches of a data set of ten samples, from a position to its end."""
    for first in range(position.samples % LENGTH, LENGTH, BATCH):
        yield range(first, min(first + BATCH, LENGTH))


def test_the_loader_is_made_at_the_first_batch_and_anew_at_the_end_of_the_data() -> None:
    """From where training stands then, which is not known in `build`."""
    made: list[int] = []

    def loader(position: Position) -> Iterable[range]:
        made.append(position.samples)
        return epoch(position)

    state = State([], [], loader=loader)
    state.position = Position(samples=14)
    state.batches.begin()
    assert made == []
    read = []
    for _ in range(4):
        read.append(next(state.batches))
        samples = state.position.samples + len(read[-1])
        state.position = Position(samples=samples)
    assert read == [range(4, 8), range(8, 10), range(4), range(4, 8)]
    assert made == [14, 20]


def begun(state: State) -> State:
    """A state whose `build` has ended."""
    state.batches.begin()
    return state


def closed() -> State:
    """A state that was torn down."""
    state = begun(State([], [], loader=epoch))
    next(state.batches)
    state.close()
    return state


WRONG: dict[str, Callable[[], State]] = {
    "build gave no State": lambda: begun(State([], [])),
    "known once build has ended": lambda: State([], [], loader=epoch),
    "gave no batch from sample 0 on": lambda: begun(State([], [], loader=lambda position: ())),
    "of a layout that is gone": closed,
}


@pytest.mark.parametrize("words", WRONG)
def test_a_batch_that_would_be_wrong_is_refused(words: str) -> None:
    """In a sentence that says what to do."""
    state = WRONG[words]()
    with pytest.raises(InputInvalid, match=words):
        next(state.batches)


@pytest.mark.parametrize("loss", [3.0, torch.tensor(3.0, requires_grad=True), torch.tensor([3.0])])
def test_a_mean_over_ranks_leaves_the_loss_as_it_is(loss: object) -> None:
    """Of one rank it is the loss; docs/attach.md's script has it of two."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        assert wattmesh.mean_over_ranks(loss) == 3.0
        assert loss in (3.0, torch.tensor(3.0))
    finally:
        dist.destroy_process_group()
