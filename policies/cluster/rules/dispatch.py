"""Which points fit beside each other in one slot, for rules that do not plan. Pure.

A rule looks at one slot after the other, and at the cap of the slot after it: who has to be slower
then begins now, for the switch itself draws.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from wattmesh.policies.cluster.pricing import FULL
from wattmesh.policies.cluster.share import RunShare, limits, share
from wattmesh.policies.cluster.shared import SharedCluster, SharedRun
from wattmesh.policies.planner.arrays import Floats


@dataclass(slots=True, kw_only=True)
class DispatchedRun:
    """A run under a rule that looks slot by slot.

    Attributes:
        at: option it is at. `left`: tokens. `path`: so far.
        done_s: None while it is not done.
        begun: whether it ever owned a GPU.
    """

    run: SharedRun
    share: RunShare
    at: int
    left: float
    path: list[int]
    done_s: float | None = None
    begun: bool = False

    def trains(self, option: int, seconds: float) -> float:
        """Tokens of a slot at an option, what is lost on the way there subtracted."""
        way = self.run.transitions[self.at][option] if option != self.at else None
        return self.run.options[option].tokens_per_s * (seconds - (way.seconds if way else 0.0))


class SlotRoom:
    """What is left in one slot, and in the one after it.

    What a run holds when the slot begins is kept for it in this slot, until it has chosen.
    """

    def __init__(self, limit: Floats, slot: int, there: Sequence[DispatchedRun]) -> None:
        """Start with all there is, but for what is held."""
        later = limit[min(slot + 1, len(limit) - 1)]
        self._now = limit[slot] * (1 + FULL) + FULL
        self._then = np.minimum(self._now, later * (1 + FULL) + FULL)
        for each in there:
            self._now = self._now - each.share.staying[each.at]

    def chosen(self, each: DispatchedRun, wishes: Iterable[int]) -> int:
        """Give a run the first of its wishes that fits; it stays where it is when none does."""
        self._now = self._now + each.share.staying[each.at]
        option = next((n for n in wishes if self._fits(each, n)), each.at)
        self._take(each, option, 1)
        return option

    def fitting(self, each: DispatchedRun, option: int) -> list[int]:
        """List what a run that chose `option` could go to instead."""
        self._take(each, option, -1)
        found = [n for n in range(len(each.run.options)) if self._fits(each, n)]
        self._take(each, option, 1)
        return found

    def change(self, each: DispatchedRun, old: int, new: int) -> None:
        """Let a run choose again."""
        self._take(each, old, -1)
        self._take(each, new, 1)

    def _fits(self, each: DispatchedRun, option: int) -> bool:
        if option != each.at and each.run.transitions[each.at][option] is None:
            return False
        now, then = _needs(each, option)
        return bool((now <= self._now).all() and (then <= self._then).all())

    def _take(self, each: DispatchedRun, option: int, times: int) -> None:
        now, then = _needs(each, option)
        self._now = self._now - times * now
        self._then = self._then - times * then


def _needs(each: DispatchedRun, option: int) -> tuple[Floats, Floats]:
    """Give what a run takes in this slot, and in the next."""
    staying = each.share.staying[option]
    return (staying if option == each.at else each.share.going[each.at, option]), staying


Choose = Callable[[int, Sequence[DispatchedRun], SlotRoom], dict[str, int]]
"""Gives the option of each run that is there, for one slot."""


def dispatched(
    cluster: SharedCluster, runs: Sequence[SharedRun], choose: Choose
) -> dict[str, DispatchedRun]:
    """Let a rule look at every slot in turn; `runs` in order of arrival."""
    limit, edges_s = limits(cluster), cluster.edges_s
    states = {
        each.name: DispatchedRun(
            run=each,
            share=share(cluster, each, done_by_s=edges_s[-1]),
            at=each.start,
            left=each.tokens,
            path=[],
        )
        for each in runs
    }
    for slot, seconds in enumerate(cluster.seconds):
        there = [each for each in states.values() if each.run.first <= slot and each.done_s is None]
        chosen = choose(slot, there, SlotRoom(limit, slot, there))
        for each in there:
            _spend(each, chosen[each.run.name], edges_s[slot], seconds)
    return states


def _spend(each: DispatchedRun, option: int, now_s: float, seconds: float) -> None:
    trained = each.trains(option, seconds)
    if trained >= each.left * (1 - 1e-12) and trained > 0:
        each.done_s = (
            now_s + seconds - (trained - each.left) / each.run.options[option].tokens_per_s
        )
    each.left = max(0.0, each.left - trained)
    each.path.append(option)
    each.begun = each.begun or each.run.options[option].gpus > 0
    each.at = option
