"""NVML on a real board: how fine, how late and how true it is, and what a look costs.

Nothing here is compared with a meter outside of the board: the counter, the two powers and the
bursts are held against each other and against a long integral, and every row says which.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from types import TracebackType
from typing import Any, Self

import numpy as np

from benchmarks.gpu.chosen import Chosen
from benchmarks.gpu.load import Load
from benchmarks.gpu.machine import measured_uuid
from benchmarks.report import Goal, Report
from wattmesh.telemetry.energy.burst import Burst
from wattmesh.telemetry.sources.nvml import (
    ENERGY,
    POWER_AVERAGE,
    POWER_INSTANT,
    TOTAL_ENERGY,
    NotSupported,
    Nvml,
)
from wattmesh.telemetry.sources.nvml_source import NvmlSource

Ask = Callable[[], int | None]
"""Asks for one number: millijoules or milliwatts; None where the board does not tell it."""

SIGNALS = {
    "counter (field 191)": "mJ",
    "counter (field 83)": "mJ",
    "counter (own call)": "mJ",
    "instant power (field 186)": "mW",
    "average power (field 185)": "mW",
    "power (own call)": "mW",
}
LOOK_S, COST_S, EDGE_S, EDGES = 2.5, 6.0, 2.0, 5
STEADY_S, WARM_S, SQUARE_S = 50.0, 8.0, 25.0
SQUARE_ON_S, SQUARE_OFF_S = 0.3, 0.2
WINDOWS_S = (0.5, 1.0, 2.0, 5.0, 10.0)


def asks(nvml: Nvml, uuid: str) -> dict[str, Ask]:
    """Give every way to ask a board for its energy or power, by the names of `SIGNALS`."""
    ways: dict[str, Ask] = {
        "counter (field 191)": lambda: nvml.fields(uuid, (ENERGY,)).get(ENERGY),
        "counter (field 83)": lambda: nvml.fields(uuid, (TOTAL_ENERGY,)).get(TOTAL_ENERGY),
        "counter (own call)": lambda: nvml.energy_mj(uuid),
        "instant power (field 186)": lambda: nvml.fields(uuid, (POWER_INSTANT,)).get(POWER_INSTANT),
        "average power (field 185)": lambda: nvml.fields(uuid, (POWER_AVERAGE,)).get(POWER_AVERAGE),
        "power (own call)": lambda: round(1000 * nvml.power_w(uuid)),
    }
    return {name: _or_none(ask) for name, ask in ways.items()}


def _or_none(ask: Ask) -> Ask:
    def asked() -> int | None:
        try:
            return ask()
        except NotSupported:
            return None

    return asked


@dataclass(frozen=True, slots=True)
class Look:
    """One answer: when (the middle of the call, monotonic), what it took, what it said."""

    at_s: float
    took_s: float
    value: int | None


def looked(ask: Ask, seconds: float) -> list[Look]:
    """Ask again and again, without a pause."""
    found = []
    until_s = time.monotonic() + seconds
    while (before_s := time.monotonic()) < until_s:
        value = ask()
        after_s = time.monotonic()
        found.append(Look((before_s + after_s) / 2, after_s - before_s, value))
    return found


def moves(looks: Sequence[Look]) -> list[tuple[float, int]]:
    """When a signal moved, and by how much."""
    known = [(each.at_s, each.value) for each in looks if each.value is not None]
    return [
        (later[0], later[1] - earlier[1])
        for earlier, later in pairwise(known)
        if later[1] != earlier[1]
    ]


def fineness(name: str, work: str, looks: Sequence[Look]) -> dict[str, Any]:
    """One row: what a call costs and how a signal moves; None where it did not."""
    moved = moves(looks)
    periods_ms = [1000 * (later[0] - earlier[0]) for earlier, later in pairwise(moved)]
    steps = [abs(step) for _, step in moved]
    took_us = [1e6 * each.took_s for each in looks]
    return {
        "what": f"{name}, asked without a pause",
        "gpu": work,
        "looks": len(looks),
        "call_us": median(took_us),
        "call_p99_us": float(np.quantile(took_us, 0.99)),
        "moves_every_ms": median(periods_ms) if periods_ms else None,
        "moves_every_p95_ms": float(np.quantile(periods_ms, 0.95)) if periods_ms else None,
        "unit": SIGNALS[name],
        "step": median(steps) if steps else None,
        "steps_are_multiples_of": math.gcd(*steps) if steps else None,
    }


@dataclass(slots=True)
class Poller:
    """Asks for several signals in turn, in a thread, every `every_s` or without a pause."""

    asks: Mapping[str, Ask]
    every_s: float = 0.0
    looks: dict[str, list[Look]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Begin."""
        self.looks = {name: [] for name in self.asks}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self.every_s):
            for name, ask in self.asks.items():
                before_s = time.monotonic()
                value = ask()
                after_s = time.monotonic()
                self.looks[name].append(Look((before_s + after_s) / 2, after_s - before_s, value))


def power_of(name: str, looks: Sequence[Look]) -> list[tuple[float, float]]:
    """A signal as watts over time: a counter by its slope between two moves."""
    known = [each for each in looks if each.value is not None]
    if SIGNALS[name] == "mW":
        return [(each.at_s, (each.value or 0) / 1000) for each in known]
    return [
        (later[0], later[1] / 1000 / (later[0] - earlier[0]))
        for earlier, later in pairwise(moves(known))
    ]


def delay_ms(series: Sequence[tuple[float, float]], edge_s: float) -> float | None:
    """How long after an edge of the load a power has gone half of its way; None: it did not."""
    before = [watts for at_s, watts in series if edge_s - 0.5 * EDGE_S / 2 < at_s <= edge_s]
    after = [watts for at_s, watts in series if edge_s + 0.7 * EDGE_S < at_s < edge_s + EDGE_S]
    if not before or not after or abs(median(after) - median(before)) < 20:
        return None
    half, rises = (median(before) + median(after)) / 2, median(after) > median(before)
    crossed = (at_s for at_s, watts in series if at_s > edge_s and (watts > half) is rises)
    return next((1000 * (at_s - edge_s) for at_s in crossed), None)


def integral_j(series: Sequence[tuple[float, float]], start_s: float, end_s: float) -> float | None:
    """Joules under a power, by trapezoids, over [start_s, end_s]; None where it is not covered."""
    if not series or series[0][0] > start_s or series[-1][0] < end_s:
        return None
    times, watts = (np.array(each) for each in zip(*series, strict=True))
    inside = times[(times > start_s) & (times < end_s)]
    at = np.concatenate(([start_s], inside, [end_s]))
    return float(np.trapezoid(np.interp(at, times, watts), at))


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The board that is looked at, in both ways that wattmesh looks, and what keeps it at work."""

    nvml: Nvml
    uuid: str
    source: NvmlSource
    load: Load


def lateness(board: Board, edges: int) -> Iterator[dict[str, Any]]:
    """Rows: how late each signal follows the load, up and down."""
    names = ("counter (field 191)", "instant power (field 186)", "power (own call)")
    ups, downs = [], []
    ways = {name: ask for name, ask in asks(board.nvml, board.uuid).items() if name in names}
    with Poller(ways) as poller:
        for _ in range(edges):
            time.sleep(EDGE_S)
            ups.append(board.load.on())
            time.sleep(EDGE_S)
            downs.append(board.load.off())
        time.sleep(EDGE_S)
    for name in names:
        series = power_of(name, poller.looks[name])
        for what, moments in (("begins", ups), ("ends", downs)):
            found = [delay_ms(series, each) for each in moments]
            known = [each for each in found if each is not None]
            yield {
                "what": f"{name}: half way after the load {what}",
                "edges": len(moments),
                "seen": len(known),
                "delay_ms": median(known) if known else None,
                "delay_least_ms": min(known, default=None),
                "delay_most_ms": max(known, default=None),
            }


def long_run(board: Board, pattern: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Rows: bursts, and integrals of both powers, against the counter over the whole of a run."""
    uuid = board.uuid
    wanted = ("instant power (field 186)", "power (own call)")
    ways = {name: ask for name, ask in asks(board.nvml, uuid).items() if name in wanted}
    with Burst(board.source, [uuid]) as looking, Poller(ways, every_s=0.005) as poller:
        time.sleep(1.2)  # one look of the slowest lies outside of the run
        start_s = time.monotonic()
        _drive(board.load, pattern, seconds)
        end_s = time.monotonic()
        time.sleep(1.2)
    whole = looking.figures(start_s, end_s)[uuid]
    common = {"gpu": pattern, "seconds": end_s - start_s, "sensor": whole.quality}
    yield {
        "what": "the counter over the whole run",
        **common,
        "power_w": whole.power_w,
        "bound_share": whole.error_share,
    }
    for name in wanted:
        series = power_of(name, poller.looks[name])
        for every in (1, 20, 200):
            yield {
                "what": f"integral of {name} over the counter",
                **common,
                "read_every_ms": 5 * every,
                "ratio": _ratio(integral_j(series[::every], start_s, end_s), whole.energy_j),
            }
    if pattern == "steady" and whole.energy_j is not None:
        yield from _bursts(looking, uuid, start_s, end_s, whole.energy_j)


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


def _drive(load: Load, pattern: str, seconds: float) -> None:
    """Let the load work for so long: steadily, or on and off."""
    until_s = time.monotonic() + seconds
    load.on()
    if pattern == "steady":
        time.sleep(seconds)
    else:
        while time.monotonic() < until_s:
            time.sleep(SQUARE_ON_S)
            load.off()
            time.sleep(SQUARE_OFF_S)
            load.on()
    load.off()


def _bursts(
    looking: Burst, uuid: str, start_s: float, end_s: float, energy_j: float
) -> Iterator[dict[str, Any]]:
    """Rows: windows of one length, laid side by side, against the mean power of the whole."""
    mean_w = energy_j / (end_s - start_s)
    for length_s in WINDOWS_S:
        starts = np.arange(start_s, end_s - length_s + 1e-9, length_s)
        found = [looking.figures(each, each + length_s)[uuid] for each in starts.tolist()]
        known = [each for each in found if each.energy_j is not None]
        off = [abs((each.energy_j or 0.0) - mean_w * length_s) for each in known]
        yield {
            "what": f"bursts of {length_s:g} s against the mean of the whole run",
            "gpu": "steady",
            "bursts": len(found),
            "known": len(known),
            "off_share": median(off) / (mean_w * length_s) if off else None,
            "off_most_share": max(off) / (mean_w * length_s) if off else None,
            "bound_share": median(each.error_j for each in known) / (mean_w * length_s)
            if known
            else None,
            "beyond_bound": sum(
                error > each.error_j for error, each in zip(off, known, strict=True)
            ),
        }


def look_costs(source: NvmlSource, work: str, seconds: float) -> dict[str, Any]:
    """One row: what reading all GPUs of this machine costs, ten times a second."""
    took_s = []
    source.read()  # finds the devices
    cpu_s, until_s = time.process_time(), time.monotonic() + seconds
    while (before_s := time.monotonic()) < until_s:
        readings = source.read()
        took_s.append(time.monotonic() - before_s)
        time.sleep(max(0.0, 0.1 - took_s[-1]))
    each_s = (time.process_time() - cpu_s) / len(took_s)
    return {
        "what": "one sample of all GPUs, as the agent takes it",
        "gpu": work,
        "gpus": len(readings),
        "looks": len(took_s),
        "wall_ms": 1000 * median(took_s),
        "wall_p99_ms": 1000 * float(np.quantile(took_s, 0.99)),
        "cpu_ms": 1000 * each_s,
        "core_share_at_1_hz": each_s,
    }


def measure(chosen: Chosen) -> Report:
    """Measure the sensor at rest and at work."""
    rows: list[dict[str, Any]] = []
    with Nvml.open(chosen.library) as nvml, Load(chosen.device) as load:
        source = NvmlSource(chosen.library)
        board = Board(nvml=nvml, uuid=measured_uuid(nvml, chosen), source=source, load=load)
        for work in ("idle", "at work"):
            if work == "at work":
                load.on()
            time.sleep(1)
            for name, ask in asks(nvml, board.uuid).items():
                rows.append(fineness(name, work, looked(ask, chosen.seconds(LOOK_S))))
            rows.append(look_costs(source, work, chosen.seconds(COST_S)))
        load.off()
        rows += lateness(board, 2 if chosen.short else EDGES)
        load.on()
        time.sleep(chosen.seconds(WARM_S))
        rows += long_run(board, "steady", chosen.seconds(STEADY_S))
        square = f"{SQUARE_ON_S:g} s on, {SQUARE_OFF_S:g} s off"
        rows += long_run(board, square, chosen.seconds(SQUARE_S))
        source.close()
    beyond = [row["beyond_bound"] for row in rows if "beyond_bound" in row]
    goal = Goal(
        name="bursts_beyond_their_bound", value=sum(beyond) if beyond else None, goal=0, op="=="
    )
    return Report(benchmark="sensor", rows=tuple(rows), goals=(goal,))
