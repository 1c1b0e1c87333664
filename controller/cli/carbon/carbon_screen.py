"""What the answers about carbon signals look like: providers, and the forecast decided on. Pure.

Invariant: a quantile, an age or a skill that is not known is shown as `-` or left out, never as 0.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.output import DIM, GOOD, STRONG, WARN, styled
from wattmesh.controller.cli.tables import Column, table

SLOTS = (
    Column(title="FROM"),
    Column(title="TO"),
    Column(title="G/KWH", right=True),
    Column(title="80 % BAND", right=True),
    Column(title=""),
)
SKILL = (
    Column(title="SOURCE"),
    Column(title="AHEAD", right=True),
    Column(title="OFF BY", right=True),
    Column(title="DAY BEFORE", right=True),
    Column(title="LAST VALUE", right=True),
    Column(title="OVER", right=True),
)
SOURCES = {
    "issued": "the provider",
    "exogenous": "wattmesh, weather",
    "own": "wattmesh",
    "profile": "the usual day",
    "day": "the day before",
    "last": "the last value",
}
"""How the screen names the forecasts whose skill it shows."""
BAR_WIDTH = 30
RUNGS = {
    "issued": "as issued",
    "profile": "no fresh forecast: from stored hours",
    "static": "a number of the settings: decisions hold",
    "none": "nothing is known of the hours to come: decisions hold",
}


def forecast(view: Mapping[str, Any], hours: float) -> list[Text | str]:
    """Lay out the answer of `GET /v1/carbon/forecast`, as far as `hours` ahead."""
    if not view["signal"]:
        return [styled((view["sentence"], WARN))]
    now = datetime.fromisoformat(view["at"])
    slots = [
        each
        for each in view["slots"]
        if datetime.fromisoformat(each["start"]) < now + timedelta(hours=hours)
    ]
    lines: list[Text | str] = [_head(view, now)]
    if view["sentence"]:
        lines.append(str(view["sentence"]))
    if view["model"]:
        lines.append(styled((f"made of: {view['model']}", DIM)))
    lines += [_exogenous(each, now) for each in view.get("exogenous", ())]
    if slots:
        lines += [_hours_to_come(slots, now), "", *_rows(slots)]
    if view["skill"]:
        lines += ["", *_errors_by_source(view["skill"])]
    return lines


def providers(
    known: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]
) -> list[Text | str]:
    """Lay out what there is, and what the configured sources answered."""
    lines: list[Text | str] = []
    for each in known:
        used = f"   used by {', '.join(each['used_by'])}" if each["used_by"] else ""
        lines.append(styled((each["provider"], STRONG), (used, GOOD)))
        lines.append(f"  serves  {each['serves']}")
        needs = ", ".join(each["needs"]) or "no further key"
        optional = f"   (may have {', '.join(each['reads'])})" if each["reads"] else ""
        lines.append(f"  needs   provider, zone, {needs}{optional}")
        lines.append(styled((f"  terms   {each['terms']}", DIM)))
    for answer in answers:
        lines += ["", *_answer(answer)]
    return lines


def _answer(answer: Mapping[str, Any]) -> list[Text | str]:
    title = f"{answer['source']}  {answer['signal'] or answer['provider']}"
    if answer["error"]:
        return [
            styled((title, STRONG), "  ", ("refused", WARN)),
            f"  {answer['error']}",
            f"  {answer['next']}",
        ]
    found = answer["capabilities"]
    served = [name for name in ("latest", "history", "forecast") if found[name]]
    lacking = [name for name in ("latest", "history", "forecast") if not found[name]]
    lines: list[Text | str] = [
        styled(
            (title, STRONG),
            "  ",
            (f"serves {', '.join(served) or 'nothing'}", GOOD if served else WARN),
            (f", no {', no '.join(lacking)}" if lacking else "", WARN),
        )
    ]
    if found["history_since"]:
        lines.append(f"  history since {found['history_since'][:10]}")
    if found["models"]:
        lines.append(f"  models {', '.join(found['models'])}")
    if found["detail"]:
        lines.append(f"  {found['detail']}")
    return lines


def _head(view: Mapping[str, Any], now: datetime) -> Text:
    rung = RUNGS.get(view["rung"], view["rung"])
    by = f" by {view['source']}" if view["source"] and view["rung"] in ("issued", "profile") else ""
    issued = formats.moment(view["issued_at"])
    age = "" if issued is None else f", {quantities.duration((now - issued).total_seconds())} old"
    calm = view["rung"] == "issued"
    return styled((view["signal"], STRONG), "  ", (f"{rung}{by}{age}", GOOD if calm else WARN))


def _exogenous(line: Mapping[str, Any], now: datetime) -> Text:
    """Say what is known of the wind, the sun, the load or the weather from one provider."""
    reaches = formats.moment(line["reaches_at"])
    ahead_s = 0.0 if reaches is None else (reaches - now).total_seconds()
    told = (
        f"known for the next {quantities.duration(ahead_s)}" if ahead_s > 0 else "nothing past now"
    )
    good = line["state"] == "ok" and ahead_s > 0
    why = f"   {line['detail']}" if line["detail"] and not good else ""
    return styled(
        ("beside it: ", DIM),
        f"{line['series']}  ",
        (told, GOOD if good else WARN),
        (f"   {line['state'] or 'not asked yet'}{why}", DIM),
    )


def _hours_to_come(slots: Sequence[Mapping[str, Any]], now: datetime) -> Text:
    low = min(slots, key=lambda slot: slot["g_per_kwh"])
    high = max(slots, key=lambda slot: slot["g_per_kwh"])
    span_s = (datetime.fromisoformat(slots[-1]["end"]) - now).total_seconds()
    return styled(
        f"next {quantities.duration(span_s)}  ",
        formats.sparkline([slot["g_per_kwh"] for slot in slots], width=48),
        f"   low {formats.intensity(low['g_per_kwh'])} at {_day_clock(low['start'])}"
        f"   high {formats.intensity(high['g_per_kwh'])} at {_day_clock(high['start'])}",
    )


def _rows(slots: Sequence[Mapping[str, Any]]) -> list[Text]:
    highest = max(slot["g_per_kwh"] for slot in slots)
    return table(
        SLOTS,
        [
            (
                _day_clock(slot["start"]),
                _day_clock(slot["end"]),
                formats.intensity(slot["g_per_kwh"]),
                _band(slot),
                formats.bar(slot["g_per_kwh"] / highest, BAR_WIDTH).rstrip("░") if highest else "",
            )
            for slot in slots
        ],
    )


def _band(slot: Mapping[str, Any]) -> str:
    """The span between the 10 % and the 90 % quantile."""
    low, high = slot["low_g_per_kwh"], slot["high_g_per_kwh"]
    if low is None or high is None:
        return quantities.UNKNOWN
    return f"{formats.intensity(low)}-{formats.intensity(high)}"


def _errors_by_source(rows: Sequence[Mapping[str, Any]]) -> list[Text]:
    return table(
        SKILL,
        [
            (
                SOURCES.get(row["source"], row["source"]),
                quantities.duration(row["lead_h"] * 3600.0),
                _grams(row["mae_g_per_kwh"]),
                _grams(row["persistence_mae_g_per_kwh"]),
                _grams(row["last_mae_g_per_kwh"]),
                formats.plural(round(row["count"]), "value"),
            )
            for row in rows
        ],
    )


def _grams(value: float | None) -> str:
    """Write a mean error in g/kWh."""
    return quantities.UNKNOWN if value is None else f"{quantities.figures(value)} g/kWh"


def _day_clock(text: str) -> str:
    """Write a time of the API as `Fri 14:00` (UTC)."""
    return f"{datetime.fromisoformat(text).astimezone(UTC):%a %H:%M}"
