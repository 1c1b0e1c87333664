"""What must hold of a simulated stretch besides its grams: savings, holds, months, periods.

Written against the journal's own rows, with the calendar reckoned anew. Invariant: each check gives
sentences about what is wrong; none is the only sign that all is well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from benchmarks.year.oracle import NJ_PER_KWH, ROW_UG, ProviderFaults, baseline_nj
from benchmarks.year.run import HOUR, A, Run
from benchmarks.year.world import PUE, Cluster
from wattmesh.controller.accounting.saving import run_saving
from wattmesh.controller.journal.decisions import DecisionRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.integrations.carbon.grid_server.grids import SimulatedGrid
from wattmesh.reconfig.switch import SwitchState

BLIND_AFTER = timedelta(hours=72)
"""A forecast made of older values is none: nothing carbon-motivated is done."""

BLIND_HOLDS = {"stale_signal", "signal_changed", "coverage", "switching"}
"""Kinds of holds that ask nothing of a grid: what somebody ordered may be under way meanwhile."""

MOST_SWITCHES = 1000


def unexplained(
    decisions: Sequence[DecisionRow],
    run: Run,
    span: tuple[datetime, datetime],
    step: timedelta,
    down: Sequence[tuple[datetime, datetime]] = (),
) -> list[str]:
    """Say where a run trained and no decision covers it, or one explains nothing.

    Args:
        decisions: of any run.
        run: as it truly went.
        span: what was simulated.
        step: the longest time between two cycles.
        down: when there was no daemon to decide.
    """
    job = run.job
    rows = [row for row in decisions if row.run == job.name]
    wrong = [
        f"{job.name}: {row.action} without a kind or a sentence at {row.first_at}"
        for row in rows
        if not row.kind or len(row.reason) < 20
    ]
    covered = sorted([*((row.first_at, row.last_at) for row in rows), *down])
    start, end = max(job.start, span[0]), min(run.end, span[1])
    away = job.away or (end, end)
    for first, last in ((start, min(end, away[0])), (min(end, away[1]), end)):
        known_to = first
        for since, until in [*covered, (last, last)]:
            if min(since, last) - known_to > step:
                wrong.append(f"{job.name}: nothing was decided from {known_to} to {since}")
            known_to = max(known_to, until)
    return wrong


def blindly(
    decisions: Sequence[DecisionRow], blind: Sequence[tuple[datetime, datetime]]
) -> list[str]:
    """Say what was decided for carbon's sake while no signal could be told: it must be holds."""
    return [
        f"{row.run}: {row.action} {row.kind} until {row.last_at}, though blind"
        for row in decisions
        for first, last in blind
        if row.first_at < last and row.last_at >= first
        if row.action != "hold" or row.kind not in BLIND_HOLDS
    ]


def blind_spans(
    dead: Sequence[tuple[datetime, datetime]], slack: timedelta
) -> list[tuple[datetime, datetime]]:
    """Give when the signal was gone so long that nobody may act on it.

    Args:
        dead: when the provider did not answer.
        slack: the newest value told is at most so much older than the moment of death.
    """
    return [
        (start + BLIND_AFTER + slack, end)
        for start, end in dead
        if end - start > BLIND_AFTER + slack
    ]


def months(start: datetime, end: datetime, timezone: str) -> list[tuple[str, datetime, datetime]]:
    """Give (name, start, end) of the site's months that touch [start, end)."""
    zone = ZoneInfo(timezone)
    day = start.astimezone(zone).date().replace(day=1)
    found: list[tuple[str, datetime, datetime]] = []
    while True:
        after = date(day.year + day.month // 12, day.month % 12 + 1, 1)
        first, last = (
            datetime(each.year, each.month, 1, tzinfo=zone).astimezone(UTC) for each in (day, after)
        )
        if first >= end:
            return found
        found.append((f"{day:%Y-%m}", first, last))
        day = after


def untiled(journal: Journal, span: tuple[datetime, datetime], timezone: str) -> list[str]:
    """Say where the budget's periods leave a gap, overlap, or begin elsewhere than the calendar."""
    plans = journal.budgets.plans("cluster", span[0] - timedelta(days=40))
    known = {(row.period, row.curve.start, row.curve.end) for row in plans}
    expected = set(months(*span, timezone))
    return [f"{name}: {first} to {last} is no month" for name, first, last in known - expected] + [
        f"{name}: no plan" for name, _, _ in expected - known
    ]


def closed_wrongly(
    journal: Journal,
    truth: Callable[[datetime, datetime], "Truth"],
    span: tuple[datetime, datetime],
    timezone: str,
) -> list[str]:
    """Say which closed months are not what was true, or still have provisional rows.

    Months that hold hours nobody told are compared by their energy alone.
    """
    wrong = []
    for name, first, last in months(*span, timezone):
        closed = journal.budgets.closed(name, timezone)
        if last + 3 * 24 * HOUR > span[1]:
            continue
        if closed is None:
            wrong.append(f"{name} was not closed")
            continue
        provisional = journal.by_slot.provisional(first, last)
        if provisional:
            wrong.append(f"{name} is closed and has {provisional} provisional rows")
        wrong += _figures(closed.figures, truth(first, last), name)
    return wrong


def misheard(journal: Journal, runs: Sequence[Run]) -> list[str]:
    """Say where the journal's switches are not what truly became of the runs.

    Each switch that a run went through was ordered before, and ended there as it ended; what the
    run never took did not happen.
    """
    wrong = []
    for run in runs:
        rows = journal.switches.history(run.job.name, limit=MOST_SWITCHES)
        told = {row.switch_id: row for row in rows}
        for move in run.moves:
            row = told.pop(move.switch_id, None)
            if row is None or row.state is not move.end or row.created_at > move.at:
                wrong.append(f"{run.job.name}: its switch at {move.at} is told as {row}")
        for row in told.values():
            if row.state in (SwitchState.ROLLED_BACK, SwitchState.CONFIRMED):
                wrong.append(f"{run.job.name}: {row.switch_id} is {row.state}, and was never taken")
    return wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What was true of a stretch. `carbon_ug` None: nobody told all of its hours.

    `pieces`: stretches times hours; a row is rounded at each, by one at most.
    """

    energy_nj: int
    carbon_ug: float | None
    pieces: int


def _figures(figures: Mapping[str, Any], truth: Truth, name: str) -> list[str]:
    """Compare a month's figures with the truth."""
    wrong = []
    if abs(figures["energy_mj"] - truth.energy_nj / 1e6) > truth.pieces:
        true_mj = truth.energy_nj / 1e6
        wrong.append(f"{name}: {figures['energy_mj']} mJ booked, {true_mj:.0f} mJ true")
    true_ug = truth.carbon_ug
    if true_ug is not None and abs(figures["carbon_ug"] - true_ug) > truth.pieces:
        wrong.append(f"{name}: {figures['carbon_ug']} ug booked, {true_ug:.0f} ug true")
    return wrong


def truth_of(
    cluster: Cluster, grid: SimulatedGrid, faults: ProviderFaults, first: datetime, last: datetime
) -> Truth:
    """Sum what was true between two moments, however they lie to the hours."""
    energy_nj, carbon_ug, pieces, known = 0, 0.0, 0, True
    for stretch in cluster.stretches:
        if stretch.dark:
            continue
        start, end = max(first, stretch.start), min(last, stretch.end)
        hour = start.replace(minute=0, second=0, microsecond=0)
        while hour < end:
            part = stretch.energy_nj(max(start, hour), min(end, hour + HOUR))
            measure = faults.measures(hour)
            price = faults.g_milli_per_kwh(grid, hour, next(iter(measure)))
            known = known and len(measure) == 1
            known = known and price is not None
            energy_nj += part
            carbon_ug += PUE * part * (price or 0) * 1000 / NJ_PER_KWH
            pieces += 1
            hour += HOUR
    return Truth(energy_nj=energy_nj, carbon_ug=carbon_ug if known else None, pieces=pieces)


def flattered(
    journal: Journal, cluster: Cluster, price_mg: Mapping[datetime, int], until: datetime
) -> tuple[list[str], int]:
    """Say which runs claim to have saved more than they did, or less than nothing for no reason.

    Args:
        journal: what is claimed.
        cluster: what was true.
        price_mg: what each hour was priced with.
        until: runs that ended later are not looked at.

    Returns:
        Sentences, and how many savings of moved runs were held against the truth.
    """
    wrong, held = [], 0
    known = {row.run: row for row in journal.runs.all(cluster.time.now)}
    for run in cluster.runs:
        job = run.job
        row = known.get(job.name)
        if row is None or run.end >= until:
            continue
        found = run_saving(journal, row)
        told = (found.saved_ug, found.high_ug)
        if job.layout != A:  # nothing was ever measured where it was submitted
            wrong += [f"{job.name}: saved {told}, never measured"] if told != (None, None) else []
        elif len(found.signals) > 1:
            wrong += [f"{job.name}: {told} in two signals"] if told != (None, None) else []
        elif not run.moves:
            wrong += [f"{job.name}: never touched, saved {told}"] if told != (0, 0) else []
        elif found.saved_ug is None or found.high_ug is None:
            wrong.append(f"{job.name}: no saving is told: {found.why}")
        else:
            held += 1
            true_ug, slack_ug = true_saving_ug(run, cluster, price_mg)
            if not found.saved_ug - slack_ug <= true_ug <= found.high_ug + slack_ug:
                wrong.append(f"{job.name}: saved {told}, truly {true_ug:.0f} +- {slack_ug:.0f}")
    return wrong, held


def true_saving_ug(
    run: Run, cluster: Cluster, price_mg: Mapping[datetime, int]
) -> tuple[float, float]:
    """Give what a run that has ended truly saved, and what of it is not exact."""
    job = run.job
    spent = baseline = slack = 0.0
    scale = PUE * 1000 / NJ_PER_KWH
    for stretch in (each for each in cluster.stretches if each.run == job.name):
        hour = stretch.start.replace(minute=0, second=0, microsecond=0)
        while hour < stretch.end:
            part = stretch.energy_nj(hour, hour + HOUR)
            spent += part * price_mg.get(hour, 0) * scale if part else 0.0
            slack += ROW_UG
            hour += HOUR
    hour = job.start.replace(minute=0, second=0, microsecond=0)
    while hour < run.end:
        energy_nj, off_nj = baseline_nj(job, (hour, hour + HOUR), cluster.time.now)
        rate = price_mg.get(hour, 0) * scale * cluster.factor_milli(hour) / 1000
        baseline += energy_nj * rate
        slack += off_nj * rate + ROW_UG
        hour += HOUR
    return baseline - spent, slack
