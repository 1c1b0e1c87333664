"""The ledger: joules per (gpu, run, slot), grams per (scenario, gpu, run, slot).

Invariant: rows are absolute and replaced whole, in one transaction with the counters they were
computed from; so a repeat counts nothing twice, and a crash loses nothing that was acknowledged.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from threading import Lock
from typing import Any

from sqlalchemy import Row, exists, func, not_, select

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.prepared import Prepared
from wattmesh.controller.journal.database.tables import (
    CLOSED_RUNS,
    COUNTERS,
    EMISSIONS,
    ENERGY,
    NODE_COUNTERS,
    RUNS,
    TOKEN_MARKS,
)
from wattmesh.controller.journal.database.values import (
    columns,
    from_us,
    to_text,
    to_us,
    upsert,
    with_moments,
)
from wattmesh.controller.journal.energy import ledger_queries as queries
from wattmesh.controller.journal.energy.changes import note
from wattmesh.controller.journal.energy.coverage import extend
from wattmesh.controller.journal.energy.emission_rows import replace_emissions
from wattmesh.controller.journal.energy.sums import Sums, TotalRow
from wattmesh.telemetry.energy.ledger import CounterBaseline, EnergyRow, Span

__all__ = ["EmissionRow", "Intensity", "LedgerStore", "TokenMark", "TotalRow"]

_MARK_TIMES = ("slot_start", "slot_end", "at")

MOST_NAMED = 200
"""The most slots that one statement names: databases limit the parameters of a statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmissionRow:
    """Grams of one slot.

    Attributes:
        scenario: actual | baseline | best_single. `gpu_uuid`: "" in the last two, which have no
            devices.
        carbon_ug: None while the slot has no price; that is never zero.
        line: the line of the energy row it was computed from. In the other scenarios: `as_run`
            (what the run itself drew in this slot; the row has no joules of its own), `modelled`,
            or `assumed` (modelled before anything was measured).
        signal: the signal it is accounted in. `stand_in`: the declared fallback whose scaled value
            was used; "" when the signal's own was.
        quality: of its intensity. `energy_quality`: of its joules.
        pue_milli: joules of the facility for 1000 of its machines, as set when the row was first
            priced; 1000 within the boundary `it`.
        first_carbon_ug: as first reported, before any revision.
        upper_mj: most that was drawn beyond `energy_mj` in unobserved time. `upper_ug`: its grams;
            None while it has no price.
        tokens: trained in the slot (0 in actual rows).
        model: what made an intensity that the signal did not measure; "" when it did.
    """

    scenario: str
    run: str
    gpu_uuid: str
    slot_start: datetime
    slot_end: datetime
    signal: str
    quality: str
    energy_mj: int | None
    g_milli_per_kwh: int | None
    carbon_ug: int | None
    first_carbon_ug: int | None
    tokens: int = 0
    line: str = ""
    pue_milli: int = 1000
    model: str = ""
    stand_in: str = ""
    energy_quality: str = ""
    upper_mj: int = 0
    upper_ug: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """An intensity that some row of a slot was priced with; None for an unpriced row."""

    slot_start: datetime
    slot_end: datetime
    signal: str
    quality: str
    g_milli_per_kwh: int | None
    model: str = ""
    stand_in: str = ""
    pue_milli: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMark:
    """How many tokens a run had trained when it was last observed in a slot, at `at`."""

    slot_start: datetime
    slot_end: datetime
    tokens: int
    at: datetime


class LedgerStore:
    """The energy and emission tables."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database
        self._sums = Sums(database)
        self._booked_us: int | None = None
        self._lock = Lock()

    def book(self, rows: Iterable[EnergyRow], baselines: Iterable[CounterBaseline]) -> None:
        """Replace rows and the counters they came from, in one transaction."""
        energy = [_as_columns(columns(row), "slot_start", "slot_end") for row in rows]
        advanced = tuple(baselines)
        counters = [_as_columns(columns(each), "at") for each in advanced]
        with self._database.writing() as connection:
            upsert(connection, ENERGY, energy)
            upsert(connection, COUNTERS, counters)
            extend(connection, advanced)
            note(connection, (row["slot_start"] for row in energy))
        self.added(row["slot_start"] for row in energy)

    def baselines(self) -> dict[str, CounterBaseline]:
        """Give the counters that were booked up to, by GPU.

        Devices that an agent has read since are left out: what they drew meanwhile is booked.
        """
        later = exists().where(
            NODE_COUNTERS.c.gpu_uuid == COUNTERS.c.gpu_uuid, NODE_COUNTERS.c.at > COUNTERS.c.at
        )
        with self._database.reading() as connection:
            rows = connection.execute(select(COUNTERS).where(not_(later))).all()
        return {
            row.gpu_uuid: CounterBaseline(**{**row._mapping, "at": from_us(row.at)}) for row in rows
        }

    def energy(
        self, start: datetime | None = None, end: datetime | None = None, run: str | None = None
    ) -> tuple[EnergyRow, ...]:
        """List energy rows whose slot begins in [start, end)."""
        query = queries.energy(start=to_us(start), end=to_us(end), of=run)
        with self._database.reading() as connection:
            return tuple(
                EnergyRow(**with_moments(row, "slot_start", "slot_end"))
                for row in connection.execute(*query)
            )

    def emit(self, rows: Iterable[EmissionRow]) -> None:
        """Replace emission rows whole; `first_carbon_ug` carries what was reported first."""
        values = [_as_columns(columns(row), "slot_start", "slot_end") for row in rows]
        with self._database.writing() as connection:
            replace_emissions(connection, values)
            note(connection, (row["slot_start"] for row in values))

    def emissions(
        self,
        run: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        scenario: str | None = None,
    ) -> tuple[EmissionRow, ...]:
        """List emission rows whose slot begins in [start, end)."""
        query = queries.emissions(start=to_us(start), end=to_us(end), of=run, scenario=scenario)
        with self._database.reading() as connection:
            return tuple(
                EmissionRow(**with_moments(row, "slot_start", "slot_end"))
                for row in connection.execute(*query)
            )

    def mark(
        self, run: str, marks: Iterable[TokenMark], since: datetime, rows: Iterable[EmissionRow]
    ) -> None:
        """Store how far a run is, and replace its other scenarios, in one transaction.

        Args:
            run: whose marks and scenarios.
            marks: each replaces the one of its slot.
            since: rows of the other scenarios are replaced in slots that begin from here on.
            rows: the new rows of the other scenarios.
        """
        emissions = [_as_columns(columns(row), "slot_start", "slot_end") for row in rows]
        values = [{"run": run, **_as_columns(columns(mark), *_MARK_TIMES)} for mark in marks]
        with self._database.writing() as connection:
            upsert(connection, TOKEN_MARKS, values)
            replaced = queries.delete_other_scenarios(of=run, since=to_us(since))
            gone_us = connection.execute(*replaced).scalars().all()
            replace_emissions(connection, emissions)
            note(connection, (*gone_us, *(row["slot_start"] for row in emissions)))

    def token_marks(self, run: str, since: datetime | None = None) -> tuple[TokenMark, ...]:
        """List a run's marks in time order; those made from `since` on."""
        with self._database.reading() as connection:
            rows = connection.execute(*queries.marks(of=run, since=to_us(since))).all()
        return tuple(map(_token_mark, rows))

    def marks_of_runs(self, since: datetime) -> Mapping[str, tuple[TokenMark, ...]]:
        """Give the marks from `since` on, in time order, of every run that has not ended."""
        open_runs = select(RUNS.c.run).where(RUNS.c.finished_at.is_(None))
        query = (
            select(TOKEN_MARKS)
            .where(TOKEN_MARKS.c.at >= to_us(since), TOKEN_MARKS.c.run.in_(open_runs))
            .order_by(TOKEN_MARKS.c.run, TOKEN_MARKS.c.slot_start)
        )
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return {
            run: tuple(map(_token_mark, each)) for run, each in groupby(rows, lambda row: row.run)
        }

    def first_mark(self, run: str) -> TokenMark | None:
        """Give how far a run was when it first registered."""
        return next(iter(self._some_marks(queries.first_marks(of=run, most=1))), None)

    def newest_marks(self, run: str, count: int = 1) -> tuple[TokenMark, ...]:
        """Give a run's newest marks in time order."""
        return tuple(reversed(self._some_marks(queries.newest_marks(of=run, most=count))))

    def _some_marks(self, query: Prepared) -> tuple[TokenMark, ...]:
        with self._database.reading() as connection:
            return tuple(map(_token_mark, connection.execute(*query)))

    def trained(self, run: str, scenario: str, before: datetime) -> int:
        """Sum the tokens that a scenario trained in slots that begin before a moment."""
        query = queries.trained(of=run, scenario=scenario, before=to_us(before))
        with self._database.reading() as connection:
            return int(connection.execute(*query).scalar() or 0)

    def first_slot_of_kind(self, run: str, kind: str) -> datetime | None:
        """Give the first slot of this kind in a run's other scenarios; None: there is none."""
        query = queries.first_slot_of_kind(of=run, kind=kind)
        with self._database.reading() as connection:
            return from_us(connection.execute(*query).scalar())

    def scenario_spans(self, run: str) -> tuple[Span, ...]:
        """List the slots that a run's other scenarios have, in time order."""
        table = EMISSIONS.c
        query = (
            select(table.slot_start, table.slot_end)
            .where(table.run == run, table.scenario != queries.ACTUAL)
            .distinct()
            .order_by(table.slot_start)
        )
        with self._database.reading() as connection:
            return tuple((from_us(start), from_us(end)) for start, end in connection.execute(query))

    def unemitted(self, since: datetime | None, scenario: str) -> tuple[EnergyRow, ...]:
        """List energy rows of slots from `since` whose emission row is missing or differs."""
        query = queries.unemitted(since=to_us(since), scenario=scenario)
        with self._database.reading() as connection:
            return tuple(
                EnergyRow(**with_moments(row, "slot_start", "slot_end"))
                for row in connection.execute(*query)
            )

    def intensities(self, slots: Collection[datetime] | None = None) -> tuple[Intensity, ...]:
        """List the intensities that slots were priced with, oldest first; None: of all slots."""
        wanted = [None] if slots is None else list(_in_batches(slots))
        found = []
        with self._database.reading() as connection:
            for each in wanted:
                rows = connection.execute(*queries.intensities(slots=each)).all()
                found += [Intensity(**with_moments(row, "slot_start", "slot_end")) for row in rows]
        return tuple(found)

    def totals(self) -> tuple[TotalRow, ...]:
        """Sum everything ever booked: single slots and what was rolled up."""
        return self._sums.totals()

    def lately(self, run: str) -> tuple[TotalRow, ...]:
        """Sum everything of one run, as it was a moment ago; cheap enough to serve every run."""
        return self._sums.lately(run)

    def between(
        self, start: datetime, end: datetime, run: str | None = None
    ) -> tuple[TotalRow, ...]:
        """Sum slots that begin in [start, end), of one run or of all; rolled up days too."""
        return self._sums.between(to_us(start), to_us(end), run)

    def closed_runs(self) -> dict[str, dict[str, Any]]:
        """Give the figures of runs whose slots were summed up, by run."""
        with self._database.reading() as connection:
            rows = connection.execute(queries.CLOSED).all()
        return {row.run: json.loads(row.figures) for row in rows}

    def close_run(self, run: str, figures: Mapping[str, Any], now: datetime) -> None:
        """Store a run's final figures; from now on its slots may be summed up."""
        row = {"run": run, "closed_at": to_us(now), "figures": to_text(dict(figures))}
        with self._database.writing() as connection:
            upsert(connection, CLOSED_RUNS, [row])

    def newest_energy(self, run: str) -> datetime | None:
        """Give the start of the newest slot in which joules or unread time were booked to a run."""
        with self._database.reading() as connection:
            return from_us(connection.execute(*queries.newest_energy(of=run)).scalar())

    def newest_slot(self, run: str) -> datetime | None:
        """Give the start of the newest slot that has a row of a run in any scenario."""
        with self._database.reading() as connection:
            newest = [
                connection.execute(
                    select(func.max(table.c.slot_start)).where(table.c.run == run)
                ).scalar()
                for table in (ENERGY, EMISSIONS)
            ]
        return from_us(max((each for each in newest if each is not None), default=None))

    def first_slot(self, since: datetime) -> datetime | None:
        """Give the first slot from `since` in which anything was booked."""
        table = ENERGY.c.slot_start
        query = queries.within(select(func.min(table)), table, to_us(since), None)
        with self._database.reading() as connection:
            return from_us(connection.execute(query).scalar())

    def added(self, slot_starts_us: Iterable[int]) -> None:
        """Remember the first slot that got joules."""
        with self._lock:
            known = () if self._booked_us is None else (self._booked_us,)
            self._booked_us = min((*known, *slot_starts_us), default=None)

    def booked_since(self) -> datetime | None:
        """Give the first slot that got joules since the last call; None when none did."""
        with self._lock:
            first_us, self._booked_us = self._booked_us, None
        return from_us(first_us)


def _token_mark(row: Row[Any]) -> TokenMark:
    return TokenMark(
        slot_start=from_us(row.slot_start),
        slot_end=from_us(row.slot_end),
        tokens=row.tokens,
        at=from_us(row.at),
    )


def _in_batches(slots: Collection[datetime]) -> Iterator[list[int]]:
    """Split the starts of slots into lists that are short enough for one statement."""
    values = sorted(map(to_us, slots))
    for first in range(0, len(values), MOST_NAMED):
        yield values[first : first + MOST_NAMED]


def _as_columns(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return values | {name: to_us(values[name]) for name in names}
