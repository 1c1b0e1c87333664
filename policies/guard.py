"""The deadline guard: no act of ours makes a run late, whatever the grid or the forecast does.

Words. `rho(i)`: tokens/s of point i that can be counted on (`speed.py`: by its evidence until it is
measured, then as measured, less the margin), less the share of time that the run stood in outages.
It never falls while speeds are inside their reserve. `f`: any point that may be switched to and of
which more can be counted on than of i. `lag(i)`: longest time from a look at a run that trains at i
to the switch that an order written at the next look begins: one cycle plus one boundary interval.
`S(i, j)`: seconds of a switch from i to j, without a token, until the first step at normal pace has
ended (`switch_time.py`). `F(i, j)`: seconds that a failed one costs until i trains again, rollback
and restart included: the hard timeout of a switch, and FAILED_SWITCH x S at least. `R(i, j)`:
seconds until GPUs that i gave back and j needs are the job's again: 0 where it keeps them, the
measured 95 % quantile where it gives them back, without bound where nobody measured it. A run that
goes to any other size as another launch gives all its GPUs back: R is the wait of that launch, and
F holds R as well, for the launch back waits too. `n`: attempts left before the run is frozen.

`C`: longest time from a clock that is wished to the boards running at it, counted as if not a token
were trained in it: its own seconds, the economy lease (an agent or a controller that dies at that
moment lifts no lock sooner) and the steps back up (`wattmesh.controller.cycle.clocks.back_s`). It
needs no boundary, it is no attempt, and to let a lock go needs nobody alive. `K(i, j)`: the clock
that follows a switch, one cycle plus C where i and j differ in it, else 0. `h(i)`: the point of i's
layout that a run is at while nobody holds its clock. `p`: what is left of C since the last change
of the clock, or of S (of F, if it failed) since the last switch while no step at normal pace was
seen after it, if that is more. `D`: time left less p, and less what announced power caps take: for
each the part of its time that the fastest point would need again, by what can be counted on where
the cap holds the run (all of it where limits alone hold it). A slower point loses no more by a cap.

    alone(i)       = w / rho(i)                                   finish where we are
    reach(i, f, n) = cycle + C + max(0, w - cycle rho(i)) / rho(f)    i of f's layout: by the clock
    reach(i, f, n) = n (lag(i) + R) + S + K + (n - 1) F           else: n - 1 attempts failing
                     + max(0, w - n lag(i) rho(i)) / rho(f)
    safe(i, n)     : min(alone, reach to any f) <= D
    safe(i, 0)     : 2 cycle + C + max(0, w - 2 cycle rho(i)) / rho(h(i)) <= D   frozen there;
                     alone <= D where h(i) is no faster

Rule. At each look, with w tokens and D seconds left: unless safe(i, n), order the f of the least
reach, if that with a cycle less to wait for is within D. Another layout's point j may be ordered
only if, for a wait x of 0 and of lag(i) alike, safe(j, N) holds after x + R + S + K and
safe(i, n - 1) after x + R + F (on the same side of the `min` for both x). Another clock j of the
same layout may be ordered only if safe(j, n) holds with p = C.

Theorem. If safe held at the first look, the run finishes by its deadline for every carbon series
and every forecast, provided that speed at i is at least rho(i), no switch takes longer than
stated, N switches never fail in a row, a clock is in force within C, looks and boundaries come as
often as stated, GPUs that were given back are there within R, no power cap takes more than was
announced at the first look, and nobody outside stops the run.

*Nothing promised.* Where safe holds at no look, the run is where it was submitted. It stays there
while it may be in time there, at the most speed that it can have (`speed.py`). Once it cannot, it
goes where the rest takes less even if that point is as slow as its reserve allows and this one as
fast; to a higher clock of its layout at once. So a run that meets its deadline untouched meets it:
either safe holds from some look on, and the theorem does it, or it is not touched while it may be
in time; and one that is late untouched is made no later by an error of speed. Where safe held and
speeds fell out of their reserve, or nodes were lost and f with them, the same is done, and the
decision says that nothing is promised.

*Frozen.* A run whose N switches failed is frozen where safe(i, 0) holds, if the last was of our own
choice: it is in time there, or at h(i), for with the freeze the wish for its clock lapses. A
person's freeze is hands off at once and may cost the deadline; status says so.

Proof. Let safe(i, n) hold at the last event (a look that ordered nothing or a clock, or the end of
a switch). *In flight* (a clock, or what is compiled after a switch) counts as standing: t seconds
on, p is less by t (or 0) and D by what is left of t, which is a run at rho(i) that was not begun
before; so take p = 0 below. *Measuring* raises rho, which shortens alone and every reach: none of
the below is lost by it. *Staying*: if alone held it holds for ever, since w falls by at least
rho(i) a second. If the reach of some f held and the next look, at most one cycle later, finds safe
broken, a cycle less is to be waited for and f is ordered, or one of a shorter reach. *By the
clock*: D was at least cycle + C + max(0, w - cycle rho(i)) / rho(f), and as rho(i) <= rho(f) this
side shrinks no slower than time passes, so after the wait D - C, the new D, is at least alone(f) =
w / rho(f). *By a switch*: it begins at most lag(i) after the last event; reach is not shorter for a
longer wait: after success the rest fits at f, its clock in force after K; there alone holds for
ever; after failure the time left is at least reach(i, f, n - 1) and safe(i, n - 1) holds. n - 1
failures leave n = 1, whose attempt does not fail. *Suspended*: the same with rho = 0, lag = one
cycle (it wakes at no boundary) and no `alone`; to wake is its switch. *Going to j*: a clock takes
effect at the look, where safe(j, n) was asked for with p = C. A switch begins after some wait x in
[0, lag(i)] and succeeds or fails. The slack of either side is concave in x (a line minus max(0,
line)), so a side that holds at both ends holds between: safe(j, N) or safe(i, n - 1) holds at that
event. After n = 1 a failure freezes the run within one cycle and its wish lapses within another:
safe(i, 0) lets it finish frozen. Induction over events.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite

from wattmesh.policies.speed import CountedSpeed
from wattmesh.policies.switch_time import SwitchTimes
from wattmesh.reconfig.catalogue import OperatingPoint

FAILED_SWITCH = 2.0
"""A failed switch costs this many times a switch: the attempt, and as long to be back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What the rule needs to know about one run now.

    Attributes:
        tokens_left, time_left_s: work and time to the deadline.
        counted_on: share of catalogue speed that can be counted on once it is measured, in (0, 1].
        speeds: by point id, what is counted on instead while it is not, or as it was measured;
            `up`: share of time that it trains, on which all of that rests.
        fastest: of the points that may be switched to, or that the run is at, the one of which
            most can be counted on. `refuges`: all of them.
        times: seconds of switches.
        interval_tokens: tokens from one boundary to the next.
        cycle_s: longest time between two looks.
        timeout_s: longest time until a run trains again after a switch that failed.
        reacquire_s: until GPUs that a smaller point gave back are there again; infinite: nobody
            knows, so no point that needs them is counted on from there. `resizes`: the run goes to
            any other size as another launch, which waits for its GPUs, and so does the one back.
        clock_s: longest time from the wish for a clock to the boards running at it. `pending_s`:
            what is left of it since the last wish, or of a switch that was not seen to be complete.
        capped_s: what operators' announced power caps take of the time left, at the fastest point.
        unheld: of each layout that may be counted on, the point that nobody has to hold a clock
            for.
        attempts: switches that may be tried before the run is frozen, now; `attempts_after`: the
            same after one that was confirmed.
    """

    tokens_left: float
    time_left_s: float
    counted_on: float
    fastest: OperatingPoint
    times: SwitchTimes
    interval_tokens: float
    cycle_s: float
    attempts: int
    attempts_after: int
    speeds: Mapping[str, CountedSpeed] = field(default_factory=dict)
    up: float = 1.0
    refuges: tuple[OperatingPoint, ...] = ()
    timeout_s: float = 0.0
    reacquire_s: float = 0.0
    resizes: bool = False
    clock_s: float = 0.0
    pending_s: float = 0.0
    capped_s: float = 0.0
    unheld: tuple[OperatingPoint, ...] = ()

    @property
    def feasible(self) -> bool:
        """Say whether the rest would fit at full speed, were nothing to go wrong any more."""
        return self.tokens_left / self.fastest.tokens_per_s <= self.time_left_s

    @property
    def usable_s(self) -> float:
        """Seconds to the deadline, less those that announced caps and what is in flight take."""
        return self.time_left_s - self.pending_s - self.capped_s

    def slack_s(self, point: OperatingPoint) -> float:
        """Give the seconds a run at `point` could lose now and still be in time."""
        return max(self._sides(point, self.attempts, self.tokens_left, self.usable_s))

    def may_stay(self, point: OperatingPoint) -> bool:
        """Say whether the run may go on at `point` until the next look."""
        return self.slack_s(point) >= 0.0

    def may_be_in_time(self, point: OperatingPoint) -> bool:
        """Say whether the run may be in time at `point`, if that is as fast as it can be."""
        return self._at_most_s(point) <= self.time_left_s

    def refuge(self, point: OperatingPoint) -> OperatingPoint | None:
        """Give where to go now from `point`, where the run may not stay; None: to stay is better.

        The point of the shortest reach while that keeps the deadline; else, where the run cannot be
        in time any more, one that ends it sooner whatever the errors of speed.
        """
        refuges, left = self.refuges or (self.fastest,), self.tokens_left
        ways = [
            (self._reach_s(point, each, self.attempts, left, at_once=True), each)
            for each in self._up(point)
        ]
        reach_s, nearest = min(ways, key=lambda each: each[0], default=(inf, point))
        if reach_s <= self.usable_s:
            return nearest
        alike = [each for each in refuges if each.layout == point.layout]
        clock = max(alike, key=lambda each: each.tokens_per_s, default=point)
        if clock.tokens_per_s > point.tokens_per_s:
            # A higher clock is never slower, so nobody can be later for it.
            return clock
        if self.may_be_in_time(point):
            return None
        ways = [(self._reach_s(point, each, 1, left), each) for each in self._up(point)]
        sooner_s, sooner = min(ways, key=lambda each: each[0], default=(inf, point))
        return sooner if sooner_s < self._at_most_s(point) else None

    def may_go(self, current: OperatingPoint | None, target: OperatingPoint) -> bool:
        """Say whether the run may be ordered from `current` to `target`.

        `current` is None when nobody knows where it is: nothing it trains there is counted on.
        """
        return self.slack_after_s(current, target) >= 0.0

    def slack_after_s(self, current: OperatingPoint | None, target: OperatingPoint) -> float:
        """Give the slack that an order from `current` to `target` leaves in the worst case."""
        if current is not None and current.layout == target.layout:
            seconds = self.time_left_s - self.capped_s - self.clock_s
            return max(self._sides(target, self.attempts, self.tokens_left, seconds))
        wait_s = self.lag_s(current) if current else self.cycle_s
        lost_s = self._switch_s(current, target) + self._clock_after_s(current, target)
        success = self._worst_s(target, self.attempts_after, current, wait_s, lost_s)
        if current is None:
            return success
        failed_s = self._failed_s(self.times.seconds(current, target))
        failed_s += self._switch_s(current, target) - self.times.seconds(current, target)
        failed_s += self._queued_back_s(current, target)
        failed = self._worst_s(current, self.attempts - 1, current, wait_s, failed_s)
        return min(success, failed)

    def slack_placed_s(self, point: OperatingPoint) -> float:
        """Give the slack that a placement of experts leaves at `point` in the worst case.

        It is a switch that ends where it began, and may fail like any.
        """
        wait_s, switch_s = self.lag_s(point), self.times.longest_s(point)
        success = self._worst_s(point, self.attempts_after, point, wait_s, switch_s)
        failed_s = self._failed_s(switch_s)
        return min(success, self._worst_s(point, self.attempts - 1, point, wait_s, failed_s))

    def asleep_slack_s(self) -> float:
        """Give the seconds a suspended run could sleep on and still be in time."""
        return self._asleep_s(self.attempts, self.tokens_left, self.usable_s)

    def may_suspend(self, current: OperatingPoint) -> bool:
        """Say whether the run, at `current`, may be ordered to sleep."""
        return self.slack_asleep_s(current) >= 0.0

    def slack_asleep_s(self, current: OperatingPoint) -> float:
        """Give the seconds from now that the run may sleep if it is ordered to, at the worst.

        Whoever dies meanwhile: an alarm that is set this far ahead still leaves the time of every
        attempt to wake it.
        """
        slack, switch_s = [], self.times.seconds(current, None)
        for wait_s in (0.0, self.lag_s(current)):
            left = max(0.0, self.tokens_left - self.rho(current) * wait_s)
            seconds = self.usable_s - wait_s - switch_s
            slack.append(self._asleep_s(self.attempts_after, left, seconds))
        wait_s, failed_s = self.lag_s(current), self._failed_s(switch_s)
        slack.append(self._worst_s(current, self.attempts - 1, current, wait_s, failed_s))
        return min(slack)

    def may_wake(self, target: OperatingPoint) -> bool:
        """Say whether a suspended run may be woken at `target`."""
        failed_s = self._failed_s(self.times.seconds(None, target))
        seconds = self.usable_s - self.cycle_s - failed_s
        failed = self._asleep_s(self.attempts - 1, self.tokens_left, seconds)
        return self.slack_after_s(None, target) >= 0.0 and failed >= 0.0

    def finish_s(self, point: OperatingPoint) -> float:
        """Give the seconds that the rest is likely to take at `point`, the margin included."""
        return self.tokens_left / self._likely(point)

    def finish_by_s(self, current: OperatingPoint, target: OperatingPoint) -> float:
        """Give the seconds until the rest is likely done if `target` is ordered and nothing fails.

        From `current`, whether or not that is sooner than to stay there.
        """
        if current.layout == target.layout:
            return self.clock_s + self.finish_s(target)
        lag_s = self.lag_s(current)
        rest = max(0.0, self.tokens_left - lag_s * self._likely(current)) / self._likely(target)
        switch_s = self._switch_s(current, target)
        return lag_s + switch_s + self._clock_after_s(current, target) + rest

    def reserve_s(self, point: OperatingPoint) -> float:
        """Give the seconds that must be kept free while a run is at `point`, to be back in time."""
        if self.rho(point) >= self.rho(self.fastest):
            return 0.0
        lost = 1.0 - self.rho(point) / self.rho(self.fastest)
        if point.layout == self.fastest.layout:
            return self.cycle_s * lost + self.clock_s
        attempts, switch_s = self.attempts_after, self.times.seconds(point, self.fastest)
        waits_s = attempts * self.lag_s(point) * lost
        back_s = attempts * self._back_s(point, self.fastest)
        way_s = switch_s + (attempts - 1) * self._failed_s(switch_s)
        way_s += waits_s + self._clock_after_s(point, self.fastest)
        way_s += (attempts - 1) * self._queued_back_s(point, self.fastest)
        # What cannot be reached needs no room kept free: the guard bars the way itself.
        return way_s + (back_s if isfinite(back_s) else 0)

    def returns_from(self, point: OperatingPoint) -> bool:
        """Say whether the GPUs that the fastest point needs can be counted on from `point`."""
        return isfinite(self._back_s(point, self.fastest))

    def lag_s(self, point: OperatingPoint) -> float:
        """Give the longest time from a look to the switch that the next look orders."""
        return self.cycle_s + self.interval_tokens / self.rho(point)

    def rho(self, point: OperatingPoint) -> float:
        """Give the tokens per second that can be counted on."""
        known = self.speeds.get(point.id)
        share = self.counted_on if known is None else self.up * known.least
        return point.tokens_per_s * share

    def _likely(self, point: OperatingPoint) -> float:
        """Tokens per second that are likely, the margin taken off."""
        known = self.speeds.get(point.id)
        return point.tokens_per_s * (self.counted_on if known is None else self.up * known.likely)

    def _at_most_s(self, point: OperatingPoint) -> float:
        """Seconds of the rest at `point` if it is as fast as it can be, and nothing goes wrong."""
        known = self.speeds.get(point.id)
        return self.tokens_left / (point.tokens_per_s * (1.0 if known is None else known.most))

    def _up(self, point: OperatingPoint) -> list[OperatingPoint]:
        """List the refuges whose counted speed is above that of `point`."""
        least = self.rho(point)
        return [each for each in self.refuges or (self.fastest,) if self.rho(each) > least]

    def _switch_s(self, origin: OperatingPoint | None, target: OperatingPoint) -> float:
        """Seconds of a switch, the wait for GPUs that were given back included, as far as known.

        Where `origin` is not known, the longest to `target`.
        """
        if origin is None:
            return self.times.longest_s(target)
        back_s = self._back_s(origin, target)
        return self.times.seconds(origin, target) + (back_s if isfinite(back_s) else 0.0)

    def _failed_s(self, switch_s: float) -> float:
        """Seconds that a failed switch costs: F in the module's words."""
        return max(FAILED_SWITCH * switch_s, self.timeout_s)

    def _clock_after_s(self, origin: OperatingPoint | None, target: OperatingPoint) -> float:
        """Seconds after a switch until its clock is in force; the cycle sees the switch first.

        Where `origin` is not known, its clock is another one.
        """
        if origin is not None and origin.clock_mhz == target.clock_mhz:
            return 0.0
        return self.cycle_s + self.clock_s if self.clock_s else 0.0

    def _back_s(self, point: OperatingPoint, target: OperatingPoint) -> float:
        """Seconds until GPUs that `point` gave back and `target` needs are there again."""
        waits = point.gpus != target.gpus if self.resizes else point.gpus < target.gpus
        return self.reacquire_s if waits else 0.0

    def _queued_back_s(self, point: OperatingPoint, target: OperatingPoint) -> float:
        """Seconds until the GPUs of `point` are there again after a launch at `target` failed."""
        back_s = self._back_s(point, target) if self.resizes else 0.0
        return back_s if isfinite(back_s) else 0.0

    def _asleep_s(self, attempts: int, tokens: float, seconds: float) -> float:
        """Give the slack of a sleeping run with `attempts` left to wake it."""
        if attempts < 1:
            return -inf
        switch_s = self.times.seconds(None, self.fastest)
        waking_s = attempts * (self.cycle_s + self.reacquire_s) + switch_s
        waking_s += (attempts - 1) * self._failed_s(switch_s)
        waking_s += self._clock_after_s(None, self.fastest)
        return seconds - waking_s - tokens / self.rho(self.fastest)

    def _worst_s(
        self,
        point: OperatingPoint,
        attempts: int,
        trained_at: OperatingPoint | None,
        wait_s: float,
        lost_s: float,
    ) -> float:
        """Give the slack at `point` after a wait of 0 to `wait_s` and `lost_s` without a token."""
        trained = self.rho(trained_at) * wait_s if trained_at else 0.0
        soon = self._sides(point, attempts, self.tokens_left, self.usable_s - lost_s)
        late = self._sides(
            point,
            attempts,
            max(0.0, self.tokens_left - trained),
            self.usable_s - wait_s - lost_s,
        )
        return max(map(min, soon, late))

    def _sides(
        self, point: OperatingPoint, attempts: int, tokens: float, seconds: float
    ) -> list[float]:
        """Give the slack of finishing at `point`, and of finishing at each refuge."""
        refuges = self._up(point)
        if attempts < 1 and refuges:
            return [seconds - self._frozen_s(point, tokens)]
        reaches = [seconds - self._reach_s(point, each, attempts, tokens) for each in refuges]
        return [seconds - tokens / self.rho(point), *reaches]

    def _reach_s(
        self,
        point: OperatingPoint,
        to: OperatingPoint,
        attempts: int,
        tokens: float,
        *,
        at_once: bool = False,
    ) -> float:
        """Seconds to finish at `to` if all attempts but the last fail; `at_once`: ordered now."""
        cycle_s = 0.0 if at_once else self.cycle_s
        if to.layout == point.layout:
            return self._by_clock_s(point, to, cycle_s, tokens)
        wait_s = attempts * self.lag_s(point) - self.cycle_s + cycle_s
        rest = max(0.0, tokens - wait_s * self.rho(point)) / self.rho(to)
        switch_s = self.times.seconds(point, to)
        failing_s = (attempts - 1) * (self._failed_s(switch_s) + self._queued_back_s(point, to))
        way_s = wait_s + attempts * self._back_s(point, to) + switch_s + failing_s
        return way_s + self._clock_after_s(point, to) + rest

    def _by_clock_s(
        self, point: OperatingPoint, to: OperatingPoint, wait_s: float, tokens: float
    ) -> float:
        """Seconds to train `tokens`: at `point` for `wait_s`, then at the clock of `to`."""
        rest = max(0.0, tokens - wait_s * self.rho(point))
        return wait_s + self.clock_s + rest / self.rho(to)

    def _frozen_s(self, point: OperatingPoint, tokens: float) -> float:
        """Seconds to train `tokens` in the layout of `point`, frozen, with no clock locked."""
        home = next((each for each in self.unheld if each.layout == point.layout), point)
        if self.rho(home) <= self.rho(point):
            return tokens / self.rho(point)
        return self._by_clock_s(point, home, 2 * self.cycle_s, tokens)
