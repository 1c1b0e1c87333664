"""The baseline of one run, reckoned on: from its newest mark up to when the run was last seen.

Reads the run's marks, its switches and its recent joules; the arithmetic is policies/baseline.py.
Invariant: time is reckoned once. The mark that says up to when stands in the same transaction as
the rows reckoned, so neither a repeat nor a crash nor a stepped clock counts any of it twice.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median

from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.ledger import EmissionRow, TokenMark
from wattmesh.controller.journal.runs import RunRow
from wattmesh.controller.journal.switches import SwitchRow
from wattmesh.policies.baseline import Pace, active, advance, trusted_ratio
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint
from wattmesh.reconfig.switch import FINAL, SwitchState
from wattmesh.telemetry.ledger import EnergyRow, SlotGrid
from wattmesh.telemetry.readings import Component, component_of

BASELINE = "baseline"
UNPRICED = "unpriced"

RECENT_SWITCHES = 5
RECENT_SLOTS = 24
"""Speed and watts are compared with the catalogue's over so many slots at most, the newest."""

FEWEST_SLOTS = 3
"""The median of fewer is not robust against one slot that a stepped clock made too full."""

PriceRow = Callable[[EmissionRow, EmissionRow | None], EmissionRow]
"""Gives a row its price; the second is the row as it was held until now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Time that a run spent at one point, between switches."""

    point: OperatingPoint
    start: datetime
    end: datetime


class Reckoner:
    """Brings the baselines of runs up to date."""

    def __init__(self, journal: Journal, grid: SlotGrid, signal: str, price_row: PriceRow) -> None:
        """Keep the journal, the slots, the accounting signal, and what gives a row its price."""
        self._journal = journal
        self._grid = grid
        self._signal = signal
        self._price_row = price_row

    def reckon(self, run: RunRow, now: datetime) -> datetime | None:
        """Let a run's baseline run up to when the run was last seen, or to `now` once it finished.

        Returns:
            From when on it was reckoned; None when there is nothing left to do.

        Raises:
            JournalUnavailable: nothing was written; the next call does it.
        """
        catalogue, ledger = run.catalogue, self._journal.ledger
        if catalogue is None or not run.baseline:
            return None
        mark = ledger.newest_mark(run.run)
        trained = ledger.trained(run.run, BASELINE)
        if mark is None and trained:
            return None  # finished so long ago that its marks are gone
        left = self._work(run, catalogue) - trained
        if left <= 0 and mark is not None and mark.tokens == run.tokens:
            return None
        start = mark.at if mark else run.registered_at
        end = now if run.state == "finished" else min(now, run.last_seen_at)
        if end <= start:
            return now
        switches = self._journal.switches.history(run.run, limit=RECENT_SWITCHES)
        speed = mark.speed if mark else 1.0
        if start < run.last_seen_at:  # what the run did since the mark tells of its speed
            speed = self._speed(run, catalogue, switches, min(end, run.last_seen_at), speed)
        rows: list[EmissionRow] = []
        if left > 0:
            drift = self._drift(run, catalogue, switches, now)
            at, rows = self._rows(run, (start, end), left, switches, (speed, drift))
            end = at if sum(row.tokens for row in rows) < left else end
        self._keep(run, rows, (start, end), speed)
        return start

    def _keep(
        self,
        run: RunRow,
        rows: Sequence[EmissionRow],
        span: tuple[datetime, datetime],
        speed: float,
    ) -> None:
        """Write what was reckoned, and up to when, in one transaction."""
        start, end = span
        if end <= start:
            return
        slot_start, slot_end = self._grid.slot(end)
        reached = TokenMark(
            slot_start=slot_start, slot_end=slot_end, tokens=run.tokens, speed=speed, at=end
        )
        self._journal.ledger.mark(run.run, [reached], self._added(run, rows))

    def _work(self, run: RunRow, catalogue: Catalogue) -> int:
        """Give the tokens the baseline must train: as many as the run trains since it registered.

        A finished run has trained all it will; until then it is the whole job.
        """
        first = self._journal.ledger.first_mark(run.run)
        before = first.tokens if first else 0
        whole = run.tokens_total or catalogue.tokens_total
        return (run.tokens if run.state == "finished" else max(whole, run.tokens)) - before

    def _rows(
        self,
        run: RunRow,
        span: tuple[datetime, datetime],
        left: int,
        switches: Sequence[SwitchRow],
        ratios: tuple[float, float],
    ) -> tuple[datetime, list[EmissionRow]]:
        """Give (up to when it was reckoned, what that adds to the rows of its slots)."""
        pace, rows, at = _pace(run), [], span[0]
        for start, stop in active(*span, _outage(run, switches)):
            at = start
            for _, until in self._grid.parts(start, stop):
                done = advance(until - at, pace, left, speed=ratios[0], drift=ratios[1])
                if done.tokens:
                    slot_start, slot_end = self._grid.slot(until - timedelta(microseconds=1))
                    rows.append(self._row(run, slot_start, slot_end, done.tokens, done.energy_mj))
                at += done.used
                left -= done.tokens
                if left <= 0:
                    return at, rows
        return at, rows

    def _row(
        self, run: RunRow, slot_start: datetime, slot_end: datetime, tokens: int, energy_mj: int
    ) -> EmissionRow:
        """Give the unpriced baseline row of a slot."""
        return EmissionRow(
            scenario=BASELINE,
            run=run.run,
            gpu_uuid="",
            slot_start=slot_start,
            slot_end=slot_end,
            signal=self._signal,
            quality=UNPRICED,
            energy_mj=energy_mj,
            g_milli_per_kwh=None,
            carbon_ug=None,
            first_carbon_ug=None,
            tokens=tokens,
        )

    def _added(self, run: RunRow, rows: Sequence[EmissionRow]) -> list[EmissionRow]:
        """Add rows to those that the ledger holds of the same slots, and price the sums."""
        if not rows:
            return []
        last = rows[-1].slot_end
        known = self._journal.ledger.emissions(run.run, rows[0].slot_start, last, BASELINE)
        held = {row.slot_start: row for row in known}
        sums = dict(held)
        for row in rows:
            before = sums.get(row.slot_start, replace(row, tokens=0, energy_mj=0))
            sums[row.slot_start] = replace(
                before,
                tokens=before.tokens + row.tokens,
                energy_mj=(before.energy_mj or 0) + (row.energy_mj or 0),
            )
        changed = [row for start, row in sums.items() if row != held.get(start)]
        return [self._price_row(row, held.get(row.slot_start)) for row in changed]

    def _speed(
        self,
        run: RunRow,
        catalogue: Catalogue,
        switches: Sequence[SwitchRow],
        end: datetime,
        before: float,
    ) -> float:
        """Give measured over catalogue speed; the one before until it is steady after a switch.

        Measured: tokens over time since the stay began, checkpoints and pauses included as in the
        catalogue; what the run itself reports, a rate of steps, only until a slot has passed.
        """
        settling = timedelta(seconds=catalogue.switch.layout_s)
        here = run.point
        start = max([run.incarnation_at, *(_end(each, end) + settling for each in switches[:1])])
        if here is None or end < start:
            return before
        measured = run.tokens_per_s
        window = timedelta(seconds=self._grid.interval_s)
        marks = self._journal.ledger.token_marks(run.run, max(start, end - RECENT_SLOTS * window))
        if marks and end - marks[0].at >= window:
            passed_s = (end - marks[0].at).total_seconds()
            measured = max(0.0, (run.tokens - marks[0].tokens) / passed_s)
        return trusted_ratio(measured, here.tokens_per_s, before)

    def _drift(
        self, run: RunRow, catalogue: Catalogue, switches: Sequence[SwitchRow], now: datetime
    ) -> float:
        """Give measured over catalogue watts where the run is, or was before its newest switch.

        Only whole slots count in which the run stayed at one point and every joule was seen.
        """
        counters = self._journal.ledger.baselines()
        booked = min((counters[gpu].at for gpu in run.gpus if gpu in counters), default=None)
        for stay in _stays(run, catalogue, switches, now) if booked else ():
            power_w = catalogue.held_power_w(stay.point, max(run.world_size, stay.point.gpus))
            end = min(stay.end, booked or stay.end)
            start = max(stay.start, end - timedelta(seconds=self._grid.interval_s * RECENT_SLOTS))
            rows = self._journal.ledger.energy(start, end, run.run)
            watts = _watts([row for row in rows if row.slot_end <= end], len(run.gpus))
            if len(watts) >= FEWEST_SLOTS:
                return trusted_ratio(median(watts), power_w, 1.0)
        return 1.0


def _pace(run: RunRow) -> Pace:
    """Give the submitted point."""
    assert run.catalogue is not None  # `reckon` asked
    point = run.catalogue.point(run.baseline)
    held = max(run.world_size, point.gpus)
    return Pace(tokens_per_s=point.tokens_per_s, power_w=run.catalogue.held_power_w(point, held))


def _outage(run: RunRow, switches: Sequence[SwitchRow]) -> tuple[datetime, datetime] | None:
    """Give the newest outage that we did not cause; one that begins in a switch is ours."""
    began = run.outage_from
    if began is None:
        return None
    for each in switches:
        begun = each.state not in (SwitchState.ORDERED, SwitchState.ABANDONED)
        if begun and each.created_at <= began <= _end(each, began):
            return None
    return began, run.incarnation_at


def _stays(
    run: RunRow, catalogue: Catalogue, switches: Sequence[SwitchRow], now: datetime
) -> Iterator[Stay]:
    """Give the newest stays of the newest launch, newest first."""
    settling = timedelta(seconds=catalogue.switch.layout_s)
    here, end = run.point, run.finished_at or now
    points = {point.id: point for point in catalogue.points}
    for each in switches:
        start = _end(each, now) + settling
        if here is not None and run.incarnation_at <= start < end:
            yield Stay(point=here, start=start, end=end)
        here, end = points.get(each.from_point), min(end, each.created_at)
    if here is not None and len(switches) < RECENT_SWITCHES and run.incarnation_at < end:
        yield Stay(point=here, start=run.incarnation_at, end=end)


def _end(switch: SwitchRow, now: datetime) -> datetime:
    """Give when a switch ended; an open one has not."""
    return switch.updated_at if switch.state in FINAL else max(now, switch.updated_at)


def _watts(rows: Sequence[EnergyRow], gpus: int) -> list[float]:
    """Give the watts of every slot in which all of a run's GPUs were seen all the time.

    Processors and memory that are charged to the run count as well: what it is measured at.
    """
    slots: dict[datetime, list[EnergyRow]] = {}
    for row in rows:
        slots.setdefault(row.slot_start, []).append(row)
    watts = []
    for parts in slots.values():
        whole = all(row.energy_mj is not None and not row.unobserved_ms for row in parts)
        seen = sum(component_of(row.gpu_uuid) is Component.GPU for row in parts)
        if whole and seen == gpus and all(row.line == "run" for row in parts):
            seconds = (parts[0].slot_end - parts[0].slot_start).total_seconds()
            watts.append(sum(row.energy_mj or 0 for row in parts) / 1000 / seconds)
    return watts
