"""When an open switch is over although the run did not report it. Pure: rows and `now` in.

Invariant: only the run itself can confirm a switch. This module closes a switch that can no longer
be confirmed, so that decisions about the run are possible again.
"""

from dataclasses import dataclass
from datetime import datetime
from math import inf

from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Order, SwitchMode

FURTHER_LAUNCHES = 2
"""How many launches may follow before the end of a begun switch must be reported: a switch in place
may continue by restart, and if its new layout does not come up, the next launch rolls it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSwitch:
    """What the verdict needs to know about a switch.

    Attributes:
        created_at: when its intent was written.
        begun_at: when the run reported that it took the order; None while the order waits.
        by_operator: whether an operator asked for it.
    """

    order: Order
    state: SwitchState
    created_at: datetime
    begun_at: datetime | None = None
    by_operator: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """What the verdict needs to know about the run, from its own newest report.

    Attributes:
        live: whether it was heard recently, however long its steps take. `queued`: it has left, and
            waits for another size.
        window_s: usual seconds until the run has passed the boundaries at which an order is valid.
    """

    step: int
    attempt: int
    finished: bool
    frozen: str
    live: bool = True
    queued: bool = False
    window_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchOutcome:
    """How an open switch ends, and why, in one sentence."""

    state: SwitchState
    reason: str


def verdict(
    switch: OpenSwitch, run: RunNow, *, now: datetime, timeout_s: float
) -> SwitchOutcome | None:
    """Return how an open switch ends, or None while it may still be confirmed.

    A switch that the run never began is abandoned, which has no consequence. One that was begun and
    can no longer end has failed, which counts towards freezing the run.
    """
    reason = _hopeless(switch, run, now, timeout_s)
    if reason is None:
        return None
    begun = switch.state not in (SwitchState.ORDERED, SwitchState.ANNOUNCED)
    return SwitchOutcome(
        state=SwitchState.FAILED if begun else SwitchState.ABANDONED,
        reason=f"{reason} while the switch was {switch.state}.",
    )


def _hopeless(switch: OpenSwitch, run: RunNow, now: datetime, timeout_s: float) -> str | None:
    """Say why the switch can no longer be confirmed; None if it can."""
    order, waiting = switch.order, switch.state is SwitchState.ORDERED
    follows = order.mode in (SwitchMode.RESTART, SwitchMode.RESUME, SwitchMode.RESIZE)
    launches = (1 if follows else 0) if waiting else FURTHER_LAUNCHES
    if run.finished:
        return f"The run finished at step {run.step}"
    if run.attempt > order.attempt + launches:
        return f"The run was launched again (attempt {run.attempt}, ordered to {order.attempt})"
    if waiting and (void := _void(order, run, now)):
        return void
    if run.queued:
        return None
    limit_s = _limit_s(switch, run, timeout_s)
    if order.mode is SwitchMode.RESIZE and run.attempt == order.attempt and not waiting:
        # It may wait in a queue, and so may its way back, and nobody is there to say so.
        limit_s += 2 * order.waits_s
    # A time in the future was written while the wall clock was ahead, so take the distance.
    age_s = abs((now - (switch.begun_at or switch.created_at)).total_seconds())
    if age_s > limit_s:
        return f"The time limit of {limit_s:.0f} s passed ({age_s:.0f} s)"
    return None


def _void(order: Order, run: RunNow, now: datetime) -> str | None:
    """Say why an order that waits can no longer be taken; None if it can."""
    # A frozen run trains on, so one that sleeps is woken all the same.
    if run.frozen and order.mode is not SwitchMode.RESUME:
        return "The order was withdrawn because the run is frozen"
    if run.step > order.valid_until_step:
        return (
            f"The run reached step {run.step}, past the order's last step {order.valid_until_step},"
        )
    if order.wakes_at and now >= datetime.fromisoformat(order.wakes_at):
        return "The time to wake came before the run had fallen asleep"
    return None


def _limit_s(switch: OpenSwitch, run: RunNow, timeout_s: float) -> float:
    """Return how long a switch may take, or its order may wait.

    An order waits for the run's boundaries, which long steps can make hours apart. If a pause lasts
    longer still, an order of the policy is outdated, but an order of a person is not.
    """
    if switch.state is not SwitchState.ORDERED:
        return timeout_s
    return inf if switch.by_operator and run.live else max(timeout_s, run.window_s)
