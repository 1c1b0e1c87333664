"""One run in one cycle, with what every rule needs to know about it: menu, guard, what is missing.

Invariant: pure; a fact that is not known makes the guard None and is named by `missing`, it is
never guessed.
"""

from dataclasses import dataclass
from math import inf, isfinite

from wattmesh.policies.decision import Action, Decision, Observation, RunView
from wattmesh.policies.guard import Guard
from wattmesh.policies.menu import menu, unheld
from wattmesh.policies.words import duration, figures
from wattmesh.policies.words import point as named
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint, Release

SETTLING_INTERVALS = 2
"""Boundary intervals after a start, a switch or another clock whose measured speed says nothing."""

STANDSTILL = 0.01
"""Share of its catalogue speed below which a run is not slow but stands; time stays finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run, the observation it is in, and what follows from both.

    Attributes:
        menu: points it may be switched to.
        guard: None while `missing` says what it lacks: (kind of the hold, clause).
    """

    seen: Observation
    run: RunView
    menu: tuple[OperatingPoint, ...]
    guard: Guard | None
    missing: tuple[str, str] = ("", "")

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
        if self.guard is None or self.run.current is None:
            return None
        return self.guard.slack_s(self.run.current)

    @property
    def promise(self) -> str:
        """What the guard's word rests on, as a clause."""
        if self.guard is None:
            return ""
        run, margin = self.run, self.seen.policy.guard_margin
        parts = [f"{figures(100 * margin)} % for errors of speed"]
        if run.outage_share > 0:
            parts.append(f"{figures(100 * run.outage_share, 2)} % for outages like those so far")
        text = f"counting on {figures(100 * self.guard.counted_on)} % of the speed"
        text += f" ({' and '.join(parts)} in reserve)"
        return text

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
        reason = f"switching from {self.here} to {named(target)}: {why}{self._way_back(target)}."
        return self.say(Action.SWITCH, kind, reason, target=target.id)

    def _way_back(self, target: OperatingPoint) -> str:
        """Say that the deadline rests on GPUs that are given back, where it does."""
        back_s = _back_s(self.run.catalogue) if self.run.catalogue else 0.0
        if self.guard is None or target.gpus >= self.guard.fastest.gpus or not 0 < back_s < inf:
            return ""
        return (
            f"; the way back counts on the GPUs given back being there {duration(back_s)} after "
            "they are asked for"
        )

    def say(self, action: Action, kind: str, reason: str, *, target: str = "") -> Decision:
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
        )


def examine(seen: Observation, run: RunView) -> Case:
    """Collect what the rules need to know about one run."""
    points = menu(run, seen.policy)
    missing = _missing(run)
    guard = None if missing[0] else _guard(seen, run, points)
    return Case(seen=seen, run=run, menu=points, guard=guard, missing=missing)


def switch_s(run: RunView, catalogue: Catalogue) -> float:
    """Seconds of one switch: measured on this run, else the longest the catalogue has.

    Where unused GPUs are given back, with the wait until they are the run's again.
    """
    if run.switch_s is not None:
        return run.switch_s
    switch = catalogue.switch
    wait_s = switch.reacquire_s or 0.0 if catalogue.release is Release.RELEASED else 0.0
    return max(switch.layout_s, *(pair.seconds for pair in switch.pairs), 0.0) + wait_s


def _missing(run: RunView) -> tuple[str, str]:
    """Name what keeps the deadline guard from being reckoned."""
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
    """Reckon the guard; None without a catalogue, a deadline or any point to go to or be at.

    Nobody is needed to let a clock go, so what keeps clocks from being set takes no such point.
    """
    free = unheld(run, seen.policy)
    known = (*points, *free) or ((run.current,) if run.current else ())
    if run.catalogue is None or run.deadline is None or not known:
        return None
    catalogue, held = run.catalogue, max(run.gpus_held, run.world_size)
    interval_tokens = run.boundary_every * _tokens_per_step(run)
    limit = seen.policy.failed_limit
    return Guard(
        tokens_left=float(run.tokens_total - run.tokens),
        time_left_s=(run.deadline - seen.now).total_seconds(),
        counted_on=_counted_on(seen, run, interval_tokens),
        # Of equally fast points the one on the hull.
        fastest=max(known, key=lambda p: (p.tokens_per_s, -catalogue.held_power_w(p, held))),
        switch_s=switch_s(run, catalogue),
        interval_tokens=interval_tokens,
        cycle_s=seen.cycle_s,
        attempts=max(1, limit - run.failed_switches),
        attempts_after=limit,
        timeout_s=seen.policy.failed_switch_s,
        reacquire_s=_reacquire_s(run, catalogue),
        clock_s=_clock_s(seen, catalogue),
        pending_s=_pending_s(seen, run, catalogue),
        unheld=free,
    )


def _clock_s(seen: Observation, catalogue: Catalogue) -> float:
    """Longest time until another clock is in force; 0 where the points have but one."""
    if len({point.clock_mhz for point in catalogue.points}) < 2:
        return 0.0
    return seen.clock_lag_s + catalogue.switch.clock_s


def _pending_s(seen: Observation, run: RunView, catalogue: Catalogue) -> float:
    """What is left of it since the clock was last changed."""
    if run.since_clock_s is None:
        return 0.0
    return max(0.0, _clock_s(seen, catalogue) - run.since_clock_s)


def _reacquire_s(run: RunView, catalogue: Catalogue) -> float:
    """Seconds until GPUs that were given back are there, as far as `switch_s` has them not yet."""
    back_s = _back_s(catalogue)
    return back_s if run.switch_s is not None or back_s == inf else 0.0


def _back_s(catalogue: Catalogue) -> float:
    """Seconds until GPUs that were given back are there again; without bound when not measured."""
    if catalogue.release is not Release.RELEASED:
        return 0.0
    measured_s = catalogue.switch.reacquire_s
    return inf if measured_s is None else measured_s


def _counted_on(seen: Observation, run: RunView, interval_tokens: float) -> float:
    """Share of catalogue speed to count on: the reserve, or less where the run is slower still.

    What was measured at the current point is taken for all points, once it has settled. Time that
    outages are expected to take, as they did so far, comes off either.
    """
    up = 1.0 - run.outage_share
    return up * _speed_share(seen, run, interval_tokens)


def _speed_share(seen: Observation, run: RunView, interval_tokens: float) -> float:
    """Share of catalogue speed while it trains: the margin for errors of speed, or as measured."""
    reserve = 1.0 - seen.policy.guard_margin
    measured = run.tokens_per_s
    if run.current is None or run.catalogue is None or measured is None:
        return reserve
    if not (isfinite(measured) and measured > 0):
        return reserve
    interval_s = interval_tokens / run.current.tokens_per_s
    if _settled_s(seen, run, run.catalogue) < SETTLING_INTERVALS * interval_s:
        return reserve
    return min(reserve, max(STANDSTILL, measured / run.current.tokens_per_s))


def _settled_s(seen: Observation, run: RunView, catalogue: Catalogue) -> float:
    """Seconds that the run has trained at its point, whatever began it: start, switch or clock."""
    since_s = [(seen.now - run.started_at).total_seconds() - switch_s(run, catalogue)]
    if run.since_switch_s is not None:
        since_s.append(run.since_switch_s - switch_s(run, catalogue))
    if run.since_clock_s is not None:
        since_s.append(run.since_clock_s - _clock_s(seen, catalogue))
    return min(since_s)
