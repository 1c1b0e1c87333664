"""What a run's points did here lately, beside what its catalogue says of them.

It only reads the journal, so a daemon that restarts knows what the one before it knew. Invariant:
time under a power cap, as time that the history of a run leaves out (switches and what
follows them, outages, launches), is in no average.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from wattmesh.controller import marks
from wattmesh.controller.accounting.run_history import RunHistory
from wattmesh.controller.accounting.scopes import meter_scope
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.views import PointLine
from wattmesh.policies.accounting.baseline import Span, Stretch
from wattmesh.policies.accounting.point_ratio import PointRatio, against_catalogue
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint
from wattmesh.telemetry.energy.ledger import SlotGrid
from wattmesh.telemetry.readings import flags_of

LOOK_BACK = timedelta(days=7)
"""What was measured earlier says little of a point now."""

MOST_CAPS = 1000
"""The newest caps that are read: more than demand response announces in `LOOK_BACK`."""

MOST_VISITS = 6
"""The newest stays at one point that are read; each takes a few queries."""


def capped_spans(journal: Journal) -> tuple[Span, ...]:
    """Give the time under a power cap.

    Raises:
        JournalUnavailable: the journal does not answer.
    """
    spans = ((each.start, each.ended_at or each.until) for each in journal.caps.list(MOST_CAPS))
    # One that was announced and taken back has no time of its own.
    return tuple((begin, until) for begin, until in spans if begin < until)


def measured_points(
    journal: Journal,
    run: RunRow,
    grid: SlotGrid,
    now: datetime,
    *,
    capped: Sequence[Span],
    limit: float,
) -> tuple[PointLine, ...]:
    """Compare the points of a run with its catalogue; those that were measured, in its order.

    Args:
        journal: where the run was, what it trained and what it drew.
        run: whose points.
        grid: slots.
        now: the wall clock.
        capped: time that does not count.
        limit: share by which a ratio may be off without an alarm.

    Raises:
        JournalUnavailable: the journal does not answer.
    """
    catalogue = run.catalogue
    if catalogue is None:
        return ()
    heard = min(now, run.last_seen_at)
    history = RunHistory(journal, run, catalogue, grid, until=heard, heard=heard)
    visits: dict[str, list[Stretch]] = {}
    for stretch in history.stretches():
        if stretch.end > now - LOOK_BACK:
            visits.setdefault(stretch.point, []).append(stretch)
    meters = meter_scope(journal, run) if visits else None
    lines = []
    for point in catalogue.points:
        newest = visits.get(point.id, [])[-MOST_VISITS:]
        slots = [
            each
            for visit in newest
            for each in history.steady(visit)
            if not _within(each.start, each.end, capped)
        ]
        power_w = catalogue.comparable_power_w(point, max(run.world_size, point.gpus), meters)
        found = against_catalogue(
            slots,
            tokens_per_s=point.tokens_per_s,
            power_w=power_w,
            step_s=_tokens_per_step(run, catalogue) / point.tokens_per_s,
            limit=limit,
        )
        if found is not None:
            lines.append(_line(catalogue, point, found, power_w))
    return tuple(lines)


def _within(start: datetime, end: datetime, spans: Iterable[Span]) -> bool:
    return any(begin < end and start < until for begin, until in spans)


def _tokens_per_step(run: RunRow, catalogue: Catalogue) -> float:
    if run.step and run.tokens:
        return run.tokens / run.step
    return float(catalogue.global_batch * catalogue.seq_len)


def _line(
    catalogue: Catalogue, point: OperatingPoint, found: PointRatio, power_w: float | None
) -> PointLine:
    return PointLine(
        point=point.id,
        tokens_per_s=found.tokens_per_s,
        catalogue_tokens_per_s=point.tokens_per_s,
        speed_ratio=found.speed,
        power_w=found.power_w,
        catalogue_power_w=power_w,
        power_ratio=found.power,
        speed_alarm=found.speed_alarm,
        power_alarm=found.power_alarm,
        measured_s=found.measured_s,
        until=found.until,
        flags=flags_of(found.quality, *marks.point_flags(catalogue, point)),
    )
