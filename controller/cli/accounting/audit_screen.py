"""What `wattmesh budget --audit RUN` looks like: every row of every scenario, then the sums. Pure.

Invariant: a row shows what it is: its flags, the quality of its intensity, and in a scenario
whether the run itself stands for it; the sums name baseline, signal and boundary.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.accounting.report_screen import reopened
from wattmesh.controller.cli.output import DIM, STRONG, WARN, legend, styled
from wattmesh.controller.cli.tables import Column, table
from wattmesh.controller.marks import mark, marked

COLUMNS = (
    Column(title="SLOT"),
    Column(title="GPU"),
    Column(title="LINE"),
    Column(title="ENERGY mJ", right=True),
    Column(title="mg/kWh", right=True),
    Column(title="CARBON ug", right=True),
    Column(title="AT MOST MORE ug", right=True),
    Column(title="TOKENS", right=True),
    Column(title="INTENSITY"),
    Column(title="FLAGS"),
)
SCENARIOS = (("reference", "baseline"), ("single", "best_single"))
"""Keys of the answer: a scenario's rows, and the point that it always runs at."""

NAMES = {"reference": "baseline", "single": "best single point"}


def screen(audit: Mapping[str, Any]) -> list[Text | str]:
    """Lay out the answer of `GET /v1/runs/{run}/audit`: every row, then the sums."""
    signals = " and ".join(audit["signals"]) or audit["signal"]
    lines: list[Text | str] = [
        styled(
            (audit["name"], STRONG),
            f" · {formats.count(audit['tokens'])} tokens · baseline {audit['baseline']} · {signals}"
            f" · {audit['boundary']}",
        )
    ]
    if audit["summed_up"]:
        lines.append("its slots are summed up: the figures are those that were kept then")
    lines += ["", "actual", *table(COLUMNS, [_slot(row) for row in audit["actual"]])]
    for name, point in SCENARIOS:
        if audit[name]:
            rows = [_slot(row) for row in audit[name]]
            lines += ["", f"{NAMES[name]} (at {audit[point]})", *table(COLUMNS, rows)]
    if audit["unclaimed"]:
        lines += ["", "booked to nobody, on GPUs that it held: it may have emitted them"]
        lines += [_unclaimed_slot(row, audit["flags"]) for row in audit["unclaimed"]]
    lines += ["", *_sums(audit), *reopened(audit), "", styled((audit["rule"], DIM))]
    return [*lines, *legend(lines)]


def _unclaimed_slot(row: Mapping[str, Any], flags: Sequence[str]) -> str:
    grams = row["carbon_ug"]
    told = quantities.UNKNOWN if grams is None else marked(f"{formats.count(grams)} ug", flags)
    return f"  {row['slot_start']}  {told}"


def _sums(audit: Mapping[str, Any]) -> list[Text | str]:
    """Write the sums: a band where some time was unobserved, or why there is no saving."""
    flags = audit["flags"]

    def grams(name: str) -> str:
        value = audit[name]
        return quantities.UNKNOWN if value is None else marked(f"{formats.count(value)} ug", flags)

    low, high = audit["saved_ug"], audit["saved_high_ug"]
    band = f" to {grams('saved_high_ug')}" if low is not None and high != low else ""
    why = f"  (not settled{': ' if audit['unsettled'] else ''}{audit['unsettled']})"
    lines: list[Text | str] = [
        f"actual    {_emitted_by_signal(audit, grams('actual_ug'))}",
        f"baseline  {grams('reference_ug')} at as many tokens",
        styled(
            "saved     ",
            (f"{grams('saved_ug')}{band}", STRONG),
            ("" if audit["settled"] else why, WARN),
        ),
    ]
    if audit["unobserved_ug"]:
        lines.insert(1, f"          at most {grams('unobserved_ug')} more while nobody measured")
    if audit["pue_note"]:
        lines.append(audit["pue_note"])
    if audit["carbon_aware_ug"] is not None:
        lines.append(
            f"of it     better single point ({audit['best_single']}) {grams('better_point_ug')}, "
            f"carbon-aware {grams('carbon_aware_ug')}"
        )
    return lines


def _emitted_by_signal(audit: Mapping[str, Any], grams: str) -> str:
    if len(audit["carbon"]) <= 1:
        return grams
    told = (
        (marked(f"{round(each['carbon_g'] * 1e6):,} ug", each["flags"]), each["signal"])
        for each in audit["carbon"]
    )
    return " and ".join(f"{ug} in {signal}" for ug, signal in told)


def _slot(row: Mapping[str, Any]) -> Sequence[str]:
    stand_in = f" by {row['stand_in']}" if row["stand_in"] else ""
    return (
        f"{formats.clock(row['slot_start'], seconds=True)}-"
        f"{formats.clock(row['slot_end'], seconds=True)}",
        row["gpu_uuid"] or quantities.UNKNOWN,
        row["line"],
        formats.count(row["energy_mj"]),
        formats.count(row["g_milli_per_kwh"]),
        formats.count(row["carbon_ug"]),
        formats.count(row["upper_ug"]) if row["upper_mj"] else "",
        formats.count(row["tokens"]),
        f"{row['quality']}{stand_in}",
        mark(row["flags"]),
    )
