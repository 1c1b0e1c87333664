"""A run's past, for its other scenarios: where it was, when it paused, what it drew.

It only reads the journal. Invariant: a point is measured only in time in which the run was at it
undisturbed: not during a switch of ours, nor until its speed was steady again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from wattmesh.controller.journal.database.values import MICROSECOND
from wattmesh.controller.journal.energy.by_slot import SlotPower
from wattmesh.controller.journal.energy.ledger import TokenMark
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.policies.accounting.baseline import (
    EDGE_SLOTS,
    RECENT_SLOTS,
    MeasuredSlot,
    PointPace,
    Span,
    Stretch,
    active,
    measured_pace,
)
from wattmesh.policies.accounting.point_ratio import SteadySlot
from wattmesh.reconfig.catalogue import Catalogue
from wattmesh.telemetry.energy.ledger import SlotGrid
from wattmesh.telemetry.energy.unobserved import PATIENCE
from wattmesh.telemetry.readings import SPREAD, Quality

MOST_STRETCHES = 12
"""The most stays over which drift is followed, the newest; each takes a query of the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WholeSlot:
    """A whole slot at one point. `power`: None where not all of its joules were measured."""

    start: datetime
    end: datetime
    tokens: int
    tokens_s: float
    power: SlotPower | None

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end - self.start).total_seconds()


class RunHistory:
    """One run's past, for one cycle."""

    def __init__(
        self,
        journal: Journal,
        run: RunRow,
        catalogue: Catalogue,
        grid: SlotGrid,
        *,
        until: datetime,
        heard: datetime,
    ) -> None:
        """Read where the run was and when it was launched; joules are read when they are needed.

        Args:
            journal: its past is read from here.
            run: whose past.
            catalogue: its points.
            grid: slots.
            until: up to when the past is known.
            heard: when it was last heard, at most `until`: a slot in which it ended is not whole.
        """
        self._journal = journal
        self._run = run
        self._grid = grid
        self._until = until
        self._heard = heard
        self._settling = timedelta(seconds=catalogue.switch.layout_s)
        self._stays = journal.stays.of(run.run)
        self._launches = journal.stays.launches(run.run)
        self._points = [catalogue.find(each.layout, each.clock_mhz) for each in self._stays]
        self._slots: dict[datetime, tuple[_WholeSlot, ...]] = {}
        self._covered: Mapping[str, Sequence[Span]] | None = None

    def active_s(self, start: datetime, end: datetime) -> float:
        """Give the seconds in which the baseline's clock runs: all but outages."""
        return active((start, end), self._outages())

    def lived_s(self, start: datetime, end: datetime) -> float:
        """Give the seconds in which a launch was live, whoever ended the others."""
        gaps = ((before.end, after.start) for before, after in pairwise(self._launches))
        return active((start, end), gaps)

    def _outages(self) -> Iterator[Span]:
        """Give the time between two launches, unless we caused it."""
        for before, after in pairwise(self._launches):
            if not before.ours and not self._switching_at(before.end):
                yield before.end, after.start

    def _switching_at(self, moment: datetime) -> bool:
        newest = [each for each in self._stays if each.at <= moment]
        return bool(newest) and newest[-1].switching

    def known_tokens(self, start: datetime, end: datetime) -> list[tuple[datetime, int]]:
        """Give (moment, tokens) for each moment in (start, end) at which progress is known."""
        return [(each.at, each.tokens) for each in self._stays if start < each.at < end]

    def stretches(self) -> list[Stretch]:
        """Give the time at known points, undisturbed and steady, in time order.

        Empty for a run of an earlier version, which did not record where it was.
        """
        found: list[Stretch] = []
        if not self._stays:
            return found
        settled = datetime.min.replace(tzinfo=self._until.tzinfo)
        ends = [each.at for each in self._stays[1:]] + [self._until]
        for stay, point, end in zip(self._stays, self._points, ends, strict=True):
            if stay.switching:
                settled = end + self._settling
            elif point is not None and max(stay.at, settled) < end:
                start = max(stay.at, settled)
                joined = found and found[-1].point == point.id and found[-1].end == start
                if joined:
                    start = found.pop().start
                found.append(Stretch(point=point.id, start=start, end=end))
        return found

    def point_in(self, start: datetime, end: datetime) -> str:
        """Name the point at which the run was throughout [start, end); "" where it was not.

        An outage that we caused is no time at a point: the baseline trains during it.
        """
        if self.lived_s(start, end) < self.active_s(start, end):
            return ""
        for each in self.stretches():
            if each.start <= start and end <= each.end:
                return each.point
        return ""

    def measured(self, point: str) -> tuple[PointPace, datetime] | None:
        """Give the newest measurement of a point, and when the run left it; None: there is none."""
        for each in reversed(self.stretches()):
            if each.point == point:
                pace = measured_pace(self.slots(each))
                if pace is not None:
                    return pace, each.end
        return None

    def since(self, moment: datetime) -> list[Stretch]:
        """Give the stretches that began at `moment` or later."""
        return [each for each in self.stretches() if each.start >= moment][-MOST_STRETCHES:]

    def slots(self, stretch: Stretch) -> tuple[MeasuredSlot, ...]:
        """Give measured whole slots of a stretch in time order: its first and its newest."""
        return tuple(
            MeasuredSlot(
                tokens=each.tokens,
                tokens_s=each.tokens_s,
                power_w=each.power.energy_mj / 1000 / each.seconds,
                upper_w=(each.power.energy_mj + each.power.upper_mj) / 1000 / each.seconds,
                quality=each.power.quality,
            )
            for each in self._trained(stretch)
            if each.power is not None
        )

    def steady(self, stretch: Stretch) -> tuple[SteadySlot, ...]:
        """Give the same slots, and those whose joules are not all measured, without their watts."""
        return tuple(map(_steady, self._trained(stretch)))

    def _trained(self, stretch: Stretch) -> tuple["_WholeSlot", ...]:
        if stretch.start not in self._slots:
            self._slots[stretch.start] = tuple(self._read(stretch))
        return self._slots[stretch.start]

    def _read(self, stretch: Stretch) -> Iterator["_WholeSlot"]:
        """Read the slots of a stretch that are whole and booked."""
        whole = [
            (start, until)
            for start, until in self._grid.parts(stretch.start, stretch.end)
            if self._grid.slot(start) == (start, until)
        ]
        # Joules of the newest slot may still be on their way, and the run may have ended in it.
        known = min(self._booked(), self._heard)
        whole = [each for each in whole if each[1] <= known]
        chosen = [*whole[:EDGE_SLOTS], *whole[EDGE_SLOTS:][-RECENT_SLOTS:]]
        if not chosen:
            return
        powers: dict[Span, SlotPower] = {}
        for part in (chosen[:EDGE_SLOTS], chosen[EDGE_SLOTS:]):
            if part:
                powers |= self._journal.by_slot.powers(self._run.run, part[0][0], part[-1][1])
        two_before = self._slot_before(self._slot_before(chosen[0][0]))
        told = self._journal.ledger.token_marks(self._run.run, two_before)
        marks = {
            (after.slot_start, after.slot_end): (before, after) for before, after in pairwise(told)
        }
        for start, until in chosen:
            power, mark = powers.get((start, until)), marks.get((start, until))
            if mark is None:
                continue
            if power is not None and (power.gpus < self._gpus_at(start) or SPREAD in power.quality):
                power = None  # not of all its GPUs, or some of its joules are of other points
            before, after = mark
            if before.at < stretch.start:
                continue  # some of its tokens were trained at another point
            if before.tokens <= self._tokens_at_launch(start, told):
                continue  # its launch still loaded or compiled in this slot
            seconds = (until - start).total_seconds()
            if self.lived_s(start, until) < seconds:
                continue  # its joules cover less time than the slot
            yield _WholeSlot(
                start=start,
                end=until,
                tokens=after.tokens - before.tokens,
                tokens_s=self.active_s(before.at, after.at),
                power=power,
            )

    def _slot_before(self, slot_start: datetime) -> datetime:
        return self._grid.slot(slot_start - MICROSECOND)[0]

    def _booked(self) -> datetime:
        """Give up to when the joules of all its GPUs are booked, ignoring those that lag far."""
        if self._covered is None:
            self._covered = self._journal.coverage.covered()
        covered = self._covered
        newest = [max(end for _, end in covered[gpu]) for gpu in self._run.gpus if gpu in covered]
        reached = [until for until in newest if self._until - until <= PATIENCE]
        return min([self._until, *reached])

    def _tokens_at_launch(self, moment: datetime, marks: Sequence[TokenMark]) -> int:
        """Give the run's tokens when the launch of a moment began, or as first known after that."""
        begun = [each.start for each in self._launches if each.start <= moment][-1:]
        told = [each.tokens for each in self._stays if [each.at] == begun]
        told += [each.tokens for each in marks if begun and each.at >= begun[0]]
        return told[0] if told else 0

    def _gpus_at(self, moment: datetime) -> int:
        held = [each for each in self._launches if each.start <= moment] or self._launches[:1]
        gpus = held[-1].gpus if held else ()
        return len({*gpus} - {""}) + sum(each == "" for each in gpus)


def _steady(slot: _WholeSlot) -> SteadySlot:
    """Leave out watts of which some were nobody's, dark, or assumed: they are no measurement."""
    power, read = slot.power, False
    if power is not None:
        read = power.upper_mj == 0 and Quality.ESTIMATED not in power.quality
    return SteadySlot(
        start=slot.start,
        end=slot.end,
        tokens=slot.tokens,
        tokens_s=slot.tokens_s,
        power_w=power.energy_mj / 1000 / slot.seconds if power and read else None,
        quality=power.quality if power and read else "",
    )
