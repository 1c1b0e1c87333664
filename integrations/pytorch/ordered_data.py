"""A data set read in the order of the run's sample numbers, from any sample on, by any rank.

What a DistributedSampler does, but by position: the global batch of a step holds the same samples
in every layout, and every sample comes with its number, so that the session sees which were read.

Invariant: reading draws nothing from torch's own stream. A DataLoader without a generator takes a
seed from there whenever it begins, so that a run that is resumed would draw other dropout masks.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from wattmesh.errors import InputInvalid

RankLoader = Callable[[int, int, int], Iterable[Any]]
"""`loader(first, rank, ranks)`: the batches of one data parallel rank from a global sample on."""


class NumberedBatch(NamedTuple):
    """A batch, and the numbers of its samples in the run's order."""

    numbers: torch.Tensor
    batch: Any


def in_order(
    data: Any, global_batch: int, *, shuffle_seed: int | None = None, **loading: Any
) -> RankLoader:
    """Return what makes a rank's loader over a map-style data set, without end.

    Args:
        data: has `len(data)` and `data[index]`.
        global_batch: samples of a step, over all ranks.
        shuffle_seed: orders each epoch anew, the same on every rank; None: as they lie.
        loading: passed on to DataLoader: `num_workers`, `collate_fn`, `pin_memory` and the like.

    Raises:
        InputInvalid: the data set is empty, or an option would choose samples otherwise.
    """
    ours = sorted({"batch_size", "batch_sampler", "sampler", "shuffle", "drop_last"} & set(loading))
    if ours:
        raise InputInvalid(f"in_order: {ours[0]} is chosen by the run's order; leave it away.")
    if len(data) < 1:
        raise InputInvalid("in_order: the data set is empty.")
    collate = _Collate(loading.pop("collate_fn", None) or default_collate)

    def loader(first: int, rank: int, ranks: int) -> Iterable[NumberedBatch]:
        options = {"generator": torch.Generator().manual_seed(first * ranks + rank), **loading}
        return DataLoader(
            _InOrder(data, shuffle_seed),
            batch_sampler=_RankNumbers(first, rank, ranks, global_batch),
            collate_fn=collate,
            **options,
        )

    return loader


class _RankNumbers(Sampler[list[int]]):
    """A rank's contiguous part of every global batch, as sample numbers; endless."""

    def __init__(self, first: int, rank: int, ranks: int, global_batch: int) -> None:
        self._each = global_batch // ranks
        self._first, self._batch = first + rank * self._each, global_batch

    def __iter__(self) -> Iterator[list[int]]:
        at = self._first
        while True:
            yield list(range(at, at + self._each))
            at += self._batch


class _InOrder(Dataset[tuple[int, Any]]):
    """The run's samples by number: one epoch after another, each sample once in each."""

    def __init__(self, data: Any, shuffle_seed: int | None) -> None:
        self._data, self._seed = data, shuffle_seed
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def __getitem__(self, number: int) -> tuple[int, Any]:
        epoch, place = divmod(number, len(self._data))
        if self._seed is None:
            return number, self._data[place]
        if epoch != self._epoch:
            drawn = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            self._epoch, self._order = epoch, torch.randperm(len(self._data), generator=drawn)
        return number, self._data[int(self._order[place])]


@dataclass(frozen=True, slots=True)
class _Collate:
    """The script's own collation, beside the numbers."""

    items: Callable[[list[Any]], Any]

    def __call__(self, numbered: list[tuple[int, Any]]) -> NumberedBatch:
        numbers, items = zip(*numbered, strict=True)
        return NumberedBatch(torch.tensor(numbers), self.items(list(items)))
