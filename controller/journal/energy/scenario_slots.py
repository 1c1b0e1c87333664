"""The slots of one run in every scenario: what its saving is computed from.

Invariant: it only reads; all rows of one slot and scenario become one, whatever their devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Row, case, func, or_, select

from wattmesh.controller.journal.database.prepared import prepared
from wattmesh.controller.journal.database.tables import EMISSIONS
from wattmesh.controller.journal.database.values import from_us
from wattmesh.controller.journal.energy.spent import ACTUAL, UNPRICED
from wattmesh.telemetry.carbon import signal_quality
from wattmesh.telemetry.energy.attribution import HOST_DEVICES
from wattmesh.telemetry.readings import SPREAD

OTHER_COMPONENTS = tuple(f"{each}%" for each in HOST_DEVICES)
"""Devices that are not GPUs, as LIKE patterns of their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PueGrams:
    """Grams that were priced with one PUE, in thousandths.

    Attributes:
        upper_ug: the most beyond `carbon_ug`. `spread_ug`, `rate`: as in `ScenarioSlot`.
    """

    pue_milli: int
    carbon_ug: int
    upper_ug: int
    spread_ug: int = 0
    rate: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSlot:
    """One slot of one run in one scenario, all devices together.

    Attributes:
        kind: of a scenario other than the actual one: as_run, modelled, assumed; "" of the actual.
        carbon_ug: None: some of its joules have no price. `upper_ug`: the same of the most that
            was drawn unobserved.
        read: joules of some GPU were measured. `hosts`: how many rows of processors or memory were.
        spread_mj, spread_ug: the part that was spread over the slot by time. `rate`: its price,
            mg/kWh x PUE x 1000.
        signals: what its grams are accounted in. `qualities`: of intensity and joules.
        by_pue: its grams by the PUE that they were priced with; a slot has one.
    """

    slot_start: datetime
    slot_end: datetime
    scenario: str
    kind: str
    tokens: int
    carbon_ug: int | None
    upper_ug: int | None
    read: bool
    hosts: int
    signals: frozenset[str]
    qualities: frozenset[str]
    spread_mj: int = 0
    spread_ug: int = 0
    rate: int = 0
    by_pue: tuple[PueGrams, ...] = ()


def scenario_slots(connection: Connection, run: str) -> tuple[ScenarioSlot, ...]:
    """Give a run's slots in every scenario, in time order."""
    rows = connection.execute(*_slots_of(of=run)).all()
    together = groupby(rows, key=lambda row: (int(row[0]), int(row[1]), str(row[2])))
    return tuple(_scenario_slot(*each, list(group)) for each, group in together)


@prepared
def _slots_of(of: Any) -> Any:
    """Select the rows of one run by slot, scenario and kind of price, in time order."""
    table = EMISSIONS.c
    priced = table.g_milli_per_kwh.is_not(None)
    place = (table.slot_start, table.slot_end, table.scenario)
    key = (*place, table.signal, table.quality, table.energy_quality, table.pue_milli)
    kind = case((table.scenario == ACTUAL, ""), else_=table.line)
    hosts = or_(*(table.gpu_uuid.like(each) for each in OTHER_COMPONENTS))
    spread = table.energy_quality.contains(SPREAD)
    return (
        select(
            *key,
            func.coalesce(func.sum(case((spread, table.energy_mj))), 0).label("spread_mj"),
            func.coalesce(func.sum(case((spread, table.carbon_ug))), 0).label("spread_ug"),
            func.max(table.g_milli_per_kwh * table.pue_milli).label("rate"),
            func.max(kind).label("kind"),
            func.sum(table.tokens).label("tokens"),
            func.count(case((hosts, None), else_=table.energy_mj)).label("read"),
            func.count(case((hosts, table.energy_mj))).label("hosts"),
            func.coalesce(func.sum(table.carbon_ug), 0).label("carbon_ug"),
            func.coalesce(func.sum(table.upper_ug), 0).label("upper_ug"),
            func.sum(case((priced, 0), else_=func.coalesce(table.energy_mj, 0))).label("bare"),
            func.sum(case((priced, 0), else_=table.upper_mj)).label("bare_upper"),
        )
        .where(table.run == of)
        .group_by(*key)
        .order_by(*place)
    )


_AMOUNTS = ("carbon_ug", "upper_ug", "spread_mj", "spread_ug")


def _scenario_slot(
    start_us: int, end_us: int, scenario: str, rows: Sequence[Row[Any]]
) -> ScenarioSlot:
    parts = [row._mapping for row in rows]
    carbon_ug, upper_ug, spread_mj, spread_ug = (
        sum(int(row[name]) for row in parts) for name in _AMOUNTS
    )
    return ScenarioSlot(
        slot_start=from_us(start_us),
        slot_end=from_us(end_us),
        scenario=scenario,
        kind=max(row.kind for row in rows),
        tokens=sum(int(row.tokens) for row in rows),
        carbon_ug=None if any(row.bare for row in rows) else carbon_ug,
        upper_ug=None if any(row.bare_upper for row in rows) else upper_ug,
        spread_mj=spread_mj,
        spread_ug=spread_ug,
        rate=max(int(row.rate or 0) for row in rows),
        read=any(row.read for row in rows),
        hosts=sum(row.hosts for row in rows),
        signals=frozenset(row.signal for row in rows if row.quality not in ("", UNPRICED)),
        qualities=frozenset(
            word
            for row in rows
            for word in (row.quality, row.energy_quality, signal_quality(row.signal))
        ),
        by_pue=_by_pue(rows),
    )


def _by_pue(rows: Sequence[Row[Any]]) -> tuple[PueGrams, ...]:
    """Sum the grams of one slot by their PUE; rows without grams are left out."""
    found: dict[int, list[Row[Any]]] = {}
    for row in rows:
        if row.carbon_ug or row.upper_ug:
            found.setdefault(int(row.pue_milli), []).append(row)
    return tuple(
        PueGrams(
            pue_milli=pue_milli,
            carbon_ug=sum(int(row.carbon_ug) for row in parts),
            upper_ug=sum(int(row.upper_ug) for row in parts),
            spread_ug=sum(int(row.spread_ug) for row in parts),
            rate=max(int(row.rate or 0) for row in parts),
        )
        for pue_milli, parts in sorted(found.items())
    )
