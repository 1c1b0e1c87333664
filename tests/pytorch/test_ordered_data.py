"""A data set in the run's order: the same samples in every layout, from any position on."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.ordered_data import NumberedBatch, in_order


def read(loader: Any, first: int, ranks: int, steps: int) -> list[list[tuple[int, int]]]:
    """By step, (number, item) of all ranks, one rank after the other."""
    parts: list[Iterable[NumberedBatch]] = [
        islice(loader(first, rank, ranks), steps) for rank in range(ranks)
    ]
    return [
        [
            pair
            for part in step
            for pair in zip(part.numbers.tolist(), part.batch.tolist(), strict=True)
        ]
        for step in zip(*parts, strict=True)
    ]


@given(
    size=st.integers(1, 20),
    seed=st.none() | st.integers(0, 99),
    done=st.integers(0, 9),
    ranks=st.sampled_from([1, 2, 4]),
)
def test_each_step_reads_the_same_in_every_layout_and_from_every_position(
    size: int, seed: int | None, done: int, ranks: int
) -> None:
    """One rank from the beginning, against any number of ranks that begin later."""
    loader = in_order([7 * place for place in range(size)], 4, shuffle_seed=seed)
    whole = read(loader, 0, 1, done + 2)
    assert read(loader, 4 * done, ranks, 2) == whole[done:]
    flat = [pair for step in whole for pair in step]
    assert [number for number, _ in flat] == list(range(len(flat)))
    for epoch in range(len(flat) // size):
        items = [item for _, item in flat[epoch * size : (epoch + 1) * size]]
        assert sorted(items) == [7 * place for place in range(size)]


def test_epochs_are_shuffled_each_in_its_own_way() -> None:
    """The sabotaged twin of the comparison above: another seed gives another order."""
    data = list(range(32))
    orders = [
        [item for _, item in read(in_order(data, 32, shuffle_seed=seed), 0, 1, 2)[epoch]]
        for seed in (1, 2)
        for epoch in (0, 1)
    ]
    assert len({tuple(each) for each in [*orders, data]}) == 5


def test_reading_draws_nothing_from_torch_s_own_stream() -> None:
    """A DataLoader without a generator does, whenever it begins: the sabotaged twin."""
    before = torch.get_rng_state()
    next(iter(in_order([1, 2, 3, 4], 2)(0, 0, 1)))
    assert torch.equal(torch.get_rng_state(), before)
    next(iter(in_order([1, 2, 3, 4], 2, generator=None)(0, 0, 1)))
    assert not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("option", ["batch_size", "shuffle", "sampler"])
def test_an_option_that_would_choose_samples_is_refused(option: str) -> None:
    """By its name."""
    with pytest.raises(InputInvalid, match=option):
        in_order([1], 1, **{option: 1})


def test_an_empty_data_set_is_refused() -> None:
    """It would never give a batch."""
    with pytest.raises(InputInvalid, match="empty"):
        in_order([], 1)
