"""`wattmesh policy bench`: policies over recorded grids, row by row, in several processes.

A cell is one trace and one start: all slacks and policies of it share the forecasts. Every policy
of a cell runs in the same world: same grid, same noise, same forecast, same guard.

Invariant: the rows depend only on what was asked, not on how many processes did the work.
"""

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from wattmesh.controller.cycle.plans import NoPlans
from wattmesh.controller.replay.bounds import Hindsight, hindsight
from wattmesh.controller.replay.drivers import DriverSettings, LivePolicy, PlansNow, Rival
from wattmesh.controller.replay.forecasts import (
    PerfectForecast,
    ReplayForecast,
    maker,
    mended,
)
from wattmesh.controller.replay.grid import GridSeries, read, starts
from wattmesh.controller.replay.regret import regret
from wattmesh.controller.replay.world import Noise, RunState, Scene, run
from wattmesh.errors import InputInvalid
from wattmesh.policies.decision import PolicySettings
from wattmesh.policies.rivals import RULES
from wattmesh.reconfig.catalogue import Catalogue, Equivalence, Evidence, Release

MPC, THRESHOLD, ORACLE = "mpc", "threshold", "oracle"
OWN, PERFECT, PERSIST = "own", "perfect", "persist"
FORECASTS = (OWN, PERFECT, PERSIST)
"""The built-in forecasts; others come from a file."""

POLICIES = (*RULES, MPC, ORACLE)
"""What is replayed by default."""

KNOWN = (*RULES, THRESHOLD, MPC, ORACLE)
HISTORIES = (timedelta(days=60), timedelta(days=28), timedelta(days=8), timedelta(days=1))
"""Recorded time needed before a start; the first of these that the trace has room for."""

CYCLE_S = 900.0
BOUNDARY_EVERY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """What is to be replayed.

    Attributes:
        slacks: time until the deadline, as a multiple of what the fastest point needs.
        count: starts for each trace. `hours`: of work at the fastest point; None: as the catalogue
            says. `pause`: whether runs may be suspended.
        boundary_every: steps between checkpoints. `cycle_s`: seconds between two cycles.
        regret: split what `mpc` lost, for which it is replayed once more with a perfect forecast.
        exogenous: a file or folder with exogenous forecasts, which then make the forecast.
        since: no start is earlier. `keep`: plans are kept to unless a new one saves enough.
    """

    catalogue: Catalogue
    slacks: tuple[float, ...]
    count: int
    forecast: str = OWN
    policies: tuple[str, ...] = POLICIES
    noise: Noise = field(default_factory=Noise)
    hours: float | None = None
    pause: bool = True
    boundary_every: int = BOUNDARY_EVERY
    cycle_s: float = CYCLE_S
    settings: PolicySettings = field(default_factory=PolicySettings)
    regret: bool = False
    exogenous: Path | None = None
    since: datetime | None = None
    keep: bool = True

    @property
    def speed(self) -> float:
        """Tokens per second of the fastest point."""
        return max(point.tokens_per_s for point in self.catalogue.points)

    @property
    def tokens(self) -> float:
        """Work of one run."""
        return float(self.catalogue.tokens_total) if self.hours is None else self._hours_tokens()

    @property
    def limits(self) -> PolicySettings:
        """Limits of the policies; the guard's margin covers the speed that noise takes."""
        margin = max(self.settings.guard_margin, self.noise.throughput)
        return replace(self.settings, guard_margin=margin)

    @property
    def interval_tokens(self) -> int:
        """Tokens between checkpoints."""
        return self.boundary_every * self.catalogue.global_batch * self.catalogue.seq_len

    def _hours_tokens(self) -> float:
        """Tokens of `hours` at the fastest point."""
        return round((self.hours or 0.0) * 3600.0 * self.speed)

    def window(self, slack: float) -> timedelta:
        """Time from the start to the deadline."""
        return timedelta(seconds=slack * self.tokens / self.speed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One trace and one start."""

    trace: Path
    start: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How one policy did.

    Attributes:
        saving: share of the grams of `static-fastest` on the same start. `bound_saving`: the most
            that any policy can save. `ideal_saving`: that, were switches free.
        share_of_oracle: share of the oracle's saving; None where the oracle saves nothing.
        switches: layout changes, to sleep and back included. `solve_s`: mean seconds per plan.
        regret_planning, regret_forecast: `bound_saving` less `saving`, in two parts
            (`wattmesh.controller.replay.regret`); None if not asked for, and for other policies.
    """

    policy: str
    trace: str
    slack: float
    start: datetime
    carbon_g: float
    energy_j: float
    saving: float
    bound_saving: float
    ideal_saving: float
    share_of_oracle: float | None
    switches: int
    most_switches_a_day: int
    clock_changes: int
    finished_h: float
    deadline_met: bool
    solve_s: float
    regret_planning: float | None = None
    regret_forecast: float | None = None


def replayed(catalogue: Catalogue, release: Release | None = None) -> Catalogue:
    """Give a catalogue whose points may all be used: replay asks what they would save."""
    points = tuple(
        replace(
            each,
            evidence=Evidence.VALIDATED,
            equivalence=Equivalence.NUMERICAL
            if each.equivalence is Equivalence.NONE
            else each.equivalence,
        )
        for each in catalogue.points
    )
    return replace(catalogue, points=points, release=release or catalogue.release)


def cells(asked: ReplayRequest, traces: Sequence[Path]) -> tuple[list[Cell], list[str]]:
    """Spread the starts over the traces; give the cells, and a sentence per trace left out."""
    found: list[Cell] = []
    left_out: list[str] = []
    window = asked.window(max(asked.slacks))
    for path in traces:
        grid = read(path)
        for history in HISTORIES:
            begun = starts(
                grid, window=window, history=history, count=asked.count, since=asked.since
            )
            if begun:
                found.extend(Cell(trace=path, start=each) for each in begun)
                break
        else:
            days = (grid.end - grid.start) / timedelta(days=1)
            need = (window + HISTORIES[-1]) / timedelta(days=1)
            left_out.append(
                f"{path} is left out: it holds {days:.1f} days, and a run of this slack with the "
                f"history before it takes {need:.1f}; give --hours to replay a shorter job"
            )
    return found, left_out


def bench(asked: ReplayRequest, wanted: Sequence[Cell], *, jobs: int) -> Iterator[tuple[Row, ...]]:
    """Replay cell by cell, in order."""
    work = partial(rows, asked)
    if jobs <= 1 or len(wanted) < 2:
        yield from map(work, wanted)
        return
    # Spawned, not forked: numpy's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(wanted)), mp_context=context) as pool:
        yield from pool.map(work, wanted)


def rows(
    asked: ReplayRequest, cell: Cell, forecast: ReplayForecast | None = None
) -> tuple[Row, ...]:
    """Replay one cell; a forecast that is given takes the place of the one that was asked for."""
    grid = read(cell.trace)
    forecast = forecast or forecast_of(asked, grid)
    return tuple(
        row
        for slack in asked.slacks
        for row in _of_scene(asked, forecast, slack, _scene(asked, grid, cell, slack))
    )


def forecast_of(asked: ReplayRequest, grid: GridSeries) -> ReplayForecast:
    """Make the forecast that was asked for.

    Raises:
        InputInvalid: the exogenous file has another zone, or does not cover the trace.
    """
    if asked.exogenous is None:
        return maker(asked.forecast)(grid)
    # numpy comes with it, which replay of other forecasts may not need.
    from wattmesh.controller.replay.exogenous_forecast import ExogenousForecast  # noqa: PLC0415
    from wattmesh.controller.replay.weather_file import weather_files  # noqa: PLC0415

    zones = weather_files(asked.exogenous)
    if grid.zone not in zones:
        raise InputInvalid(
            f"{asked.exogenous} has no zone {grid.zone!r}; it has {', '.join(sorted(zones))}"
        )
    return mended(asked.forecast, grid, ExogenousForecast(grid, zones[grid.zone]))


def _scene(asked: ReplayRequest, grid: GridSeries, cell: Cell, slack: float) -> Scene:
    return Scene(
        catalogue=asked.catalogue,
        grid=grid,
        start=cell.start,
        deadline=cell.start + asked.window(slack),
        tokens=asked.tokens,
        first=asked.catalogue.reference,
        boundary_every=asked.boundary_every,
        margin=asked.limits.guard_margin,
        noise=replace(asked.noise, salt=f"{grid.name} {cell.start.isoformat()}"),
    )


def _of_scene(
    asked: ReplayRequest, forecast: ReplayForecast, slack: float, scene: Scene
) -> Iterator[Row]:
    means = DriverSettings(
        forecast=forecast,
        policy=asked.limits,
        cycle_s=asked.cycle_s,
        pause=asked.pause,
        keep=asked.keep,
    )
    base = run(scene, Rival(means, RULES["static-fastest"]), cycle_s=asked.cycle_s)
    held = _Held(
        scene=scene, slack=slack, known=hindsight(scene, pause=asked.pause), base_g=base.carbon_g
    )
    for policy in asked.policies:
        if policy == ORACLE:
            yield held.oracle()
            continue
        driver = _driver(policy, means)
        state = run(scene, driver, cycle_s=asked.cycle_s)
        row = held.row(policy, state, driver.solve_s)
        yield _split(asked, means, held, row) if asked.regret and policy == MPC else row


def _split(asked: ReplayRequest, means: DriverSettings, held: "_Held", row: Row) -> Row:
    """Split what `mpc` lost into planning and forecast."""
    foreseen_g = row.carbon_g
    if asked.forecast != PERFECT:
        knows = replace(means, forecast=PerfectForecast(grid=held.scene.grid))
        foreseen_g = run(held.scene, _driver(MPC, knows), cycle_s=asked.cycle_s).carbon_g
    lost = regret(
        row.carbon_g, foreseen_g=foreseen_g, bound_g=held.known.bound_g, base_g=held.base_g
    )
    return replace(row, regret_planning=lost.planning, regret_forecast=lost.forecast)


def _driver(policy: str, means: DriverSettings) -> LivePolicy | Rival:
    if policy == MPC:
        return LivePolicy(means, PlansNow(keep=means.keep))
    if policy == THRESHOLD:
        return LivePolicy(means, NoPlans())
    return Rival(means, RULES[policy])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What the policies of one scene are compared with. `base_g`: of `static-fastest`."""

    scene: Scene
    slack: float
    known: Hindsight
    base_g: float

    def row(self, policy: str, state: RunState, solve_s: float) -> Row:
        """Sum up one run."""
        time_s = (self.scene.deadline - self.scene.start).total_seconds()
        return self._row(
            policy=policy,
            carbon_g=state.carbon_g,
            energy_j=state.energy_j,
            switches=len(state.switched_s),
            most_switches_a_day=_most_a_day(state.switched_s),
            clock_changes=state.clock_changes,
            finished_h=state.at_s / 3600.0,
            deadline_met=state.at_s <= time_s + 1.0,
            solve_s=solve_s,
        )

    def oracle(self) -> Row:
        """Sum up the oracle's plan."""
        plan = self.known.plan
        found = plan.evaluation
        return self._row(
            policy=ORACLE,
            carbon_g=found.grams,
            energy_j=found.energy_j,
            switches=found.layout_switches,
            most_switches_a_day=_most_a_day(self.known.switched_s),
            clock_changes=found.clock_changes,
            finished_h=(found.ends_s or 0.0) / 3600.0,
            deadline_met=found.ends_s is not None,
            solve_s=self.known.solve_s,
        )

    def _row(self, *, carbon_g: float, **facts: Any) -> Row:
        saving = 1.0 - carbon_g / self.base_g
        best = 1.0 - self.known.plan.evaluation.grams / self.base_g
        return Row(
            trace=self.scene.grid.name,
            slack=self.slack,
            start=self.scene.start,
            carbon_g=carbon_g,
            saving=saving,
            bound_saving=1.0 - self.known.bound_g / self.base_g,
            ideal_saving=1.0 - self.known.ideal_g / self.base_g,
            share_of_oracle=saving / best if best > 0 else None,
            **facts,
        )


def _most_a_day(begins_s: Sequence[float]) -> int:
    """Give the most switches in any 24 h."""
    most, first = 0, 0
    for last, at_s in enumerate(begins_s):
        while begins_s[first] <= at_s - 86_400.0:
            first += 1
        most = max(most, last - first + 1)
    return most
