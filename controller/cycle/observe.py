"""Observe: the journal's rows become one frozen `Observation`. I/O in, nothing decided.

Invariant: what is not known stays unknown (None, or a sentence in `trouble`); no value is invented
to make a decision possible.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from wattmesh.controller.cycle import measured_speeds
from wattmesh.controller.cycle.act import can_be_carried_out
from wattmesh.controller.cycle.clocks import BACK_S, Controls, trouble
from wattmesh.controller.cycle.fleet import LOST_HELD, GpusRead
from wattmesh.controller.journal.carbon.points import FetchRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.outages import MOST
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.journal.runs.switches import SwitchRow
from wattmesh.errors import JournalUnavailable
from wattmesh.policies.decision import (
    BudgetLeft,
    CarbonView,
    IntensitySlot,
    Mode,
    Observation,
    PolicySettings,
    Rung,
    RunView,
    SwitchView,
)
from wattmesh.policies.isolation import cause
from wattmesh.policies.ladder import ACTS, DAY_S, LadderStanding, stand
from wattmesh.policies.switch_time import SwitchKind, SwitchRecord
from wattmesh.reconfig.switch import SwitchState
from wattmesh.telemetry.carbon import CarbonPoint, Signal
from wattmesh.telemetry.readings import Quality

SLOT = timedelta(days=1)
"""No slot of the ledger is longer: a budget's day ends each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalFacts:
    """What the cycle must know about the decision signal beside its points.

    Attributes:
        stale_after_s: age of the newest successful fetch from which on nothing carbon-motivated
            is done.
        lag_s: how long after its end an interval is usually observed.
        day_s: length of the signal's day; shorter in a recording that plays compressed.
    """

    signal: Signal
    interval_s: float
    stale_after_s: float
    lag_s: float = 0.0
    day_s: float = DAY_S


def observe(
    journal: Journal,
    *,
    now: datetime,
    mode: Mode,
    policy: PolicySettings,
    facts: SignalFacts | None,
    cycle_s: float,
    clock_lag_s: float = BACK_S,
    gpus: GpusRead | None = None,
    controls: Controls = MappingProxyType({}),
    budgets: Mapping[str, BudgetLeft] = MappingProxyType({}),
    silent: timedelta = LOST_HELD,
) -> Observation:
    """Read everything one cycle decides on.

    Args:
        journal: what is remembered.
        now: of the cycle.
        mode: how far it may go.
        policy: the operator's limits.
        facts: of the decision signal; None: there is none.
        cycle_s: longest time until the next cycle looks.
        clock_lag_s: longest time until a higher clock, or none, is in force.
        gpus: which are read; None: power is not read at all, or was not yet.
        controls: what the nodes' actuators said lately, by GPU.
        budgets: what is left of the budgets that are a run's own, by its name.
        silent: lost runs are seen that were heard within so long.

    Raises:
        JournalUnavailable: the database does not answer; the cycle then holds.
    """
    views = []
    for row in journal.runs.open(now, silent):
        try:
            lost, coverage = row.state != "live", gpus.of(row) if gpus else (0, 0)
            why = trouble(row, controls, coverage)
            view = run_view(journal, row, now, clock_trouble=why, silent=lost)
            past = () if lost else trained(journal, row.run, now, policy)
            own = budgets.get(row.name)
            views.append(replace(view, trained=past, budget=own, coverage=coverage))
        except JournalUnavailable:
            raise
        except Exception as error:
            views.append(_unread(row, cause(error)))
    return Observation(
        now=now,
        mode=mode,
        runs=tuple(views),
        carbon=carbon_view(journal, facts, now),
        frozen=journal.runs.frozen_all(),
        policy=policy,
        cycle_s=cycle_s,
        clock_lag_s=clock_lag_s,
    )


def carbon_view(journal: Journal, facts: SignalFacts | None, now: datetime) -> CarbonView:
    """Read the decision signal: the current slot, the forecast, and what is wrong with it."""
    if facts is None:
        return CarbonView(signal="", slots=(), age_s=None, trouble="No decision signal is set.")
    fetch = journal.carbon.last_fetch(facts.signal)
    ok_at = fetch.ok_at if fetch else None
    # A clock that was stepped back makes an answer of just now look like one from the future.
    age_s = max(0.0, (now - ok_at).total_seconds()) if ok_at else None
    point = running_point(journal, facts, now)
    standing = stand(
        journal.forecasts.newest(facts.signal, now),
        running=slot_of(point) if point else None,
        static=point is not None and point.quality is Quality.STATIC,
        now=now,
        day_s=facts.day_s,
    )
    return CarbonView(
        signal=str(facts.signal),
        slots=standing.slots,
        age_s=age_s,
        trouble=_trouble(facts, age_s, standing, fetch.detail if fetch else ""),
        rung=standing.rung,
        source=standing.source,
        forecast=standing.forecast,
        issued_at=standing.issued_at,
        note=standing.why,
        since_change_s=_since_change_s(fetch, standing.rung, now),
        interval_s=facts.interval_s,
        climatology=journal.forecasts.usual(facts.signal),
    )


def running_point(journal: Journal, facts: SignalFacts, now: datetime) -> CarbonPoint | None:
    """Give what was observed of the interval that holds `now`; None while nothing was."""
    # It began up to one interval ago.
    begun = now - timedelta(seconds=facts.interval_s)
    points = journal.carbon.observed(facts.signal, begun, now)
    return next((each for each in points if each.start <= now < each.end), None)


def slot_of(point: CarbonPoint) -> IntensitySlot:
    """Give the slot of an observed point."""
    return IntensitySlot(start=point.start, end=point.end, g_per_kwh=point.g_per_kwh)


def _since_change_s(fetch: FetchRow | None, rung: Rung, now: datetime) -> float | None:
    """Give since when decisions rest on this rung; None when they never rested on another.

    A rung that is not written down yet is one that begins now.
    """
    if fetch is None or not fetch.rung:
        return None
    if fetch.rung != rung.value:
        return 0.0
    return _age_s(fetch.rung_at, now) if fetch.rung_at else None


def _trouble(facts: SignalFacts, age_s: float | None, standing: LadderStanding, detail: str) -> str:
    """Say why the signal cannot carry a decision; "" when it can."""
    why = f" ({detail.rstrip('.')})" if detail else ""
    if age_s is None and standing.rung is Rung.NONE:
        return f"{facts.signal.provider} has not answered yet{why}."
    if age_s is not None and age_s > facts.stale_after_s:
        return (
            f"{facts.signal.provider} was last heard {age_s:.0f} s ago, more than the "
            f"{facts.stale_after_s:.0f} s that count as fresh{why}."
        )
    if standing.rung is Rung.NONE and not standing.slots:
        return f"{facts.signal.provider} gives no value for now{why}."
    if standing.rung not in ACTS:
        return f"{facts.signal.provider}: {standing.why}{why}."
    return ""


def run_view(
    journal: Journal, row: RunRow, now: datetime, *, clock_trouble: str, silent: bool = False
) -> RunView:
    """Read one run with its switches.

    Args:
        journal: what is remembered.
        row: the run.
        now: of the cycle.
        clock_trouble: why no clock of its GPUs can be set; "" when all can.
        silent: nothing is decided about it: its switches and outages are not asked for. What it
            draws under a cap is known from its row.
    """
    history = () if silent else journal.switches.history(row.run)
    again = row.attempt > 1 and not silent
    confirmed = [each for each in history if each.state is SwitchState.CONFIRMED]
    today = [each for each in history if (now - each.created_at).total_seconds() < DAY_S]
    current = row.point
    return RunView(
        run=row.run,
        name=row.name,
        attempt=row.attempt,
        live=row.state == "live",
        last_seen_s=(now - row.last_seen_at).total_seconds(),
        step=row.step,
        tokens=row.tokens,
        tokens_total=row.tokens_total or (row.catalogue.tokens_total if row.catalogue else 0),
        layout=row.layout,
        world_size=row.world_size,
        gpus_held=row.world_size,
        boundary_every=row.boundary_every,
        started_at=row.registered_at,
        catalogue=row.catalogue,
        current=current,
        deadline=row.deadline,
        tokens_per_s=row.tokens_per_s or None,
        frozen=row.frozen,
        open_switch=_open_view(None if silent else journal.switches.open(row.run), now),
        ordered_point=row.ordered_point,
        clock_trouble=clock_trouble,
        since_clock_s=_age_s(row.clock_at, now) if row.clock_at else None,
        failed_switches=0 if silent else journal.switches.failures_in_a_row(row.run),
        switches_today=sum(each.state is not SwitchState.ABANDONED for each in today),
        since_switch_s=_age_s(confirmed[0].updated_at, now) if confirmed else None,
        switches=_records(history, journal.outages.last(row.run) if again else 0, now),
        speeds=measured_speeds.read(row).watched.speeds,
        capabilities=can_be_carried_out(row.capabilities),
        trouble=row.trouble,
        outage_share=_standing_share(row, journal.outages.share(row.run, now) if again else 0.0),
    )


def _unread(row: RunRow, why: str) -> RunView:
    """Show a run of which not everything could be read: it is held."""
    return RunView(
        run=row.run,
        name=row.name,
        attempt=row.attempt,
        live=row.state == "live",
        last_seen_s=0.0,
        step=row.step,
        tokens=row.tokens,
        tokens_total=row.tokens_total,
        layout=row.layout,
        world_size=row.world_size,
        gpus_held=row.world_size,
        boundary_every=row.boundary_every,
        started_at=row.registered_at,
        unreadable=why,
    )


def _standing_share(row: RunRow, outages: float) -> float:
    """Share of its time that a run stands: between launches, and in long pauses within one."""
    return min(MOST, 1.0 - (1.0 - outages) * (1.0 - row.pause_share))


def trained(
    journal: Journal, run: str, now: datetime, policy: PolicySettings
) -> tuple[tuple[float, int], ...]:
    """Read how far a run was over the window of the service level: (seconds ago, tokens).

    One more moment than the window holds, so that it is known to its begin; empty without a level.
    """
    if not policy.sla_throughput_share:
        return ()
    begin = now - timedelta(seconds=policy.sla_window_s)
    marks = journal.ledger.token_marks(run, begin - SLOT)
    earlier = [each for each in marks if each.at <= begin][-1:]
    within = [each for each in marks if begin < each.at < now]
    return tuple(((now - each.at).total_seconds(), each.tokens) for each in (*earlier, *within))


def _age_s(at: datetime, now: datetime) -> float | None:
    """Seconds since `at`; None when a clock that was stepped back says it has yet to come."""
    return (now - at).total_seconds() if at <= now else None


def _open_view(switch: SwitchRow | None, now: datetime) -> SwitchView | None:
    """Show the open switch to the policy."""
    if switch is None:
        return None
    return SwitchView(
        plan=switch.plan,
        target=switch.to_point,
        state=switch.state,
        age_s=(now - switch.created_at).total_seconds(),
    )


def _records(
    history: Sequence[SwitchRow], launched: int, now: datetime
) -> tuple[SwitchRecord, ...]:
    """Give the switches that a run measured; `launched`: its attempt after the last outage."""
    return tuple(
        SwitchRecord(
            origin=each.from_point,
            target=each.to_point,
            kind=SwitchKind(each.order.mode.value),
            told_s=each.total_s,
            at_pace_s=each.at_pace_s,
            ago_s=_age_s(each.updated_at, now) or 0.0,
            failed=each.state is SwitchState.ROLLED_BACK,
            same_machines=each.attempt >= launched,
        )
        for each in history
        if each.total_s and each.state in (SwitchState.CONFIRMED, SwitchState.ROLLED_BACK)
    )
