"""What `wattmesh budget` looks like: spent, saved against what, and who spent it. Pure.

Invariant: a saving names its baseline and its signal, and its headline is the lower end; a saving
that is not known says why, and is not added up; two signals are two lines and have no sum; every
joule and gram has its flags beside it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.accounting.period_screen import period_lines
from wattmesh.controller.cli.output import DIM, STRONG, WARN, legend, styled
from wattmesh.controller.cli.tables import Column, table
from wattmesh.controller.marks import marked

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
LINES = {"idle_after_release": "released"}
"""Ledger lines that the screen calls by another name."""

AGAINST = "against the points the runs were submitted at"

Row = Mapping[str, Any]


def screen(view: Row) -> list[Text | str]:
    """Lay out the answer of `GET /v1/budget`."""
    lines: list[Text | str] = [
        *(line for period in view["periods"] for line in period_lines(period, view)),
        *_total_by_signal(view),
        *_saved(view),
        _booked_to_no_run(view["lines"]),
    ]
    if view["runs"]:
        rows = [row for run in view["runs"] for row in _run_rows(run)]
        lines += ["", *table(RUN_COLUMNS, rows)]
    if view["simulated"]:
        lines += ["", styled((f"simulated: {', '.join(view['simulated'])}", WARN))]
    return [*lines, *legend(lines)]


def _total_by_signal(view: Row) -> Iterator[Text]:
    total = view["total"]
    energy = f"{formats.joules(total['energy_j'], total['flags'])}{_unpriced(total)}"
    if len(total["carbon"]) <= 1:
        signal = total["carbon"][0]["signal"] if total["carbon"] else view["signal"]
        yield styled(
            ("in all ", DIM),
            (formats.grams(_priced_g(total), total["flags"]), STRONG),
            f" for {energy}   {signal or 'no signal is set'}; {view['boundary']}",
        )
        return
    count = len(total["carbon"])
    yield styled(("in all ", DIM), f"{energy} in {count} signals, never added; {view['boundary']}")
    for each in total["carbon"]:
        grams = formats.grams(each["carbon_g"], each["flags"])
        yield styled("       ", (grams, STRONG), f"   {each['signal']}")


def _saved(view: Row) -> Iterator[Text]:
    """Write what was saved against what; unsettled savings are named, not counted."""
    told = list(view["saved"])
    for line in told:
        if line["saved_g"] is None:
            said = "not known yet: some joules of given-back GPUs have no grams yet"
            yield styled(("saved  ", DIM), said)
            continue
        mine = [run for run in view["runs"] if run["saved_g"] is not None]
        mine = [run for run in mine if run["signal"] == line["signal"]]
        signal = f"   {line['signal']}" if len(told) > 1 else ""
        yield styled(
            ("saved  ", DIM),
            *_headline(line, mine),
            f" {AGAINST}{_saved_share_of_baselines(line, mine)}{signal}",
        )
        yield from _parts(line)
    if not told:
        yield styled(("saved  ", DIM), "nothing is settled yet")
    if view["unsettled"]:
        yield styled((f"       not settled: {', '.join(view['unsettled'])}", WARN))
    seen, expected = view["covered"]
    if seen < expected:
        said = (
            f"       estimated: coverage {seen} of {expected} GPUs, the others count at their most"
        )
        yield styled((said, WARN))


def _headline(line: Row, runs: Sequence[Row]) -> list[str | tuple[str, str]]:
    """Give the lower end first, and the band behind it where the ends differ."""
    low = formats.grams(line["saved_g"], line["flags"])
    if line["high_g"] <= line["saved_g"]:
        return [(low, STRONG)]
    dark_s = sum(run["unobserved_s"] for run in runs)
    why = f": {quantities.duration(dark_s)} of GPU time were not read" if dark_s else ""
    high = formats.grams(line["high_g"], line["flags"])
    return [("at least ", STRONG), (low, STRONG), f" (up to {high}{why})"]


def _saved_share_of_baselines(line: Row, runs: Sequence[Row]) -> str:
    against = sum(run["baseline_g"] or 0.0 for run in runs)
    return f" ({formats.percent(line['saved_g'] / against)})" if against else ""


def _parts(line: Row) -> Iterator[Text]:
    """Split a saving into its parts; only the last is called carbon-aware."""
    flags = line["flags"]
    parts = [
        f"better single point {formats.grams(line['better_point_g'], flags)}",
        f"carbon-aware {formats.grams(line['carbon_aware_g'], flags)}",
    ]
    if line["unsplit_g"]:
        parts.insert(1, f"not parted {formats.grams(line['unsplit_g'], flags)}")
    yield styled((f"       of it: {', '.join(parts)}", DIM))
    if line["released_g"]:
        released = formats.grams(line["released_g"], flags)
        said = f"       taken from it: {released} of GPUs that were given back and stood idle"
        yield styled((said, DIM))


def _priced_g(entry: Row) -> float | None:
    """Give what was emitted; None where no joule has a price yet: unknown is never zero."""
    carbon_g: float | None = entry["carbon_g"]
    return None if entry["unpriced_j"] and not carbon_g else carbon_g


def _unpriced(entry: Row) -> str:
    """Say how many joules have no grams; "" for none."""
    if not entry["unpriced_j"]:
        return ""
    return f" ({formats.joules(entry['unpriced_j'], entry['flags'])} have no grams yet)"


def _booked_to_no_run(lines: Sequence[Row]) -> Text:
    others = [_cluster_line(line) for line in lines if line["line"] not in ("run", "unobserved")]
    dark_s = sum(line["unobserved_s"] for line in lines)
    others.append(f"unobserved {quantities.duration(dark_s)} of GPU time{_most(lines)}")
    return styled(("beside ", DIM), " · ".join(others))


def _cluster_line(line: Row) -> str:
    name = LINES.get(line["line"], line["line"])
    energy = formats.joules(line["energy_j"], line["flags"])
    if len(line["carbon"]) <= 1:
        return f"{name} {formats.grams(_priced_g(line), line['flags'])} ({energy})"
    grams = " and ".join(
        f"{formats.grams(each['carbon_g'], each['flags'])} in {each['signal']}"
        for each in line["carbon"]
    )
    return f"{name} {grams} ({energy})"


def _most(entries: Sequence[Row]) -> str:
    """Say the most that was drawn and emitted in unobserved time; "" where it is nothing."""
    upper_j = sum(each["upper_j"] for each in entries)
    if not upper_j:
        return ""
    flags = {flag for each in entries for flag in each["flags"]} | {"estimated"}
    upper: dict[str, float] = {}
    for each in entries:
        for of in each["carbon"]:
            upper[of["signal"]] = upper.get(of["signal"], 0.0) + of["upper_g"]
    grams = [
        formats.grams(upper_g, flags) + (f" in {signal}" if len(upper) > 1 else "")
        for signal, upper_g in sorted(upper.items())
    ]
    known = all(each["upper_g"] is not None or len(each["carbon"]) > 1 for each in entries)
    said = [formats.joules(upper_j, flags), *(grams if known else [])]
    return f" (at most {', '.join(said)} more)"


def _run_rows(run: Row) -> Iterator[Sequence[str | Text]]:
    flags = run["flags"]
    saved, baseline = run["saved_g"], run["baseline_g"]
    first, *rest = run["carbon"] or [None]
    one = not rest
    carbon = _priced_g(run) if one or first is None else first["carbon_g"]
    known = one and carbon is not None and run["tokens"]
    per_million = carbon / run["tokens"] * 1e6 if known and carbon is not None else None
    yield (
        Text(run["name"], style=STRONG),
        formats.grams(carbon, flags if one or first is None else first["flags"]),
        formats.grams(baseline, flags),
        formats.grams(saved, flags),
        f"({formats.percent(saved / baseline)})" if saved is not None and baseline else "",
        quantities.UNKNOWN
        if per_million is None
        else marked(quantities.figures(per_million), flags),
        _share_of_hindsight(run),
        _notes(run),
    )
    for each in rest:
        grams = formats.grams(each["carbon_g"], each["flags"])
        yield ("", grams, "", "", "", "", "", f"in {each['signal']}")


def _share_of_hindsight(run: Row) -> str:
    saved, baseline, bound = run["saved_g"], run["baseline_g"], run["bound_g"]
    if None in (saved, baseline, bound) or baseline <= bound:
        return quantities.UNKNOWN
    return formats.percent(saved / (baseline - bound))


def _notes(run: Row) -> Text:
    flags = run["flags"]
    notes = [f"baseline {run['baseline']}" if run["baseline"] else "no baseline, so no saving"]
    if len(run["carbon"]) > 1:
        notes.insert(0, f"in {run['carbon'][0]['signal']}")
    if run["baseline"] and not run["settled"]:
        notes.append(f"not settled: {run['unsettled']}" if run["unsettled"] else "not settled")
    notes += _band_and_parts(run)
    notes += _grams_of_each_quality(run["qualities"])
    notes += [run[name] for name in ("scope_note", "pue_note") if run[name]]
    if run.get("unread"):
        notes.append(run["unread"].rstrip("."))
    if run["unpriced_j"]:
        notes.append(f"{formats.joules(run['unpriced_j'], flags)} have no grams yet")
    if run["unobserved_s"]:
        notes.append(f"{quantities.duration(run['unobserved_s'])} unobserved{_most([run])}")
    elif run["upper_g"]:
        notes.append(f"at most {formats.grams(run['upper_g'], flags)} more, booked to nobody")
    return Text(", ".join(notes), style="" if run["settled"] else WARN)


def _grams_of_each_quality(qualities: Mapping[str, float]) -> list[str]:
    if len(qualities) < 2:
        return []
    return [
        f"{formats.grams(grams, quality.split('+'))} of it"
        for quality, grams in qualities.items()
        if quality != "measured"
    ]


def _band_and_parts(run: Row) -> list[str]:
    flags, notes = run["flags"], []
    saved, high = run["saved_g"], run["saved_high_g"]
    if saved is not None and high is not None and high > saved:
        notes.append(f"saved at least that, up to {formats.grams(high, flags)}")
    if run["carbon_aware_g"] is not None:
        single = f" ({run['best_single']})" if run["best_single"] else ""
        notes.append(
            f"better single point{single} {formats.grams(run['better_point_g'], flags)}, "
            f"carbon-aware {formats.grams(run['carbon_aware_g'], flags)}"
        )
    elif saved is not None and run["split_unsettled"]:
        notes.append(f"not parted: {run['split_unsettled']}")
    return notes
