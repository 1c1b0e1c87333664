"""Files with a windy grid and its day-ahead forecasts, as the recorded ones are."""

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.policies.forecasting.windy import DAY, intensity, panel, wind_mw
from tests.policies.forecasting.worlds import START
from wattmesh.policies.forecast.exogenous import Array

DAYS = 330
"""From January on: the last six months are scored, five months train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relabelled:
    """From the rows of day `day` on, forecasts are for `shift_h` later; values as issued anew."""

    day: int
    shift_h: int
    anew: float = 1.0


def weather_csv(
    path: Path,
    *,
    days: int = DAYS,
    shift_h: int = 24,
    target_since: int = 0,
    then: Relabelled | None = None,
) -> tuple[Array, Array]:
    """Write a zone; return its intensity and its wind.

    Args:
        path: of the file; `.gz` is compressed.
        days: how many, from 2026-01-01 on.
        shift_h: each row holds the forecast of so many hours later.
        then: another labelling from some row on; its values are those times `anew`.
        target_since: the target is empty before this hour, and only the other observation known.
    """
    wind = wind_mw(days)
    values = intensity(wind)
    told = panel(wind).values[:, 0]
    moved = _earlier(told, shift_h)
    if then is not None:
        moved[then.day * DAY :] = then.anew * _earlier(told, then.shift_h)[then.day * DAY :]
    lines = [
        "zone,timestamp_utc,carbon_direct_g_per_kwh,carbon_unstated_g_per_kwh,"
        "dacf_forecast_g_per_kwh,forecast_wind_mwh,wind_mwh"
    ]
    hours = np.datetime64(START.replace(tzinfo=None), "s") + np.arange(days * DAY) * np.timedelta64(
        3600, "s"
    )
    for at in range(days * DAY):
        target = f"{values[at]:.3f}" if at >= target_since else ""
        forecast = "" if np.isnan(moved[at]) else f"{moved[at]:.2f}"
        lines.append(
            f"WINDY,{hours[at]}Z,{target},{1.25 * values[at] + 40:.3f},{1.2 * values[at]:.3f},"
            f"{forecast},{wind[at]:.2f}"
        )
    text = "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return values, wind


def _earlier(values: Array, hours: int) -> Array:
    """Write each value so many hours before its own row."""
    return np.concatenate([values[hours:], np.full(hours, np.nan)])
