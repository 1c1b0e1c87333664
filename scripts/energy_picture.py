"""The picture of the ledger's rules, docs/energy.svg: what a GPU drew, and what was booked of it.

Drawn by the ledger's own code: the readings below go through `telemetry.energy.meter.MeterState`,
and what it books is what is coloured. Invariant: plain SVG; the same code gives the same bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape

from wattmesh.telemetry.energy.meter import EnergyPiece, MeterState, micros
from wattmesh.telemetry.readings import PowerReading, Quality

WIDTH, HEIGHT = 1080, 430
LEFT, RIGHT, TOP, BOTTOM = 64, 1056, 92, 352
SECONDS, LIMIT_W = 120, 700.0
HOLD_US = 2_500_000

LOST = (28, 42)
RESET = 56
SILENT = (70, 82)
LOST_AND_RESET = (94, 108)

STYLE = """
  text { font: 13px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #26323d }
  .title { font-weight: 600; font-size: 15px }
  .small { fill: #51606d; font-size: 12px }
  .axis { stroke: #8795a1 }
  .limit { stroke: #cf6a4f; stroke-dasharray: 6 4 }
  .truth { fill: none; stroke: #26323d; stroke-width: 1.6 }
  .counted { fill: #a9d3b5 }
  .recovered { fill: #6fb583 }
  .integrated { fill: #f2d58a }
  .unobserved { fill: #f6d5cb }
"""

LABELS = (
    (14, "(a) counter", "what it moved"),
    (35, "(a) lost, and back", "the counter covers it"),
    (58, "(b) reset", "one second by power"),
    (76, "(c) no counter", "power x time"),
    (101, "(d) lost and reset", "unobserved: NULL"),
)

KEY = (
    ("counted", "booked from the counter"),
    ("recovered", "booked afterwards for dark time"),
    ("integrated", "booked as power x time (estimated)"),
    ("unobserved", "not observed: at most limit x time"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A stretch of time and the mean power booked for it, in watts."""

    start_s: float
    end_s: float
    power_w: float
    kind: str


def power_w(second: int) -> float:
    """Give what the GPU really draws: training steps, with a slower phase in the middle."""
    if second < 6:
        return 110.0
    return 420.0 if 48 <= second < 88 else 560.0


def bars() -> list[Bar]:
    """Book two minutes second by second."""
    meter, found, dark = MeterState.first(_reading(0, 0.0, 0)), [], []
    drawn_mj = zero_mj = 0.0
    for second in range(1, SECONDS + 1):
        drawn_mj += 1000 * power_w(second - 1)
        if second in (RESET, (LOST_AND_RESET[0] + LOST_AND_RESET[1]) // 2):
            zero_mj = drawn_mj
        if any(start <= second < end for start, end in (LOST, LOST_AND_RESET)):
            meter, piece = meter.unseen(micros(second))
            dark.append(_bar(second, piece, "unobserved"))
            continue
        counter_mj = None if SILENT[0] <= second < SILENT[1] else round(drawn_mj - zero_mj)
        advanced = meter.advanced(_reading(second, power_w(second), counter_mj), hold_us=HOLD_US)
        assert advanced is not None  # time moves forwards here
        meter, piece = advanced
        if piece.recovers:
            found.append(_spread(dark, second, piece))
        else:
            found += [*dark, _bar(second, piece, _kind(piece))]
        dark = []
    return found


def _reading(second: int, watts: float, counter_mj: int | None) -> PowerReading:
    return PowerReading(
        gpu_uuid="GPU",
        at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second),
        monotonic_s=float(second),
        power_w=watts or power_w(second),
        energy_mj=counter_mj,
        clock_mhz=None,
        power_limit_w=LIMIT_W,
        source="nvml",
        quality=Quality.MEASURED,
    )


def _kind(piece: EnergyPiece) -> str:
    if piece.energy_mj is None:
        return "unobserved"
    return "counted" if piece.quality is Quality.MEASURED else "integrated"


def _bar(second: int, piece: EnergyPiece, kind: str) -> Bar:
    length_s = piece.length_us / 1e6
    energy_mj = piece.upper_mj if piece.energy_mj is None else piece.energy_mj
    return Bar(
        start_s=second - length_s,
        end_s=second,
        power_w=energy_mj / 1000 / length_s,
        kind=kind,
    )


def _spread(dark: list[Bar], second: int, piece: EnergyPiece) -> Bar:
    start_s = dark[0].start_s
    return Bar(
        start_s=start_s,
        end_s=second,
        power_w=(piece.energy_mj or 0) / 1000 / (second - start_s),
        kind="recovered",
    )


def _x(second: float) -> float:
    return round(LEFT + (RIGHT - LEFT) * second / SECONDS, 1)


def _y(watts: float) -> float:
    return round(BOTTOM - (BOTTOM - TOP) * watts / LIMIT_W, 1)


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    chosen = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{chosen}>{escape(words)}</text>'


def _drawn() -> Iterator[str]:
    """Draw what was booked, what was drawn, and the limit."""
    for bar in bars():
        x, y = _x(bar.start_s), _y(bar.power_w)
        width = round(_x(bar.end_s) - x + 0.3, 1)
        yield (
            f'<rect class="{bar.kind}" x="{x}" y="{y}" width="{width}" '
            f'height="{round(BOTTOM - y, 1)}"/>'
        )
    points = []
    for second in range(SECONDS):
        height = _y(power_w(second))
        points += [f"{_x(second)},{height}", f"{_x(second + 1)},{height}"]
    yield f'<polyline class="truth" points="{" ".join(points)}"/>'
    yield f'<line class="limit" x1="{LEFT}" y1="{_y(LIMIT_W)}" x2="{RIGHT}" y2="{_y(LIMIT_W)}"/>'


def _around() -> Iterator[str]:
    """Draw axes, labels and the key."""
    yield f'<line class="axis" x1="{LEFT}" y1="{BOTTOM}" x2="{RIGHT}" y2="{BOTTOM}"/>'
    yield f'<line class="axis" x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{BOTTOM}"/>'
    for watts in (0, 350, 700):
        yield _text(LEFT - 8, _y(watts) + 4, f"{watts} W", "small", "end")
    for second in range(0, SECONDS + 1, 20):
        yield _text(_x(second), BOTTOM + 18, f"{second} s", "small")
    for second, name, words in LABELS:
        yield _text(_x(second), 46, name, "title")
        yield _text(_x(second), 64, words, "small")
    yield _text(LEFT + 4, TOP - 6, "power limit", "small", "start")
    x = LEFT
    for kind, words in KEY:
        yield f'<rect class="{kind}" x="{x}" y="{HEIGHT - 34}" width="18" height="14"/>'
        yield _text(x + 24, HEIGHT - 22, words, "small", "start")
        x += 252


def render() -> str:
    """Draw the picture."""
    return (
        "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
                f'width="{WIDTH}" height="{HEIGHT}" role="img">',
                "<title>What one GPU drew (line), and what the ledger booked (areas)</title>",
                f"<style>{STYLE}</style>",
                f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
                *_drawn(),
                *_around(),
                "</svg>",
            ]
        )
        + "\n"
    )
