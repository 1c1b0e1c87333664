"""The port that observes the live journal: one `JournalSnapshot` becomes one frozen `Observation`.

Invariant: what is unknown stays unknown (None, or a sentence in `trouble`); no value is invented to
make a decision possible.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from wattmesh.controller.cycle import capping, measured_speeds
from wattmesh.controller.cycle.cap_held import following
from wattmesh.controller.cycle.carbon_view import age_s
from wattmesh.controller.cycle.clocks import trouble
from wattmesh.controller.cycle.demand_response import responses
from wattmesh.controller.cycle.fleet import LOST_HELD, Fleet
from wattmesh.controller.cycle.journal_snapshot import (
    CycleSettings,
    JournalObservation,
    JournalSnapshot,
    read_snapshot,
)
from wattmesh.controller.cycle.plans import NoPlans, Plans, with_plans
from wattmesh.controller.journal.energy.ledger import TokenMark
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.outages import MOST, Launches
from wattmesh.controller.journal.runs.run_row import LIVES
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.journal.runs.switches import SwitchHistory, SwitchRow
from wattmesh.errors import JournalUnavailable
from wattmesh.policies.decision import Observation, RunView, SwitchView
from wattmesh.policies.isolation import cause
from wattmesh.policies.ladder import DAY_S
from wattmesh.policies.staleness import stale_points
from wattmesh.policies.switch_time import SwitchKind, SwitchRecord
from wattmesh.reconfig.catalogue import PAUSED, Release
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.switch_spend import spend_of
from wattmesh.reconfig.wire.messages import SwitchMode


class JournalObserver:
    """Observes the journal; `newest`: the last observation, None before the first."""

    def __init__(
        self,
        journal: Journal,
        settings: Callable[[], CycleSettings],
        epoch: Callable[[], int | None],
        fleet: Callable[[datetime], Fleet],
        plans: Plans | None = None,
    ) -> None:
        """Take the journal, and functions that give the present state of this process.

        Args:
            journal: the journal to read.
            settings: returns the present settings.
            epoch: returns this daemon's epoch; None while another one leads.
            fleet: returns what the nodes report of their GPUs.
            plans: has the newest plan of each run; None: nobody plans.
        """
        self._journal = journal
        self._settings = settings
        self._epoch = epoch
        self._fleet = fleet
        self._plans = plans or NoPlans()
        self.newest: JournalObservation | None = None

    def observe(self, now: datetime) -> JournalObservation:
        """Observe once, and keep the result in `newest`.

        Raises:
            JournalUnavailable: the database does not answer.
            FixInput: its schema is of another version.
        """
        settings, epoch = self._settings(), self._epoch()
        snapshot = read_snapshot(self._journal, settings, self._fleet, now)
        seen, cap = observation(snapshot, settings), None
        held = [each for each in snapshot.runs if each.finished_at is None]
        # A run that sleeps does not feel the cap in force, and will.
        sleeps = any(each.suspended_s is not None for each in seen.runs)
        caps, nodes = snapshot.caps, snapshot.fleet.nodes
        in_force = caps.cap if sleeps else None
        then = following(caps.cap, caps.beside) if caps.cap is not None else ()
        ahead = sorted((*caps.ahead, *then), key=lambda each: each.start)
        if ahead or in_force is not None:
            seen = capping.announce(seen, ahead, nodes, held, in_force)
        if caps.cap is not None:
            seen, cap = capping.apply(seen, caps.cap, nodes, held, caps.beside)
        self.newest = JournalObservation(
            observation=with_plans(seen, self._plans),
            cap=cap,
            caps_ahead=caps.ahead,
            caps_beside=caps.beside,
            demand=responses(snapshot, settings),
            leads=epoch is not None,
            snapshot=snapshot,
            settings=settings,
            epoch=epoch,
        )
        return self.newest


def observation(snapshot: JournalSnapshot, settings: CycleSettings) -> Observation:
    """Convert what was read to the policy's observation."""
    return Observation(
        now=snapshot.now,
        mode=settings.mode,
        runs=tuple(_views(snapshot, settings)),
        carbon=snapshot.carbon,
        frozen=snapshot.frozen,
        policy=settings.policy,
        cycle_s=settings.cycle_s,
        clock_lag_s=settings.clock_lag_s,
    )


def _views(snapshot: JournalSnapshot, settings: CycleSettings) -> Iterable[RunView]:
    """Yield every run that trains or sleeps, and under a power cap silent ones that may draw."""
    fleet, silent = snapshot.fleet, LOST_HELD if snapshot.caps.cap else timedelta(0)
    for row in snapshot.runs:
        lost = row.state == "lost"
        heard = not lost or (bool(silent) and snapshot.now - row.last_seen_at <= silent)
        if row.finished_at is not None or not heard:
            continue
        try:
            coverage = fleet.gpus.of(row) if fleet.gpus else (0, 0)
            if row.state == "queued" or (row.state == "asleep" and _gives_back(row)):
                coverage = (0, 0)  # its GPUs are not its own now, and may be off
            view = run_view(
                row,
                snapshot.now,
                clock_trouble=trouble(row, fleet.controls, coverage),
                # No decision is made for a silent run, and its row alone tells what it may draw.
                history=SwitchHistory() if lost else snapshot.histories.of(row.run),
                launches=Launches() if lost else snapshot.launches.get(row.run, Launches()),
            )
            marks = () if lost else snapshot.marks.get(row.run, ())
            yield replace(
                view,
                trained=trained(marks, snapshot.now, settings.policy.sla_window_s),
                budget=settings.budgets.get(row.name),
                stale=stale_points(
                    row.catalogue, row.registered_at, settings.policy.proof_days, row.computes_with
                ),
                coverage=coverage,
            )
        except JournalUnavailable:
            raise
        except Exception as error:
            yield _unreadable_run(row, cause(error))


def run_view(
    row: RunRow, now: datetime, *, clock_trouble: str, history: SwitchHistory, launches: Launches
) -> RunView:
    """Convert one run with its switches to the policy's view.

    Args:
        row: the run.
        now: time of the turn.
        clock_trouble: why the clocks of its GPUs cannot be set; "" if they can.
        history: its switches.
        launches: its launches.
    """
    confirmed = [each for each in history.rows if each.state is SwitchState.CONFIRMED]
    changes = [each.updated_at for each in confirmed[:1]]
    changes += [launches.woken[0]] if launches.woken else []
    asleep_at = row.asleep_at if row.state == "asleep" else None
    queued, refusal = row.state == "queued", history.refusal
    today = [each for each in history.rows if (now - each.created_at).total_seconds() < DAY_S]
    return RunView(
        run=row.run,
        name=row.name,
        attempt=row.attempt,
        live=row.state in LIVES,
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
        current=row.point,
        deadline=row.deadline,
        tokens_per_s=row.tokens_per_s or None,
        frozen=row.frozen,
        open_switch=_open_view(history.open or _leaving(row, history), now),
        ordered_point=row.ordered_point,
        clock_trouble=clock_trouble,
        since_clock_s=age_s(row.clock_at, now) if row.clock_at else None,
        failed_switches=history.failures_in_a_row(row.thawed_at),
        switches_today=sum(each.state is not SwitchState.ABANDONED for each in today),
        since_switch_s=age_s(max(changes), now) if changes else None,
        switches=(
            *_woken_by_alarm(row, history, launches, now),
            *_records(history.rows, launches.unordered, now),
        ),
        speeds=measured_speeds.read(row).watched.speeds,
        capabilities=row.capabilities,
        suspended_s=age_s(asleep_at, now) if asleep_at else None,
        wakes_at=row.wakes_at if asleep_at or queued else None,
        refused_s=age_s(refusal.updated_at, now) if refusal else None,
        refused=refusal.refused if refusal else "",
        queued_s=age_s(row.last_seen_at, now) if queued else None,
        held_as=row.held_as if queued else "",
        trouble=row.trouble,
        outage_share=_standing_share(row, launches.outage_share(now)),
    )


def _gives_back(row: RunRow) -> bool:
    return row.catalogue is not None and row.catalogue.release is Release.RELEASED


def _unreadable_run(row: RunRow, why: str) -> RunView:
    """Make the view of a run that could not be read, so that it is held."""
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
    """Return the share of time that a run stands still: between launches, and in long pauses."""
    return min(MOST, 1.0 - (1.0 - outages) * (1.0 - row.pause_share))


def trained(
    marks: Iterable[TokenMark], now: datetime, window_s: float
) -> tuple[tuple[float, int], ...]:
    """Return a run's progress over the service level's window: (seconds ago, tokens).

    It includes the last mark before the window, so that the whole window is covered; empty if there
    are no marks.
    """
    begin, known = now - timedelta(seconds=window_s), tuple(marks)
    earlier = [each for each in known if each.at <= begin][-1:]
    within = [each for each in known if begin < each.at < now]
    return tuple(((now - each.at).total_seconds(), each.tokens) for each in (*earlier, *within))


def _leaving(row: RunRow, history: SwitchHistory) -> SwitchRow | None:
    """Give the order to sleep that this launch has carried out, until it says that it has left."""
    newest = next(iter(history.rows), None)
    if newest is None or newest.order.mode is not SwitchMode.SUSPEND or row.finish_reason:
        return None
    done = newest.state is SwitchState.CONFIRMED and newest.attempt == row.attempt
    return newest if done else None


def _open_view(switch: SwitchRow | None, now: datetime) -> SwitchView | None:
    if switch is None:
        return None
    return SwitchView(
        target=switch.to_point,
        state=switch.state,
        age_s=(now - switch.created_at).total_seconds(),
    )


def _woken_by_alarm(
    row: RunRow, history: SwitchHistory, launches: Launches, now: datetime
) -> tuple[SwitchRecord, ...]:
    """Give the start of a run that was woken by its alarm as a switch that is not complete.

    Nobody measured when its pace was reached, so the guard counts it as the catalogue's.
    """
    if launches.woken is None or row.point is None:
        return ()
    woken_at, slept = launches.woken
    known = (each for each in history.rows if each.state is not SwitchState.ABANDONED)
    newest = next(known, None)
    by_order = newest is not None and newest.order.mode is SwitchMode.RESUME
    if newest is not None and (newest.attempt > slept or by_order):
        return ()
    since_s = age_s(woken_at, now) or 0.0
    return (
        SwitchRecord(
            origin=PAUSED,
            target=row.point.id,
            kind=SwitchKind.RESTART,
            told_s=0.0,
            ago_s=since_s,
        ),
    )


_KINDS = {
    SwitchMode.IN_PLACE: SwitchKind.IN_PLACE,
    SwitchMode.RESTART: SwitchKind.RESTART,
    SwitchMode.SUSPEND: SwitchKind.RESTART,
    SwitchMode.RESUME: SwitchKind.RESTART,
    SwitchMode.RESIZE: SwitchKind.RESTART,
}


def _records(
    history: Iterable[SwitchRow], launched: int, now: datetime
) -> tuple[SwitchRecord, ...]:
    """Convert finished switches with a time; `launched`: the attempt after the last outage.

    A placement of experts goes from no point to another, and says nothing of what that takes.
    """
    return tuple(
        SwitchRecord(
            origin=each.from_point,
            target=each.to_point,
            kind=_KINDS[each.order.mode],
            told_s=each.total_s,
            # Sleep has no pace to reach: what is told of it is all.
            at_pace_s=each.total_s if each.to_point == PAUSED else each.at_pace_s,
            ago_s=age_s(each.updated_at, now) or 0.0,
            failed=each.state is SwitchState.ROLLED_BACK,
            same_machines=each.attempt >= launched,
            spend=spend_of(each.evidence, each.from_point, each.to_point),
        )
        for each in history
        if each.total_s
        and not each.order.placement
        and each.state in (SwitchState.CONFIRMED, SwitchState.ROLLED_BACK)
    )
