"""What `wattmesh report` looks like: the month, its scenarios side by side, who spent it. Pure.

Invariant: every figure names its scenario, signal and boundary; unpriced joules stand beside the
grams; nothing is netted, and a total is shown only within one scenario and signal.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from wattmesh.controller.cli import words
from wattmesh.controller.cli.output import DIM, STRONG, WARN, styled
from wattmesh.controller.cli.period_screen import period_name, scope, signal_words
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
        styled(("quality    ", DIM), _qualities(view["qualities"])),
        styled(("restated   ", DIM), _restated(view)),
    ]  # fmt: skip
    if view["limit_g"]:
        share = view["carbon_ug"] / 1e6 / view["limit_g"]
        limit = f"{words.grams(view['limit_g'])}   {words.bar(share)}  {words.percent(share)} spent"
        lines.append(styled(("budget     ", DIM), limit))
    lines += ["", *table(COLUMNS, [_subject(each) for each in _sorted(view["subjects"])])]
    if view["simulated"]:
        lines += ["", styled((f"simulated: {', '.join(view['simulated'])}", WARN))]
    if view["detail_of"] == "closing":
        what = "its slots are summed up: further scenarios are those of the day it was closed"
        lines += ["", styled((what, DIM))]
    return lines


def _state(view: Mapping[str, Any]) -> str:
    """Say whether the month is over, and settled."""
    if view["closed_at"]:
        return f"closed {datetime.fromisoformat(view['closed_at']).astimezone(UTC):%d %b %H:%M} UTC"
    return "running" if view["running"] else "not closed yet: some slots are not settled"


def _energy(view: Mapping[str, Any]) -> str:
    """Both boundaries, and the PUE between them."""
    machines = f"IT {words.joules(view['energy_mj'] / 1e3)}"
    if view["pue"] is None:
        return f"{machines} · facility - (no PUE is set)"
    return f"{machines} · facility {words.joules(view['facility_mj'] / 1e3)} (PUE {view['pue']:g})"


def _totals(totals: Sequence[Mapping[str, Any]]) -> list[Text]:
    """One line for each scenario and signal; what is Scope 2 is called so."""
    lines = []
    for number, total in enumerate(totals):
        head = "carbon     " if number == 0 else "           "
        name = NAMES[total["scenario"]]
        if total["scenario"] == "location":
            name += scope(total["signal"])
        known = total["energy_mj"] != total["unpriced_mj"] or not total["energy_mj"]
        grams = words.micrograms(total["carbon_ug"]) if known else words.UNKNOWN
        lines.append(
            styled((head, DIM), f"{name:<24}", (f"{grams:>10}", STRONG), f"   {_of(total)}")
        )
    return lines


def _of(total: Mapping[str, Any]) -> str:
    """Say what the grams are in, and what has none."""
    signal = total["signal"]
    said = f"{signal_words(signal)}, {signal}" if signal.count(":") == 4 else signal
    if total["scenario"] == "market":
        said += f", {words.joules(total['energy_mj'] / 1e3)}"
    if not total["unpriced_mj"]:
        return said
    hours = f", {words.figures(total['unpriced_h'])} h" if total["unpriced_h"] else ""
    return f"{said} ({words.joules(total['unpriced_mj'] / 1e3)}{hours} without a price)"


def _sci(view: Mapping[str, Any]) -> str:
    """Grams per 10^9 tokens of everything."""
    if view["sci_g"] is None:
        return "- (a run's embodied carbon or tokens, or a price, is not known)"
    return f"{words.grams(view['sci_g'])} per 10^9 tokens, idle GPUs included"


def _qualities(shares: Mapping[str, float]) -> str:
    """Share of the joules per quality of their grams."""
    said = sorted(shares.items(), key=lambda each: -each[1])
    return ", ".join(f"{name} {words.percent(share, 1)}" for name, share in said) or words.UNKNOWN


def _restated(view: Mapping[str, Any]) -> str:
    """What was revised since it was first told."""
    said = [f"{_signed(view['carbon_ug'] - view['first_carbon_ug'])} since first reported"]
    if view["closed_carbon_ug"] is not None:
        said.append(f"{_signed(view['carbon_ug'] - view['closed_carbon_ug'])} since closed")
    return " · ".join(said)


def _signed(carbon_ug: int) -> str:
    """Write a difference with its sign."""
    return f"{'+' if carbon_ug > 0 else ''}{words.micrograms(carbon_ug)}"


def _sorted(subjects: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Runs first, the largest first; then the lines."""
    return sorted(subjects, key=lambda each: (each["kind"] != "run", -each["carbon_ug"]))


def _subject(each: Mapping[str, Any]) -> Sequence[str | Text]:
    """One row."""
    priced = each["energy_mj"] != each["unpriced_mj"] or not each["energy_mj"]
    facility, tokens = each["facility_mj"], each["tokens"]
    name = LINES.get(each["subject"], each["subject"])
    return (
        Text(name, style=STRONG if each["kind"] == "run" else ""),
        words.joules(each["energy_mj"] / 1e3),
        words.UNKNOWN if facility is None else words.joules(facility / 1e3),
        words.micrograms(each["carbon_ug"]) if priced else words.UNKNOWN,
        words.micrograms(each["embodied_ug"]),
        words.figures(each["gpu_hours"]) if each["kind"] == "run" else "",
        words.UNKNOWN if tokens is None else words.figures(tokens / 1e9),
        words.grams(each["sci_g"]),
        _notes(each),
    )


def _notes(each: Mapping[str, Any]) -> Text:
    """What must be known to read the numbers right."""
    notes = []
    if each["unpriced_mj"]:
        notes.append(f"{words.joules(each['unpriced_mj'] / 1e3)} without a price")
    if each["unobserved_ms"]:
        most = words.joules(each["upper_mj"] / 1e3)
        notes.append(f"{words.duration(each['unobserved_ms'] / 1e3)} unobserved (at most {most})")
    if each["kind"] == "run" and each["embodied_ug"] is None:
        notes.append("embodied carbon not in its catalogue")
    if each["simulated"]:
        notes.append(f"simulated: {', '.join(each['simulated'])}")
    return Text(", ".join(notes), style=WARN if each["simulated"] else "")
