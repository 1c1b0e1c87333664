"""What a run's saving was computed from, for auditors: every row, and the rule.

Invariant: from what is printed here anybody can recompute the saving, to the microgram.
"""

from dataclasses import dataclass

from wattmesh.controller.accounting.accounts import ACTUAL, BASELINE, BEST_SINGLE
from wattmesh.controller.accounting.budget import BOUNDARY, boundary, line_of
from wattmesh.controller.accounting.budgets.spending import SignalGrams
from wattmesh.controller.accounting.saving import run_saving
from wattmesh.controller.accounting.unclaimed import Unclaimed, unclaimed_ug
from wattmesh.controller.journal.energy.ledger import EmissionRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.views import Reopening
from wattmesh.errors import InputInvalid
from wattmesh.policies.accounting.baseline import total
from wattmesh.telemetry.energy.ledger import EnergyRow

RULE = (
    "in every row that has a price carbon_ug = (energy_mj * g_milli_per_kwh * pue_milli + "
    "1800000000) // 3600000000, and upper_ug the same of upper_mj; "
    "own_ug of a slot = sum of carbon_ug of its actual rows, own_upper_ug = sum of their upper_ug "
    "and of the slot's carbon_ug in unclaimed; "
    "slots that overlap are one, as their length was changed then; "
    "a baseline row with line as_run stands for the run itself: its grams are own_ug; "
    "go through the baseline's slots in time order to the last moment at which its tokens add up "
    "to at most the run's: slots up to there count whole, of the next one the missing share of "
    "its tokens, all others not; "
    "saved_ug = counted carbon_ug of baseline rows that are not as_run - (own_ug + own_upper_ug) "
    "of all slots but the counted share of as_run ones; each share rounded against the saving; "
    "saved_high_ug: the same with own_upper_ug taken as 0 and upper_ug of baseline rows added; "
    "actual rows with `spread` in energy_quality were laid over slots by time: of neighbouring "
    "slots with such rows, those that are not as_run together have for the carbon_ug of these rows "
    "at most all their joules, at the highest price; at least none, or, where no such neighbour is "
    "as_run, all of them at the lowest price; the least is own_ug, the rest own_upper_ug; "
    "where grams have several pue_milli, all of this is also done once for each of them, p, with "
    "the sum of every slot's carbon_ug, and of its upper_ug, at each pue_milli taken as "
    "(2 * sum * p + pue_milli) // (2 * pue_milli): saved_ug is the least that is found, with its "
    "reference_ug, saved_high_ug the greatest, and the parts are not told"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """`wattmesh budget --audit RUN`: every slot of every scenario, and what was computed from them.

    Attributes:
        tokens: trained since the run first registered here.
        actual: rows of the run. `reference`: rows of its baseline. `single`: rows of the best
            single point.
        energy: the rows that the actual grams were computed from, with the unobserved time.
        saved_ug: lower end of the saving. `saved_high_ug`: upper end of the saving. Both are None
            while not known. `unsettled`: why the saving is not known.
        unclaimed: grams of its GPUs that were booked to nobody, by slot; the run may have emitted
            them.
        unbooked_mj: millijoules in `energy` that are not in `actual` yet: they were booked after
            grams were last computed.
        carbon: grams of the run by signal. `actual_ug`, `unobserved_ug`: None when there are
            several signals.
        summed_up: whether retention has summed up the slots; the figures are then those it kept.
        rule: the formulas, in words, from which anybody can recompute `saved_ug`.
        pue_note: why spent and saved do not add up when the settings had several PUEs; ""
            otherwise.
        reopened: months of its time that were closed and opened again.
    """

    run: str
    name: str
    tokens: int
    baseline: str
    signal: str
    actual: tuple[EmissionRow, ...]
    reference: tuple[EmissionRow, ...]
    energy: tuple[EnergyRow, ...]
    actual_ug: int | None
    reference_ug: int | None
    saved_ug: int | None
    settled: bool
    rule: str
    unobserved_ug: int | None = 0
    unbooked_mj: int = 0
    saved_high_ug: int | None = None
    unsettled: str = ""
    best_single: str = ""
    single: tuple[EmissionRow, ...] = ()
    better_point_ug: int | None = None
    carbon_aware_ug: int | None = None
    boundary: str = BOUNDARY
    flags: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    carbon: tuple[SignalGrams, ...] = ()
    summed_up: bool = False
    reopened: tuple[Reopening, ...] = ()
    unclaimed: tuple[Unclaimed, ...] = ()
    pue_note: str = ""


def audit(journal: Journal, run: RunRow, signal: str, pue: float = 1.0) -> Audit:
    """Collect every row of a run's saving.

    Raises:
        InputInvalid: the run has no baseline to save against.
    """
    if not run.baseline:
        raise InputInvalid(
            f"run {run.name} has no baseline, so there is no saving to audit; set "
            f"runs.{run.name}.catalogue before it first registers"
        )
    ledger = journal.ledger
    closed = ledger.closed_runs()
    found = run_saving(journal, run, closed)
    actual = ledger.emissions(run=run.run, scenario=ACTUAL)
    energy = ledger.energy(run=run.run)
    booked_mj, emitted_mj = (total(row.energy_mj for row in rows) for rows in (energy, actual))
    carbon = line_of(run.run, [row for row in ledger.totals() if row.run == run.run]).carbon
    one = len(carbon) <= 1
    return Audit(
        run=run.run,
        name=run.name,
        tokens=found.tokens,
        baseline=run.baseline,
        signal=found.signals[0] if len(found.signals) == 1 else signal,
        actual=actual,
        reference=ledger.emissions(run=run.run, scenario=BASELINE),
        energy=energy,
        actual_ug=found.actual_ug if one else None,
        reference_ug=found.reference_ug,
        saved_ug=found.saved_ug,
        settled=found.settled,
        rule=RULE,
        unobserved_ug=found.upper_ug if one else None,
        unbooked_mj=booked_mj - emitted_mj,
        saved_high_ug=found.high_ug,
        unsettled=found.why,
        best_single=run.best_single,
        single=ledger.emissions(run=run.run, scenario=BEST_SINGLE),
        better_point_ug=found.better_point_ug,
        carbon_aware_ug=found.carbon_aware_ug,
        boundary=boundary(pue),
        flags=found.flags,
        signals=found.signals,
        carbon=carbon,
        summed_up=run.run in closed,
        pue_note=found.pue_note,
        unclaimed=() if run.run in closed else _unclaimed(journal, run),
    )


def _unclaimed(journal: Journal, run: RunRow) -> tuple[Unclaimed, ...]:
    """List the joules of a run's GPUs that were booked to nobody, in time order."""
    found = unclaimed_ug(journal, journal.stays.launches(run.run))
    return tuple(found[at] for at in sorted(found))
