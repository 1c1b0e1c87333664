"""What was spent and what was saved: the ledgers added up for people, and laid open for auditors.

Invariant: every figure is a sum of rows that `audit` prints; the lines of the cluster (runs, idle,
unattributed and so on, each with its unpriced joules and unobserved seconds) add up to its total
exactly; a saving names its baseline, and is None while it cannot be told.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from wattmesh.controller.books import saving as savings
from wattmesh.controller.books.accounts import ACTUAL, BASELINE, UNPRICED
from wattmesh.controller.books.saving import Saving
from wattmesh.controller.books.spending import PeriodLine
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.ledger import EmissionRow, TotalRow
from wattmesh.controller.journal.runs import RunRow
from wattmesh.errors import InputInvalid
from wattmesh.policies.baseline import total
from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.hull import lower_hull
from wattmesh.policies.price import hindsight_bound_g
from wattmesh.reconfig.catalogue import Evidence
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.ledger import EnergyRow
from wattmesh.telemetry.readings import Quality

UG = 1_000_000
DAY = timedelta(days=1)
MILLISECOND = timedelta(milliseconds=1)
BOUNDARY = "GPUs, as the power source measures them"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBudget:
    """What one run spent and saved.

    Attributes:
        carbon_g: grams of its priced slots. `unpriced_j`: joules that have no grams yet.
        unobserved_s, upper_j: time that nobody measured, and the most drawn in it.
        baseline: the submitted point. `baseline_g`: its grams when it had trained as many tokens.
        saved_g: None while the baseline is behind the run or a slot has no price (unsettled); what
            was not observed counts against it at the most it can have been, `unobserved_g`.
        bound_g: what no schedule of its points could have beaten, once finished and priced.
        qualities: grams per quality; anything but `measured` is estimated, provisional or
            simulated, and says so.
        estimated: some of its joules are, or some of its time was not observed.
    """

    run: str
    name: str
    state: str
    tokens: int
    energy_j: float
    carbon_g: float
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
    unobserved_g: float | None = 0.0
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLine:
    """One line of the cluster: joules and grams of everything booked to it.

    Attributes:
        line: run | idle | unattributed | idle_after_release | profiling.
        unpriced_j: of its joules, those that have no grams (yet).
        unobserved_s, upper_j: time that nobody measured, and the most drawn in it.
    """

    line: str
    energy_j: float
    carbon_g: float
    unobserved_s: float
    unpriced_j: float = 0.0
    upper_j: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetView:
    """`GET /v1/budget`: the cluster and its runs, location-based, in one accounting signal.

    Attributes:
        lines: runs, idle, unattributed and so on; they add up to `total`.
        saved_g: settled savings only. `unsettled`: names of runs whose saving is not known yet.
        boundary: what the joules cover: what the power sources measure, or that times `pue`.
        pue: what grams are multiplied by from now on; 1 where the boundary is the machines.
        covered: GPUs whose power was read lately, and GPUs expected; (0, 0) while not known.
        estimated: the savings are: not all GPUs are covered, or some of a run's time was not.
        periods: where each budget of the settings stands in its running period.
    """

    at: datetime
    signal: str
    boundary: str
    total: ClusterLine
    lines: tuple[ClusterLine, ...]
    runs: tuple[RunBudget, ...]
    saved_g: float
    unsettled: tuple[str, ...]
    simulated: tuple[str, ...]
    periods: tuple[PeriodLine, ...] = ()
    pue: float = 1.0
    covered: tuple[int, int] = (0, 0)
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """`wattmesh budget --audit RUN`: every slot of both scenarios, raw, and what was computed.

    Attributes:
        tokens: trained since the run first registered here.
        energy: what the actual rows were computed from, and the unobserved time.
        unbooked_mj: joules in `energy` less those in `actual`: booked since grams were last.
        earlier_tokens, earlier_reference_ug, earlier_actual_ug: sums of the oldest slots, whose
            rows retention has summed up; 0 while there are none.
        rule: the formulas, in words, from which anybody can recompute `saved_ug`.
    """

    run: str
    name: str
    tokens: int
    baseline: str
    signal: str
    actual: tuple[EmissionRow, ...]
    reference: tuple[EmissionRow, ...]
    energy: tuple[EnergyRow, ...]
    actual_ug: int
    reference_ug: int | None
    saved_ug: int | None
    settled: bool
    rule: str
    unobserved_ug: int | None = 0
    unbooked_mj: int = 0
    earlier_tokens: int = 0
    earlier_reference_ug: int = 0
    earlier_actual_ug: int = 0


RULE = (
    "carbon_ug = (energy_mj * g_milli_per_kwh * pue_milli + 1800000000) // 3600000000 in every "
    "row; "
    "actual_ug = sum of carbon_ug of the actual rows + earlier_actual_ug; "
    "reference_ug = earlier_reference_ug + carbon_ug of the baseline rows in time order until "
    "their tokens and earlier_tokens add up to the run's, of the last one carbon_ug * "
    "tokens_needed // tokens; "
    "unobserved_ug = (upper_mj * g + 1800000000) // 3600000000 of every energy row, g the largest "
    "g_milli_per_kwh * pue_milli of its slot; "
    "saved_ug = reference_ug - actual_ug - unobserved_ug"
)


def budget(
    journal: Journal,
    now: datetime,
    signal: str,
    periods: tuple[PeriodLine, ...] = (),
    *,
    pue: float = 1.0,
    covered: tuple[int, int] = (0, 0),
) -> BudgetView:
    """Add everything up.

    Args:
        journal: both ledgers.
        now: to tell which runs are lost.
        signal: the accounting signal; "" for none.
        periods: as `wattmesh.controller.books.spending` gives them.
        pue: as the settings have it.
        covered: see `BudgetView`.

    Raises:
        JournalUnavailable: the journal does not answer.
    """
    totals = journal.ledger.totals()
    rows = journal.runs.all(now)
    runs = tuple(run_budget(journal, row, totals, signal, pue=pue) for row in rows)
    lines = _lines(totals)
    simulated = {name for run in runs for name in run.simulated}
    simulated |= {"power_w" for row in totals if row.signal == "simulated"}
    return BudgetView(
        at=now,
        signal=signal,
        boundary=BOUNDARY if pue == 1.0 else f"{BOUNDARY}, x PUE {pue:g}",
        total=_line("total", totals),
        lines=lines,
        runs=runs,
        saved_g=sum(run.saved_g for run in runs if run.saved_g is not None),
        unsettled=tuple(run.name for run in runs if run.baseline and run.saved_g is None),
        simulated=tuple(sorted(simulated)),
        periods=periods,
        pue=pue,
        covered=covered,
        estimated=covered[0] < covered[1] or any(run.estimated for run in runs),
    )


def run_budget(
    journal: Journal,
    run: RunRow,
    totals: Sequence[TotalRow],
    signal: str,
    *,
    pue: float = 1.0,
) -> RunBudget:
    """Add one run up; `pue` is for the bound, which is in no ledger."""
    mine = [row for row in totals if row.run == run.run]
    energy = [row for row in mine if row.scenario == "energy"]
    actual = [row for row in mine if row.scenario == ACTUAL]
    unpriced_mj = sum(row.energy_mj for row in actual if row.quality == UNPRICED)
    found = _saving(journal, run, mine)
    bound_g = _bound_g(journal, run, signal, found.tokens) if found.settled else None
    unobserved_s = sum(row.unobserved_ms for row in energy) / 1000
    return RunBudget(
        run=run.run,
        name=run.name,
        state=run.state,
        tokens=run.tokens,
        energy_j=sum(row.energy_mj for row in energy) / 1000,
        carbon_g=found.actual_ug / UG,
        unpriced_j=unpriced_mj / 1000,
        unobserved_s=unobserved_s,
        upper_j=sum(row.upper_mj for row in energy) / 1000,
        baseline=run.baseline,
        baseline_g=_grams(found.reference_ug),
        saved_g=_grams(found.saved_ug),
        settled=found.settled,
        bound_g=None if bound_g is None else bound_g * pue,
        deadline=run.deadline,
        finished_at=run.finished_at,
        qualities=_qualities(actual),
        simulated=run.catalogue.simulated if run.catalogue else (),
        unobserved_g=_grams(found.unobserved_ug),
        estimated=unobserved_s > 0 or any(row.quality == Quality.ESTIMATED for row in energy),
    )


def _saving(journal: Journal, run: RunRow, totals: Sequence[TotalRow]) -> Saving:
    """Compute a run's saving from its sums and its baseline's rows."""
    actual = [row for row in totals if row.scenario == ACTUAL]
    reference = journal.ledger.emissions(run=run.run, scenario=BASELINE)
    unobserved_ug: int | None = 0
    if any(row.unobserved_ms or row.upper_mj for row in totals):
        emissions = journal.ledger.emissions(run=run.run)
        unobserved_ug = savings.unobserved(journal.ledger.energy(run=run.run), emissions)
    return savings.saving(
        tokens=savings.trained(journal, run),
        actual_ug=sum(row.carbon_ug for row in actual),
        unpriced=any(row.quality == UNPRICED and row.energy_mj for row in actual),
        reference=reference,
        unobserved_ug=unobserved_ug,
        before=savings.earlier(journal.ledger.rolled_up(run.run)),
    )


def audit(journal: Journal, run: RunRow, signal: str) -> Audit:
    """Lay every row open.

    Raises:
        InputInvalid: the run has no baseline to save against.
    """
    if not run.baseline:
        raise InputInvalid(
            f"run {run.name} has no baseline, so there is no saving to audit; set "
            f"runs.{run.name}.catalogue before it first registers"
        )
    ledger = journal.ledger
    actual = ledger.emissions(run=run.run, scenario=ACTUAL)
    reference = ledger.emissions(run=run.run, scenario=BASELINE)
    energy = ledger.energy(run=run.run)
    before = savings.earlier(ledger.rolled_up(run.run))
    found = savings.saving(
        tokens=savings.trained(journal, run),
        actual_ug=before.actual_ug + total(row.carbon_ug for row in actual),
        unpriced=any(row.energy_mj and row.carbon_ug is None for row in actual),
        reference=reference,
        unobserved_ug=savings.unobserved(energy, (*actual, *reference)),
        before=before,
    )
    booked_mj, emitted_mj = (total(row.energy_mj for row in rows) for rows in (energy, actual))
    return Audit(
        run=run.run,
        name=run.name,
        tokens=found.tokens,
        baseline=run.baseline,
        signal=signal,
        actual=actual,
        reference=reference,
        energy=energy,
        actual_ug=found.actual_ug,
        reference_ug=found.reference_ug,
        saved_ug=found.saved_ug,
        settled=found.settled,
        rule=RULE,
        unobserved_ug=found.unobserved_ug,
        unbooked_mj=booked_mj - emitted_mj,
        earlier_tokens=before.tokens,
        earlier_reference_ug=before.reference_ug,
        earlier_actual_ug=before.actual_ug,
    )


def _grams(carbon_ug: int | None) -> float | None:
    """Give grams."""
    return None if carbon_ug is None else carbon_ug / UG


def _bound_g(journal: Journal, run: RunRow, signal: str, tokens: int) -> float | None:
    """Give what no schedule could have trained `tokens` with, from registration to the deadline.

    None until every interval up to then has been measured.
    """
    catalogue = run.catalogue
    if catalogue is None or run.finished_at is None or not signal:
        return None
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
    """Whether slots in time order follow each other from start to end, none upon another."""
    at = start
    for slot in slots:
        if abs(slot.start - at) > MILLISECOND:
            return False
        at = slot.end
    return abs(end - at) <= MILLISECOND


def _qualities(rows: Iterable[TotalRow]) -> dict[str, float]:
    """Give grams per quality."""
    grams: dict[str, float] = {}
    for row in rows:
        grams[row.quality] = grams.get(row.quality, 0.0) + row.carbon_ug / UG
    return grams


def _lines(totals: Sequence[TotalRow]) -> tuple[ClusterLine, ...]:
    """Give the cluster's lines: joules and grams by line."""
    return tuple(
        _line(line, [row for row in totals if row.line == line])
        for line in sorted({row.line for row in totals if row.scenario != BASELINE})
    )


def _line(line: str, rows: Sequence[TotalRow]) -> ClusterLine:
    """Add up rows of joules and of grams; the baselines' are not among those spent."""
    energy = [row for row in rows if row.scenario == "energy"]
    grams = [row for row in rows if row.scenario == ACTUAL]
    energy_mj = sum(row.energy_mj for row in energy)
    priced_mj = sum(row.energy_mj for row in grams if row.quality != UNPRICED)
    return ClusterLine(
        line=line,
        energy_j=energy_mj / 1000,
        carbon_g=sum(row.carbon_ug for row in grams) / UG,
        unobserved_s=sum(row.unobserved_ms for row in energy) / 1000,
        unpriced_j=(energy_mj - priced_mj) / 1000,
        upper_j=sum(row.upper_mj for row in energy) / 1000,
    )
