"""Reads back what a finished run of the demo did, from its journal and its step log.

Invariant: nothing is filled in; a figure that is missing in the journal raises `DemoFailed`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import groupby

from examples.demo.daemon import DemoDaemon, RunPaths
from examples.demo.evidence import Band, RunCurves, Span, SwitchMark
from examples.demo.plan import TRACE
from examples.demo.record import Beginning, RunFacts, RunReadBack, SwitchFact
from wattmesh.controller.accounting import audit as audits
from wattmesh.controller.accounting import budget
from wattmesh.controller.cli.runs.why_screen import probe_difference
from wattmesh.controller.journal.database.sqlite_url import sqlite_url
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.journal.runs.switches import SwitchRow
from wattmesh.controller.process.children import wait_for
from wattmesh.errors import WattmeshError
from wattmesh.integrations.carbon.reading.trace import load
from wattmesh.policies.decision import IntensitySlot
from wattmesh.reconfig.catalogue import Catalogue
from wattmesh.reconfig.step_log import StepRow
from wattmesh.reconfig.switch import SwitchState
from wattmesh.telemetry.carbon import CarbonPoint
from wattmesh.telemetry.energy.ledger import EnergyRow

G_PER_UG = 1e-6
SETTLE_LIMIT_S = 60.0
DECIDED_BY = {"plan": "plan", "deadline": "deadline guard", "operator": "operator"}
"""Who decided, by the decision's kind; all other kinds are of the price rule."""


class DemoFailed(WattmeshError):
    """The demo stopped, or left too little to report; the message says what to look at."""


def wait_until_settled(daemon: DemoDaemon, *, bound: bool) -> None:
    """Wait until the run has ended and every slot has its grams.

    Args:
        daemon: the daemon of the run.
        bound: wait for the bound too, which needs the grid's values up to the deadline.

    Raises:
        ChildFailed: that took longer than `SETTLE_LIMIT_S`, or the daemon ended.
    """
    with closing(_journal(daemon.places)) as journal:

        def settled() -> bool:
            runs = _budget(journal).runs
            if not runs or runs[0].finished_at is None or not runs[0].settled:
                return False
            covered = journal.coverage.covered().values()
            booked_to = min((max(end for _, end in each) for each in covered), default=None)
            if runs[0].unpriced_j or booked_to is None or booked_to < runs[0].finished_at:
                return False
            return runs[0].bound_g is not None or not bound

        wait_for(
            settled,
            limit_s=SETTLE_LIMIT_S,
            what="Pricing the last slots",
            needed=(daemon.child,),
        )


def read(
    places: RunPaths,
    steps: tuple[StepRow, ...],
    catalogue: Catalogue,
    beginning: Beginning,
) -> RunReadBack:
    """Read one finished run back.

    Raises:
        DemoFailed: the journal lacks what a finished run leaves there.
    """
    with closing(_journal(places)) as journal:
        row = _finished(journal, places)
        switches = tuple(
            _switch(journal, each)
            for each in reversed(journal.switches.history(row.run))
            if each.state is SwitchState.CONFIRMED
        )
        facts = _facts(journal, row, steps, switches)
        deadline = row.deadline or beginning.at
        signal, until = load(TRACE).signal, deadline + timedelta(seconds=2)
        measured = journal.carbon.observed(signal, beginning.at - timedelta(hours=1), until)
        expected = journal.forecasts.expected(signal, beginning.at)
        ahead = expected[1].slots if expected else ()
        bound_g = _budget(journal).runs[0].bound_g
        curves = RunCurves(
            name=places.folder.name,
            bands=tuple(bands(steps, catalogue, beginning.monotonic_s)),
            power_w=tuple(power(journal.ledger.energy(), beginning.at)),
            losses=facts.losses,
            marks=tuple(_marks(switches, steps, beginning.monotonic_s)),
        )
    return RunReadBack(
        facts=facts,
        curves=curves,
        measured=_spans(measured, beginning.at),
        forecast=_spans([each for each in ahead if each.start < until], beginning.at),
        deadline_s=(deadline - beginning.at).total_seconds(),
        bound_g=bound_g,
    )


def _journal(places: RunPaths) -> Journal:
    return Journal.open(sqlite_url(places.journal))


def _budget(journal: Journal) -> budget.BudgetView:
    """Sum the journal as `wattmesh budget` does."""
    return budget.budget(journal, datetime.now(UTC), str(load(TRACE).signal))


def _finished(journal: Journal, places: RunPaths) -> RunRow:
    """Find the one run, which must be finished and have had a deadline."""
    rows = journal.runs.all(datetime.now(UTC))
    if len(rows) != 1 or rows[0].finished_at is None or rows[0].deadline is None:
        seen = ", ".join(f"{row.name} {row.state}" for row in rows) or "none"
        raise DemoFailed(f"The journal {places.journal} has no finished run (it has {seen}).")
    return rows[0]


def _facts(
    journal: Journal, row: RunRow, steps: tuple[StepRow, ...], switches: tuple[SwitchFact, ...]
) -> RunFacts:
    """Read the run's ledgers, in µg and mJ."""
    audit = audits.audit(journal, row, str(load(TRACE).signal))
    if audit.reference_ug is None or audit.saved_ug is None or row.deadline is None:
        raise DemoFailed(f"The ledger of {row.name} is not settled; its baseline has no grams yet.")
    finished_at = row.finished_at or row.last_seen_at
    return RunFacts(
        steps=steps,
        switches=switches,
        carbon_ug=audit.actual_ug or 0,
        baseline_ug=audit.reference_ug,
        saved_ug=audit.saved_ug,
        energy_mj=sum(each.energy_mj or 0 for each in audit.energy),
        unobserved_s=sum(each.unobserved_ms for each in audit.energy) / 1e3,
        deadline_met=finished_at <= row.deadline,
        deadline_slack_s=(row.deadline - finished_at).total_seconds(),
    )


def _switch(journal: Journal, row: SwitchRow) -> SwitchFact:
    steps = [each.step for each in journal.switches.transitions(row.switch_id)]
    kinds = {each.reason: each.kind for each in journal.decisions.list(row.run)}
    return SwitchFact(
        step=steps[-1] if steps else 0,
        from_point=row.from_point,
        to_point=row.to_point,
        seconds=row.total_s,
        probe_difference=probe_difference(row.evidence),
        requested_by=row.requested_by,
        decided_by=DECIDED_BY.get(kinds.get(row.reason, row.requested_by), "price rule"),
        reason=row.reason,
        predicted_g=None if row.predicted_ug is None else row.predicted_ug * G_PER_UG,
        switch_cost_g=None if row.switch_cost_ug is None else row.switch_cost_ug * G_PER_UG,
    )


def bands(steps: Sequence[StepRow], catalogue: Catalogue, began_s: float) -> Iterator[Band]:
    """Group steps into periods of one layout; the time between two of them is a switch."""
    names = {(str(point.layout), point.gpus): point.id for point in catalogue.points}
    before: Band | None = None
    for (layout, gpus), grouped in groupby(steps, key=lambda row: (row.layout, row.gpus)):
        rows = list(grouped)
        band = Band(
            start_s=rows[0].monotonic_s - rows[0].elapsed_s - began_s,
            end_s=rows[-1].monotonic_s - began_s,
            point=names.get((layout, gpus), "?"),
            layout=layout,
            ranks=gpus,
        )
        if before is not None:
            yield Band(
                start_s=before.end_s,
                end_s=band.start_s,
                point=before.point,
                layout=before.layout,
                ranks=before.ranks,
                moving=True,
            )
        yield band
        before = band


def power(rows: Sequence[EnergyRow], began_at: datetime) -> Iterator[Span]:
    """Turn the ledger's slots into mean power of all GPUs, W; unobserved energy is not added."""
    slots: dict[tuple[datetime, datetime], int] = {}
    for row in rows:
        key = (row.slot_start, row.slot_end)
        slots[key] = slots.get(key, 0) + (row.energy_mj or 0)
    for (start, end), energy_mj in sorted(slots.items()):
        length_s = (end - start).total_seconds()
        start_s = (start - began_at).total_seconds()
        yield Span(start_s=start_s, end_s=start_s + length_s, value=energy_mj / 1e3 / length_s)


def _marks(
    switches: Sequence[SwitchFact], steps: Sequence[StepRow], began_s: float
) -> Iterator[SwitchMark]:
    """Convert switches; a step without a log line is placed at time 0."""
    ended: Mapping[int, float] = {row.step: row.monotonic_s - began_s for row in steps}
    for each in switches:
        yield SwitchMark(
            step=each.step,
            at_s=ended.get(each.step, 0.0),
            from_point=each.from_point,
            to_point=each.to_point,
            by_operator=each.requested_by == "operator",
        )


def _spans(points: Sequence[CarbonPoint | IntensitySlot], began_at: datetime) -> tuple[Span, ...]:
    """Convert intensities to spans in seconds since the run's beginning."""
    return tuple(
        Span(
            start_s=max(0.0, (point.start - began_at).total_seconds()),
            end_s=(point.end - began_at).total_seconds(),
            value=point.g_per_kwh,
        )
        for point in points
        if point.end > began_at
    )
