"""What `wattmesh budget` looks like: spent, saved against what, and who spent it. Pure.

Invariant: a saving names its baseline and its signal; one that is not settled says so and is not
added up; simulated and provisional grams carry the word.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from wattmesh.controller.cli import words
from wattmesh.controller.cli.output import DIM, STRONG, WARN, styled
from wattmesh.controller.cli.period_screen import period_lines
from wattmesh.controller.cli.tables import Column, table

RUN_COLUMNS = (
    Column(title="RUN"),
    Column(title="SPENT", right=True),
    Column(title="BASELINE", right=True),
    Column(title="SAVED", right=True),
    Column(title="", right=True),
    Column(title="G/10^6 TOKENS", right=True),
    Column(title="OF THE BEST POSSIBLE", right=True),
    Column(title="NOTES"),
)
AUDIT_COLUMNS = (
    Column(title="SLOT"),
    Column(title="GPU"),
    Column(title="ENERGY mJ", right=True),
    Column(title="mg/kWh", right=True),
    Column(title="CARBON ug", right=True),
    Column(title="TOKENS", right=True),
    Column(title="QUALITY"),
)
PLAIN_QUALITY = ("measured",)
LINES = {"idle_after_release": "released"}
"""Lines of the ledger that people call otherwise."""


def screen(view: Mapping[str, Any]) -> list[Text | str]:
    """Lay out the answer of `GET /v1/budget`."""
    total = view["total"]
    lines: list[Text | str] = [
        *(line for period in view["periods"] for line in period_lines(period, view)),
        styled(
            ("in all ", DIM),
            (words.grams(_priced_g(total)), STRONG),
            f" for {words.joules(total['energy_j'])}{_unpriced(total)}   "
            f"{view['signal'] or 'no signal is set'}; {view['boundary']}",
        ),
        _saved(view),
        _others(view["lines"]),
    ]
    if view["runs"]:
        lines += ["", *table(RUN_COLUMNS, [_run(run) for run in view["runs"]])]
    if view["simulated"]:
        lines += ["", styled((f"simulated: {', '.join(view['simulated'])}", WARN))]
    return lines


def _saved(view: Mapping[str, Any]) -> Text:
    """What was saved, against what; what is not settled is named, not counted."""
    settled = [run for run in view["runs"] if run["saved_g"] is not None]
    against = sum(run["baseline_g"] for run in settled)
    share = f" ({words.percent(view['saved_g'] / against)})" if against else ""
    parts: list[str | tuple[str, str]] = [("saved  ", DIM)]
    if settled:
        parts += [
            (words.grams(view["saved_g"]), STRONG),
            f" against the points the runs were submitted at{share}",
            (_estimated(view), WARN),
            ("   not told apart: better single point, carbon-aware", DIM),
        ]
    else:
        parts.append("nothing is settled yet")
    if view["unsettled"]:
        parts.append((f"   not settled: {', '.join(view['unsettled'])}", WARN))
    return styled(*parts)


def _estimated(view: Mapping[str, Any]) -> str:
    """Say that savings are estimated, and why; "" when every joule of them was measured."""
    if not view.get("estimated"):
        return ""
    seen, expected = view["covered"]
    if seen < expected:
        return f"   estimated: coverage {seen} of {expected} GPUs"
    unobserved = any(run["unobserved_s"] for run in view["runs"])
    return f"   estimated: some {'time was unobserved' if unobserved else 'joules are'}"


def _priced_g(entry: Mapping[str, Any]) -> float | None:
    """Give what was emitted; None where no joule has a price yet: unknown is never zero."""
    carbon_g: float = entry["carbon_g"]
    return None if entry["unpriced_j"] and not carbon_g else carbon_g


def _unpriced(total: Mapping[str, Any]) -> str:
    """Say how much of it has no grams; "" when all has."""
    return (
        f" ({words.joules(total['unpriced_j'])} have no grams yet)" if total["unpriced_j"] else ""
    )


def _others(lines: Sequence[Mapping[str, Any]]) -> Text:
    """What was booked to no run, and what nobody measured."""
    others = [_other(line) for line in lines if line["line"] != "run"]
    unobserved = sum(line["unobserved_s"] for line in lines)
    upper_j = sum(line["upper_j"] for line in lines)
    most = f" (at most {words.joules(upper_j)} more)" if upper_j else ""
    others.append(f"unobserved {words.duration(unobserved)} of GPU time{most}")
    return styled(("beside ", DIM), " · ".join(others))


def _other(line: Mapping[str, Any]) -> str:
    """One line of the cluster that is no run."""
    name = LINES.get(line["line"], line["line"])
    return f"{name} {words.grams(_priced_g(line))} ({words.joules(line['energy_j'])})"


def _run(run: Mapping[str, Any]) -> Sequence[str | Text]:
    """One run's cells."""
    saved, baseline, carbon = run["saved_g"], run["baseline_g"], _priced_g(run)
    known = carbon is not None and run["tokens"]
    per_million = carbon / run["tokens"] * 1e6 if known else None
    return (
        Text(run["name"], style=STRONG),
        words.grams(carbon),
        words.grams(baseline),
        words.grams(saved),
        f"({words.percent(saved / baseline)})" if saved is not None and baseline else "",
        words.UNKNOWN if per_million is None else words.figures(per_million),
        _of_best(run),
        _notes(run),
    )


def _of_best(run: Mapping[str, Any]) -> str:
    """Share of what could have been saved with hindsight."""
    saved, baseline, bound = run["saved_g"], run["baseline_g"], run["bound_g"]
    if None in (saved, baseline, bound) or baseline <= bound:
        return words.UNKNOWN
    return words.percent(saved / (baseline - bound))


def _notes(run: Mapping[str, Any]) -> Text:
    """Everything that must be known to read the numbers right."""
    notes = [f"baseline {run['baseline']}" if run["baseline"] else "no baseline: no saving is told"]
    notes += [] if run["settled"] or not run["baseline"] else ["not settled"]
    notes += [f"{words.joules(run['unpriced_j'])} have no grams yet"] if run["unpriced_j"] else []
    if run["unobserved_s"]:
        most = words.joules(run["upper_j"])
        notes.append(f"{words.duration(run['unobserved_s'])} unobserved (at most {most} more)")
    notes += [
        f"{quality} {words.grams(grams)}"
        for quality, grams in run["qualities"].items()
        if quality not in PLAIN_QUALITY
    ]
    return Text(", ".join(notes), style="" if run["settled"] else WARN)


def audit_screen(audit: Mapping[str, Any]) -> list[Text | str]:
    """Lay out the answer of `GET /v1/runs/{run}/audit`: every row, then the sum."""
    saved = audit["saved_ug"]
    lines: list[Text | str] = [
        styled((audit["name"], STRONG), f" · {words.count(audit['tokens'])} tokens · baseline "
               f"{audit['baseline']} · {audit['signal']}"),
        "",
        "actual",
        *table(AUDIT_COLUMNS, [_slot(row) for row in audit["actual"]]),
        "",
        f"baseline (at {audit['baseline']})",
        *table(AUDIT_COLUMNS, [_slot(row) for row in audit["reference"]]),
        "",
        f"actual    {words.count(audit['actual_ug'])} ug",
        f"baseline  {words.count(audit['reference_ug'])} ug at as many tokens",
        styled(("saved     ", ""), (f"{words.count(saved)} ug", STRONG),
               ("" if audit["settled"] else "  (not settled)", WARN)),
        "",
        styled((audit["rule"], DIM)),
    ]  # fmt: skip
    return lines


def _slot(row: Mapping[str, Any]) -> Sequence[str]:
    """One slot's cells."""
    return (
        f"{words.clock(row['slot_start'], seconds=True)}-"
        f"{words.clock(row['slot_end'], seconds=True)}",
        row["gpu_uuid"] or words.UNKNOWN,
        words.count(row["energy_mj"]),
        words.count(row["g_milli_per_kwh"]),
        words.count(row["carbon_ug"]),
        words.count(row["tokens"]),
        row["quality"],
    )
