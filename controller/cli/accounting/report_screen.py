"""What `wattmesh report` looks like: the month, its scenarios side by side, who spent it. Pure.

Invariant: every figure names its scenario, signal and boundary, and has its flags beside it;
unpriced joules stand beside the grams; nothing is netted, and a total is shown only within one
scenario and signal.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.accounting.period_screen import (
    not_read,
    period_name,
    read_joules,
    scope,
    signal_words,
)
from wattmesh.controller.cli.output import DIM, STRONG, WARN, legend, styled
from wattmesh.controller.cli.tables import Column, table

NAMES = {
    "location": "location-based",
    "lifecycle": "lifecycle",
    "marginal": "marginal",
    "further": "further signal",
    "market": "market-based",
    "embodied": "embodied",
}
LINES = {"idle_after_release": "released"}
COLUMNS = (
    Column(title="RUN OR LINE"),
    Column(title="IT ENERGY", right=True),
    Column(title="FACILITY", right=True),
    Column(title="LOCATION-BASED", right=True),
    Column(title="EMBODIED", right=True),
    Column(title="GPU HOURS", right=True),
    Column(title="10^9 TOKENS", right=True),
    Column(title="G/10^9 TOKENS", right=True),
    Column(title="NOTES"),
)


def screen(view: Mapping[str, Any]) -> list[Text | str]:
    """Lay out the answer of `GET /v1/report`."""
    lines: list[Text | str] = [
        styled((f"{period_name(view['month'])}, the whole cluster ({view['timezone']})", STRONG),
               f"   {_state(view)}"),
        styled(("energy     ", DIM), _energy(view)),
        *_totals(view["totals"]),
        styled(("SCI        ", DIM), _sci(view)),
        styled(("           " + view["sci_boundary"], DIM)),
        styled(("quality    ", DIM), _joule_shares(view["qualities"])),
        *_restated(view["carbon"]),
        *_share_of_limit(view),
    ]  # fmt: skip
    rows = [row for each in _runs_first(view["subjects"]) for row in _subject_rows(each)]
    lines += ["", *table(COLUMNS, rows)]
    if view["simulated"]:
        lines += ["", styled((f"simulated: {', '.join(view['simulated'])}", WARN))]
    if view["detail_of"] == "closing":
        what = "its slots are summed up: further scenarios are those of the day it was closed"
        lines += ["", styled((what, DIM))]
    lines += reopened(view)
    return [*lines, *legend(lines)]


def reopened(view: Mapping[str, Any]) -> list[Text | str]:
    """Say of each time that a closed month was opened again by whom, why, and what it had been."""
    found: list[Text | str] = []
    for each in view.get("reopened", ()):
        closed, opened = (
            datetime.fromisoformat(each[name]).astimezone(UTC)
            for name in ("closed_at", "reopened_at")
        )
        grams = " and ".join(
            f"{formats.micrograms(carbon_ug, each['flags'])} in {signal}"
            for signal, carbon_ug in each["carbon_ug"].items()
        )
        found.append(
            f"reopened   {each['month']} by {each['by']}, {opened:%Y-%m-%d %H:%M} UTC: "
            f"{each['reason']} (closed {closed:%Y-%m-%d %H:%M} UTC with {grams or 'no grams'})"
        )
    return found


def _share_of_limit(view: Mapping[str, Any]) -> list[Text]:
    if not view["limit_g"]:
        return []
    spent = [each for each in view["carbon"] if each["signal"] == view["limit_signal"]]
    share = sum(each["carbon_ug"] for each in spent) / 1e6 / view["limit_g"]
    most = sum(each["carbon_ug"] + each["upper_ug"] for each in spent) / 1e6 / view["limit_g"]
    limit = (
        f"{formats.grams(view['limit_g'])}   {formats.bar(share)}  {formats.percent(share)} spent"
    )
    limit += f", {formats.percent(most)} at most" if most > share else ""
    return [styled(("limit of   ", DIM), limit)]


def _state(view: Mapping[str, Any]) -> str:
    if view["closed_at"]:
        return f"closed {datetime.fromisoformat(view['closed_at']).astimezone(UTC):%d %b %H:%M} UTC"
    return "running" if view["running"] else "not closed yet: some slots are not settled"


def _energy(view: Mapping[str, Any]) -> str:
    machines, dark = read_joules(view, view["energy_mj"]), not_read(view)
    if view["pue"] is None:
        return f"IT {machines} · facility - (no PUE is set){dark}"
    facility = read_joules(view, view["facility_mj"])
    return f"IT {machines} · facility {facility} (PUE {view['pue']:g}){dark}"


def _totals(totals: Sequence[Mapping[str, Any]]) -> list[Text]:
    lines = []
    for number, total in enumerate(totals):
        head = "carbon     " if number == 0 else "           "
        name = NAMES[total["scenario"]]
        if total["scenario"] == "location":
            name += scope(total["signal"])
        known = total["energy_mj"] != total["unpriced_mj"] or not total["energy_mj"]
        flags = total["flags"]
        grams = formats.micrograms(total["carbon_ug"], flags) if known else quantities.UNKNOWN
        lines.append(
            styled(
                (head, DIM),
                f"{name:<24}",
                (f"{grams:>10}", STRONG),
                f"   {_signal_and_unpriced(total)}",
            )
        )
        lines += [_fallback_part(each) for each in total["stand_ins"]]
    return lines


def _fallback_part(part: Mapping[str, Any]) -> Text:
    grams = formats.micrograms(part["carbon_ug"], part["flags"])
    energy = formats.joules(part["energy_mj"] / 1e3, part["flags"])
    by = f"{part['signal']}{', ' if part['model'] else ''}{part['model']}"
    return styled((f"{'':<11}{'  of it':<24}{grams:>10}   by {by}, for {energy}", DIM))


def _signal_and_unpriced(total: Mapping[str, Any]) -> str:
    signal = total["signal"]
    said = f"{signal_words(signal)}, {signal}" if signal.count(":") == 4 else signal
    if total["scenario"] == "market":
        said += f", {formats.joules(total['energy_mj'] / 1e3, total['flags'])}"
    if not total["unpriced_mj"]:
        return said
    hours = f", {quantities.figures(total['unpriced_h'])} h" if total["unpriced_h"] else ""
    unpriced = formats.joules(total["unpriced_mj"] / 1e3, total["flags"])
    return f"{said} ({unpriced}{hours} without a price)"


def _sci(view: Mapping[str, Any]) -> str:
    """Write the grams per 10^9 tokens, idle GPUs included, or why they are not known."""
    if view["sci_g"] is None and len(view["carbon"]) > 1:
        return f"- (its grams are in {len(view['carbon'])} signals, which are never added)"
    if view["sci_g"] is None:
        return "- (a run's embodied carbon or tokens, or a price, is not known)"
    return f"{formats.grams(view['sci_g'], _embodied(view))} per 10^9 tokens, idle GPUs included"


def _embodied(entry: Mapping[str, Any]) -> list[str]:
    """Give the flags of a figure with embodied grams in it: those are declared, an estimate."""
    return [*entry["flags"], "estimated"]


def _joule_shares(shares: Mapping[str, float]) -> str:
    said = sorted(shares.items(), key=lambda each: -each[1])
    return (
        ", ".join(f"{name} {formats.percent(share, 1)}" for name, share in said)
        or quantities.UNKNOWN
    )


def _restated(carbon: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    for each in carbon:
        since = _signed(each["carbon_ug"] - each["first_carbon_ug"], each["flags"])
        said = [f"{since} since first reported"]
        if each["closed_carbon_ug"] is not None:
            since = _signed(each["carbon_ug"] - each["closed_carbon_ug"], each["flags"])
            said.append(f"{since} since closed")
        signal = f"   {each['signal']}" if len(carbon) > 1 else ""
        yield styled(("restated   ", DIM), " · ".join(said), signal)


def _signed(carbon_ug: int, flags: Sequence[str]) -> str:
    return f"{'+' if carbon_ug > 0 else ''}{formats.micrograms(carbon_ug, flags)}"


def _runs_first(subjects: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort runs first, by most joules; then the lines of the cluster."""
    return sorted(subjects, key=lambda each: (each["kind"] != "run", -each["energy_mj"]))


def _subject_rows(each: Mapping[str, Any]) -> Iterator[Sequence[str | Text]]:
    flags = each["flags"]
    read = bool(each["energy_mj"] or not each["unobserved_ms"])
    priced = read and (each["energy_mj"] != each["unpriced_mj"] or not each["energy_mj"])
    facility, tokens = each["facility_mj"], each["tokens"]
    name = LINES.get(each["subject"], each["subject"])
    first, *rest = each["carbon"] or [{"carbon_ug": each["carbon_ug"], "flags": flags}]
    yield (
        Text(name, style=STRONG if each["kind"] == "run" else ""),
        formats.joules(each["energy_mj"] / 1e3, flags) if read else quantities.UNKNOWN,
        quantities.UNKNOWN
        if facility is None or not read
        else formats.joules(facility / 1e3, flags),
        formats.micrograms(first["carbon_ug"], first["flags"]) if priced else quantities.UNKNOWN,
        formats.micrograms(each["embodied_ug"], _embodied(each)),
        quantities.figures(each["gpu_hours"]) if each["kind"] == "run" else "",
        quantities.UNKNOWN if tokens is None else quantities.figures(tokens / 1e9),
        formats.grams(each["sci_g"], _embodied(each)),
        _notes(each, first["signal"] if rest else ""),
    )
    for of in rest:
        grams = formats.micrograms(of["carbon_ug"], of["flags"])
        yield ("", "", "", grams, "", "", "", "", f"in {of['signal']}")


def _notes(each: Mapping[str, Any], signal: str) -> Text:
    """Write what a reader must know of the numbers; `signal`: of the grams, if it has several."""
    flags = each["flags"]
    notes = [f"in {signal}"] if signal else []
    if each["unpriced_mj"]:
        notes.append(f"{formats.joules(each['unpriced_mj'] / 1e3, flags)} without a price")
    if each["unobserved_ms"]:
        notes.append(f"{quantities.duration(each['unobserved_ms'] / 1e3)} unobserved{_most(each)}")
    if each["kind"] == "run" and each["embodied_ug"] is None:
        notes.append("embodied carbon not in its catalogue")
    if each["simulated"]:
        notes.append(f"simulated: {', '.join(each['simulated'])}")
    return Text(", ".join(notes), style=WARN if each["simulated"] else "")


def _most(each: Mapping[str, Any]) -> str:
    """Say the most that was drawn and emitted while nobody measured."""
    flags = [*each["flags"], "estimated"]
    grams = [
        formats.micrograms(of["upper_ug"], flags)
        + (f" in {of['signal']}" if len(each["carbon"]) > 1 else "")
        for of in each["carbon"]
        if of["upper_ug"]
    ]
    return f" (at most {', '.join([formats.joules(each['upper_mj'] / 1e3, flags), *grams])} more)"
