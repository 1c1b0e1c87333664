"""The deadline guard: no act of ours makes a run late, whatever the grid or the forecast does.

Words. `rho(i)`: tokens/s of point i that can be counted on: catalogue speed x (1 - z) x the drift
measured. `f`: the fastest point that may be switched to. `lag(i)`: longest time from a look at a
run that trains at i to the switch that an order written at the next look begins: one cycle plus
one boundary interval. `S`: seconds of a switch, without a token. `F`: seconds that a failed one
costs until the old layout trains again, rollback and restart included: the hard timeout of a
switch, and FAILED_SWITCH x S at least. `R(i)`: seconds until GPUs that i gave back and f needs are
the job's again: 0 where it keeps them, the measured 95 % quantile where it gives them back, without
bound where nobody measured it. `n`: attempts left before the run is frozen.

`C`: longest time from a clock that is wished to the boards running at it, counted as if not a token
were trained in it: its own seconds, the economy lease (an agent or a controller that dies at that
moment lifts no lock sooner) and the steps back up (`wattmesh.controller.clocks.back_s`). It needs
no boundary, it is no attempt, and to let a lock go needs nobody alive. `K(i, j)`: the clock that
follows a switch, one cycle plus C where i and j differ in it, else 0. `h(i)`: the point of i's
layout that a run is at while nobody holds its clock. `D`: time left less p, what is left of C since
the last change of the clock.

    alone(i)    = w / rho(i)                                   finish where we are
    reach(i, n) = cycle + C + max(0, w - cycle rho(i)) / rho(f)    i of f's layout: by the clock
    reach(i, n) = n (lag(i) + R(i)) + S + K + (n - 1) F        else: n - 1 attempts failing
                  + max(0, w - n lag(i) rho(i)) / rho(f)
    safe(i, n)  : min(alone, reach) <= D
    safe(i, 0)  : 2 cycle + C + max(0, w - 2 cycle rho(i)) / rho(h(i)) <= D     frozen there;
                  alone <= D where h(i) is no faster

Rule. At each look, with w tokens and D seconds left: unless safe(i, n), order f. Another layout's
point j may be ordered only if, for a wait x of 0 and of lag(i) alike, safe(j, N) holds after
x + S + K and safe(i, n - 1) after x + F (on the same side of the `min` for both x). Another clock j
of the same layout may be ordered only if safe(j, n) holds with p = C.

Theorem. If safe held at the first look, the run finishes by its deadline for every carbon series
and every forecast, provided that speed at i is at least rho(i), no switch takes longer than
stated, N switches never fail in a row, a clock is in force within C, looks and boundaries come as
often as stated, GPUs that were given back are there within R, and nobody outside stops the run. `z`
is the margin for errors of speed and, from the run's own history, the share of time that it stood
in outages. Where safe does not hold (too little slack, a slower measured speed, nodes that were
lost and took f with them), nothing is promised: the run goes to, or stays at, the fastest point
there is, and the decision says that it is no more than that.

*Frozen.* A run whose N switches failed is frozen where safe(i, 0) holds, if the last was of our own
choice: it is in time there, or at h(i), for with the freeze the wish for its clock lapses. A
person's freeze is hands off at once and may cost the deadline; status says so.

Proof. Let safe(i, n) hold at the last event (a look that ordered nothing or a clock, or the end of
a switch). *A clock in flight* counts as standing: t seconds on, p is less by t (or 0) and D by what
is left of t, which is a run at rho(i) that was not begun before; so take p = 0 below. *Staying*: if
alone held it holds for ever, since w falls by at least rho(i) a second. If reach held and the next
look, at most one cycle later, finds safe broken, it orders f. *By the clock*: D was at least
cycle + C + max(0, w - cycle rho(i)) / rho(f), and as rho(i) <= rho(f) this side shrinks no slower
than time passes, so after the wait D - C, the new D, is at least w / rho(f) = alone(f). *By a
switch*: it begins at most lag(i) after the last event; reach is not shorter for a longer wait:
after success the rest fits at f, its clock in force after K; there alone = reach holds for ever;
after failure the time left is at least reach(i, n - 1) and safe(i, n - 1) holds. n - 1 failures
leave n = 1, whose attempt does not fail. *Suspended*: the same with rho = 0, lag = one cycle (it
wakes at no boundary) and no `alone`; to wake is its switch. *Going to j*: a clock takes effect at
the look, where safe(j, n) was asked for with p = C. A switch begins after some wait x in
[0, lag(i)] and succeeds or fails. The slack of either side is concave in x (a line minus
max(0, line)), so a side that holds at both ends holds between: safe(j, N) or safe(i, n - 1) holds
at that event. After n = 1 a failure freezes the run within one cycle and its wish lapses within
another: safe(i, 0) lets it finish frozen. Induction over events.
"""

from dataclasses import dataclass
from math import inf, isfinite

from wattmesh.reconfig.catalogue import OperatingPoint

FAILED_SWITCH = 2.0
"""A failed switch costs this many times a switch: the attempt, and as long to be back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What the rule needs to know about one run now.

    Attributes:
        tokens_left, time_left_s: work and time to the deadline.
        counted_on: share of a point's catalogue speed that can be counted on, in (0, 1].
        fastest: the fastest point that may be switched to, or that the run is at.
        switch_s: seconds of one switch.
        interval_tokens: tokens from one boundary to the next.
        cycle_s: longest time between two looks.
        timeout_s: longest time until a run trains again after a switch that failed.
        reacquire_s: until GPUs that a smaller point gave back are there again; infinite: nobody
            knows, so no point that needs them is counted on from there.
        clock_s: longest time from the wish for a clock to the boards running at it. `pending_s`:
            what is left of it since the last wish.
        unheld: of each layout that may be counted on, the point that nobody has to hold a clock
            for.
        attempts: switches that may be tried before the run is frozen, now; `attempts_after`: the
            same after one that was confirmed.
    """

    tokens_left: float
    time_left_s: float
    counted_on: float
    fastest: OperatingPoint
    switch_s: float
    interval_tokens: float
    cycle_s: float
    attempts: int
    attempts_after: int
    timeout_s: float = 0.0
    reacquire_s: float = 0.0
    clock_s: float = 0.0
    pending_s: float = 0.0
    unheld: tuple[OperatingPoint, ...] = ()

    @property
    def failed_s(self) -> float:
        """Seconds that a failed switch costs."""
        return max(FAILED_SWITCH * self.switch_s, self.timeout_s)

    @property
    def feasible(self) -> bool:
        """Say whether the rest would fit at full speed, were nothing to go wrong any more."""
        return self.tokens_left / self.fastest.tokens_per_s <= self.time_left_s

    @property
    def usable_s(self) -> float:
        """Seconds to the deadline, less those of a clock that may not be in force yet."""
        return self.time_left_s - self.pending_s

    def slack_s(self, point: OperatingPoint) -> float:
        """Give the seconds a run at `point` could lose now and still be in time."""
        return max(self._sides(point, self.attempts, self.tokens_left, self.usable_s))

    def may_stay(self, point: OperatingPoint) -> bool:
        """Say whether the run may go on at `point` until the next look."""
        return self.slack_s(point) >= 0.0

    def may_go(self, current: OperatingPoint | None, target: OperatingPoint) -> bool:
        """Say whether the run may be ordered from `current` to `target`.

        `current` is None when nobody knows where it is: nothing it trains there is counted on.
        """
        return self.slack_after_s(current, target) >= 0.0

    def slack_after_s(self, current: OperatingPoint | None, target: OperatingPoint) -> float:
        """Give the slack that an order from `current` to `target` leaves in the worst case."""
        if current is not None and current.layout == target.layout:
            seconds = self.time_left_s - self.clock_s
            return max(self._sides(target, self.attempts, self.tokens_left, seconds))
        wait_s = self.lag_s(current) if current else self.cycle_s
        lost_s = self.switch_s + self._clock_after_s(current, target)
        success = self._worst_s(target, self.attempts_after, current, wait_s, lost_s)
        if current is None:
            return success
        failed = self._worst_s(current, self.attempts - 1, current, wait_s, self.failed_s)
        return min(success, failed)

    def asleep_slack_s(self) -> float:
        """Give the seconds a suspended run could sleep on and still be in time."""
        return self._asleep_s(self.attempts, self.tokens_left, self.usable_s)

    def may_suspend(self, current: OperatingPoint) -> bool:
        """Say whether the run, at `current`, may be ordered to sleep."""
        slack = []
        for wait_s in (0.0, self.lag_s(current)):
            left = max(0.0, self.tokens_left - self._rho(current) * wait_s)
            seconds = self.usable_s - wait_s - self.switch_s
            slack.append(self._asleep_s(self.attempts_after, left, seconds))
        wait_s = self.lag_s(current)
        slack.append(self._worst_s(current, self.attempts - 1, current, wait_s, self.failed_s))
        return min(slack) >= 0.0

    def may_wake(self, target: OperatingPoint) -> bool:
        """Say whether a suspended run may be woken at `target`."""
        seconds = self.usable_s - self.cycle_s - self.failed_s
        failed = self._asleep_s(self.attempts - 1, self.tokens_left, seconds)
        return self.slack_after_s(None, target) >= 0.0 and failed >= 0.0

    def finish_s(self, point: OperatingPoint) -> float:
        """Give the seconds that the rest takes at `point`."""
        return self.tokens_left / self._rho(point)

    def finish_by_fastest_s(self, current: OperatingPoint) -> float:
        """Give the seconds until the rest is done if the fastest is ordered now and nothing fails.

        From `current`, whether or not that is sooner than to stay there.
        """
        if current.layout == self.fastest.layout:
            return self.clock_s + self.finish_s(self.fastest)
        lag_s = self.lag_s(current)
        rest = max(0.0, self.tokens_left - lag_s * self._rho(current)) / self._rho(self.fastest)
        return lag_s + self.switch_s + self._clock_after_s(current, self.fastest) + rest

    def reserve_s(self, point: OperatingPoint) -> float:
        """Give the seconds that must be kept free while a run is at `point`, to be back in time."""
        if point.tokens_per_s >= self.fastest.tokens_per_s:
            return 0.0
        lost = 1.0 - point.tokens_per_s / self.fastest.tokens_per_s
        if point.layout == self.fastest.layout:
            return self.cycle_s * lost + self.clock_s
        waits = self.attempts_after * self.lag_s(point) * lost
        back_s = self.attempts_after * self._back_s(point)
        way_s = waits + self._way_s(point, self.attempts_after)
        # What cannot be reached needs no room kept free: the guard bars the way itself.
        return way_s + (back_s if isfinite(back_s) else 0)

    def returns_from(self, point: OperatingPoint) -> bool:
        """Say whether the GPUs that the fastest point needs can be counted on from `point`."""
        return isfinite(self._back_s(point))

    def lag_s(self, point: OperatingPoint) -> float:
        """Give the longest time from a look to the switch that the next look orders."""
        return self.cycle_s + self.interval_tokens / self._rho(point)

    def _rho(self, point: OperatingPoint) -> float:
        """Tokens per second that can be counted on."""
        return point.tokens_per_s * self.counted_on

    def _switching_s(self, attempts: int) -> float:
        """Seconds of `attempts` switches, all but the last failing."""
        return self.switch_s + (attempts - 1) * self.failed_s

    def _way_s(self, point: OperatingPoint, attempts: int) -> float:
        """Seconds of `attempts` switches from `point` to the fastest, its clock included."""
        return self._switching_s(attempts) + self._clock_after_s(point, self.fastest)

    def _clock_after_s(self, origin: OperatingPoint | None, target: OperatingPoint) -> float:
        """Seconds after a switch until its clock is in force; the cycle sees the switch first.

        Where `origin` is not known, its clock is another one.
        """
        if origin is not None and origin.clock_mhz == target.clock_mhz:
            return 0.0
        return self.cycle_s + self.clock_s if self.clock_s else 0.0

    def _back_s(self, point: OperatingPoint) -> float:
        """Seconds until GPUs that `point` gave back and the fastest needs are there again."""
        return self.reacquire_s if point.gpus < self.fastest.gpus else 0.0

    def _asleep_s(self, attempts: int, tokens: float, seconds: float) -> float:
        """Give the slack of a run that sleeps, `attempts` to wake it left; it finishes at none."""
        if attempts < 1:
            return -inf
        waking_s = attempts * (self.cycle_s + self.reacquire_s) + self._switching_s(attempts)
        waking_s += self._clock_after_s(None, self.fastest)
        return seconds - waking_s - tokens / self._rho(self.fastest)

    def _worst_s(
        self,
        point: OperatingPoint,
        attempts: int,
        trained_at: OperatingPoint | None,
        wait_s: float,
        lost_s: float,
    ) -> float:
        """Give the slack at `point` after a wait of 0 to `wait_s` and `lost_s` without a token."""
        trained = self._rho(trained_at) * wait_s if trained_at else 0.0
        soon = self._sides(point, attempts, self.tokens_left, self.usable_s - lost_s)
        late = self._sides(
            point,
            attempts,
            max(0.0, self.tokens_left - trained),
            self.usable_s - wait_s - lost_s,
        )
        return max(min(soon[0], late[0]), min(soon[1], late[1]))

    def _sides(
        self, point: OperatingPoint, attempts: int, tokens: float, seconds: float
    ) -> tuple[float, float]:
        """Give the slack of finishing at `point`, and of finishing at the fastest."""
        alone_s = seconds - tokens / self._rho(point)
        if point.tokens_per_s >= self.fastest.tokens_per_s:
            return alone_s, alone_s
        if attempts < 1:
            frozen_s = seconds - self._frozen_s(point, tokens)
            return frozen_s, frozen_s
        if point.layout == self.fastest.layout:
            return alone_s, seconds - self._by_clock_s(point, self.fastest, self.cycle_s, tokens)
        lag_s = attempts * self.lag_s(point)
        rest = max(0.0, tokens - lag_s * self._rho(point))
        way_s = lag_s + attempts * self._back_s(point) + self._way_s(point, attempts)
        reach_s = way_s + rest / self._rho(self.fastest)
        return alone_s, seconds - reach_s

    def _by_clock_s(
        self, point: OperatingPoint, to: OperatingPoint, wait_s: float, tokens: float
    ) -> float:
        """Seconds to train `tokens` at `to`, whose clock is wished within `wait_s`."""
        rest = max(0.0, tokens - wait_s * self._rho(point))
        return wait_s + self.clock_s + rest / self._rho(to)

    def _frozen_s(self, point: OperatingPoint, tokens: float) -> float:
        """Seconds to train `tokens` in the layout of `point`, frozen there and its clock let go."""
        home = next((each for each in self.unheld if each.layout == point.layout), point)
        if home.tokens_per_s <= point.tokens_per_s:
            return tokens / self._rho(point)
        return self._by_clock_s(point, home, 2 * self.cycle_s, tokens)
