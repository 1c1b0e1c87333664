"""Which switches a profile measures beyond those to points without numbers. Pure.

`tour`: every measured point is gone to once more, in the order of the job file: as many warm
switches as points. `all`: every ordered pair of layouts, cold and, where asked, warm. A launch can
build a layout for the first time only once and begins in the reference, so a launch measures at
most one cold switch to each other layout, and none to the reference is ever cold.

Invariant: a pair that is measured, closed, or was tried in this launch is not wanted again; what is
wanted shrinks with every switch but those that lead to the next pair.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from wattmesh.controller.profile.job import Candidate, ProfileJob, SwitchPairs
from wattmesh.controller.profile.results import ProfileState
from wattmesh.reconfig.layout import Layout

Pair = tuple[str, str]


class SwitchOrder(Protocol):
    """What says where a launch goes for the sake of the switch there."""

    def next(
        self, here: Candidate, built: Collection[Layout], known: ProfileState
    ) -> Candidate | None:
        """Choose the next point to go to; None where no switch is wanted.

        Args:
            here: where the job is.
            built: layouts that this launch has built.
            known: what was measured.
        """
        ...

    def add(self, point: Candidate) -> None:
        """Take in a point that was proposed."""
        ...

    def tried(self, origin: str, target: str, *, cold: bool) -> None:
        """Note a switch, by the ids of its points: it is wanted no more in this launch."""
        ...


def order_of(job: ProfileJob) -> SwitchOrder:
    """Give the order that a job file asks for, for one launch."""
    if job.pairs is SwitchPairs.ALL:
        return AllPairs(job.walk, job.reference, warm=job.warm_switches)
    return OnceMore(job.walk if job.warm_switches and len(job.points) > 1 else ())


class OnceMore:
    """Every measured point once more, in order."""

    def __init__(self, points: Iterable[Candidate]) -> None:
        """Keep the points."""
        self._left = deque(points)

    def next(
        self, here: Candidate, built: Collection[Layout], known: ProfileState
    ) -> Candidate | None:
        """Choose the next one that has numbers and another layout."""
        while self._left:
            point = self._left.popleft()
            if known.point(point.id) is not None and point.layout != here.layout:
                return point
        return None

    def add(self, point: Candidate) -> None:
        """Go to it last."""
        if self._left:
            self._left.append(point)

    def tried(self, origin: str, target: str, *, cold: bool) -> None:
        """Go on with the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsWanted:
    """Ordered pairs, by ids, that are still to be measured."""

    cold: frozenset[Pair]
    warm: frozenset[Pair]

    @property
    def count(self) -> int:
        """How many switches."""
        return len(self.cold) + len(self.warm)


class AllPairs:
    """Every ordered pair of layouts."""

    def __init__(self, points: Sequence[Candidate], reference: str, *, warm: bool) -> None:
        """Keep the points; `warm`: whether warm switches are wanted as well."""
        self._points, self._reference, self._warm = list(points), reference, warm
        self._cold, self._again = set[Pair](), set[Pair]()

    def next(
        self, here: Candidate, built: Collection[Layout], known: ProfileState
    ) -> Candidate | None:
        """Choose what measures a pair, or else leads to one."""
        stops = stops_of(self._points, known)
        left = wanted(stops, self._reference, known, warm=self._warm)
        left = PairsWanted(cold=left.cold - self._cold, warm=left.warm - self._again)
        return next_stop(here, stops, built, left, closed=known.closed)

    def add(self, point: Candidate) -> None:
        """Take it in."""
        self._points.append(point)

    def tried(self, origin: str, target: str, *, cold: bool) -> None:
        """Do not want it again in this launch."""
        (self._cold if cold else self._again).add((origin, target))


def switches_left(job: ProfileJob, known: ProfileState) -> int:
    """Count the switches that another launch would measure; 0 unless all pairs are asked for."""
    if job.pairs is not SwitchPairs.ALL:
        return 0
    stops = stops_of(job.walk, known)
    return wanted(stops, job.reference, known, warm=job.warm_switches).count


def stops_of(points: Sequence[Candidate], known: ProfileState) -> tuple[Candidate, ...]:
    """Give one measured point of each layout: a clock alone needs no switch."""
    stops: dict[Layout, Candidate] = {}
    for each in points:
        if known.point(each.id) is not None:
            kept = stops.get(each.layout)
            if kept is None or (kept.clock_mhz is not None and each.clock_mhz is None):
                stops[each.layout] = each
    return tuple(stops.values())


def wanted(
    stops: Sequence[Candidate],
    reference: str,
    known: ProfileState,
    *,
    warm: bool,
) -> PairsWanted:
    """Give the pairs that were not measured yet, without those that the job cannot switch."""
    every = {(one.id, other.id) for one in stops for other in stops if one is not other}
    every -= set(known.closed)
    first = next((each.layout for each in stops if each.id == reference), None)
    begun = {each.id for each in stops if each.layout == first}
    cold = {(each.origin, each.target) for each in known.switches if each.cold}
    again = {(each.origin, each.target) for each in known.switches if not each.cold}
    return PairsWanted(
        cold=frozenset(each for each in every - cold if each[1] not in begun),
        warm=frozenset(every - again) if warm else frozenset(),
    )


def next_stop(
    here: Candidate,
    stops: Sequence[Candidate],
    built: Collection[Layout],
    left: PairsWanted,
    *,
    closed: Collection[Pair] = (),
) -> Candidate | None:
    """Choose where to go: cold pairs first, for only they get fewer with every switch.

    Args:
        here: where the job is.
        stops: one point of each layout.
        built: layouts that this launch has built.
        left: what is wanted.
        closed: switches that fail.
    """
    at = next((each.id for each in stops if each.layout == here.layout), here.id)
    fresh = [each for each in stops if each.layout not in built]
    known = [each for each in stops if each.layout in built]
    for pairs, ends in ((left.cold, fresh), (left.warm, known)):
        onward = {
            each.id: sum((each.id, end.id) in pairs for end in ends if end is not each)
            for each in ends
        }
        ahead = [each for each in ends if (at, each.id) in pairs]
        # What leads to no pair itself is a way only to one that begins elsewhere.
        ways = ahead or [
            each
            for each in ends
            if onward[each.id] and each.id != at and (at, each.id) not in closed
        ]
        if ways:
            return max(ways, key=lambda each: onward[each.id])
    return None
