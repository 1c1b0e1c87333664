"""What a simulated stretch of time truly emitted, summed without any of the ledger's code.

True power times the final intensity of each true interval, hour by hour, in the signal that the
settings named then. Where the accounting provider never told an hour, the declared stand-in counts;
where that did not either, the estimate that the row itself declares, marked as one. What nobody
read is in no row, and must be bounded. Invariant: this file reads the ledger only to compare.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from benchmarks.year.run import HOUR, POWER_MW, TOKENS_PER_S, A, B, Job, Run
from benchmarks.year.world import PUE, Cluster, Stretch
from wattmesh.controller.journal.energy.ledger import EmissionRow
from wattmesh.integrations.carbon.grid_server.grids import Measure, SimulatedGrid
from wattmesh.reconfig.layout import Layout

OTHERS = ("baseline", "best_single")
"""Scenarios beside the actual one, each of which always is at one point."""

NJ_PER_KWH = 3_600_000_000_000_000
LATE = timedelta(days=2)
"""Rows of the newest hours may have no price yet when the settings change."""

ROW_UG = 1.0
"""What rounding may do to a row: half a microgram of the price, and of a millijoule its grams (at
most 0.35 at 1000 g/kWh) where a reading lies inside a slot, at either border."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderFaults:
    """What the providers told in the end.

    Attributes:
        never: spans of hours that the accounting provider never told.
        neither: spans that the stand-in never told either.
        raised: spans that the accounting provider later told 20 % higher.
        lifecycle_from: then the settings named the signal of the life cycle, without a stand-in.
    """

    zone: str
    scale: float
    never: Sequence[tuple[datetime, datetime]] = ()
    neither: Sequence[tuple[datetime, datetime]] = ()
    raised: Sequence[tuple[datetime, datetime]] = ()
    lifecycle_from: datetime | None = None

    def g_milli_per_kwh(
        self, grid: SimulatedGrid, hour: datetime, measure: Measure = Measure.DIRECT
    ) -> int | None:
        """Give the final intensity of the hour that begins at `hour`; None: nobody told it."""
        if not _within(self.never, hour):
            grams = grid.truth(self.zone, hour, HOUR, measure)
            return 1000 * round(1.2 * grams if _within(self.raised, hour) else grams)
        if measure is Measure.DIRECT and not _within(self.neither, hour):
            return round(1000 * grid.truth(self.zone, hour, HOUR) * self.scale)
        return None

    def measures(self, hour: datetime) -> set[Measure]:
        """Give what an hour may be accounted in; either, where its price was late."""
        if self.lifecycle_from is None or hour + HOUR + LATE <= self.lifecycle_from:
            return {Measure.DIRECT}
        if hour >= self.lifecycle_from:
            return {Measure.LIFECYCLE}
        return {Measure.DIRECT, Measure.LIFECYCLE}


def _within(spans: Iterable[tuple[datetime, datetime]], at: datetime) -> bool:
    """Whether a moment lies in one of the spans."""
    return any(start <= at < end for start, end in spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """An hour whose ledger is not what is true. `run`: "*" for the whole cluster."""

    scenario: str
    run: str
    hour: datetime
    true_ug: float
    booked_ug: int
    bound_ug: float

    def __str__(self) -> str:
        """Say it in one line."""
        return (
            f"{self.scenario} {self.run or 'no run'} {self.hour:%Y-%m-%d %H:%M}: booked "
            f"{self.booked_ug} ug, true {self.true_ug:.1f} ug, bound {self.bound_ug:.1f} ug"
        )


@dataclass(slots=True, kw_only=True)
class Checked:
    """What a comparison found.

    Attributes:
        worst_ug: largest difference of an hour. `true_ug`, `booked_ug`: of all, by scenario.
        dark_ug: what was truly emitted and nobody read; `bound_ug`: the most the rows say of it.
        price_mg: what each hour was priced with in the end.
    """

    wrong: list[Wrong] = field(default_factory=list)
    hours: int = 0
    rows: int = 0
    estimated_hours: int = 0
    worst_ug: float = 0.0
    true_ug: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    booked_ug: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    dark_ug: float = 0.0
    bound_ug: int = 0
    price_mg: dict[datetime, int] = field(default_factory=dict)

    def join(self, other: "Checked") -> None:
        """Add what another comparison found."""
        self.wrong += other.wrong
        self.hours += other.hours
        self.rows += other.rows
        self.estimated_hours += other.estimated_hours
        self.worst_ug = max(self.worst_ug, other.worst_ug)
        self.dark_ug += other.dark_ug
        self.bound_ug += other.bound_ug
        self.price_mg |= other.price_mg
        for name, value in other.true_ug.items():
            self.true_ug[name] += value
        for name, booked in other.booked_ug.items():
            self.booked_ug[name] += booked


def check(
    rows: Sequence[EmissionRow],
    cluster: Cluster,
    grid: SimulatedGrid,
    faults: ProviderFaults,
    span: tuple[datetime, datetime],
) -> Checked:
    """Compare the rows of the hours in [start, end) with the truth, every scenario.

    Args:
        rows: of the ledger; slots that begin in the span.
        cluster: what was truly drawn.
        grid: what was truly emitted.
        faults: what of it the providers told.
        span: whole hours.
    """
    found = Checked()
    booked: dict[tuple[str, str, datetime], list[EmissionRow]] = defaultdict(list)
    for row in rows:
        hour = row.slot_start.replace(minute=0, second=0, microsecond=0)
        booked[row.scenario, row.run, hour].append(row)
    stretches = _Stretches(cluster.stretches)
    names = ("", *(run.job.name for run in cluster.runs))
    hour = span[0]
    while hour < span[1]:
        there = {
            (scenario, run): booked.get((scenario, run, hour), [])
            for scenario in ("actual", *OTHERS)
            for run in names
        }
        measure = _measure(found, faults, hour, there)
        price = faults.g_milli_per_kwh(grid, hour, measure)
        if price is None:
            found.estimated_hours += 1
            price = _declared(there.values())
        found.price_mg[hour] = price
        _actual(found, there, stretches.over(hour), hour, price)
        for lived in cluster.runs:
            for scenario in OTHERS:
                _other(found, lived, scenario, there, hour, cluster=cluster)
        found.hours += 1
        hour += HOUR
    found.rows = len(rows)
    return found


def _measure(
    found: Checked,
    faults: ProviderFaults,
    hour: datetime,
    there: dict[tuple[str, str], list[EmissionRow]],
) -> Measure:
    """Tell what an hour is accounted in; note where that is not one signal, or not the right."""
    rows = [row for some in there.values() for row in some if row.g_milli_per_kwh is not None]
    told = {Measure(row.signal.split(":")[3]) for row in rows}
    allowed = faults.measures(hour)
    if len(told) > 1 or not told <= allowed:
        wrong = Wrong(scenario="signal", run="*", hour=hour, true_ug=0, booked_ug=0, bound_ug=0)
        found.wrong.append(wrong)
    return next(iter(told or allowed))


def _other(
    found: Checked,
    run: Run,
    scenario: str,
    there: Mapping[tuple[str, str], list[EmissionRow]],
    hour: datetime,
    *,
    cluster: Cluster,
) -> None:
    """Compare what a scenario drew by itself; where it is the run, see that the run was there."""
    job = run.job
    point = B if scenario == "best_single" and _in_time(job, B) else A
    rows = there[scenario, job.name]
    alone = [row for row in rows if row.line != "as_run"]
    energy_nj, slack_nj = baseline_nj(job, (hour, hour + HOUR), cluster.time.now, point)
    for slot in {(row.slot_start, row.slot_end) for row in rows if row.line == "as_run"}:
        energy_nj -= baseline_nj(job, slot, cluster.time.now, point)[0]
        if not _at(run, point, slot):
            wrong = Wrong(
                scenario="as_run", run=job.name, hour=hour, true_ug=0, booked_ug=0, bound_ug=0
            )
            found.wrong.append(wrong)
    if alone or (job.start < hour and energy_nj > slack_nj):
        measured = any(row.line == "modelled" for row in alone)
        factor = cluster.factor_milli(hour) if measured else 1000
        _Sum(
            energy_nj * factor // 1000,
            alone,
            found.price_mg[hour],
            slack_nj,
            dark=_half_dark(run, cluster),
        ).compare(found, scenario, job.name, hour)


def _in_time(job: Job, point: Layout) -> bool:
    """Whether a job would end by its deadline if it always were at a point."""
    return job.tokens_total / TOKENS_PER_S[point] <= (job.deadline - job.start).total_seconds()


def _at(run: Run, point: Layout, slot: tuple[datetime, datetime]) -> bool:
    """Whether a run was at a point, untouched, as long as it lived in a slot."""
    moved = any(move.at < slot[1] and slot[0] <= move.until for move in run.moves)
    return not moved and run.layout_at(slot[0]) == point


def _half_dark(run: Run, cluster: Cluster) -> bool:
    """Whether a GPU of a run was dark, so that what was measured of it may be too little."""
    job, spans = run.job, cluster.unread
    gone = {gpu for gpu, start, end in spans if start < run.end and job.start < end}
    return bool({*cluster.never, *gone} & {*job.gpus})


class _Stretches:
    """The true stretches, found by time."""

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        """Take them in the order in which they were lived through."""
        self._all = stretches
        self._ends = [each.end for each in stretches]

    def over(self, hour: datetime) -> list[tuple[Stretch, int]]:
        """Give those that lie in the hour, each with its nanojoules in it."""
        found, end = [], hour + HOUR
        for each in self._all[bisect_left(self._ends, hour) :]:
            if each.start >= end:
                break
            found.append((each, each.energy_nj(hour, end)))
        return found


@dataclass(frozen=True, slots=True)
class _Sum:
    """One figure of one hour: the truth beside the rows.

    Attributes:
        slack_nj: what is not exact in both.
        dark: the rows may say less than the truth, down to it less what they call unobserved.
    """

    energy_nj: int
    rows: Sequence[EmissionRow]
    price: int
    slack_nj: float = 0.0
    dark: bool = False

    def compare(self, found: Checked, scenario: str, run: str, hour: datetime) -> None:
        """Note what it came to, and whether that is wrong."""
        true_ug = PUE * self.energy_nj * self.price * 1000 / NJ_PER_KWH
        booked_ug = sum(row.carbon_ug or 0 for row in self.rows)
        slack_ug = PUE * self.slack_nj * self.price * 1000 / NJ_PER_KWH
        bound_ug = ROW_UG * max(1, len(self.rows)) + slack_ug
        found.true_ug[scenario] += true_ug
        found.booked_ug[scenario] += booked_ug
        found.worst_ug = max(found.worst_ug, abs(booked_ug - true_ug))
        upper_ug = sum(row.upper_ug or 0 for row in self.rows) if self.dark else 0
        if not -bound_ug <= true_ug - booked_ug <= bound_ug + upper_ug:
            found.wrong.append(
                Wrong(
                    scenario=scenario,
                    run=run,
                    hour=hour,
                    true_ug=true_ug,
                    booked_ug=booked_ug,
                    bound_ug=bound_ug,
                )
            )


def _actual(
    found: Checked,
    there: dict[tuple[str, str], list[EmissionRow]],
    stretches: list[tuple[Stretch, int]],
    hour: datetime,
    price: int,
) -> None:
    """Compare the whole cluster, and each run where it is certain whose the energy was."""
    rows = [row for (scenario, _), some in there.items() if scenario == "actual" for row in some]
    bright = [(each, nj) for each, nj in stretches if not each.dark]
    _Sum(sum(nj for _, nj in bright), rows, price).compare(found, "actual", "*", hour)
    if any(each.run is None for each, _ in stretches):
        return
    apart = Checked(price_mg=found.price_mg)
    for (scenario, run), some in there.items():
        if scenario == "actual":
            energy_nj = sum(nj for each, nj in bright if each.run == run)
            _Sum(energy_nj, some, price).compare(apart, scenario, run, hour)
            if run:
                _dark(apart, stretches, run, some, hour)
    found.wrong += apart.wrong
    found.dark_ug += apart.dark_ug
    found.bound_ug += apart.bound_ug


def _dark(
    found: Checked,
    stretches: list[tuple[Stretch, int]],
    run: str,
    rows: Sequence[EmissionRow],
    hour: datetime,
) -> None:
    """Hold the upper estimate of an hour against what nobody read; 0 where all was read."""
    price = found.price_mg[hour]
    dark_nj = sum(nj for each, nj in stretches if each.dark and each.run == run)
    dark_ug = PUE * dark_nj * price * 1000 / NJ_PER_KWH
    bound_ug = sum(row.upper_ug or 0 for row in rows)
    found.dark_ug += dark_ug
    found.bound_ug += bound_ug
    if dark_ug > bound_ug + ROW_UG * max(1, len(rows)) or (bound_ug and not dark_nj):
        wrong = Wrong(
            scenario="dark", run=run, hour=hour, true_ug=dark_ug, booked_ug=bound_ug, bound_ug=0.0
        )
        found.wrong.append(wrong)


def _declared(rows: Iterable[Sequence[EmissionRow]]) -> int:
    """Give the estimate that rows of an hour declare where nobody told its intensity.

    Raises:
        ValueError: they do not say that it is one, or not the same.
    """
    said = {
        (row.g_milli_per_kwh or 0, row.quality)
        for some in rows
        for row in some
        if row.model.startswith("settled: ")
    }
    all_rows = sum(len(some) for some in rows if some)
    if len(said) != 1 or not all_rows or next(iter(said))[1] != "estimated":
        raise ValueError(f"an hour that nobody told is priced as {sorted(said)}")
    return next(iter(said))[0]


def baseline_nj(
    job: Job, span: tuple[datetime, datetime], now: datetime, point: Layout = A
) -> tuple[int, float]:
    """Give (nanojoules of a run that always is at a point, in a span; what of it is not exact).

    It draws as that point does, from the launch on, pauses only while the run was killed, and ends
    when it has trained all tokens. Whole tokens only are reckoned: at each border up to two tokens'
    time; measured watts over declared ones are 1 to nine digits.
    """
    rate, power_mw = TOKENS_PER_S[point], 2 * POWER_MW[point]
    left = timedelta(seconds=job.tokens_total / rate)
    parts = [(job.start, job.start + left)]
    if job.away is not None and job.away[0] < job.start + left:
        before = job.away[0] - job.start
        parts = [(job.start, job.away[0]), (job.away[1], job.away[1] + left - before)]
    nanojoules = sum(
        power_mw
        * max(timedelta(), min(end, span[1], now) - max(start, span[0]))
        // timedelta(microseconds=1)
        for start, end in parts
    )
    return nanojoules, 4 * power_mw * 1e6 / rate + 1e-6 * nanojoules


__all__ = ["Checked", "ProviderFaults", "Wrong", "baseline_nj", "check"]
