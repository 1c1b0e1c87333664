"""The ledger: joules per (gpu, run, slot), grams per (scenario, gpu, run, slot).

Invariant: rows are absolute and replaced whole, in one transaction with the counters they were
computed from; so a repeat counts nothing twice, and a crash loses nothing that was acknowledged.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Any

from sqlalchemy import Row, func, or_, select

from wattmesh.controller.journal.engine import Database
from wattmesh.controller.journal.sums import Sums, TotalRow, same_slot
from wattmesh.controller.journal.tables import (
    COUNTERS,
    EMISSIONS,
    ENERGY,
    ROLLUPS,
    TOKEN_MARKS,
)
from wattmesh.controller.journal.values import columns, from_us, to_us, upsert
from wattmesh.telemetry.ledger import CounterBaseline, EnergyRow

__all__ = ["EmissionRow", "Intensity", "LedgerStore", "TokenMark", "TotalRow"]

_MARK_TIMES = ("slot_start", "slot_end", "at")

MOST_NAMED = 200
"""Slots that one statement names; a database takes only so many parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmissionRow:
    """Grams of one slot. `carbon_ug` None: the slot has no price yet (never zero).

    Attributes:
        scenario: actual | baseline. `gpu_uuid`: "" in the baseline, which has no devices.
        line: of the energy row it was computed from; "" in the baseline.
        pue_milli: joules of the facility for 1000 of its machines, as the settings had it when the
            row was first priced; 1000 within the boundary `it`.
        first_carbon_ug: as first reported, before any revision.
        tokens: trained in the slot (baseline rows only; 0 in actual rows).
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """An intensity that some row of a slot was priced with; None of an unpriced one."""

    slot_start: datetime
    slot_end: datetime
    signal: str
    quality: str
    g_milli_per_kwh: int | None
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMark:
    """How far a run was when a slot ended (or when it was last looked at in it).

    Attributes:
        speed: measured tokens/s over the catalogue's, at the point it ran at.
        at: up to when its baseline has been reckoned.
    """

    slot_start: datetime
    slot_end: datetime
    tokens: int
    speed: float
    at: datetime


class LedgerStore:
    """The energy and emission tables."""

    def __init__(self, database: Database, changed: Callable[[Iterable[int]], None]) -> None:
        """Keep the database; `changed` hears of every slot that is written."""
        self._database = database
        self._changed = changed
        self._sums = Sums(database)
        self._booked_us: int | None = None
        self._lock = Lock()

    def book(self, rows: Iterable[EnergyRow], baselines: Iterable[CounterBaseline]) -> None:
        """Replace rows and the counters they came from, in one transaction."""
        energy = [_times(columns(row), "slot_start", "slot_end") for row in rows]
        counters = [_times(columns(each), "at") for each in baselines]
        with self._database.writing() as connection:
            upsert(connection, ENERGY, energy)
            upsert(connection, COUNTERS, counters)
        self._written(energy)
        self._booked(row["slot_start"] for row in energy)

    def baselines(self) -> dict[str, CounterBaseline]:
        """Give the counters that were booked up to, by GPU."""
        with self._database.reading() as connection:
            rows = connection.execute(select(COUNTERS)).all()
        return {
            row.gpu_uuid: CounterBaseline(**{**row._mapping, "at": from_us(row.at)}) for row in rows
        }

    def energy(
        self, start: datetime | None = None, end: datetime | None = None, run: str | None = None
    ) -> tuple[EnergyRow, ...]:
        """List energy rows whose slot begins in [start, end)."""
        query = select(ENERGY).order_by(ENERGY.c.slot_start, ENERGY.c.gpu_uuid, ENERGY.c.run)
        query = _within(query, ENERGY.c.slot_start, start, end)
        if run is not None:
            query = query.where(ENERGY.c.run == run)
        with self._database.reading() as connection:
            return tuple(
                EnergyRow(**_moments(row, "slot_start", "slot_end"))
                for row in connection.execute(query)
            )

    def emit(self, rows: Iterable[EmissionRow]) -> None:
        """Replace emission rows; what was reported first stays beside."""
        values = [_times(columns(row), "slot_start", "slot_end") for row in rows]
        with self._database.writing() as connection:
            upsert(connection, EMISSIONS, values)
        self._written(values)

    def emissions(
        self,
        run: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        scenario: str | None = None,
    ) -> tuple[EmissionRow, ...]:
        """List emission rows whose slot begins in [start, end)."""
        order = (EMISSIONS.c.slot_start, EMISSIONS.c.scenario, EMISSIONS.c.gpu_uuid)
        query = _within(select(EMISSIONS).order_by(*order), EMISSIONS.c.slot_start, start, end)
        if run is not None:
            query = query.where(EMISSIONS.c.run == run)
        if scenario is not None:
            query = query.where(EMISSIONS.c.scenario == scenario)
        with self._database.reading() as connection:
            return tuple(
                EmissionRow(**_moments(row, "slot_start", "slot_end"))
                for row in connection.execute(query)
            )

    def mark(self, run: str, marks: Iterable[TokenMark], rows: Iterable[EmissionRow]) -> None:
        """Remember how far a run and its baseline are, in one transaction.

        The newest mark of a slot stands; `rows` are the baseline's, as in `emit`.
        """
        values = [{"run": run, **_times(columns(mark), *_MARK_TIMES)} for mark in marks]
        emissions = [_times(columns(row), "slot_start", "slot_end") for row in rows]
        with self._database.writing() as connection:
            upsert(connection, TOKEN_MARKS, values)
            upsert(connection, EMISSIONS, emissions)
        self._written(emissions)

    def token_marks(self, run: str, since: datetime | None = None) -> tuple[TokenMark, ...]:
        """List a run's marks in time order; those made from `since` on."""
        query = select(TOKEN_MARKS).where(TOKEN_MARKS.c.run == run)
        query = _within(query, TOKEN_MARKS.c.at, since, None)
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(TOKEN_MARKS.c.slot_start)).all()
        return tuple(map(_token_mark, rows))

    def first_mark(self, run: str) -> TokenMark | None:
        """Give how far a run was when it first registered."""
        return self._mark(run, TOKEN_MARKS.c.slot_start)

    def newest_mark(self, run: str) -> TokenMark | None:
        """Give a run's newest mark."""
        return self._mark(run, TOKEN_MARKS.c.at.desc())

    def _mark(self, run: str, order: Any) -> TokenMark | None:
        """Give the first of a run's marks in an order."""
        query = select(TOKEN_MARKS).where(TOKEN_MARKS.c.run == run).order_by(order).limit(1)
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        return _token_mark(row) if row else None

    def trained(self, run: str, scenario: str) -> int:
        """Sum the tokens of a scenario, those of rolled up slots too."""
        query = [
            select(func.sum(table.c.tokens))
            .where(table.c.scenario == scenario)
            .where(table.c.run == run)
            for table in (EMISSIONS, ROLLUPS)
        ]
        with self._database.reading() as connection:
            return sum(int(connection.execute(each).scalar() or 0) for each in query)

    def unemitted(self, since: datetime | None, scenario: str) -> tuple[EnergyRow, ...]:
        """List energy rows of slots from `since` whose emission row lacks or has other joules."""
        query = (
            select(ENERGY)
            .outerjoin(EMISSIONS, same_slot(scenario))
            .where(
                or_(
                    EMISSIONS.c.run.is_(None),
                    EMISSIONS.c.energy_mj.is_distinct_from(ENERGY.c.energy_mj),
                )
            )
            .order_by(ENERGY.c.slot_start, ENERGY.c.gpu_uuid, ENERGY.c.run)
        )
        query = _within(query, ENERGY.c.slot_start, since, None)
        with self._database.reading() as connection:
            return tuple(
                EnergyRow(**_moments(row, "slot_start", "slot_end"))
                for row in connection.execute(query)
            )

    def intensities(self, slots: Collection[datetime] | None = None) -> tuple[Intensity, ...]:
        """List what slots were priced with, oldest first: these, or all there are."""
        table = EMISSIONS.c
        columns = (
            table.slot_start,
            table.slot_end,
            table.signal,
            table.quality,
            table.g_milli_per_kwh,
            table.model,
        )
        query: Any = (
            select(*columns)
            .where(table.energy_mj.is_not(None))
            .distinct()
            .order_by(table.slot_start)
        )
        wanted = [None] if slots is None else list(_named(slots))
        found = []
        with self._database.reading() as connection:
            for each in wanted:
                these = query if each is None else query.where(table.slot_start.in_(each))
                rows = connection.execute(these).all()
                found += [Intensity(**_moments(row, "slot_start", "slot_end")) for row in rows]
        return tuple(found)

    def totals(self) -> tuple[TotalRow, ...]:
        """Sum everything ever booked: single slots and what was rolled up."""
        return self._sums.totals()

    def rolled_up(self, run: str) -> tuple[TotalRow, ...]:
        """Sum what was rolled up of one run: its single slots are gone."""
        return self._sums.rolled_up(run)

    def between(
        self, start: datetime, end: datetime, run: str | None = None
    ) -> tuple[TotalRow, ...]:
        """Sum slots that begin in [start, end), of one run or of all; rolled up days too."""
        return self._sums.between(to_us(start), to_us(end), run)

    def first_slot(self, since: datetime, run: str | None = None) -> datetime | None:
        """Give the first slot from `since` of which anything was booked, to one run or at all."""
        query = _within(select(func.min(ENERGY.c.slot_start)), ENERGY.c.slot_start, since, None)
        if run is not None:
            query = query.where(ENERGY.c.run == run)
        with self._database.reading() as connection:
            return from_us(connection.execute(query).scalar())

    def added(self, slot_starts_us: Iterable[int]) -> None:
        """Hear that a delivery of a node added to these slots."""
        slots = tuple(slot_starts_us)
        self._told(slots)
        self._booked(slots)

    def booked_since(self) -> datetime | None:
        """Give the first slot that joules came to since the last call; None when none came."""
        with self._lock:
            first_us, self._booked_us = self._booked_us, None
        return from_us(first_us)

    def _booked(self, slot_starts_us: Iterable[int]) -> None:
        """Remember the first slot that joules came to."""
        with self._lock:
            known = () if self._booked_us is None else (self._booked_us,)
            self._booked_us = min((*known, *slot_starts_us), default=None)

    def _written(self, *groups: Sequence[Mapping[str, Any]]) -> None:
        """Tell the sums which slots were written, once that is committed."""
        self._told(tuple(row["slot_start"] for rows in groups for row in rows))

    def _told(self, slot_starts_us: Sequence[int]) -> None:
        """Tell whoever keeps sums."""
        self._sums.changed(slot_starts_us)
        self._changed(slot_starts_us)


def _token_mark(row: Row[Any]) -> TokenMark:
    """Read one mark."""
    return TokenMark(
        slot_start=from_us(row.slot_start),
        slot_end=from_us(row.slot_end),
        tokens=row.tokens,
        speed=row.speed,
        at=from_us(row.at),
    )


def _named(slots: Collection[datetime]) -> Iterator[list[int]]:
    """Give the starts of slots as values, in lists that one statement may name."""
    values = sorted(map(to_us, slots))
    for first in range(0, len(values), MOST_NAMED):
        yield values[first : first + MOST_NAMED]


def _within(query: Any, column: Any, start: datetime | None, end: datetime | None) -> Any:
    """Limit a query to [start, end)."""
    if start is not None:
        query = query.where(column >= to_us(start))
    return query if end is None else query.where(column < to_us(end))


def _times(values: dict[str, Any], *names: str) -> dict[str, Any]:
    """Turn the named moments into column values."""
    return values | {name: to_us(values[name]) for name in names}


def _moments(row: Row[Any], *names: str) -> dict[str, Any]:
    """Turn the named column values into moments."""
    values = dict(row._mapping)
    return values | {name: from_us(values[name]) for name in names}
