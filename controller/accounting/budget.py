"""What was spent and what was saved: the ledgers added up for people.

Invariant: every figure is a sum of rows that an audit (audit.py) prints; the lines of the cluster
(runs, idle, unattributed and so on, each with its unpriced joules and unobserved seconds) add up to
its total exactly; a saving names its baseline, and is None while it is not known.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from wattmesh.controller.accounting.accounts import ACTUAL, UNPRICED
from wattmesh.controller.accounting.budgets.spending import PeriodLine, SignalGrams
from wattmesh.controller.accounting.saving import Saving, run_saving
from wattmesh.controller.accounting.scopes import meter_scope, scopes
from wattmesh.controller.journal.energy.ledger import TotalRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.policies.accounting.baseline import total
from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.hull import lower_hull
from wattmesh.policies.rules.price import hindsight_bound_g
from wattmesh.reconfig.catalogue import Evidence, PowerScope
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.energy.unobserved import UNOBSERVED
from wattmesh.telemetry.readings import Quality, flags_of, merged_quality

UG = 1_000_000
DAY = timedelta(days=1)
MILLISECOND = timedelta(milliseconds=1)
BOUNDARY = "GPUs, as the power source measures them"
ENERGY = "energy"
RELEASED = "idle_after_release"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBudget:
    """What one run spent and saved.

    Attributes:
        energy_j: None when none of it was read. `unread`: why it was not, as a sentence; ""
            otherwise.
        carbon: grams of its priced slots, by signal; `carbon_g`: grams of its priced slots; None
            when they are in several signals, which are never added.
        unpriced_j: joules that have no grams yet.
        unobserved_s: time that nobody measured. `upper_j`: most joules of that time. `upper_g`:
            most grams of that time; None while not known, or in several signals.
        baseline: the submitted point. `baseline_g`: its grams when it had trained as many tokens.
        saved_g: lower end of the saving; None while not known. `saved_high_g`: upper end of the
            saving, higher where unobserved time does not cancel out. `unsettled`: why it is not
            known.
        better_point_g: part of the saving that the best single point makes. `carbon_aware_g`: the
            rest of the saving. `split_unsettled`: why these parts are not known (None).
        power_scope: what the catalogue's watts contain. `meter_scope`: what was read of this run:
            gpu; node (with processors and memory); "some nodes" (with those of some of its nodes);
            "" (nothing). `scope_note`: what it means if they differ.
        pue_note: why spent and saved do not add up when the settings had several PUEs; ""
            otherwise.
        bound_g: least grams of any schedule of its points, once finished and priced; None if the
            catalogue's watts do not contain what the meters read, or the PUE was changed.
        qualities: grams by quality (measured, estimated, provisional, simulated, or several of
            these); empty in several signals.
        flags: estimated, provisional, simulated: those that any of its joules or grams is.
    """

    run: str
    name: str
    state: str
    tokens: int
    energy_j: float | None
    carbon_g: float | None
    unpriced_j: float
    unobserved_s: float
    upper_j: float
    baseline: str
    baseline_g: float | None
    saved_g: float | None
    settled: bool
    bound_g: float | None
    deadline: datetime | None
    finished_at: datetime | None
    qualities: dict[str, float]
    simulated: tuple[str, ...] = ()
    estimated: bool = False
    carbon: tuple[SignalGrams, ...] = ()
    upper_g: float | None = 0.0
    saved_high_g: float | None = None
    unsettled: str = ""
    best_single: str = ""
    better_point_g: float | None = None
    carbon_aware_g: float | None = None
    split_unsettled: str = ""
    signal: str = ""
    flags: tuple[str, ...] = ()
    power_scope: str = ""
    meter_scope: str = ""
    scope_note: str = ""
    pue_note: str = ""
    unread: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLine:
    """One line of the cluster: joules and grams of everything booked to it.

    Attributes:
        line: run | idle | unattributed | idle_after_release | profiling | unobserved.
        carbon, carbon_g, upper_g: as in `RunBudget`.
        unpriced_j: those of its joules that have no grams (yet).
        unobserved_s: time that nobody measured. `upper_j`: most joules of that time.
        flags: estimated, provisional, simulated: those that any of its joules or grams is.
    """

    line: str
    energy_j: float
    carbon_g: float | None
    unobserved_s: float
    unpriced_j: float = 0.0
    upper_j: float = 0.0
    carbon: tuple[SignalGrams, ...] = ()
    upper_g: float | None = 0.0
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedLine:
    """What the cluster saved in one signal.

    Attributes:
        saved_g: lower end of the runs' settled savings, less `released_g`. `high_g`: the upper end;
            both None while some released joules have no grams yet.
        better_point_g, carbon_aware_g: parts of `saved_g`, where runs could split theirs; the
            latter is less `released_g`. `unsplit_g`: savings that could not be split.
        released_g: what given-back GPUs emitted before another job had them.
        runs: number of runs in it.
    """

    signal: str
    saved_g: float | None
    high_g: float | None
    better_point_g: float
    carbon_aware_g: float
    unsplit_g: float
    released_g: float
    runs: int
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetView:
    """`GET /v1/budget`: the cluster and its runs, location-based.

    Attributes:
        signal: the accounting signal of the settings; grams in other signals are lines of their
            own.
        lines: runs, idle, unattributed and so on; they add up to `total`.
        saved: savings by signal. `saved_g`: lower end of the saving; None unless in one signal.
        unsettled: names of the runs whose saving is not known yet.
        boundary: what the joules cover: what the power sources measure, or that multiplied by
            `pue`.
        pue: factor for joules from now on; 1 when the boundary is the machines.
        covered: GPUs whose power was read lately, and GPUs expected; (0, 0) while not known.
        estimated: whether the savings are estimated, as GPUs, or some time of a run, were not read.
        periods: each budget of the settings in its present period.
        flags: estimated, provisional, simulated: those that any joule or gram of the cluster is.
    """

    at: datetime
    signal: str
    boundary: str
    total: ClusterLine
    lines: tuple[ClusterLine, ...]
    runs: tuple[RunBudget, ...]
    saved_g: float | None
    unsettled: tuple[str, ...]
    simulated: tuple[str, ...]
    periods: tuple[PeriodLine, ...] = ()
    pue: float = 1.0
    covered: tuple[int, int] = (0, 0)
    estimated: bool = False
    saved: tuple[SavedLine, ...] = ()
    flags: tuple[str, ...] = ()


def budget(
    journal: Journal,
    now: datetime,
    signal: str,
    periods: tuple[PeriodLine, ...] = (),
    *,
    pue: float = 1.0,
    covered: tuple[int, int] = (0, 0),
    why_unread: Callable[[RunRow], str] = lambda row: "Nothing was read of it.",
) -> BudgetView:
    """Add up the ledgers for the cluster and for each run.

    Args:
        journal: both ledgers.
        now: to tell which runs are lost.
        signal: the accounting signal; "" for none.
        periods: as `wattmesh.controller.accounting.budgets.spending` gives them.
        pue: of the settings.
        covered: see `BudgetView`.
        why_unread: says why nothing was read of a run; called only for such runs.

    Raises:
        JournalUnavailable: the journal does not answer.
    """
    totals = journal.ledger.totals()
    rows = journal.runs.all(now)
    closed = journal.ledger.closed_runs()
    savings = {row.run: run_saving(journal, row, closed) for row in rows}
    runs = tuple(run_budget(journal, row, totals, savings[row.run], pue=pue) for row in rows)
    runs = tuple(
        replace(told, unread=why_unread(row)) if told.energy_j is None else told
        for told, row in zip(runs, rows, strict=True)
    )
    simulated = {name for run in runs for name in run.simulated}
    whole = line_of("total", totals)
    if "simulated" in whole.flags:
        simulated.add("power_w")
    saved = saved_lines(list(savings.values()), totals)
    return BudgetView(
        at=now,
        signal=signal,
        boundary=boundary(pue),
        total=whole,
        lines=_cluster_lines(totals),
        runs=runs,
        saved_g=saved[0].saved_g if len(saved) == 1 else None,
        unsettled=tuple(run.name for run in runs if run.baseline and run.saved_g is None),
        simulated=tuple(sorted(simulated)),
        periods=periods,
        pue=pue,
        covered=covered,
        estimated=covered[0] < covered[1] or any(run.estimated for run in runs),
        saved=saved,
        flags=whole.flags,
    )


def boundary(pue: float) -> str:
    """Say what joules and grams cover."""
    return BOUNDARY if pue == 1.0 else f"{BOUNDARY}, x PUE {pue:g}"


def run_budget(
    journal: Journal,
    run: RunRow,
    totals: Sequence[TotalRow],
    found: Saving,
    *,
    pue: float = 1.0,
) -> RunBudget:
    """Add up one run; `pue` scales the bound, which is in no ledger."""
    mine = [row for row in totals if row.run == run.run]
    line = _at_most(line_of(run.run, mine), found)
    actual = [row for row in mine if row.scenario == ACTUAL]
    signal = found.signals[0] if len(found.signals) == 1 else ""
    one_pue = found.settled and not found.pue_note
    bound_g = _bound_g(journal, run, signal, found.tokens) if one_pue else None
    return RunBudget(
        run=run.run,
        name=run.name,
        state=run.state,
        tokens=run.tokens,
        energy_j=line.energy_j or None,
        carbon_g=line.carbon_g if line.energy_j else None,
        unpriced_j=line.unpriced_j,
        unobserved_s=line.unobserved_s,
        upper_j=line.upper_j,
        baseline=run.baseline,
        baseline_g=_grams(found.reference_ug),
        saved_g=_grams(found.saved_ug),
        settled=found.settled,
        bound_g=None if bound_g is None else bound_g * pue,
        deadline=run.deadline,
        finished_at=run.finished_at,
        qualities=_grams_by_quality(actual) if len(line.carbon) <= 1 else {},
        simulated=run.catalogue.simulated if run.catalogue else (),
        estimated=line.unobserved_s > 0 or line.upper_g != 0 or "estimated" in line.flags,
        carbon=line.carbon,
        upper_g=line.upper_g,
        saved_high_g=_grams(found.high_ug),
        unsettled=found.why,
        best_single=run.best_single,
        better_point_g=_grams(found.better_point_ug),
        carbon_aware_g=_grams(found.carbon_aware_ug),
        split_unsettled=found.split_why,
        signal=signal,
        pue_note=found.pue_note,
        flags=flags_of(*line.flags, *found.flags),
        **scopes(journal, run, read=bool(line.energy_j)),
    )


def _at_most(line: ClusterLine, found: Saving) -> ClusterLine:
    """Widen a run's line to the upper bound of its saving, which includes nobody's joules."""
    if found.upper_ug is None or line.upper_g is None:
        return replace(line, upper_g=None)
    upper_g = max(line.upper_g, found.upper_ug / UG)
    carbon = tuple(replace(each, upper_g=upper_g) for each in line.carbon)
    flags = flags_of(*line.flags, *(("estimated",) if upper_g else ()))
    return replace(line, upper_g=upper_g, carbon=carbon, flags=flags)


def saved_lines(savings: Sequence[Saving], totals: Sequence[TotalRow]) -> tuple[SavedLine, ...]:
    """Add up settled savings by signal, less what given-back GPUs emitted."""
    signals = {each.signals[0] for each in savings if each.settled and each.signals}
    lines = []
    for signal in sorted(signals):
        mine = [each for each in savings if each.settled and each.signals == (signal,)]
        idle = [
            row
            for row in totals
            if row.scenario == ACTUAL and row.signal == signal and _given_back(row)
        ]
        # While some of it has no price, the saving is not known.
        known = not any(row.quality == UNPRICED and (row.energy_mj or row.upper_mj) for row in idle)
        released_ug = sum(row.carbon_ug for row in idle)
        split = [each for each in mine if each.better_point_ug is not None]
        saved_ug = total(each.saved_ug for each in mine)
        better_ug = total(each.better_point_ug for each in split)
        aware_ug = total(each.carbon_aware_ug for each in split)
        lines.append(
            SavedLine(
                signal=signal,
                saved_g=_grams(
                    saved_ug - released_ug - sum(row.upper_ug for row in idle) if known else None
                ),
                high_g=_grams(
                    total(each.high_ug for each in mine) - released_ug if known else None
                ),
                better_point_g=better_ug / UG,
                carbon_aware_g=(aware_ug - released_ug) / UG,
                unsplit_g=(saved_ug - better_ug - aware_ug) / UG,
                released_g=released_ug / UG,
                runs=len(mine),
                flags=flags_of(
                    *(word for each in mine for word in each.flags),
                    *(word for row in idle for word in row.qualities),
                ),
            )
        )
    return tuple(lines)


def _given_back(row: TotalRow) -> bool:
    """Whether it is of GPUs that a run gave back and nobody else had, measured or not."""
    return row.line == RELEASED or (row.line == UNOBSERVED and not row.run)


def _grams(carbon_ug: int | None) -> float | None:
    return None if carbon_ug is None else carbon_ug / UG


def _bound_g(journal: Journal, run: RunRow, signal: str, tokens: int) -> float | None:
    """Give the least grams with which any schedule could have trained `tokens`.

    The schedules reach from registration to the deadline. None until every interval up to then has
    been measured.
    """
    catalogue = run.catalogue
    if catalogue is None or run.finished_at is None or not signal:
        return None
    if not catalogue.power_scope == meter_scope(journal, run) == PowerScope.GPU:
        return None  # the bound uses the catalogue's watts, so the meters must cover the same
    points = [point for point in catalogue.points if point.evidence is Evidence.VALIDATED]
    start, end = run.registered_at, max(run.finished_at, run.deadline or run.finished_at)
    observed = journal.carbon.observed(Signal.parse(signal), start - DAY, end)
    slots = [
        IntensitySlot(
            start=max(point.start, start), end=min(point.end, end), g_per_kwh=point.g_per_kwh
        )
        for point in observed
        if point.quality is Quality.MEASURED and point.end > start and point.start < end
    ]
    if not points or not _covered(slots, start, end):
        return None
    hull = lower_hull(catalogue, points, run.world_size)
    return hindsight_bound_g(hull, slots, float(tokens))


def _covered(slots: Sequence[IntensitySlot], start: datetime, end: datetime) -> bool:
    """Whether slots in time order cover start to end without gaps or overlaps, to 1 ms."""
    at = start
    for slot in slots:
        if abs(slot.start - at) > MILLISECOND:
            return False
        at = slot.end
    return abs(end - at) <= MILLISECOND


def _grams_by_quality(rows: Iterable[TotalRow]) -> dict[str, float]:
    grams: dict[str, float] = {}
    for row in rows:
        if row.carbon_ug:
            quality = merged_quality(row.qualities)
            grams[quality] = grams.get(quality, 0.0) + row.carbon_ug / UG
    return grams


def _cluster_lines(totals: Sequence[TotalRow]) -> tuple[ClusterLine, ...]:
    return tuple(
        line_of(line, [row for row in totals if row.line == line])
        for line in sorted({row.line for row in totals if row.scenario in (ENERGY, ACTUAL)})
    )


def line_of(line: str, rows: Sequence[TotalRow]) -> ClusterLine:
    """Add up rows of joules and of grams; rows of other scenarios are left out."""
    energy = [row for row in rows if row.scenario == ENERGY]
    grams = [row for row in rows if row.scenario == ACTUAL]
    priced = [row for row in grams if row.quality != UNPRICED]
    energy_mj = sum(row.energy_mj for row in energy)
    carbon = tuple(
        SignalGrams(
            signal=signal,
            carbon_g=sum(row.carbon_ug for row in priced if row.signal == signal) / UG,
            upper_g=sum(row.upper_ug for row in priced if row.signal == signal) / UG,
            flags=flags_of(
                *(word for row in priced if row.signal == signal for word in row.qualities)
            ),
        )
        for signal in sorted({row.signal for row in priced})
    )
    upper_mj = sum(row.upper_mj for row in energy)
    bounded = upper_mj == sum(row.upper_mj for row in priced)
    words = [word for row in grams for word in row.qualities]
    words += [row.energy_quality for row in energy if row.energy_mj or row.unobserved_ms]
    return ClusterLine(
        line=line,
        energy_j=energy_mj / 1000,
        carbon_g=0.0 if not carbon else carbon[0].carbon_g if len(carbon) == 1 else None,
        unobserved_s=sum(row.unobserved_ms for row in energy) / 1000,
        unpriced_j=(energy_mj - sum(row.energy_mj for row in priced)) / 1000,
        upper_j=upper_mj / 1000,
        carbon=carbon,
        upper_g=_upper_g(carbon) if bounded else None,
        flags=flags_of(*words),
    )


def _upper_g(carbon: Sequence[SignalGrams]) -> float | None:
    """Give the upper bound of unobserved time; None in several signals, which are never added."""
    if len(carbon) > 1:
        return None
    return carbon[0].upper_g if carbon else 0.0
