"""The ledger slot by slot, summed over devices: what budgets and reports go through in time order.

Invariant: it only reads; what it gives of a stretch of time adds up to what `LedgerStore.between`
gives of it, days that were rolled up included where a method says so.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, select

from wattmesh.controller.journal.engine import Database
from wattmesh.controller.journal.spent import ACTUAL, SpentSlots
from wattmesh.controller.journal.tables import EMISSIONS, ENERGY
from wattmesh.controller.journal.values import from_us, to_us
from wattmesh.policies.budget import Spent
from wattmesh.telemetry.readings import Quality

OTHER_COMPONENTS = ("cpu:%", "dram:%", "node:%")
"""Devices that are no GPUs, by how their names begin (wattmesh.telemetry.readings)."""

ROWS_AT_ONCE = 2000
"""A month of many runs is streamed, so that the daemon stays small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSum:
    """One slot of one run and line, all devices together.

    Attributes:
        energy_mj: of rows that the accounts have seen. `unpriced_mj`: of these, without grams.
        pue_milli: as its rows were priced; rows of another one are a sum of their own.
    """

    slot_start: datetime
    slot_end: datetime
    run: str
    line: str
    pue_milli: int
    energy_mj: int
    carbon_ug: int
    unpriced_mj: int


class BySlot:
    """Sums of slots."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database
        self._spent = SpentSlots(database)

    def sums(self, start: datetime, end: datetime) -> Iterator[SlotSum]:
        """Give the actual scenario slot by slot for slots that begin in [start, end).

        What was rolled up is not in it: its slots are gone.
        """
        table = EMISSIONS.c
        key = (table.slot_start, table.slot_end, table.run, table.line, table.pue_milli)
        query = (
            select(*key, *_amounts())
            .where(_actual(start, end))
            .group_by(*key)
            .order_by(table.slot_start, table.run, table.line)
        )
        with self._database.reading() as connection:
            found = connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query)
            for row in found:
                yield SlotSum(
                    slot_start=from_us(row.slot_start),
                    slot_end=from_us(row.slot_end),
                    run=row.run,
                    line=row.line,
                    pue_milli=row.pue_milli,
                    energy_mj=int(row.energy_mj),
                    carbon_ug=int(row.carbon_ug),
                    unpriced_mj=int(row.unpriced_mj),
                )

    def spent(self, start: datetime, end: datetime, run: str | None = None) -> tuple[Spent, ...]:
        """Give what was spent in [start, end), of one run or of all, in time order.

        A rolled up day is one stretch. A slot that is not over ends at `end`.
        """
        return self._spent.read(start, end, run)

    def changed(self, slot_starts_us: Iterable[int]) -> None:
        """Hear that rows of these slots were written by this process."""
        self._spent.changed(slot_starts_us)

    def watts(self, start: datetime, end: datetime) -> tuple[tuple[datetime, float], ...]:
        """Give the mean watts of all devices together, slot by slot."""
        table = ENERGY.c
        query = (
            select(table.slot_start, table.slot_end, func.sum(table.energy_mj).label("energy_mj"))
            .where(table.slot_start.between(to_us(start), to_us(end) - 1))
            .where(table.energy_mj.is_not(None))
            .group_by(table.slot_start, table.slot_end)
        )
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return tuple(
            (from_us(row.slot_start), int(row.energy_mj) * 1e3 / (row.slot_end - row.slot_start))
            for row in rows
        )

    def gpu_s(self, start: datetime, end: datetime) -> dict[str, float]:
        """Give GPU seconds per run in slots that begin in [start, end), up to `end`.

        A slot that a GPU spent for several runs or lines is split evenly between them: the ledger
        keeps joules of each, not seconds.
        """
        table = ENERGY.c
        gpus = and_(*(table.gpu_uuid.not_like(each) for each in OTHER_COMPONENTS))
        until = case((table.slot_end > to_us(end), to_us(end)), else_=table.slot_end)
        rows = (
            select(
                table.run,
                table.line,
                (until - table.slot_start).label("length_us"),
                func.count().over(partition_by=(table.gpu_uuid, table.slot_start)).label("shared"),
            )
            .where(table.slot_start.between(to_us(start), to_us(end) - 1), gpus)
            .subquery()
        )
        query = (
            select(rows.c.run, rows.c.shared, func.sum(rows.c.length_us).label("length_us"))
            .where(rows.c.line == "run")
            .group_by(rows.c.run, rows.c.shared)
        )
        found: dict[str, float] = {}
        with self._database.reading() as connection:
            for row in connection.execute(query):
                found[row.run] = found.get(row.run, 0.0) + int(row.length_us) / row.shared / 1e6
        return found

    def provisional(self, start: datetime, end: datetime) -> int:
        """Count rows of slots that begin in [start, end) whose grams are not final."""
        query = (
            select(func.count())
            .select_from(EMISSIONS)
            .where(EMISSIONS.c.slot_start.between(to_us(start), to_us(end) - 1))
            .where(EMISSIONS.c.quality == str(Quality.PROVISIONAL))
        )
        with self._database.reading() as connection:
            return int(connection.execute(query).scalar() or 0)


def _actual(start: datetime, end: datetime) -> ColumnElement[bool]:
    """Name the rows of the actual scenario whose slot begins in [start, end)."""
    return and_(
        EMISSIONS.c.scenario == ACTUAL,
        EMISSIONS.c.slot_start.between(to_us(start), to_us(end) - 1),
    )


def _amounts() -> tuple[Any, ...]:
    """Sum joules, grams, and joules without grams."""
    table = EMISSIONS.c
    unpriced = case((table.carbon_ug.is_(None), table.energy_mj), else_=0)
    return (
        func.coalesce(func.sum(table.energy_mj), 0).label("energy_mj"),
        func.coalesce(func.sum(table.carbon_ug), 0).label("carbon_ug"),
        func.coalesce(func.sum(unpriced), 0).label("unpriced_mj"),
    )
