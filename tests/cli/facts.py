"""Answers of the API for the screens, made from the documented views."""

from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.controller.carbon_views import (
    BandSlot,
    CarbonLine,
    ForecastSlot,
    ForecastView,
    SkillLine,
)
from wattmesh.controller.views import (
    CycleLine,
    JournalLine,
    PowerLine,
    RunLine,
    StatusView,
    SwitchLine,
    as_json,
)

NOW = datetime(2026, 11, 20, 14, 2, 10, tzinfo=UTC)
HOUR_BEGINS = NOW.replace(minute=0, second=0)
INTENSITIES = (212.0, 200.0, 180.0, 150.0, 118.0, 140.0)


BASIS: dict[str, Any] = {
    "baseline": "A",
    "signal": "neso:GB:average:direct:CO2",
    "boundary": "power_w of the catalogue (gpu), without PUE",
    "flags": ["estimated"],
}
"""What the grams of a decision or a switch are, and are of."""


def forecast(**changes: Any) -> dict[str, Any]:
    """Give the API's answer for a signal that is well: six hours with a band."""
    slots = tuple(
        BandSlot(
            start=HOUR_BEGINS + timedelta(hours=i),
            end=HOUR_BEGINS + timedelta(hours=i + 1),
            g_per_kwh=value,
            low_g_per_kwh=value - 20,
            high_g_per_kwh=value + 30,
            quality="forecast",
        )
        for i, value in enumerate(INTENSITIES)
    )
    skill = SkillLine(
        source="issued",
        lead_h=6,
        mae_g_per_kwh=9.1,
        persistence_mae_g_per_kwh=12.04,
        last_mae_g_per_kwh=21.0,
        count=479.6,
    )
    view = ForecastView(
        at=HOUR_BEGINS,
        signal="neso:GB:average:direct:CO2",
        rung="issued",
        source="neso",
        sentence="Decisions rest on the provider's forecast.",
        issued_at=HOUR_BEGINS - timedelta(minutes=30),
        interval_s=3600.0,
        slots=slots,
        skill=(skill,),
    )
    plain: dict[str, Any] = as_json(view)
    return {**plain, **changes}


def carbon(**changes: Any) -> CarbonLine:
    """Give a signal that is well."""
    half_hour = timedelta(minutes=30)
    slots = tuple(
        ForecastSlot(start=NOW + index * half_hour, end=NOW + (index + 1) * half_hour, g_per_kwh=g)
        for index, g in enumerate(INTENSITIES)
    )
    values: dict[str, Any] = {
        "signal": "neso:GB:average:direct:CO2",
        "provider": "neso",
        "zone": "GB",
        "kind": "average",
        "factor": "direct",
        "g_per_kwh": 212.0,
        "quality": "measured",
        "age_s": 360.0,
        "trouble": "",
        "forecast": slots,
        "low": slots[4],
    }
    return CarbonLine(**values | changes)


def run(**changes: Any) -> RunLine:
    """Give a run that is well."""
    values: dict[str, Any] = {
        "name": "llama-8b",
        "run": "6d1c9d0e-0000-4000-8000-000000000001",
        "state": "live",
        "activity": "holding",
        "owner_uid": 1000,
        "attempt": 1,
        "step": 181_200,
        "tokens": 1_000,
        "tokens_total": 4_000,
        "loss": 2.119,
        "layout": "dp8 tp4 pp2",
        "ranks": 64,
        "world_size": 64,
        "point": "C",
        "clock_mhz": 1305,
        "tokens_per_s": 197_100.0,
        "j_per_token": 0.805,
        "deadline": NOW + timedelta(days=10),
        "slack_s": 3.1 * 86_400,
        "switch": None,
        "frozen": "",
        "ordered_point": "",
        "last_seen_s": 1.0,
        "sentence": "Staying at C: the grid falls below mu = 174 g/kWh at 16:30.",
    }
    return RunLine(**values | changes)


def switching(**changes: Any) -> SwitchLine:
    """Give a switch under way."""
    values: dict[str, Any] = {
        "switch_id": "p1",
        "from_point": "A",
        "to_point": "B",
        "state": "loaded",
        "position": (5, 7),
        "age_s": 1.0,
        "requested_by": "policy",
        "reason": "the grid rose",
    }
    return SwitchLine(**values | changes)


def power(**changes: Any) -> PowerLine:
    """Give all GPUs together, well."""
    values: dict[str, Any] = {
        "source": "nvml",
        "total_w": 41_234.0,
        "gpus": 64,
        "expected": 64,
        "age_s": 1.0,
        "unobserved_share": 0.0,
        "simulated": False,
    }
    return PowerLine(**values | changes)


def status(**changes: Any) -> dict[str, Any]:
    """Give the answer of `GET /v1/status` of a daemon that is well."""
    values: dict[str, Any] = {
        "at": NOW,
        "version": "0.1.0",
        "host": "head-1",
        "pid": 4711,
        "up_s": 86_400.0,
        "mode": "act",
        "leading": True,
        "leader": "head-1",
        "epoch": 3,
        "frozen": "",
        "cycle": CycleLine(age_s=4.0, duration_ms=38.0, every_s=5.0, sentence="Nothing to do."),
        "carbon": carbon(),
        "accounting": carbon(),
        "power": power(),
        "runs": (run(),),
        "journal": JournalLine(state="ok", database="sqlite"),
        "trouble": (),
    }
    answer: dict[str, Any] = as_json(StatusView(**values | changes))
    return answer


def decision(**changes: Any) -> dict[str, Any]:
    """Give one row of `GET /v1/decisions`."""
    at = NOW.isoformat()
    values: dict[str, Any] = {
        "run": "6d1c9d0e-0000-4000-8000-000000000001",
        "action": "hold",
        "kind": "gain_too_small",
        "reason": "Switching now costs 1.1 kg to save 0.6 kg.",
        "current": "C",
        "target": "C",
        "predicted_g": 600.0,
        "switch_cost_g": 1100.0,
        "slack_s": None,
        "epoch": 3,
        "mode": "act",
        "first_at": at,
        "last_at": at,
        "count": 1,
        **BASIS,
    }
    return values | changes


def switch_row(**changes: Any) -> dict[str, Any]:
    """Give one switch of `GET /v1/runs/{run}`."""
    at = (NOW - timedelta(hours=2)).isoformat()
    values: dict[str, Any] = {
        "plan": "p1",
        "run": "6d1c9d0e-0000-4000-8000-000000000001",
        "from_point": "A",
        "to_point": "C",
        "order": {"mode": "in_place"},
        "state": "confirmed",
        "requested_by": "policy",
        "reason": "The grid rose past 3.7x the cheapest planned hour.",
        "predicted_ug": 14_200_000_000,
        "switch_cost_ug": 400_000_000,
        "created_at": at,
        "updated_at": at,
        "detail": "",
        **BASIS,
        "evidence": {"probe_before": 2.0, "probe_after": 2.0000006, "total_s": 1.9},
    }
    return values | changes
