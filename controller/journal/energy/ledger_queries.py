"""What the ledger asks of the database, each statement built once (database/prepared.py).

Moments are microseconds since 1970; `of` is a run. A value that is None leaves its condition out.
"""

from typing import Any

from sqlalchemy import delete, exists, func, not_, or_, select

from wattmesh.controller.journal.database.prepared import prepared
from wattmesh.controller.journal.database.tables import (
    CLOSED_RUNS,
    EMISSION_ROWS,
    EMISSIONS,
    ENERGY,
    TOKEN_MARKS,
)
from wattmesh.controller.journal.energy.emission_rows import numbered
from wattmesh.controller.journal.energy.sums import same_slot

ACTUAL = "actual"

CLOSED = select(CLOSED_RUNS)


def within(query: Any, column: Any, start: Any, end: Any) -> Any:
    """Limit a query to [start, end)."""
    if start is not None:
        query = query.where(column >= start)
    return query if end is None else query.where(column < end)


@prepared
def energy(start: Any, end: Any, of: Any) -> Any:
    """Select energy rows of slots that begin in [start, end)."""
    query = select(ENERGY).order_by(ENERGY.c.slot_start, ENERGY.c.gpu_uuid, ENERGY.c.run)
    query = within(query, ENERGY.c.slot_start, start, end)
    return query if of is None else query.where(ENERGY.c.run == of)


@prepared
def emissions(start: Any, end: Any, of: Any, scenario: Any) -> Any:
    """Select emission rows of slots that begin in [start, end)."""
    order = (EMISSIONS.c.slot_start, EMISSIONS.c.scenario, EMISSIONS.c.gpu_uuid)
    query = within(select(EMISSIONS).order_by(*order), EMISSIONS.c.slot_start, start, end)
    if of is not None:
        query = query.where(EMISSIONS.c.run == of)
    return query if scenario is None else query.where(EMISSIONS.c.scenario == scenario)


@prepared
def delete_other_scenarios(of: Any, since: Any) -> Any:
    """Delete a run's rows of scenarios that are not the actual one; it returns their slots."""
    table = EMISSION_ROWS.c
    theirs = (numbered(table.run_id, of), table.scenario != ACTUAL, table.slot_start >= since)
    return delete(EMISSION_ROWS).where(*theirs).returning(table.slot_start)


@prepared
def marks(of: Any, since: Any) -> Any:
    """Select a run's marks, made from `since` on, in the order of their slots."""
    query = within(select(TOKEN_MARKS), TOKEN_MARKS.c.at, since, None)
    return query.where(TOKEN_MARKS.c.run == of).order_by(TOKEN_MARKS.c.slot_start)


@prepared
def first_marks(of: Any, most: Any) -> Any:
    """Select at `most` marks of a run, oldest first."""
    query = select(TOKEN_MARKS).where(TOKEN_MARKS.c.run == of)
    return query.order_by(TOKEN_MARKS.c.slot_start).limit(most)


@prepared
def newest_marks(of: Any, most: Any) -> Any:
    """Select at `most` marks of a run, newest first."""
    query = select(TOKEN_MARKS).where(TOKEN_MARKS.c.run == of)
    return query.order_by(TOKEN_MARKS.c.slot_start.desc()).limit(most)


@prepared
def trained(of: Any, scenario: Any, before: Any) -> Any:
    """Sum the tokens that a scenario trained in slots that begin before a moment."""
    table = EMISSIONS.c
    query = select(func.sum(table.tokens)).where(table.scenario == scenario, table.run == of)
    return query.where(table.slot_start < before)


@prepared
def first_slot_of_kind(of: Any, kind: Any) -> Any:
    """Select the first slot of a kind in a run's other scenarios."""
    table = EMISSIONS.c
    query = select(func.min(table.slot_start)).where(table.scenario != ACTUAL)
    return query.where(table.run == of, table.line == kind)


@prepared
def unemitted(since: Any, scenario: Any) -> Any:
    """Select energy rows of slots from `since` whose emission row is missing or differs."""
    emitted = exists().where(
        same_slot(scenario),
        EMISSIONS.c.slot_end == ENERGY.c.slot_end,
        EMISSIONS.c.energy_mj.is_not_distinct_from(ENERGY.c.energy_mj),
        EMISSIONS.c.upper_mj == ENERGY.c.upper_mj,
        EMISSIONS.c.energy_quality == ENERGY.c.quality,
    )
    query = within(select(ENERGY).where(not_(emitted)), ENERGY.c.slot_start, since, None)
    return query.order_by(ENERGY.c.slot_start, ENERGY.c.gpu_uuid, ENERGY.c.run)


@prepared
def intensities(slots: Any) -> Any:
    """Select what slots were priced with, oldest first."""
    table = EMISSIONS.c
    columns = (
        table.slot_start,
        table.slot_end,
        table.signal,
        table.quality,
        table.g_milli_per_kwh,
        table.model,
        table.stand_in,
        table.pue_milli,
    )
    query = select(*columns).where(or_(table.energy_mj.is_not(None), table.upper_mj > 0))
    query = query.distinct().order_by(table.slot_start)
    return query if slots is None else query.where(table.slot_start.in_(slots))


@prepared
def newest_energy(of: Any) -> Any:
    """Select the newest slot in which anything was booked to a run."""
    return select(func.max(ENERGY.c.slot_start)).where(ENERGY.c.run == of)
