"""Decodes and checks Open Electricity's answers. Pure.

Invariant: what has another form, another zone or another unit is no value; an hour in which a group
that generates has no energy or no emissions has no intensity, and a reason.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from wattmesh.errors import Transient, ZoneMismatch

UNITS: Mapping[str, tuple[str, ...]] = {"energy": ("MWh",), "emissions": ("t", "tCO2e", "tCO2")}
INTERVAL = "1h"
GENERATE = frozenset(
    {"coal", "gas", "wind", "solar", "hydro", "distillate", "bioenergy", "nuclear"}
)
BURN = frozenset({"coal", "gas", "distillate"})
"""Groups that emit whatever they generate; below `LEAST_MWH` in an hour that may round to none."""
LEAST_MWH = 1.0

LEFT_OUT = frozenset(
    {"battery", "battery_charging", "battery_discharging", "pumps"}
    | {"imports", "exports", "interconnector"}
)
"""Storage, and what flows between regions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupValue:
    """One value: of a metric (`UNITS`), in the hour from `at` on, of a group of fuels."""

    metric: str
    at: datetime
    group: str
    value: float | None


def told(body: Any, *, network: str, zone: str, refused: list[str]) -> Iterator[GroupValue]:
    """Yield the values of an answer.

    Args:
        body: decoded JSON.
        network: that was asked about.
        zone: the region in it that was asked about, or the network.
        refused: takes a sentence on each block in another unit.

    Raises:
        ZoneMismatch: it is of another network or region. Transient: it has another form.
    """
    blocks = body.get("data") if isinstance(body, dict) else None
    if not isinstance(blocks, list) or body.get("success") is False:
        raise Transient(f"Open Electricity answered {_short(body)}, which has no data")
    for block in blocks:
        try:
            metric, unit, interval = (str(block[name]) for name in ("metric", "unit", "interval"))
            _check_zone(block["network_code"], network)
            results = list(block["results"])
        except (LookupError, TypeError) as error:
            raise Transient(f"Open Electricity sent {_short(block)}, no block") from error
        if metric not in UNITS:
            continue
        if unit not in UNITS[metric] or interval != INTERVAL:
            refused.append(
                f"Open Electricity sent {metric} in {unit[:20]!r} per {interval[:10]!r}, "
                f"not in {UNITS[metric][0]} per {INTERVAL}; it is ignored."
            )
            continue
        for result in results:
            yield from _series(metric, result, "" if zone == network else zone)


def _series(metric: str, result: Any, region: str) -> Iterator[GroupValue]:
    try:
        columns, rows = result["columns"], list(result["data"])
        group = str(columns["fueltech_group"])
        if region:
            _check_zone(columns.get("region", columns.get("network_region")), region)
        found = [(_moment(at), _number(value)) for at, value in rows]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Transient(f"Open Electricity sent {_short(result)}, no series of hours") from error
    for at, value in found:
        yield GroupValue(metric=metric, at=at, group=group, value=value)


def intensity(
    energy_mwh: Mapping[str, float | None], emissions_t: Mapping[str, float | None]
) -> tuple[float | None, str]:
    """Give grams per kilowatt-hour of an hour; None and the reason where it cannot be told."""
    total_mwh = total_t = 0.0
    for group in sorted(energy_mwh):
        energy, emitted = energy_mwh[group], emissions_t[group]
        if group not in GENERATE:
            return None, f"cannot be derived: nobody has heard of the group {group[:30]!r}"
        if energy is None:
            return None, f"cannot be derived: {group} has no energy"
        if emitted is None and energy > 0:
            return None, f"cannot be derived: {group} has no emissions"
        if group in BURN and energy >= LEAST_MWH and not (emitted or 0.0) > 0:
            return None, f"cannot be derived: {group} generated {energy:g} MWh and emitted nothing"
        total_mwh += max(0.0, energy)
        total_t += max(0.0, emitted or 0.0)
    if total_mwh <= 0:
        return None, "cannot be derived: nothing generated anything"
    return 1000 * total_t / total_mwh, ""


def _check_zone(told_zone: Any, asked: str) -> None:
    if told_zone != asked:
        raise ZoneMismatch(
            f"Open Electricity answered for {str(told_zone)[:20]!r}, asked for {asked!r}; nothing "
            "was stored"
        )


def _moment(text: Any) -> datetime:
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError("without a zone")
    at = at.astimezone(UTC)
    if at != at.replace(minute=0, second=0, microsecond=0):
        raise ValueError("within an hour: the series is of another interval than its block says")
    return at


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _short(value: Any) -> str:
    return repr(str(value)[:80])
