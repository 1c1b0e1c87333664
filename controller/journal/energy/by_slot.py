"""The ledger slot by slot, summed over devices, for budgets and reports that walk it in time order.

Invariant: it only reads; its sums over a stretch of time equal those of `LedgerStore.between`,
including rolled-up days where a method says so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, select

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.prepared import prepared
from wattmesh.controller.journal.database.tables import EMISSIONS, ENERGY
from wattmesh.controller.journal.database.values import from_us, to_us, with_moments
from wattmesh.controller.journal.energy.scenario_slots import (
    OTHER_COMPONENTS,
    ScenarioSlot,
    scenario_slots,
)
from wattmesh.controller.journal.energy.spent import ACTUAL, SpentSlots
from wattmesh.policies.accounting.budget import Spending
from wattmesh.telemetry.energy.ledger import Span, together
from wattmesh.telemetry.energy.unobserved import UNOBSERVED
from wattmesh.telemetry.readings import Component, Quality, component_of, merged_quality

_TIMES = ("slot_start", "slot_end")
DAY_US = 86_400_000_000
"""No slot is longer, so an index search for slots that overlap a moment begins a day earlier."""

NOBODYS = ("idle", "unattributed")
"""Lines of joules that no run is charged for."""

_SUMMED = (
    "slot_start",
    "slot_end",
    "run",
    "line",
    "pue_milli",
    "signal",
    "stand_in",
    "model",
    "quality",
    "energy_quality",
)
"""What rows of one `SlotSum` have in common."""

ROWS_AT_ONCE = 2000
"""Rows fetched at once: a month of many runs is streamed, so that the daemon stays small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSum:
    """One slot of one run and line, summed over devices; rows priced differently are kept apart.

    Attributes:
        energy_mj: joules that have an emission row.
        pue_milli, signal, stand_in, model: as its rows were priced.
        quality: of the intensity. `energy_quality`: of the joules.
    """

    slot_start: datetime
    slot_end: datetime
    run: str
    line: str
    pue_milli: int
    signal: str
    stand_in: str
    model: str
    quality: str
    energy_quality: str
    energy_mj: int
    carbon_ug: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPower:
    """What all devices of one run drew in one slot.

    Attributes:
        upper_mj: the most they drew beyond `energy_mj`: unmeasured, or measured and not booked to
            the run.
        gpus: how many GPUs that is of, unread ones included. `quality`: of the joules.
    """

    energy_mj: int
    upper_mj: int
    gpus: int
    quality: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NobodysSlot:
    """What one GPU drew in one slot while nobody could be charged for it.

    Attributes:
        line: idle | unattributed.
        signal: what its grams are accounted in. `carbon_ug`: with the PUE `pue_milli`; None while
            there is no price.
        quality: of the intensity. `energy_quality`: of the joules.
    """

    gpu_uuid: str
    slot_start: datetime
    slot_end: datetime
    line: str
    signal: str
    energy_mj: int
    carbon_ug: int | None
    pue_milli: int
    quality: str
    energy_quality: str


class BySlot:
    """Sums of slots."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database
        self._spent = SpentSlots(database)

    def sums(self, start: datetime, end: datetime) -> Iterator[SlotSum]:
        """Give the actual scenario slot by slot for slots that begin in [start, end).

        Rolled-up days are left out: their slots are gone.
        """
        table = EMISSIONS.c
        key = (*(table[name] for name in _SUMMED),)
        query = (
            select(*key, *_joule_and_gram_sums())
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
                    signal=row.signal,
                    stand_in=row.stand_in,
                    model=row.model,
                    quality=row.quality,
                    energy_quality=row.energy_quality,
                    energy_mj=int(row.energy_mj),
                    carbon_ug=int(row.carbon_ug),
                )

    def spent(
        self, start: datetime, end: datetime, run: str | None = None
    ) -> dict[str, tuple[Spending, ...]]:
        """Give what was spent in [start, end), of one run or of all, by signal, in time order.

        A rolled-up day is one stretch. A slot that is not over yet ends at `end`.
        """
        return self._spent.read(start, end, run)

    def nobodys(
        self, gpus: Sequence[str], start: datetime, end: datetime
    ) -> tuple[NobodysSlot, ...]:
        """Give what was read of these GPUs and booked to nobody, in slots that meet [start, end).

        GPUs that were given back are left out: their joules are the cluster's.
        """
        first, last = to_us(start), to_us(end) - 1
        span = {"first": first - DAY_US, "last": last, "after": first}
        found: list[NobodysSlot] = []
        with self._database.reading() as connection:
            for at in range(0, len(gpus), 500):
                rows = connection.execute(*_nobodys(gpus=list(gpus[at : at + 500]), **span))
                found += [NobodysSlot(**with_moments(row, *_TIMES)) for row in rows]
        return tuple(found)

    def devices_read(
        self, run: str, start: datetime | None = None, end: datetime | None = None
    ) -> frozenset[str]:
        """Name the devices with joules booked to a run, in slots that overlap [start, end)."""
        query = _devices_read(of=run, start=to_us(start), end=to_us(end))
        with self._database.reading() as connection:
            return frozenset(row.device for row in connection.execute(*query))

    def unobserved_s(self, start: datetime, end: datetime, run: str | None = None) -> float:
        """Sum the unobserved time of slots that begin in [start, end), without rolled-up days."""
        table = ENERGY.c
        query = (
            select(func.sum(table.unobserved_ms))
            .where(table.unobserved_ms > 0)  # matches the partial index: few rows have any
            .where(table.slot_start.between(to_us(start), to_us(end) - 1))
        )
        if run is not None:
            query = query.where(table.run == run)
        with self._database.reading() as connection:
            return int(connection.execute(query).scalar() or 0) / 1000

    def powers(self, run: str, start: datetime, end: datetime) -> dict[Span, SlotPower]:
        """Give what a run drew in each slot that begins in [start, end) and overlaps no other."""
        wanted = {"of": run, "first": to_us(start), "last": to_us(end) - 1}
        found: dict[Span, SlotPower] = {}
        with self._database.reading() as connection:
            rows = connection.execute(*_drawn(**wanted)).all()
            shared = {
                (int(row.slot_start), row.gpu_uuid): int(row.energy_mj)
                for row in connection.execute(*_not_of(**wanted))
            }
        for (start_us, end_us), group in groupby(rows, key=lambda row: (*map(int, row[:2]),)):
            parts = list(group)
            gpus = {row.gpu_uuid for row in parts if component_of(row.gpu_uuid) is Component.GPU}
            found[from_us(start_us), from_us(end_us)] = SlotPower(
                energy_mj=sum(row.energy_mj or 0 for row in parts),
                upper_mj=sum(row.upper_mj for row in parts)
                + sum(shared.get((start_us, gpu), 0) for gpu in gpus),
                gpus=len(gpus),
                quality=merged_quality(row.quality for row in parts if row.energy_mj is not None),
            )
        apart = (part for part in together(found, lambda span: span) if len(part) == 1)
        return {span: found[span] for (span,) in apart}

    def scenarios(self, run: str) -> tuple[ScenarioSlot, ...]:
        """Give a run's slots in every scenario, in time order."""
        with self._database.reading() as connection:
            return scenario_slots(connection, run)

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

        A slot that a GPU spent on several runs or lines is split evenly: the ledger has no seconds.
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
            .where(rows.c.line.in_(("run", UNOBSERVED)), rows.c.run != "")
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

    def newest_measured(self, settled: str) -> datetime | None:
        """Give the end of the newest slot with measured joules and grams that are not provisional.

        Args:
            settled: prefix of the models of prices that were estimated for good, because no value
                was ever published; slots priced by them do not count.
        """
        table = EMISSIONS.c
        told = (Quality.MEASURED, Quality.ESTIMATED, Quality.STATIC)
        query = (
            select(table.slot_end)
            .where(table.scenario == ACTUAL, table.energy_mj.is_not(None))
            .where(table.quality.in_([str(each) for each in told]))
            .where(table.model.not_like(f"{settled}%"))
            .order_by(table.slot_start.desc())
            .limit(1)
        )
        with self._database.reading() as connection:
            return from_us(connection.execute(query).scalar())


@prepared
def _nobodys(gpus: Any, first: Any, last: Any, after: Any) -> Any:
    """Select nobody's slots of GPUs that begin in [first, last] and end after a moment."""
    table = EMISSIONS.c
    return (
        select(*(table[each.name] for each in fields(NobodysSlot)))
        .where(table.scenario == ACTUAL, table.run == "", table.line.in_(NOBODYS))
        .where(table.slot_start.between(first, last), table.slot_end > after)
        .where(table.energy_mj > 0, table.gpu_uuid.in_(gpus))
    )


@prepared
def _devices_read(of: Any, start: Any, end: Any) -> Any:
    """Select the devices with joules of a run, in slots that overlap [start, end)."""
    table = ENERGY.c
    every = select(func.min(table.gpu_uuid).label("device")).cte(recursive=True)
    following = select(func.min(table.gpu_uuid)).where(table.gpu_uuid > every.c.device)
    every = every.union_all(
        select(following.correlate(every).scalar_subquery()).where(every.c.device.is_not(None))
    )
    # One primary-key lookup per device: a run has far more rows than there are devices.
    booked = select(table.run).where(
        table.gpu_uuid == every.c.device,
        table.run == of,
        table.line == "run",
        table.energy_mj.is_not(None),
    )
    if start is not None:
        booked = booked.where(table.slot_end > start)
    if end is not None:
        booked = booked.where(table.slot_start < end)
    return select(every.c.device).where(booked.correlate(every).exists())


@prepared
def _drawn(of: Any, first: Any, last: Any) -> Any:
    """Select what a run drew in slots that begin in [first, last]."""
    table = ENERGY.c
    amounts = (table.gpu_uuid, table.energy_mj, table.upper_mj, table.quality)
    return (
        select(*(table[name] for name in _TIMES), *amounts)
        .where(table.run == of, table.slot_start.between(first, last))
        .order_by(table.slot_start, table.slot_end)
    )


@prepared
def _not_of(of: Any, first: Any, last: Any) -> Any:
    """Select joules not booked to the run, in slots and devices of which it has a row."""
    table, mine = ENERGY.c, ENERGY.alias()
    same = and_(mine.c.gpu_uuid == table.gpu_uuid, mine.c.slot_start == table.slot_start)
    own = select(mine.c.run).where(same, mine.c.run == of).correlate(ENERGY).exists()
    read = func.sum(table.energy_mj + table.upper_mj).label("energy_mj")
    return (
        select(table.slot_start, table.gpu_uuid, read)
        .where(table.slot_start.between(first, last), table.run != of)
        .where(table.energy_mj > 0, own)
        .group_by(table.slot_start, table.gpu_uuid)
    )


def _actual(start: datetime, end: datetime) -> ColumnElement[bool]:
    """Match rows of the actual scenario whose slot begins in [start, end)."""
    return and_(
        EMISSIONS.c.scenario == ACTUAL,
        EMISSIONS.c.slot_start.between(to_us(start), to_us(end) - 1),
    )


def _joule_and_gram_sums() -> tuple[Any, ...]:
    table = EMISSIONS.c
    return (
        func.coalesce(func.sum(table.energy_mj), 0).label("energy_mj"),
        func.coalesce(func.sum(table.carbon_ug), 0).label("carbon_ug"),
    )
