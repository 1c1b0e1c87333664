"""The screen of `wattmesh policy bench`: mean saving by trace, policy and slack. Pure.

Invariant: a saving names its baseline, its signal's trace and that it is replayed; a missed
deadline is never only a number.
"""

from collections.abc import Sequence
from statistics import fmean

from rich.text import Text

from wattmesh.controller.cli.output import WARN, styled
from wattmesh.controller.cli.tables import Column, table
from wattmesh.controller.replay.bench import Row
from wattmesh.reconfig.catalogue import Catalogue


def screen(rows: Sequence[Row], catalogue: Catalogue, *, forecast: str) -> list[Text | str]:
    """Lay out the rows."""
    slacks = sorted({row.slack for row in rows})
    traces = list(dict.fromkeys(row.trace for row in rows))
    lines: list[Text | str] = [
        f"{catalogue.job} · unused GPUs {catalogue.release} · forecast {forecast} · replayed, not "
        "measured",
        "saving against the fastest point on the same grid, mean over starts, %",
    ]
    for trace in traces:
        lines += ["", trace, *_table([row for row in rows if row.trace == trace], slacks)]
    late = [row for row in rows if not row.deadline_met]
    if late:
        names = ", ".join(sorted({row.policy for row in late}))
        lines += ["", styled((f"! {len(late)} runs missed their deadline: {names}", WARN))]
    return lines


def _table(rows: Sequence[Row], slacks: Sequence[float]) -> list[Text]:
    """Lay out one trace."""
    policies = list(dict.fromkeys(row.policy for row in rows))
    columns = [
        Column(title="POLICY"),
        *(Column(title=f"{slack:g}x", right=True) for slack in slacks),
        Column(title="SWITCHES/DAY", right=True),
        Column(title="S/PLAN", right=True),
    ]
    lines = []
    for policy in policies:
        ours = [row for row in rows if row.policy == policy]
        means = [fmean(row.saving for row in ours if row.slack == slack) for slack in slacks]
        days = sum(row.finished_h for row in ours) / 24.0
        lines.append(
            [
                policy,
                *(f"{100 * mean:.1f}" for mean in means),
                f"{sum(row.switches for row in ours) / days:.1f}",
                f"{fmean(row.solve_s for row in ours):.2g}",
            ]
        )
    bounds = [fmean(row.bound_saving for row in rows if row.slack == slack) for slack in slacks]
    lines.append(["bound", *(f"{100 * bound:.1f}" for bound in bounds), "", ""])
    return table(columns, lines)
