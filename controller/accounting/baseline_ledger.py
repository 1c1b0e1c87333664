"""The other scenarios of one run, kept up to date: its baseline, and the best single point.

Reads where the run was, its launches, its marks and its joules; the arithmetic is in
policies/accounting/baseline.py. Invariant: the rows of a slot follow from what is known of it, and
are written in one transaction with the mark that says how far the run was; so a repeat, a crash or
a stepped clock counts nothing twice.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from wattmesh.controller.accounting.run_history import RunHistory
from wattmesh.controller.accounting.scopes import meter_scope
from wattmesh.controller.journal.energy.ledger import EmissionRow, TokenMark
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_row import AWAY, LIVES
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.policies.accounting.baseline import (
    PointPace,
    ReferenceSlot,
    SlotFacts,
    SlotKind,
    drift,
    reference,
)
from wattmesh.reconfig.catalogue import Catalogue
from wattmesh.telemetry.energy.ledger import SlotGrid
from wattmesh.telemetry.energy.unobserved import PATIENCE

BASELINE = "baseline"
BEST_SINGLE = "best_single"
UNPRICED = "unpriced"

MICROSECOND = timedelta(microseconds=1)

PriceRow = Callable[[EmissionRow, EmissionRow | None], EmissionRow]
"""Gives a row its price; the second argument is the row as stored before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """What one cycle knows of a run.

    Attributes:
        first: how far it was when it first registered. `since`: rows from here on are made again.
        until: when the run was last heard; if it has ended, its baseline goes on alone after that.
        horizon: up to when slots are the run's: now while it is live, else to its newest joules; or
            into a slot that a node whose clock is ahead has begun.
    """

    run: RunRow
    catalogue: Catalogue
    history: RunHistory
    marks: tuple[TokenMark, ...]
    first: TokenMark
    since: datetime
    until: datetime
    horizon: datetime
    now: datetime

    @property
    def lives(self) -> bool:
        """Whether it may train on; a baseline's clock never stops for a sleep."""
        return self.run.state in LIVES


class BaselineLedger:
    """Brings the other scenarios of runs up to date."""

    def __init__(self, journal: Journal, grid: SlotGrid, signal: str, price_row: PriceRow) -> None:
        """Keep the journal, the slots, the accounting signal, and what gives a row its price."""
        self._journal = journal
        self._grid = grid
        self._signal = signal
        self._price_row = price_row

    def update(self, run: RunRow, now: datetime, *, anew: bool = False) -> bool:
        """Bring a run's other scenarios up to when it was last seen, and further while they lag.

        Args:
            run: whose scenarios.
            now: the wall clock.
            anew: slots may be cut differently than when its rows were made; rows are made again
                from the first such slot on.

        Returns:
            Whether a later cycle may have more to do.

        Raises:
            JournalUnavailable: nothing was written; the next call does it.
        """
        if run.catalogue is None or not run.baseline:
            return False
        turn = self._turn(run, run.catalogue, now, anew=anew)
        if turn is None:
            return True
        marks = list(self._reached(turn))
        held = {
            (each.scenario, each.slot_start, each.slot_end): each
            for each in self._journal.ledger.emissions(run.run, turn.since)
            if each.scenario in (BASELINE, BEST_SINGLE)
        }
        rows, behind = [], False
        for scenario, point in ((BASELINE, run.baseline), (BEST_SINGLE, run.best_single)):
            if point:
                made, left = self._scenario(turn, marks, scenario, point)
                rows += [self._row(turn, scenario, each) for each in made]
                behind = behind or left > 0
                behind = behind or any(each.kind == SlotKind.ASSUMED for each in made)
        priced = [
            self._price_row(row, held.get((row.scenario, row.slot_start, row.slot_end)))
            for row in rows
        ]
        self._journal.ledger.mark(run.run, marks, turn.since, priced)
        # A further mark may complete a slot that could not be measured in this cycle.
        further = any(each not in turn.marks for each in marks)
        return run.finished_at is None or behind or further

    def _turn(
        self, run: RunRow, catalogue: Catalogue, now: datetime, *, anew: bool
    ) -> _Turn | None:
        """Read what a cycle needs; None where nothing can be computed now."""
        ledger = self._journal.ledger
        marks = ledger.newest_marks(run.run, 2)
        first = ledger.first_mark(run.run)
        if first is None or not marks:
            return None
        until = max(min(now, run.finished_at or _known_until(run, now)), first.at)
        since = self._slot_before(marks[-1].at, first.at)[0]
        if self._slot_before(until, first.at)[0] < since:
            return None  # the wall clock was stepped back: time passed twice counts once
        horizon = max(until, self._horizon(run, now))
        history = RunHistory(self._journal, run, catalogue, self._grid, until=horizon, heard=until)
        assumed = ledger.first_slot_of_kind(run.run, SlotKind.ASSUMED)
        starts = [since]
        if assumed is not None and assumed < since and history.measured(run.baseline):
            starts.append(self._grid.slot(assumed)[0])
        if anew:
            cut = (
                each for each in ledger.scenario_spans(run.run) if self._grid.slot(each[0]) != each
            )
            starts += [self._grid.slot(start)[0] for start, _ in cut]
        if min(starts) < since:
            since, marks = min(starts), ledger.token_marks(run.run)
        return _Turn(
            run=run,
            catalogue=catalogue,
            history=history,
            marks=marks,
            first=first,
            since=since,
            until=until,
            horizon=horizon,
            now=now,
        )

    def _horizon(self, run: RunRow, now: datetime) -> datetime:
        """Give up to when slots are the run's own.

        Joules may arrive after a launch was last heard. From a node whose clock is ahead, they may
        arrive before their slot has begun here.
        """
        newest = self._journal.ledger.newest_energy(run.run)
        if newest is None:
            return now if run.state in LIVES else run.last_seen_at
        if now <= newest < now + PATIENCE:
            return newest + MICROSECOND
        return now if run.state in LIVES else min(now, self._grid.slot(newest)[1])

    def _slot_before(self, moment: datetime, first: datetime) -> tuple[datetime, datetime]:
        """Give the slot that ends at or holds `moment`; at the earliest that of `first`."""
        return self._grid.slot(max(moment - MICROSECOND, first))

    def _reached(self, turn: _Turn) -> Iterator[TokenMark]:
        """Give how far the run was at the end of each slot, from `since` to when it was last heard.

        A slot in which it was not observed, or not up to its end, gets its share, by time, of what
        was trained around it.
        """
        looked = {(mark.slot_start, mark.slot_end): mark for mark in turn.marks}
        begin = max(turn.since, turn.first.at)
        last = self._slot_before(turn.until, turn.first.at)[0]
        known = [(mark.at, mark.tokens) for mark in turn.marks]
        known += [(turn.first.at, turn.first.tokens), (turn.until, turn.run.tokens)]
        known += turn.history.known_tokens(begin, turn.until)
        for _, end in self._grid.parts(begin, max(begin, turn.until)):
            slot_start, slot_end = self._slot_before(end, turn.first.at)
            mark, at = looked.get((slot_start, slot_end)), end
            if slot_start == last:
                tokens, at = turn.run.tokens, turn.until
            elif mark is not None and mark.at >= end:
                tokens, at = mark.tokens, mark.at
            else:
                tokens = self._tokens_at(turn, sorted(known), end)
            yield TokenMark(slot_start=slot_start, slot_end=slot_end, tokens=tokens, at=at)

    def _tokens_at(
        self, turn: _Turn, known: Sequence[tuple[datetime, int]], moment: datetime
    ) -> int:
        before = [each for each in known if each[0] <= moment][-1]
        after = [each for each in known if each[0] > moment]
        if not after:
            return before[1]
        whole_s = turn.history.lived_s(before[0], after[0][0])
        part_s = turn.history.lived_s(before[0], moment)
        share = part_s / whole_s if whole_s else 0.0
        return before[1] + round((after[0][1] - before[1]) * share)

    def _scenario(
        self, turn: _Turn, marks: Sequence[TokenMark], scenario: str, point: str
    ) -> tuple[list[ReferenceSlot], int]:
        """Give the rows of one scenario, and the tokens it has still to train to match the run."""
        before = self._journal.ledger.trained(turn.run.run, scenario, turn.since)
        work = turn.run.tokens - turn.first.tokens
        whole = max(turn.run.tokens_total or turn.catalogue.tokens_total, turn.run.tokens)
        left = (whole - turn.first.tokens if turn.lives else work) - before
        slots = list(self._slots(turn, marks))
        pace = self._pace(turn, point)
        rows = reference(point, slots, pace, left)
        if not turn.lives:
            left_at_end = work - before - sum(each.tokens for each in rows)
            if left_at_end > 0:  # it trains on after the run's end, from the run's last slot on
                rows = reference(point, self._alone(turn, slots), pace, work - before, alone=True)
        return rows, work - before - sum(each.tokens for each in rows)

    def _slots(self, turn: _Turn, marks: Sequence[TokenMark]) -> Iterator[SlotFacts]:
        """Give the slots in which the run itself was live, from `since` on."""
        begin = max(turn.since, turn.first.at)
        tokens = {mark.slot_start: mark.tokens for mark in marks}
        before = max(
            (each for each in turn.marks if each.slot_end <= turn.since or each == turn.first),
            key=lambda each: each.at,
            default=turn.first,
        ).tokens
        heard = turn.horizon if turn.lives else turn.until
        for at, until in self._grid.parts(begin, max(begin, turn.horizon)):
            slot_start, slot_end = self._grid.slot(at)
            reached = tokens.get(slot_start, before)
            yield SlotFacts(
                start=slot_start,
                end=slot_end,
                active_s=turn.history.active_s(at, min(until, max(at, heard))),
                tokens=reached - before,
                here=turn.history.point_in(max(slot_start, turn.first.at), until),
            )
            before = reached

    def _alone(self, turn: _Turn, slots: Sequence[SlotFacts]) -> Iterator[SlotFacts]:
        """Give the slots again, but without the run from its last slot on."""
        start, end = self._slot_before(turn.until, turn.first.at)
        yield from (each for each in slots if each.start < start)
        begin = max(start, turn.first.at)
        ran_s = turn.history.active_s(begin, turn.until)
        rest_s = max(0.0, (min(end, turn.now) - turn.until).total_seconds())
        yield SlotFacts(start=start, end=end, active_s=ran_s + rest_s)
        if end < turn.now:
            for at, until in self._grid.parts(end, turn.now):
                seconds = (until - at).total_seconds()
                slot_start, slot_end = self._grid.slot(at)
                yield SlotFacts(start=slot_start, end=slot_end, active_s=seconds)

    def _pace(self, turn: _Turn, point: str) -> PointPace:
        """Give the pace of a point: what it trains and draws.

        As measured at the point; else the baseline's measurement, scaled by what the catalogue says
        of both; else as the catalogue says, which is assumed.
        """
        history, catalogue, run = turn.history, turn.catalogue, turn.run
        target = catalogue.point(point)
        held_w = catalogue.held_power_w(target, max(run.world_size, target.gpus))
        for anchor in dict.fromkeys((point, run.baseline)):
            found = history.measured(anchor)
            if found is None:
                continue
            measured, left_at = found
            changed = drift(history.since(left_at), history.slots)
            measured = measured.drifted(changed.tokens_per_s, changed.power_w)
            if anchor == point:
                return measured
            other, meters = catalogue.point(anchor), meter_scope(self._journal, run)
            target_w, other_w = (
                catalogue.comparable_power_w(each, max(run.world_size, each.gpus), meters)
                for each in (target, other)
            )
            if target_w is not None and other_w:
                return measured.scaled(target.tokens_per_s / other.tokens_per_s, target_w / other_w)
        return PointPace(
            tokens_per_s=target.tokens_per_s, power_w=held_w, upper_w=held_w, assumed=True
        )

    def _row(self, turn: _Turn, scenario: str, slot: ReferenceSlot) -> EmissionRow:
        return EmissionRow(
            scenario=scenario,
            run=turn.run.run,
            gpu_uuid="",
            slot_start=slot.start,
            slot_end=slot.end,
            signal=self._signal,
            quality=UNPRICED,
            energy_mj=slot.energy_mj,
            g_milli_per_kwh=None,
            carbon_ug=None,
            first_carbon_ug=None,
            tokens=slot.tokens,
            line=slot.kind,
            upper_mj=slot.upper_mj,
            energy_quality=slot.quality,
        )


def _known_until(run: RunRow, now: datetime) -> datetime:
    """Give up to when it is known what a run trained that has not ended; away, nothing."""
    return now if run.state in AWAY else run.last_seen_at
