"""One budget in its running period, as `wattmesh budget` shows it. Pure.

Invariant: what is not known is `-`, never 0; an alert says what to do, and is the only coloured
line; the signal stands beside the grams, and grams of another signal have a line of their own. A
limit and its plan are set by people, so they have no flags.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.output import DIM, STRONG, WARN, styled

DAY_S = 86_400.0


def period_lines(period: Mapping[str, Any], view: Mapping[str, Any]) -> list[Text | str]:
    """Lay out one budget: title, spent, on course, restated, plan, alert."""
    flags, share = period["flags"], period["spent_g"] / period["limit_g"]
    lines: list[Text | str] = [
        styled((f"{period_name(period['period'])}, {period['name']}, ", STRONG),
               (signal_words(period["signal"]), STRONG), f"   {_share_gone(period, view['at'])}"),
        styled(("spent      ", DIM), (formats.grams(period["spent_g"], flags), STRONG),
               f" of {formats.grams(period['limit_g'])}"
               f"   {formats.bar(share)}  {formats.percent(share)}"
               f"      expected by now {formats.grams(period['expected_g'])}"
               f"   left {formats.grams(period['residual_g'], flags)}"),
        *_dark(period),
        styled(("on course  ", DIM), (_course(period), STRONG), f"   burn {_burn(period)}"),
    ]  # fmt: skip
    for other in period["others"]:
        said = f"{formats.grams(other['carbon_g'], other['flags'])} in {other['signal']}"
        more = formats.grams(other["upper_g"], other["flags"])
        at_most = f", at most {more} more unobserved" if other["upper_g"] else ""
        lines.append(styled(("not added  ", DIM), f"{said}{at_most}"))
    beside = []
    if period["restated_g"]:
        beside.append(f"restated {_signed(period['restated_g'], flags)} since first reported")
    if period["unpriced_j"]:
        beside.append(f"{formats.joules(period['unpriced_j'], flags)} have no grams yet")
    if beside:
        lines.append(styled(("beside     ", DIM), " · ".join(beside)))
    if period["plan"]:
        lines.append(styled((f"plan       {period['plan']}", DIM)))
    if period["alert"]:
        lines.append(styled((f"{period['alert']}.", WARN)))
    return [*lines, ""]


def _dark(period: Mapping[str, Any]) -> list[Text | str]:
    """Write the most that was spent, with unread GPU time or energy charged to no run."""
    if not period["unobserved_s"] and not period["upper_g"]:
        return []
    flags = [*period["flags"], "estimated"]
    most = formats.grams(period["spent_g"] + period["upper_g"], flags)
    dark_s = period["unobserved_s"]
    not_read = f"for {quantities.duration(dark_s)} of GPU time were not read"
    said = (
        f"{most}, {not_read if dark_s else 'with what its GPUs drew that nobody was charged for'}"
    )
    if period["unbounded_j"]:
        said += f" ({formats.joules(period['unbounded_j'], flags)} of it have no grams yet)"
    return [styled(("at most    ", DIM), (said, WARN))]


def read_joules(view: Mapping[str, Any], energy_mj: int) -> str:
    """Write an energy of a report; `-` where nothing at all was read."""
    nothing = not energy_mj and any(each["unobserved_ms"] for each in view["subjects"])
    return quantities.UNKNOWN if nothing else formats.joules(energy_mj / 1e3, view["flags"])


def not_read(view: Mapping[str, Any]) -> str:
    """Say for how long nobody measured in a report, and the most that was drawn then."""
    dark_ms, upper_mj = (
        sum(each[name] for each in view["subjects"]) for name in ("unobserved_ms", "upper_mj")
    )
    if not dark_ms:
        return ""
    most = formats.joules(upper_mj / 1e3, [*view["flags"], "estimated"])
    dark = quantities.duration(dark_ms / 1e3)
    return f" · {dark} of GPU time were not read (at most {most} more)"


def period_name(name: str) -> str:
    """Write 2026-11 as November 2026; give other names unchanged."""
    try:
        return datetime.strptime(name, "%Y-%m").strftime("%B %Y")
    except ValueError:
        return name


def scope(signal: str) -> str:
    """Write `(Scope 2)` after grams of a direct factor, else the factor (upstream is Scope 3)."""
    factor = signal.split(":")[3:4]
    if factor == ["direct"]:
        return " (Scope 2)"
    return f" ({factor[0]})" if factor else ""


def signal_words(signal: str) -> str:
    """Write `neso:GB:average:direct:CO2` as people say it."""
    parts = signal.split(":")
    if len(parts) != 5:
        return "no signal is set"
    provider, zone, kind, factor, gas = parts
    based = "location-based " if kind == "average" else ""
    said = f"{based}{kind}{'' if factor == 'direct' else f', {factor}'} ({zone}, {provider})"
    return said if gas == "CO2" else f"{said} {gas}"


def _share_gone(period: Mapping[str, Any], at: str) -> str:
    start, end, now = (
        datetime.fromisoformat(each) for each in (period["start"], period["end"], at)
    )
    whole, gone = (end - start).total_seconds(), (now - start).total_seconds()
    if whole < 2 * DAY_S:
        return f"{gone / 3600:.0f} of {whole / 3600:.0f} h gone"
    return f"{gone / DAY_S:.0f} of {whole / DAY_S:.0f} days gone"


def _course(period: Mapping[str, Any]) -> str:
    """Write the grams expected by the period's end, with a band where one is known."""
    flags = [*period["flags"], "estimated"]
    text = f"{formats.grams(period['on_course_g'], flags)} by its end"
    if period["low_g"] is not None:
        low, high = (formats.grams(period[name], flags) for name in ("low_g", "high_g"))
        text += f" (80 %: {low} - {high})"
    if period["exhausted_at"] is not None:
        passed = period["residual_g"] < 0
        at = datetime.fromisoformat(period["exhausted_at"])
        text += f", {'used up since' if passed else 'used up by'} {at:%d %b %H:%M}"
    return text


def _burn(period: Mapping[str, Any]) -> str:
    whole = "-" if period["burn"] is None else f"{quantities.figures(period['burn'], 2)}x"
    windows = _known_windows(period["burns"])
    alert = f"{period['urgency']} alert" if period["urgency"] else "no alert"
    return " · ".join([whole, *([windows] if windows else []), alert])


def _known_windows(burns: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{quantities.duration(each['hours'] * 3600)} {quantities.figures(each['ratio'], 2)}x"
        for each in burns
        if each["ratio"] is not None
    )


def _signed(grams: float, flags: Sequence[str]) -> str:
    return f"{'+' if grams > 0 else ''}{formats.grams(grams, flags)}"
