"""The recorded facts of the demo's runs, from which the picture is drawn, as one file.

Times are seconds since a run began to train; every run begins at the same hour of the grid day.

Invariant: everything here was read back from a journal or from the job's own step log; nothing is
computed from the plan.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from wattmesh import durable

FILE = "evidence.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A value that held over [start_s, end_s)."""

    start_s: float
    end_s: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A period in one layout; `moving`: the switch itself, without training."""

    start_s: float
    end_s: float
    point: str
    layout: str
    ranks: int
    moving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchMark:
    """A switch on the axes of steps and time."""

    step: int
    at_s: float
    from_point: str
    to_point: str
    by_operator: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCurves:
    """One run: its layouts, its power (simulated, W) and its loss after each step."""

    name: str
    bands: tuple[Band, ...] = ()
    power_w: tuple[Span, ...] = ()
    losses: tuple[float, ...] = ()
    marks: tuple[SwitchMark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureEvidence:
    """Everything the picture shows.

    Attributes:
        day: the recorded day in words.
        compress: recorded seconds per real second.
        starts_h: hour of the recorded day at time 0.
        intensity: measured, g/kWh.
        forecast: as issued when the run began, g/kWh.
        beside: the line below the headline.
        scale: a sentence that says what every second, watt and gram refers to.
        threshold_g_per_kwh: intensity above which the run stayed at its thriftiest point, if known.
        tolerance: the largest allowed relative loss difference over the first 100 steps.
        simulated: what is simulated, in words.
    """

    day: str
    attribution: str
    compress: float
    starts_h: float
    deadline_s: float
    intensity: tuple[Span, ...]
    forecast: tuple[Span, ...]
    main: RunCurves
    control: RunCurves
    reordered: RunCurves
    headline: str
    beside: str
    scale: str
    threshold_g_per_kwh: float | None = None
    tolerance: float = 1e-5
    simulated: tuple[str, ...] = field(default=())

    def write(self, folder: Path) -> None:
        """Write it beside the report, so that the picture can be drawn again."""
        durable.write_text(folder / FILE, json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what `write` wrote."""
        data: dict[str, Any] = json.loads((folder / FILE).read_text())
        for key in ("intensity", "forecast"):
            data[key] = tuple(Span(**each) for each in data[key])
        for key in ("main", "control", "reordered"):
            data[key] = _curves(data[key])
        return cls(**{**data, "simulated": tuple(data["simulated"])})


def _curves(data: dict[str, Any]) -> RunCurves:
    return RunCurves(
        name=data["name"],
        bands=tuple(Band(**each) for each in data["bands"]),
        power_w=tuple(Span(**each) for each in data["power_w"]),
        losses=tuple(data["losses"]),
        marks=tuple(SwitchMark(**each) for each in data["marks"]),
    )


def relative_differences(losses: tuple[float, ...], others: tuple[float, ...]) -> list[float]:
    """Return |a - b| / |b| for each step that both have."""
    return [abs(a - b) / abs(b) for a, b in zip(losses, others, strict=False)]
