"""When an open switch is over although nobody said so. Pure: rows and `now` in, a verdict out.

Invariant: the run is the authority on what it runs. Nothing here ever calls a switch confirmed;
it only gives up on one that cannot be confirmed any more, so that the run can be decided about
again.
"""

from dataclasses import dataclass
from datetime import datetime
from math import inf

from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire import Order, SwitchMode

FURTHER_LAUNCHES = 2
"""That may come before one has said how a switch ended which was begun: a switch in place too may
go on by restart, and one whose new layout does not come up is taken back by the launch after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSwitch:
    """What the verdict needs to know about a switch.

    Attributes:
        created_at: when its intent was written. `begun_at`: when the run said that it took it;
            None while it waits.
        asked: an operator asked for it.
    """

    order: Order
    state: SwitchState
    created_at: datetime
    begun_at: datetime | None = None
    asked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """What the verdict needs to know about the run, from its own newest report.

    Attributes:
        live: it was heard lately, whatever its steps take.
        window_s: usual seconds until it has passed the boundaries that an order is valid for.
    """

    step: int
    attempt: int
    finished: bool
    frozen: str
    live: bool = True
    window_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How an open switch ends, and why, in one sentence."""

    state: SwitchState
    reason: str


def verdict(switch: OpenSwitch, run: RunNow, *, now: datetime, timeout_s: float) -> Verdict | None:
    """Say how an open switch ends, or None while it may still be confirmed.

    A switch the run never began is abandoned (nothing happened, nobody is to blame); one that was
    begun and cannot end any more has failed, which counts towards freezing the run.
    """
    reason = _hopeless(switch, run, now, timeout_s)
    if reason is None:
        return None
    begun = switch.state not in (SwitchState.ORDERED, SwitchState.ANNOUNCED)
    return Verdict(
        state=SwitchState.FAILED if begun else SwitchState.ABANDONED,
        reason=f"{reason} while the switch was {switch.state}.",
    )


def _hopeless(switch: OpenSwitch, run: RunNow, now: datetime, timeout_s: float) -> str | None:
    """Say what makes the switch impossible to confirm, or None."""
    order, waiting = switch.order, switch.state is SwitchState.ORDERED
    launches = (1 if order.mode is SwitchMode.RESTART else 0) if waiting else FURTHER_LAUNCHES
    if run.finished:
        return f"The run finished at step {run.step}"
    if run.attempt > order.attempt + launches:
        return f"The run was launched again (attempt {run.attempt}, ordered to {order.attempt})"
    if waiting and run.frozen:
        return "The order was withdrawn because the run is frozen"
    if waiting and run.step > order.valid_until_step:
        return (
            f"The run reached step {run.step}, past the order's last step {order.valid_until_step},"
        )
    limit_s = _limit_s(switch, run, timeout_s)
    # A date to come was written while the wall clock was ahead: how long ago is not known.
    age_s = abs((now - (switch.begun_at or switch.created_at)).total_seconds())
    if age_s > limit_s:
        return f"The time limit of {limit_s:.0f} s passed ({age_s:.0f} s)"
    return None


def _limit_s(switch: OpenSwitch, run: RunNow, timeout_s: float) -> float:
    """Give how long a switch may take, or wait.

    One that waits has the run's own boundaries before it, which long steps make hours; in a pause
    longer than these what the policy wished for is old, and what a person wished for is not.
    """
    if switch.state is not SwitchState.ORDERED:
        return timeout_s
    return inf if switch.asked and run.live else max(timeout_s, run.window_s)
