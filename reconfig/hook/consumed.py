"""Checks that the ranks trained on the run's next samples, each equally often, between two saves.

torch does not notice when one rank reads the wrong data: gradients are averaged all the same. So
every rank may report the numbers of the samples that its loader gave it (their indices in the run's
data order, which is the same in every layout). At a save step the sum of hashes over all ranks must
equal the sum over the run's next samples, times the number of ranks that share a sample (tp, cp and
pp).

Invariant: a rank keeps and sends a few integers, however many samples there are. A skipped,
repeated, shifted or foreign sample changes the sum with probability 1 - 2^-64.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_MASK = (1 << 64) - 1


@dataclass(slots=True)
class Consumed:
    """What one rank's steps used since the last check.

    Attributes:
        since: how many samples the run had consumed at the last check.
        count, total: how many sample numbers were reported, and the sum of their hashes mod 2^64.
        lowest, highest: the smallest and largest number; they show which rank reads the wrong data.
    """

    since: int = 0
    count: int = 0
    total: int = 0
    lowest: int = -1
    highest: int = -1

    def begin(self, samples: int) -> None:
        """Begin a new interval; the run has consumed `samples` by now."""
        self.since, self.count, self.total, self.lowest, self.highest = samples, 0, 0, -1, -1

    def add(self, numbers: "Iterable[int] | torch.Tensor") -> None:
        """Add the numbers of the samples that one step used on this rank."""
        found = np.asarray(_plain(numbers), dtype=np.int64).reshape(-1)
        if found.size == 0:
            return
        low, high = int(found.min()), int(found.max())
        self.lowest = low if self.count == 0 else min(low, self.lowest)
        self.highest = max(high, self.highest)
        self.count += found.size
        self.total = (self.total + _sum_of_hashes(found)) & _MASK

    def to_json(self) -> dict[str, Any]:
        """Return what ranks compare; the sum is text, because JSON numbers do not hold 64 bits."""
        return {
            "since": self.since,
            "count": self.count,
            "total": str(self.total),
            "lowest": self.lowest,
            "highest": self.highest,
        }


def problem(facts: Sequence[dict[str, Any]], ranks: Sequence[int], samples: int) -> str:
    """Say what is wrong with the data of the steps since the last check; "" when nothing is.

    Args:
        facts: every rank's `Consumed.to_json`, in group order.
        ranks: the global ranks, in the same order.
        samples: how many samples the run has consumed by now.
    """
    count = sum(fact["count"] for fact in facts)
    if count == 0:
        return ""
    since = int(facts[0]["since"])
    expected = f"samples {since} to {samples - 1}, each on as many ranks as any other"
    strangers = [
        f"rank {rank} read samples {fact['lowest']} to {fact['highest']}"
        for rank, fact in zip(ranks, facts, strict=True)
        if fact["count"] and not since <= fact["lowest"] <= fact["highest"] < samples
    ]
    if strangers:
        return f"{', '.join(strangers)}; the steps since the last check were for {expected}"
    times, rest = divmod(count, max(samples - since, 1))
    total = sum(int(fact["total"]) for fact in facts) & _MASK
    whole = _sum_of_hashes(np.arange(since, samples, dtype=np.int64))
    if rest or total != (times * whole) & _MASK:
        counts = ", ".join(
            f"rank {rank} {fact['count']}" for rank, fact in zip(ranks, facts, strict=True)
        )
        return (
            f"the ranks read {count} samples since the last check ({counts}), which are not "
            f"{expected}"
        )
    return ""


def _plain(numbers: "Iterable[int] | torch.Tensor") -> Any:
    if isinstance(numbers, torch.Tensor):
        return numbers.detach().cpu().numpy()
    return numbers if isinstance(numbers, (range, list, tuple, np.ndarray)) else list(numbers)


def _sum_of_hashes(numbers: NDArray[np.int64]) -> int:
    """Sum splitmix64 (Steele, Lea, Flood, OOPSLA 2014) of every number, modulo 2^64."""
    value = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
    return int(value.sum(dtype=np.uint64))
