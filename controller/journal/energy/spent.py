"""What was spent slot by slot, summed over devices, for budgets that walk it in time order.

Slots older than three days hardly change, so their sums are kept and each read fetches only newer
slots. Invariant: `read` gives what reading every row would give: kept sums are dropped when any
process has written a slot before their end (`changes`).
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, CursorResult, Row, Select, bindparam, case, func, select

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import EMISSIONS, ROLLUPS
from wattmesh.controller.journal.database.values import from_us, to_us
from wattmesh.controller.journal.energy.changes import DAY_US, changes_before
from wattmesh.controller.journal.energy.sums import RECENT_US
from wattmesh.policies.accounting.budget import Spending

ACTUAL = "actual"
UNPRICED = "unpriced"

WIDTH = 8
"""Numbers of one slot: start, end, index of the signal, grams, joules without grams, grams added
by restating, the most grams beyond, unobserved joules that have no price.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """Slots that begin in [start, end), `WIDTH` numbers each, after so many `changes`."""

    start_us: int
    end_us: int
    changes: int
    slots: "array[int]"


class SpentSlots:
    """Sums by slot of one run, or of all."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database
        self._kept: dict[str | None, _Kept] = {}
        self._signals: list[str] = []

    def read(
        self, start: datetime, end: datetime, run: str | None = None
    ) -> dict[str, tuple[Spending, ...]]:
        """Give what was spent in [start, end) by signal, in time order; see `BySlot.spent`."""
        start_us, end_us = to_us(start), to_us(end)
        with self._database.reading() as connection:
            kept = self._old(connection, run, start_us, (end_us - RECENT_US) // DAY_US * DAY_US)
            newest = self._slots(connection, max(kept.end_us, start_us), end_us, run)
            days = _sums_between(connection, _ALL_DAYS, _DAYS, (start_us, end_us, run)).all()
        slots = [each for each in _each(kept.slots) if each[0] >= start_us]
        slots += [*_each(newest), *map(self._numbers, days)]
        found: dict[str, list[Spending]] = {}
        for each in sorted(slots):
            found.setdefault(self._signals[each[2]], []).append(_spent(each, end))
        return {signal: tuple(each) for signal, each in found.items()}

    def _old(self, connection: Connection, run: str | None, start_us: int, until_us: int) -> _Kept:
        """Give the slots before `until_us`, from the kept ones where these still hold."""
        end_us = max(start_us, until_us)
        # Read first: slots that hold more than these changes are only read once more.
        changes, kept = changes_before(connection, end_us), self._kept.get(run)
        if (
            kept is None
            or not kept.start_us <= start_us
            or not kept.end_us <= end_us
            or kept.changes != changes_before(connection, kept.end_us)
        ):
            kept = _Kept(start_us=start_us, end_us=start_us, changes=0, slots=array("q"))
        kept = _Kept(
            start_us=kept.start_us,
            end_us=end_us,
            changes=changes,
            slots=kept.slots + self._slots(connection, kept.end_us, end_us, run),
        )
        self._kept = self._kept | {run: kept}
        return kept

    def _slots(
        self, connection: Connection, start_us: int, end_us: int, run: str | None
    ) -> "array[int]":
        """Read slots that begin in [start, end)."""
        found = array("q")
        if start_us < end_us:
            for row in _sums_between(connection, _ALL_SLOTS, _SLOTS, (start_us, end_us, run)):
                found.extend(self._numbers(row))
        return found

    def _numbers(self, row: Row[Any]) -> tuple[int, ...]:
        """Read one row as plain integers: PostgreSQL gives sums as Decimal."""
        start_us, end_us, signal, *amounts = tuple(row)
        if signal not in self._signals:
            self._signals.append(signal)
        return (int(start_us), int(end_us), self._signals.index(signal), *map(int, amounts))


def _each(slots: "array[int]") -> Iterator[tuple[int, ...]]:
    return zip(*[iter(slots)] * WIDTH, strict=True)


def _amounts() -> tuple[Any, ...]:
    """Sum the amounts of `WIDTH`, from the grams on."""
    table = EMISSIONS.c
    unpriced = case((table.carbon_ug.is_(None), table.energy_mj), else_=0)
    return (
        func.coalesce(func.sum(table.carbon_ug), 0),
        func.coalesce(func.sum(unpriced), 0),
        func.coalesce(func.sum(table.carbon_ug), 0)
        - func.coalesce(func.sum(table.first_carbon_ug), 0),
        func.coalesce(func.sum(table.upper_ug), 0),
        func.coalesce(func.sum(case((table.upper_ug.is_(None), table.upper_mj), else_=0)), 0),
    )


def _slot_sums() -> Select[Any]:
    """Select the sums of slots that begin in [:start, :last]."""
    table = EMISSIONS.c
    return (
        select(table.slot_start, table.slot_end, table.signal, *_amounts())
        .where(table.scenario == ACTUAL)
        .where(table.slot_start.between(bindparam("start"), bindparam("last")))
        .group_by(table.slot_start, table.slot_end, table.signal)
    )


def _day_sums() -> Select[Any]:
    """Select the rolled-up days that begin in [:start, :last]."""
    rolled = ROLLUPS.c
    return (
        select(
            rolled.day,
            rolled.day + timedelta(days=1) // timedelta(microseconds=1),
            rolled.signal,
            func.sum(rolled.carbon_ug),
            func.sum(case((rolled.quality == UNPRICED, rolled.energy_mj), else_=0)),
            func.sum(rolled.carbon_ug) - func.sum(rolled.first_carbon_ug),
            func.sum(rolled.upper_ug),
            func.sum(case((rolled.quality == UNPRICED, rolled.upper_mj), else_=0)),
        )
        .where(rolled.scenario == ACTUAL)
        .where(rolled.day.between(bindparam("start"), bindparam("last")))
        .group_by(rolled.day, rolled.signal)
    )


# Built once: building one takes longer than the database takes to answer it.
_ALL_SLOTS, _ALL_DAYS = _slot_sums(), _day_sums()
_SLOTS = _ALL_SLOTS.where(EMISSIONS.c.run == bindparam("of"))
_DAYS = _ALL_DAYS.where(ROLLUPS.c.run == bindparam("of"))


def _sums_between(
    connection: Connection,
    of_all: Select[Any],
    of_one: Select[Any],
    span: tuple[int, int, str | None],
) -> CursorResult[Any]:
    """Read the sums of what begins in [start, end), of one run or of all (None): the span."""
    start_us, end_us, run = span
    values = {"start": start_us, "last": end_us - 1}
    if run is None:
        return connection.execute(of_all, values)
    return connection.execute(of_one, {**values, "of": run})


def _spent(numbers: tuple[int, ...], end: datetime) -> Spending:
    """Make a `Spending`; a slot that is not over yet ends at `end`."""
    start_us, end_us, _, carbon_ug, unpriced_mj, restated_ug, upper_ug, unbounded_mj = numbers
    start = from_us(start_us)
    return Spending(
        start=start,
        end=max(min(from_us(end_us), end), start + timedelta(microseconds=1)),
        carbon_ug=carbon_ug,
        unpriced_mj=unpriced_mj,
        restated_ug=restated_ug,
        upper_ug=upper_ug,
        unbounded_mj=unbounded_mj,
    )
