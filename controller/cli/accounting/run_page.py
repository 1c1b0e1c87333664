"""`wattmesh report RUN --html FILE`: the report of a run as one file for a browser. Pure.

Invariant: the page holds no script and asks the network for nothing, which its policy also forbids;
every text is escaped, whoever named it; it follows the reader's choice of light or dark.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import wattmesh
from wattmesh.controller.cli.accounting.run_facts import facts, state
from wattmesh.controller.cli.formats import clock
from wattmesh.controller.marks import legend

POLICY = "default-src 'none'; style-src 'unsafe-inline'"

STYLE = """
:root { color-scheme: light dark;
  --ink: #1f2933; --muted: #66727f; --faint: #e4e7eb; --paper: #fff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ed; --muted: #96a2af; --faint: #343d47; --paper: #14191f }
}
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
  margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: 0; overflow-wrap: anywhere }
h2 { font-size: 1.1rem; margin-top: 2rem }
p, td, th { overflow-wrap: anywhere }
.muted { color: var(--muted) }
table { border-collapse: collapse; width: 100% }
td, th { border-bottom: 1px solid var(--faint); padding: .35rem .7rem .35rem 0; text-align: left;
  vertical-align: top }
th { font-weight: 600 }
figure { margin: 1rem 0 } svg { height: auto; max-width: 100% }
"""

METHOD = (
    "Joules are those of the daemon's ledger: counters of the boards where they have them. Grams "
    "are joules of each slot times the intensity of the grid in it. What nobody read, and what has "
    "no price, is not counted as zero: it stands beside. Embodied carbon, network and storage are "
    "not in any figure."
)


def page(view: Mapping[str, Any], picture: str) -> str:
    """Write the page.

    Args:
        view: the answer of `GET /v1/runs/{run}/report`.
        picture: one SVG element of ours, "" for none.
    """
    spent, line = view["spent"], view["line"]
    rows = [(each.name, each.figure, each.rests_on) for each in facts(view)]
    marks = legend("\n".join(f"{figure} {rests_on}" for _, figure, rests_on in rows))
    simulated = ", ".join(spent["simulated"])
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(spent['name'])}: energy and carbon</title>",
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{escape(spent['name'])}</h1>",
        _paragraph(_where_it_stands(view), "muted"),
        _table(("", "figure", "rests on"), rows),
        _paragraph(marks, "muted") if marks else "",
        _paragraph(f"Simulated: {simulated}.") if simulated else "",
        "<h2>Over its time</h2>",
        _figure(picture),
        "<h2>Switches</h2>",
        _switches(view["switches"]),
        "<h2>How it was counted</h2>",
        _paragraph(METHOD),
        _paragraph(f"Boundary: {view['boundary']}. {spent['scope_note']}"),
        _paragraph(
            f"Run {line['run']}, owner {line['owner_uid']}. Made at {clock_of(view['at'])} by "
            f"wattmesh {wattmesh.__version__}.",
            "muted",
        ),
        "</body></html>",
    ]
    return "\n".join(each for each in parts if each) + "\n"


def clock_of(moment: str | None) -> str:
    """Write a moment with its date, in UTC."""
    return "-" if moment is None else f"{moment[:10]} {clock(moment, seconds=True)} UTC"


def _where_it_stands(view: Mapping[str, Any]) -> str:
    line = view["line"]
    ended = f" to {clock_of(view['finished_at'])}" if view["finished_at"] else ""
    layout = f" · {line['layout']} on {line['ranks']} of {line['world_size']}"
    return (
        f"{state(view)} · {clock_of(view['registered_at'])}{ended} · step {line['step']:,}"
        f"{layout if line['layout'] else ''}"
    )


def _figure(picture: str) -> str:
    if not picture:
        return _paragraph("No slot can be drawn: nothing was booked, or the slots are summed up.")
    said = (
        "Above: its mean power, and the intensity of the grid that its joules were priced with. "
        "Below: what it emitted since it began. Gaps are not known; in shaded time not all of its "
        "GPUs were read. Times are UTC."
    )
    return f"<figure>{picture}<figcaption class='muted'>{escape(said)}</figcaption></figure>"


def _switches(switches: Sequence[Mapping[str, Any]]) -> str:
    if not switches:
        return _paragraph("None.")
    rows = [
        (
            clock_of(each["created_at"]),
            f"{each['from_point'] or '-'} to {each['to_point'] or '-'}",
            str(each["state"]),
            str(each["reason"]),
        )
        for each in switches
    ]
    return _table(("ordered", "points", "state", "why"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cell: str, texts: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{cell}>{escape(text)}</{cell}>' for text in texts)}</tr>"

    body = "\n".join(line("td", texts) for texts in rows)
    return f"<table>\n{line('th', head)}\n{body}\n</table>"


def _paragraph(text: str, kind: str = "") -> str:
    return f"<p{f' class={kind!r}' if kind else ''}>{escape(text)}</p>"
