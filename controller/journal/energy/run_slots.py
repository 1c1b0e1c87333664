"""One run slot by slot, summed over its devices by the database, for its report.

Invariant: it only reads; a slot of which nothing was read, or that has no price, is None and not 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import EMISSIONS, ENERGY
from wattmesh.controller.journal.database.values import from_us
from wattmesh.controller.journal.energy.spent import ACTUAL

ROWS_AT_ONCE = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSlot:
    """Rows of one slot of a run that are of one quality.

    Attributes:
        energy_mj, unobserved_ms: of its energy rows; in a slot of grams None and 0.
        carbon_ug: of its rows with a price; None while none has one, and in a slot of joules.
        g_milli_per_kwh: what these were priced with, the mean of its rows.
        qualities: words of its joules and of its intensity.
    """

    start: datetime
    end: datetime
    energy_mj: int | None = None
    unobserved_ms: int = 0
    carbon_ug: int | None = None
    g_milli_per_kwh: float | None = None
    qualities: tuple[str, ...] = ()


def run_slots(database: Database, run: str) -> Iterator[RunSlot]:
    """Give the joules of a run's slots in time order, then its grams in time order.

    Slots that retention has summed up are gone.
    """
    with database.reading() as connection:
        options = connection.execution_options(yield_per=ROWS_AT_ONCE)
        for row in options.execute(_joules(run)):
            yield RunSlot(
                start=from_us(row.slot_start),
                end=from_us(row.slot_end),
                energy_mj=None if row.energy_mj is None else int(row.energy_mj),
                unobserved_ms=int(row.unobserved_ms or 0),
                qualities=(row.quality,),
            )
        for row in options.execute(_grams(run)):
            yield RunSlot(
                start=from_us(row.slot_start),
                end=from_us(row.slot_end),
                carbon_ug=None if row.carbon_ug is None else int(row.carbon_ug),
                g_milli_per_kwh=None if row.intensity is None else float(row.intensity),
                qualities=(row.quality, row.energy_quality),
            )


def _joules(run: str) -> Any:
    table = ENERGY.c
    key = (table.slot_start, table.slot_end, table.quality)
    sums = (
        func.sum(table.energy_mj).label("energy_mj"),
        func.sum(table.unobserved_ms).label("unobserved_ms"),
    )
    return select(*key, *sums).where(table.run == run).group_by(*key).order_by(table.slot_start)


def _grams(run: str) -> Any:
    table = EMISSIONS.c
    key = (table.slot_start, table.slot_end, table.quality, table.energy_quality)
    sums = (
        func.sum(table.carbon_ug).label("carbon_ug"),
        func.avg(table.g_milli_per_kwh).label("intensity"),
    )
    return (
        select(*key, *sums)
        .where(table.run == run, table.scenario == ACTUAL)
        .group_by(*key)
        .order_by(table.slot_start)
    )
