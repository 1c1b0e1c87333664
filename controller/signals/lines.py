"""The grid signals as people see them: one line of the screen, and the forecast with its skill.

Invariant: what is shown is what the cycle decides on; nothing is computed a second time.
"""

from collections.abc import Sequence
from datetime import datetime

from wattmesh.controller.carbon_views import (
    BandSlot,
    CarbonLine,
    ExogenousLine,
    ForecastSlot,
    ForecastView,
    SkillLine,
)
from wattmesh.controller.cycle.carbon_view import SignalFacts, carbon_view, running_point
from wattmesh.controller.journal.carbon.exogenous import EXOGENOUS
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.signals.forecaster import Forecaster
from wattmesh.policies.decision import CarbonView, IntensitySlot
from wattmesh.policies.forecast.skill import LEADS_H, Skill
from wattmesh.policies.ladder import ACTS, NAMES
from wattmesh.telemetry.carbon import CarbonPoint, Series, signal_quality
from wattmesh.telemetry.readings import Quality, flags_of

SHOWN_SLOTS = 336
"""A week of half hours."""

BOOKED = "Grams are booked with this signal; decisions rest on another one."
ASKED = "No decision rests on this signal: this forecast was made for you now, and is not kept."
UNKNOWN = "Too little is known of the last days of this signal to forecast it."


def carbon_line(
    journal: Journal,
    facts: SignalFacts | None,
    now: datetime,
    *,
    decides: bool = True,
    exogenous: Sequence[str] = (),
) -> CarbonLine | None:
    """Show one grid signal; None when none is set.

    Args:
        journal: what is known of it.
        facts: the signal.
        now: aware.
        decides: whether decisions rest on it; a signal used only for accounting needs no forecast.
        exogenous: names of the series that are forecast beside it.
    """
    if facts is None:
        return None
    with journal.database.one_state():
        view = carbon_view(journal, facts, now)
        fetch = journal.carbon.last_fetch(facts.signal)
        point = running_point(journal, facts, now)
        others = exogenous_lines(journal, exogenous, now)
    slots = tuple(
        ForecastSlot(start=each.start, end=each.end, g_per_kwh=each.g_per_kwh)
        for each in view.slots[:SHOWN_SLOTS]
    )
    quality = point.quality if point else Quality.FORECAST
    return CarbonLine(
        signal=str(facts.signal),
        provider=facts.signal.provider,
        zone=facts.signal.zone,
        kind=facts.signal.kind,
        factor=facts.signal.factor,
        g_per_kwh=view.now_g_per_kwh,
        quality=quality.value if slots else "",
        age_s=view.age_s,
        trouble=view.trouble if decides else _unheard(facts, view),
        forecast=slots,
        low=min(slots, key=lambda each: each.g_per_kwh, default=None),
        simulated=bool(signal_quality(str(facts.signal))),
        rung=view.rung.value,
        source=view.source,
        issued_at=view.issued_at,
        note=view.note,
        state=fetch.state if fetch else "",
        detail=fetch.detail if fetch else "",
        flags=intensity_flags(quality, str(facts.signal)),
        exogenous=others,
    )


def exogenous_lines(
    journal: Journal, series: Sequence[str], now: datetime
) -> tuple[ExogenousLine, ...]:
    """Show what is known of each series of wind, sun, load and weather."""
    return tuple(_exogenous_line(journal, each, now) for each in series)


def _exogenous_line(journal: Journal, series: str, now: datetime) -> ExogenousLine:
    fetch, (reaches_at, issued_at) = (
        journal.exogenous.last_fetch(series),
        journal.exogenous.reach(series),
    )
    ok_at = fetch.ok_at if fetch else None
    return ExogenousLine(
        series=series.removeprefix(EXOGENOUS),
        state=fetch.state if fetch else "",
        detail=fetch.detail if fetch else "",
        age_s=max(0.0, (now - ok_at).total_seconds()) if ok_at else None,
        reaches_at=reaches_at,
        issued_at=issued_at,
        past_since=fetch.filled_from if fetch else None,
    )


def intensity_flags(quality: Quality, signal: str) -> tuple[str, ...]:
    """Give the flags of an intensity; a forecast one is an estimate."""
    forecast = Quality.ESTIMATED if quality is Quality.FORECAST else ""
    return flags_of(str(quality), str(forecast), signal_quality(signal))


def _unheard(facts: SignalFacts, view: CarbonView) -> str:
    """Say that a signal used only for accounting is silent; "" when it is not."""
    if view.age_s is not None and view.age_s <= facts.stale_after_s:
        return ""
    return view.trouble


def forecast_view(
    journal: Journal,
    facts: SignalFacts | None,
    now: datetime,
    *,
    decides: bool = True,
    exogenous: Sequence[str] = (),
) -> ForecastView:
    """Show what decisions rest on; for a signal used only for accounting, what is expected."""
    if facts is None:
        return ForecastView(
            at=now,
            signal="",
            rung="none",
            source="",
            sentence="No decision signal is set; add [carbon.accounting] to the settings.",
            issued_at=None,
            interval_s=0.0,
        )
    view = carbon_view(journal, facts, now)
    issue = journal.forecasts.get(view.forecast) if view.forecast else None
    return ForecastView(
        at=now,
        signal=str(facts.signal),
        rung=view.rung.value,
        source=view.source,
        sentence=_sentence(view) if decides else BOOKED,
        issued_at=view.issued_at,
        interval_s=facts.interval_s,
        model=issue.model if issue else "",
        slots=_bands(view.slots, running_point(journal, facts, now)),
        skill=skill_lines(journal.forecasts.skill(facts.signal)),
        flags=intensity_flags(Quality.FORECAST, str(facts.signal)),
        exogenous=exogenous_lines(journal, exogenous, now),
    )


def preview(journal: Journal, facts: SignalFacts, now: datetime) -> ForecastView:
    """Forecast a signal that no decision uses, on request; nothing is stored."""
    series = Series(
        interval_s=facts.interval_s,
        origin=journal.carbon.known_until(facts.signal) or now,
        cadence_s=facts.interval_s,
        day_s=facts.day_s,
    )
    made = Forecaster(journal, facts.signal, series).preview(now)
    return ForecastView(
        at=now,
        signal=str(facts.signal),
        rung=made.rung.value if made else "none",
        source=made.source if made else "",
        sentence=ASKED if made else UNKNOWN,
        issued_at=made.issued_at if made else None,
        interval_s=facts.interval_s,
        model=made.model if made else "",
        slots=_bands(made.slots, None) if made else (),
        flags=intensity_flags(Quality.FORECAST, str(facts.signal)),
    )


def _bands(slots: Sequence[IntensitySlot], running: CarbonPoint | None) -> tuple[BandSlot, ...]:
    """Show slots with their quantiles; the first has the quality of its observation, if any."""
    first = running.quality.value if running else Quality.FORECAST.value
    return tuple(
        BandSlot(
            start=each.start,
            end=each.end,
            g_per_kwh=each.g_per_kwh,
            low_g_per_kwh=each.low_g_per_kwh,
            high_g_per_kwh=each.high_g_per_kwh,
            quality=Quality.FORECAST.value if place else first,
        )
        for place, each in enumerate(slots)
    )


def _sentence(view: CarbonView) -> str:
    if view.trouble or view.rung not in ACTS:
        return f"{(view.trouble or view.note).rstrip('.')}: nothing is done for carbon's sake."
    why = f" ({view.note})" if view.note else ""
    return f"Decisions rest on {NAMES[view.rung]}{why}."


def skill_lines(kept: str) -> tuple[SkillLine, ...]:
    """Read the stored skill; sources that were never scored are left out."""
    if not kept:
        return ()
    tallies = Skill.from_json(kept).tallies
    return tuple(
        SkillLine(
            source=source.value,
            lead_h=LEADS_H[bucket],
            mae_g_per_kwh=each.error_g / each.weight,
            persistence_mae_g_per_kwh=each.day_error_g / each.weight,
            last_mae_g_per_kwh=each.last_error_g / each.weight,
            count=each.weight,
        )
        for (source, bucket), each in sorted(tallies.items())
        if each.weight > 0
    )
