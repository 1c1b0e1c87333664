"""The picture of the control cycle, docs/cycle.svg: what is read, decided, remembered and done.

Drawn from the tables below, so that the picture is changed where it can be reviewed.
Invariant: plain SVG, no script, no outside font; the same code gives the same bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 1080, 700
LINE_PX = 18

STYLE = """
  text { font: 13px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #26323d }
  .title { font-weight: 600; font-size: 15px }
  .label { fill: #51606d; font-size: 12px }
  .panel { fill: #f3f6f8; stroke: #c5d0d9 }
  .outside { fill: #ffffff; stroke: #8795a1 }
  .loop { fill: #ffffff; stroke: #5b8db8 }
  .journal { fill: #fff8e6; stroke: #d2a63c }
  .pure { fill: #e6f4ea; stroke: #3f9a5a; stroke-width: 2 }
  .act { fill: #fdeeea; stroke: #cf6a4f }
  .arrow { fill: none; stroke: #51606d; stroke-width: 1.6; marker-end: url(#tip) }
"""

TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#51606d"/></marker></defs>'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle with a title and lines under it. `kind`: its class in STYLE."""

    x: int
    y: int
    width: int
    height: int
    kind: str
    title: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """A line through points, with its label's middle at `at`."""

    points: tuple[tuple[int, int], ...]
    label: str = ""
    at: tuple[int, int] = (0, 0)


PANEL = Box(x=316, y=40, width=736, height=506, kind="panel", title="")

BOXES = (
    Box(
        x=28,
        y=84,
        width=216,
        height=76,
        kind="outside",
        title="Grid",
        lines=("carbon intensity, now and", "forecast, one named signal"),
    ),
    Box(
        x=28,
        y=218,
        width=216,
        height=76,
        kind="outside",
        title="GPUs",
        lines=("power, energy counters,", "clocks (or a fake library)"),
    ),
    Box(
        x=28,
        y=352,
        width=216,
        height=160,
        kind="outside",
        title="Training job",
        lines=(
            "wattmesh.attach in every rank",
            "",
            "at a boundary, if ordered:",
            "checkpoint, tear down, build,",
            "load, agree, verify; else",
            "roll back. Then train on.",
        ),
    ),
    Box(x=340, y=92, width=138, height=60, kind="loop", title="carbon polls", lines=("scheduler",)),
    Box(
        x=340,
        y=226,
        width=138,
        height=60,
        kind="loop",
        title="sampler",
        lines=("every second",),
    ),
    Box(
        x=340,
        y=386,
        width=138,
        height=104,
        kind="loop",
        title="HTTP API",
        lines=("Unix socket,", "owners known by", "their uid"),
    ),
    Box(
        x=552,
        y=84,
        width=160,
        height=440,
        kind="journal",
        title="Journal",
        lines=(
            "SQLite or PostgreSQL",
            "",
            "carbon points",
            "",
            "",
            "",
            "",
            "energy per GPU,",
            "run and slot",
            "",
            "two ledgers of grams:",
            "actual and baseline",
            "",
            "",
            "",
            "runs, decisions",
            "",
            "orders = open",
            "switch rows",
            "",
            "leader's epoch",
        ),
    ),
    Box(
        x=812,
        y=92,
        width=216,
        height=76,
        kind="loop",
        title="observe",
        lines=("reads the whole state,", "starts from nothing else"),
    ),
    Box(
        x=812,
        y=246,
        width=216,
        height=92,
        kind="pure",
        title="decide",
        lines=("pure: no clock, no I/O", "hull, carbon price, deadline", "guard, dwell, gain"),
    ),
    Box(
        x=812,
        y=416,
        width=216,
        height=92,
        kind="act",
        title="act",
        lines=("commits the order as a row,", "only if the epoch is still ours;", "safe to repeat"),
    ),
    Box(
        x=340,
        y=600,
        width=372,
        height=64,
        kind="outside",
        title="People",
        lines=("wattmesh status, why, budget, freeze, switch",),
    ),
    Box(
        x=812,
        y=600,
        width=216,
        height=64,
        kind="outside",
        title="Prometheus",
        lines=("/metrics, read-only",),
    ),
)

ARROWS = (
    Arrow(points=((244, 122), (340, 122))),
    Arrow(points=((244, 256), (340, 256))),
    Arrow(points=((244, 416), (340, 416)), label="progress", at=(292, 408)),
    Arrow(points=((340, 466), (244, 466)), label="orders", at=(292, 484)),
    Arrow(points=((478, 122), (552, 122))),
    Arrow(points=((478, 256), (552, 256))),
    Arrow(points=((478, 416), (552, 416))),
    Arrow(points=((552, 466), (478, 466))),
    Arrow(points=((712, 130), (812, 130)), label="everything", at=(762, 122)),
    Arrow(points=((920, 168), (920, 246)), label="Observation", at=(964, 212)),
    Arrow(points=((920, 338), (920, 416)), label="Decision, with", at=(968, 374)),
    Arrow(points=((812, 462), (712, 462)), label="intent first", at=(762, 454)),
    Arrow(points=((632, 524), (632, 600))),
    Arrow(points=((410, 600), (410, 490))),
    Arrow(points=((672, 524), (672, 572), (920, 572), (920, 600))),
)

NOTES = (
    (684, 64, "wattmesh daemon", "title"),
    (964, 390, "one sentence", "label"),
    (762, 146, "each cycle", "label"),
    (136, 64, "outside", "label"),
)


def _text(x: int, y: int, words: str, kind: str = "") -> str:
    chosen = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}" text-anchor="middle"{chosen}>{escape(words)}</text>'


def _box(box: Box) -> Iterator[str]:
    yield (
        f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{box.width}" '
        f'height="{box.height}" rx="8"/>'
    )
    middle = box.x + box.width // 2
    if box.title:
        yield _text(middle, box.y + 24, box.title, "title")
    for number, words in enumerate(box.lines, start=1):
        if words:
            yield _text(middle, box.y + 26 + number * LINE_PX, words)


def _arrow(arrow: Arrow) -> Iterator[str]:
    path = " ".join(f"{x},{y}" for x, y in arrow.points)
    yield f'<polyline class="arrow" points="{path}"/>'
    if arrow.label:
        yield _text(*arrow.at, arrow.label, "label")


def render() -> str:
    """Draw the picture."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img">',
        "<title>The control cycle of wattmesh</title>",
        f"<style>{STYLE}</style>",
        TIP,
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for box in (PANEL, *BOXES):
        parts += _box(box)
    for arrow in ARROWS:
        parts += _arrow(arrow)
    parts += [_text(x, y, words, kind) for x, y, words, kind in NOTES]
    return "\n".join([*parts, "</svg>"]) + "\n"
