"""Observe: the journal's rows become one frozen `Observation`. I/O in, nothing decided.

Invariant: what is not known stays unknown (None, or a sentence in `trouble`); no value is invented
to make a decision possible.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from wattmesh.controller.clocks import Controls, trouble
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs import RunRow
from wattmesh.controller.journal.switches import SwitchRow
from wattmesh.policies.decision import (
    CarbonView,
    IntensitySlot,
    Mode,
    Observation,
    PolicySettings,
    RunView,
    SwitchView,
)
from wattmesh.reconfig.switch import SwitchState
from wattmesh.telemetry.carbon import CarbonPoint, Signal

HORIZON = timedelta(days=7)
"""How far ahead the forecast is read; what lies beyond is the policy's to extend."""

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalFacts:
    """What the cycle must know about the decision signal beside its points.

    Attributes:
        stale_after_s: age of the newest successful fetch from which on nothing carbon-motivated
            is done.
    """

    signal: Signal
    interval_s: float
    stale_after_s: float


def observe(
    journal: Journal,
    *,
    now: datetime,
    mode: Mode,
    policy: PolicySettings,
    facts: SignalFacts | None,
    cycle_s: float,
    coverage: tuple[int, int] = (0, 0),
    controls: Controls = MappingProxyType({}),
) -> Observation:
    """Read everything one cycle decides on.

    Raises:
        JournalUnavailable: the database does not answer; the cycle then holds.
    """
    rows = journal.runs.all(now)
    return Observation(
        now=now,
        mode=mode,
        runs=tuple(
            run_view(journal, row, now, clock_trouble=trouble(row, controls, coverage))
            for row in rows
            if row.state != "finished"
        ),
        carbon=carbon_view(journal, facts, now),
        frozen=journal.runs.frozen_all(),
        coverage=coverage,
        policy=policy,
        cycle_s=cycle_s,
    )


def carbon_view(journal: Journal, facts: SignalFacts | None, now: datetime) -> CarbonView:
    """Read the decision signal: the current slot, the forecast, and what is wrong with it."""
    if facts is None:
        return CarbonView(signal="", slots=(), age_s=None, trouble="No decision signal is set.")
    fetch = journal.carbon.last_fetch(facts.signal)
    ok_at = fetch.ok_at if fetch else None
    # A clock that was stepped back makes an answer of just now look like one from the future.
    age_s = max(0.0, (now - ok_at).total_seconds()) if ok_at else None
    # The running interval began up to one interval ago.
    start = now - timedelta(seconds=facts.interval_s)
    end = now + HORIZON
    forecast = journal.carbon.forecast(facts.signal, start, end)
    observed = journal.carbon.observed(facts.signal, start, end)
    slots = chain_slots((*forecast, *observed), now)
    return CarbonView(
        signal=str(facts.signal),
        slots=slots,
        age_s=age_s,
        trouble=_trouble(facts, age_s, slots, fetch.detail if fetch else ""),
    )


def chain_slots(points: Sequence[CarbonPoint], now: datetime) -> tuple[IntensitySlot, ...]:
    """Chain the slot that holds `now` and what follows it without a gap.

    Later points in `points` replace earlier ones of the same start, so that what was observed
    stands before what was forecast.
    """
    by_start = {point.start: point for point in points}
    current = next((p for p in by_start.values() if p.start <= now < p.end), None)
    slots: list[IntensitySlot] = []
    while current is not None:
        slots.append(
            IntensitySlot(start=current.start, end=current.end, g_per_kwh=current.g_per_kwh)
        )
        current = by_start.get(current.end)
    return tuple(slots)


def _trouble(
    facts: SignalFacts, age_s: float | None, slots: tuple[IntensitySlot, ...], detail: str
) -> str:
    """Say why the signal cannot carry a decision; "" when it can."""
    why = f" ({detail.rstrip('.')})" if detail else ""
    if age_s is None:
        return f"{facts.signal.provider} has not answered yet{why}."
    if age_s > facts.stale_after_s:
        return (
            f"{facts.signal.provider} was last heard {age_s:.0f} s ago, more than the "
            f"{facts.stale_after_s:.0f} s that count as fresh{why}."
        )
    if not slots:
        return f"{facts.signal.provider} gives no value for now{why}."
    return ""


def run_view(journal: Journal, row: RunRow, now: datetime, *, clock_trouble: str) -> RunView:
    """Read one run with its switches."""
    history = journal.switches.history(row.run)
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
        baseline=row.baseline,
        deadline=row.deadline,
        tokens_per_s=row.tokens_per_s or None,
        frozen=row.frozen,
        open_switch=_open_view(journal.switches.open(row.run), now),
        ordered_point=row.ordered_point,
        clock_trouble=clock_trouble,
        since_clock_s=_age_s(row.clock_at, now) if row.clock_at else None,
        failed_switches=journal.switches.failures_in_a_row(row.run),
        switches_today=sum(each.state is not SwitchState.ABANDONED for each in today),
        since_switch_s=_age_s(confirmed[0].updated_at, now) if confirmed else None,
        switch_s=_p95([each.total_s for each in confirmed if each.total_s]),
        capabilities=row.capabilities,
    )


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


def _p95(values: Sequence[float]) -> float | None:
    """95th percentile by nearest rank; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
