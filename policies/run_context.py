"""The context of one run in one cycle: its menu, its deadline guard, or what is missing. Pure.

Invariant: a fact that is not known is never guessed: it makes the guard None, and `missing` names
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from math import inf, isfinite

from wattmesh.policies.decision import Action, Decision, Observation, RunView
from wattmesh.policies.guard import FAILED_SWITCH, Guard
from wattmesh.policies.menu import menu, resized, unheld
from wattmesh.policies.reason_text import point as named
from wattmesh.policies.shared_grid import SharedGrid
from wattmesh.policies.speed import STANDSTILL, CountedSpeed, counted
from wattmesh.policies.switch_time import SwitchTimes, forecast_of
from wattmesh.quantities import duration, figures
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint, Release

IN_PLACE = "in_place"
"""Capability of a run that changes its layout within its processes."""

OBSERVED = "observed"
"""Capability of a run whose script only lets itself be measured."""

LEAST_TOLD = 0.01
"""Share of speed in reserve below which a sentence does not mention it."""

SETTLING_INTERVALS = 2
"""Boundary intervals after a start, a switch or a new clock in which measured speed is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """A run, the observation that it is part of, and what follows from both.

    Attributes:
        menu: points it may be switched to.
        guard: None while `missing` says what it lacks: (kind of the hold, clause).
        grid: the grid ahead, as it is shared with other runs.
        expects: what plans expect of its switches; None: as the guard counts them.
    """

    seen: Observation
    run: RunView
    menu: tuple[OperatingPoint, ...]
    guard: Guard | None
    grid: SharedGrid
    missing: tuple[str, str] = ("", "")
    expects: SwitchTimes | None = None

    @property
    def here(self) -> str:
        """What the run is at, for a sentence."""
        return named(self.run.current) if self.run.current else f"its layout ({self.run.layout})"

    @property
    def gpus_held(self) -> int:
        """GPUs the job keeps, used or not."""
        return max(self.run.gpus_held, self.run.world_size)

    @property
    def slack_s(self) -> float | None:
        """What the guard has to spare; None when there is no guard or the point is unknown."""
        if self.guard is not None and self.run.suspended_s is not None:
            return self.guard.asleep_slack_s()
        if self.guard is None or self.run.current is None:
            return None
        return self.guard.slack_s(self.run.current)

    @property
    def promise(self) -> str:
        """What the guard's promise rests on, as a clause."""
        if self.guard is None:
            return ""
        run, margin = self.run, self.seen.policy.guard_margin
        fastest = self.guard.fastest
        parts = [f"{figures(100 * margin)} % for errors of speed"]
        if (unmeasured := self.unmeasured(fastest)) >= LEAST_TOLD:
            parts.append(f"{figures(100 * unmeasured, 2)} % until it is measured")
        if run.outage_share > 0:
            parts.append(
                f"{figures(100 * run.outage_share, 2)} % for outages and pauses like those so far"
            )
        share = self.guard.rho(fastest) / fastest.tokens_per_s
        text = f"counting on {figures(100 * share, 2)} % of the speed"
        text += f" ({' and '.join(parts)} in reserve)"
        return text

    def unmeasured(self, point: OperatingPoint) -> float:
        """Give the share of a point's speed that counts only once more steps are measured."""
        known = self.guard.speeds.get(point.id) if self.guard else None
        return known.unmeasured if known else 0.0

    def switch_s(self, target: OperatingPoint) -> float:
        """Give the seconds that a switch to `target` is expected to take.

        With the wait for GPUs that were given back.
        """
        run, catalogue = self.run, self.run.catalogue
        if catalogue is None:
            return 0.0
        if run.current is None:
            return times(run, catalogue).longest_s(target)
        more = target.gpus > run.current.gpus
        back_s = _back_s(catalogue) if more or resized(target, run) else 0.0
        expects = self.expects or times(run, catalogue)
        found_s = expects.expected(run.current, target).seconds
        return found_s + (back_s if back_s < inf else 0.0)

    def hold(self, kind: str, why: str) -> Decision:
        """Stay, for a reason that reads on after "staying at A (tp2 on 2 GPUs): "."""
        return self.say(Action.HOLD, kind, f"staying at {self.here}: {why}.")

    def go(self, kind: str, target: OperatingPoint, why: str) -> Decision:
        """Go to `target`, for a reason that reads on after "switching from A to B: ".

        A point of the same layout needs no switch, only another clock.
        """
        if target.layout == self.run.layout:
            reason = f"changing the clock from {self.here} to {named(target)}: {why}."
            return self.say(Action.CLOCK, kind, reason, target=target.id)
        tail = f"{self._as_another_job(target)}{self._way_back(target)}"
        reason = f"switching from {self.here} to {named(target)}: {why}{tail}."
        return self.say(Action.SWITCH, kind, reason, target=target.id)

    def _as_another_job(self, target: OperatingPoint) -> str:
        """Say that the run goes on as another job, where it does."""
        if self.run.catalogue is None or not resized(target, self.run):
            return ""
        wait = duration(_back_s(self.run.catalogue))
        return f"; it goes on as another job, which is counted to wait {wait} for its GPUs"

    def _way_back(self, target: OperatingPoint) -> str:
        """Say that the deadline rests on the return of GPUs that are given back, where it does."""
        back_s = _back_s(self.run.catalogue) if self.run.catalogue else 0.0
        if self.guard is None or target.gpus >= self.guard.fastest.gpus or not 0 < back_s < inf:
            return ""
        return (
            f"; the way back counts on the GPUs given back being there {duration(back_s)} after "
            "they are asked for"
        )

    def say(
        self,
        action: Action,
        kind: str,
        reason: str,
        *,
        target: str = "",
        wakes_at: datetime | None = None,
    ) -> Decision:
        """Build a decision on this run; without a target it is the run's own point."""
        current = self.run.current.id if self.run.current else ""
        return Decision(
            run=self.run.run,
            action=action,
            kind=kind,
            reason=reason,
            current=current,
            target=target or current,
            slack_s=self.slack_s,
            wakes_at=wakes_at,
        )


def examine(seen: Observation, run: RunView, grid: SharedGrid | None = None) -> RunContext:
    """Collect what the rules need to know about one run.

    `grid`: what was worked out for other runs of the observation; it changes no answer.
    """
    points = menu(run, seen.policy)
    missing = _missing(run)
    guard = None if missing[0] else _guard(seen, run, points)
    expects = times(run, run.catalogue, predicts=True) if run.catalogue else None
    return RunContext(
        seen=seen,
        run=run,
        menu=points,
        guard=guard,
        grid=grid or SharedGrid(seen),
        missing=missing,
        expects=expects,
    )


def times(run: RunView, catalogue: Catalogue, *, predicts: bool = False) -> SwitchTimes:
    """Give what the run's switches are counted at; `predicts`: and what plans expect of others."""
    return SwitchTimes(
        switch=catalogue.switch,
        records=run.switches,
        in_place=IN_PLACE in run.capabilities,
        resizes=run.resizes,
        forecast=forecast_of(catalogue, run.switches) if predicts else None,
    )


def in_flight_s(seen: Observation, run: RunView, catalogue: Catalogue) -> float:
    """Give the seconds for which the run may not train yet, or not at its point's pace.

    A clock that was changed may not be in force, and what is compiled after a switch not be done.
    """
    return max(_clock_pending_s(seen, run, catalogue), _switch_pending_s(seen, run, catalogue))


def _missing(run: RunView) -> tuple[str, str]:
    """Name what the deadline guard lacks: (kind of the hold, clause); both empty when nothing."""
    if run.tokens_total <= 0:
        return "no_target", (
            "nobody said how many tokens it is to train, so no plan can be made; give tokens_total "
            "in its catalogue"
        )
    if run.deadline is None:
        return "no_deadline", (
            "it has no deadline, so nobody said how much slower it may get; set "
            f"runs.{run.name}.deadline"
        )
    if run.boundary_every > 0 and _tokens_per_step(run) <= 0:
        return "no_progress", "it has not finished its first step yet"
    return "", ""


def _tokens_per_step(run: RunView) -> float:
    """Tokens of one step, from the catalogue or from what was trained; 0 when not known."""
    catalogue = run.catalogue
    if catalogue and catalogue.global_batch * catalogue.seq_len > 0:
        return float(catalogue.global_batch * catalogue.seq_len)
    return run.tokens / run.step if run.step > 0 else 0.0


def _guard(seen: Observation, run: RunView, points: tuple[OperatingPoint, ...]) -> Guard | None:
    """Make the guard; None without a catalogue, a deadline, or any point to be at.

    Nobody is needed to let a clock go, so what keeps clocks from being set takes no such point.
    """
    free = unheld(run, seen.policy)
    known = (*points, *free) or ((run.current,) if run.current else ())
    if run.catalogue is None or run.deadline is None or not known:
        return None
    catalogue, held = run.catalogue, max(run.gpus_held, run.world_size)
    interval_tokens = run.boundary_every * _tokens_per_step(run)
    limit = seen.policy.failed_limit
    now_tokens_per_s = _now_tokens_per_s(seen, run, interval_tokens)
    up = 1.0 - run.outage_share
    speeds = counted(
        catalogue.points,
        run.speeds,
        reserve=seen.policy.reserve,
        margin=seen.policy.guard_margin,
        here=run.current.id if run.current else "",
        now_tokens_per_s=now_tokens_per_s,
    )
    guard = Guard(
        tokens_left=float(run.tokens_total - run.tokens),
        time_left_s=(run.deadline - seen.now).total_seconds(),
        counted_on=up * _speed_share(seen, run, now_tokens_per_s),
        speeds=speeds,
        up=up,
        # Of equally fast points the one on the hull.
        fastest=max(
            known,
            key=lambda p: (_least(speeds, p), p.tokens_per_s, -catalogue.held_power_w(p, held)),
        ),
        refuges=known,
        times=times(run, catalogue),
        interval_tokens=interval_tokens,
        cycle_s=seen.cycle_s,
        attempts=max(1, limit - run.failed_switches),
        attempts_after=limit,
        timeout_s=seen.policy.failed_switch_s,
        reacquire_s=_back_s(catalogue),
        resizes=run.resizes,
        clock_s=_clock_s(seen, run, catalogue),
        pending_s=in_flight_s(seen, run, catalogue),
        unheld=free,
    )
    return replace(guard, capped_s=_capped_s(run, guard))


def _capped_s(run: RunView, guard: Guard) -> float:
    """Seconds before the deadline that announced power caps take from a run at its fastest.

    Where several hold the one that takes most counts; where limits alone hold it all is taken.
    """
    if run.deadline is None or run.catalogue is None or not run.caps_ahead:
        return 0.0
    points, fastest = {each.id: each for each in run.catalogue.points}, guard.rho(guard.fastest)
    kept = {
        each.point: guard.rho(points[each.point]) for each in run.caps_ahead if each.point in points
    }
    now = run.deadline - timedelta(seconds=guard.time_left_s)
    spans = [
        (max(each.start, now), min(each.until, run.deadline), kept.get(each.point, 0.0) / fastest)
        for each in run.caps_ahead
    ]
    edges = sorted({edge for start, until, _ in spans if start < until for edge in (start, until)})
    return sum(
        (end - begin).total_seconds()
        * max((1.0 - share for start, until, share in spans if start <= begin < until), default=0.0)
        for begin, end in pairwise(edges)
    )


def _least(speeds: Mapping[str, CountedSpeed], point: OperatingPoint) -> float:
    """Tokens per second of a point that can be counted on while the run is up."""
    return speeds[point.id].least * point.tokens_per_s


def _clock_s(seen: Observation, run: RunView, catalogue: Catalogue) -> float:
    """Longest time until another clock is in force; 0 where the points have but one."""
    if len({point.clock_mhz for point in catalogue.points}) < 2:
        return 0.0
    known = times(run, catalogue)
    points = {each.id: each for each in catalogue.points}
    ends = [(points.get(each.origin), points.get(each.target)) for each in catalogue.switch.pairs]
    alike = [
        known.seconds(origin, target)
        for origin, target in ends
        if origin and target and origin.layout == target.layout
    ]
    return seen.clock_lag_s + max(catalogue.switch.clock_s, *alike, 0.0)


def _clock_pending_s(seen: Observation, run: RunView, catalogue: Catalogue) -> float:
    """Seconds until the clock that was changed last is in force."""
    if run.since_clock_s is None:
        return 0.0
    return max(0.0, _clock_s(seen, run, catalogue) - run.since_clock_s)


def _switch_pending_s(seen: Observation, run: RunView, catalogue: Catalogue) -> float:
    """Most seconds until the newest switch has its first step at normal pace."""
    newest = run.switches[0] if run.switches else None
    if newest is None or newest.complete:
        return 0.0
    left_s = times(run, catalogue).of(newest)
    if newest.failed:
        left_s = max(FAILED_SWITCH * left_s, seen.policy.failed_switch_s)
    # What is told of a launch of another size is told once it has its GPUs.
    back_s = 0.0 if run.resizes else _back_s(catalogue)
    return max(0.0, left_s + (back_s if back_s < inf else 0.0) - newest.told_s - newest.ago_s)


def _back_s(catalogue: Catalogue) -> float:
    """Seconds until GPUs that were given back return; infinite when nobody measured it."""
    if catalogue.release is not Release.RELEASED:
        return 0.0
    measured_s = catalogue.switch.reacquire_s
    return inf if measured_s is None else measured_s


def _speed_share(seen: Observation, run: RunView, now_tokens_per_s: float | None) -> float:
    """Share of catalogue speed to plan with: the margin for errors of speed, or as measured.

    What is measured at the current point is taken for all points.
    """
    reserve = 1.0 - seen.policy.guard_margin
    if run.current is None or now_tokens_per_s is None:
        return reserve
    return min(reserve, max(STANDSTILL, now_tokens_per_s / run.current.tokens_per_s))


def _now_tokens_per_s(seen: Observation, run: RunView, interval_tokens: float) -> float | None:
    """What the run does over its last steps, once it has settled; None while it has not."""
    measured = run.tokens_per_s
    if run.current is None or run.catalogue is None or measured is None:
        return None
    if not (isfinite(measured) and measured > 0):
        return None
    interval_s = interval_tokens / run.current.tokens_per_s
    if _settled_s(seen, run, run.catalogue) < SETTLING_INTERVALS * interval_s:
        return None
    return measured


def _settled_s(seen: Observation, run: RunView, catalogue: Catalogue) -> float:
    """Seconds that the run has trained undisturbed since its start, a switch or another clock."""
    since_s = [(seen.now - run.started_at).total_seconds() - catalogue.switch.layout_s]
    newest = run.switches[0] if run.switches else None
    if newest is not None:
        took_s = newest.at_pace_s or times(run, catalogue).of(newest)
        since_s.append(newest.told_s + newest.ago_s - took_s)
    elif run.since_switch_s is not None:
        since_s.append(run.since_switch_s - catalogue.switch.layout_s)
    if run.since_clock_s is not None:
        since_s.append(run.since_clock_s - _clock_s(seen, run, catalogue))
    return min(since_s)
