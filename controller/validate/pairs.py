"""Switches between candidates: a tour that makes every one, and which points may stand together.

A point's own launch goes there from the reference and back. The daemon also switches between two
points, so each ordered pair of them is made once, in one launch, and its state compared to the bit.

Invariant: of the points that are validated, every switch from one to another was made and held. The
daemon knows no pair that it must not use, so a point with a faulty pair is not validated at all.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from wattmesh import quantities
from wattmesh.controller.profile.job import Candidate
from wattmesh.controller.profile.launch import WalkEnd
from wattmesh.controller.validate.launches import ValidationLaunches
from wattmesh.controller.validate.results import PairRow, ValidationProgress
from wattmesh.reconfig.equivalence.script import every_ordered_pair
from wattmesh.reconfig.layout import Layout

MOST_TOURS = 3
"""ValidationLaunches, as one that crashes leaves the rest of its tour to the next."""

Pair = tuple[str, str]


def tour(ids: Sequence[str], missing: Collection[Pair]) -> list[str]:
    """Return a walk through points that makes every missing switch once, and few others."""
    whole = {(one, other) for one in ids for other in ids if one != other}
    if whole and set(missing) == whole:
        return [ids[place] for place in every_ordered_pair(len(ids))]
    left = sorted(missing, key=lambda each: (ids.index(each[0]), ids.index(each[1])))
    walk: list[str] = []
    while left:
        here = walk[-1] if walk else ""
        step = next((each for each in left if each[0] == here), left[0])
        walk += step[int(step[0] == here) :]
        left.remove(step)
    return walk


def standing(ids: Sequence[str], pairs: Collection[PairRow]) -> tuple[list[str], dict[str, str]]:
    """Choose points between which every switch holds, leaving out the one with most faults first.

    Returns:
        The points that stand, in order, and why each other one does not.
    """
    known = {(each.origin, each.target): each for each in pairs}
    kept = list(ids)
    told: dict[str, str] = {}
    while True:
        faults = {each: _faults(each, kept, known) for each in kept}
        # Of two with as many faults the later one goes.
        worst = max(reversed(kept), key=lambda each: len(faults[each]), default="")
        if not worst or not faults[worst]:
            return kept, told
        kept.remove(worst)
        told[worst] = faults[worst][0]


def _faults(point: str, others: Sequence[str], known: Mapping[Pair, PairRow]) -> list[str]:
    found = []
    for other in others:
        for pair in ((other, point), (point, other)) if other != point else ():
            row = known.get(pair)
            if row is None:
                found.append(f"the switch from {pair[0]} to {pair[1]} was not made")
            elif not row.ok:
                found.append(f"the switch from {pair[0]} to {pair[1]} failed: {row.sentence}")
    return found


@dataclass(frozen=True, slots=True)
class Apart:
    """Points by layout: those of one layout have each other's switches."""

    points: tuple[Candidate, ...]

    @classmethod
    def of(cls, points: Sequence[Candidate], proven: Collection[str]) -> "Apart":
        """Choose the first proven point of every layout but the reference's (`points[0]`)."""
        first: dict[Layout, Candidate] = {}
        for each in points:
            if each.id in proven and each.layout != points[0].layout:
                first.setdefault(each.layout, each)
        return cls(tuple(first.values()))

    @property
    def ids(self) -> list[str]:
        """Their ids, in the job file's order."""
        return [each.id for each in self.points]

    def missing(self, progress: ValidationProgress) -> list[Pair]:
        """List the switches between them that nobody has made."""
        known = {(each.origin, each.target) for each in progress.pairs}
        return [
            (one, other)
            for one in self.ids
            for other in self.ids
            if one != other and (one, other) not in known
        ]


def make_pairs(launches: ValidationLaunches, apart: Apart) -> None:
    """Make every missing switch between points, and keep how each ended."""
    reference = launches.place("reference").ran
    for number in range(1, MOST_TOURS + 1):
        missing = apart.missing(launches.progress)
        if not missing:
            return
        by_id = {each.id: each for each in apart.points}
        stops = [launches.job.walk[0], *(by_id[each] for each in tour(apart.ids, missing))]
        launches.tell(_beforehand(launches, apart, len(stops) - 1))
        ended = launches.run(
            launches.folder / f"pairs-{number}",
            launches.asked(sampled=True),
            stops,
            launches.job.every,
        )
        others = reference.differences(launches.place(f"pairs-{number}").ran)
        if others:
            launches.tell(f"its switches do not count: the tour ran on {'; '.join(others)}")
            return
        rows = _rows(launches, f"pairs-{number}", ended, missing)
        progress = launches.progress
        launches.progress = replace(progress, pairs=(*progress.pairs, *rows))
        launches.progress.save(launches.folder)
        if ended.trouble is not None:
            launches.tell(f"a tour ended early: {ended.sentence}")


def _beforehand(launches: ValidationLaunches, apart: Apart, switches: int) -> str:
    """Say how long a tour will take, by the launches of its points."""
    each_s = max(launches.seconds(f"point-{each}") for each in apart.ids) / 2
    about = f", about {quantities.duration(switches * each_s)} at most" if each_s else ""
    return f"{switches} switches between {', '.join(apart.ids)} in one launch{about}"


def _rows(
    launches: ValidationLaunches, name: str, ended: WalkEnd, missing: Collection[Pair]
) -> list[PairRow]:
    """Return how each missing switch ended, as far as this tour made it."""
    walk = launches.walk
    compared = {
        each.step: each
        for each in launches.place(name).files.read_round_trips()
        if each.how == "switch"
    }
    found: dict[Pair, PairRow] = {}
    for origin, target, why in walk.failures:
        found[origin, target] = PairRow(
            origin=origin, target=target, ok=False, sentence=f"the job took it back: {why}"
        )
    for each in walk.arrivals:
        row = compared.get(each.step)
        if row is not None:
            found.setdefault(
                (each.origin, each.target),
                PairRow(
                    origin=each.origin,
                    target=each.target,
                    ok=row.measured == 0,
                    sentence=row.sentence,
                ),
            )
    if ended.trouble is not None and walk.bound_for is not None:
        pair = walk.here.id, walk.bound_for.id
        found.setdefault(
            pair, PairRow(origin=pair[0], target=pair[1], ok=False, sentence=ended.sentence)
        )
    return [found[pair] for pair in missing if pair in found]
