"""When an open switch is over although nobody said so. Pure: rows and `now` in, a verdict out.

Invariant: the run is the authority on what it runs. Nothing here ever calls a switch confirmed;
it only gives up on one that cannot be confirmed any more, so that the run can be decided about
again.
"""

from dataclasses import dataclass
from datetime import datetime

from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire import Order, SwitchMode


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSwitch:
    """What the verdict needs to know about a switch. `created_at`: when its intent was written."""

    order: Order
    state: SwitchState
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """What the verdict needs to know about the run, from its own newest report."""

    step: int
    attempt: int
    finished: bool
    frozen: str


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
    reason = _hopeless(switch, run, (now - switch.created_at).total_seconds(), timeout_s)
    if reason is None:
        return None
    begun = switch.state not in (SwitchState.ORDERED, SwitchState.ANNOUNCED)
    return Verdict(
        state=SwitchState.FAILED if begun else SwitchState.ABANDONED,
        reason=f"{reason} while the switch was {switch.state}.",
    )


def _hopeless(switch: OpenSwitch, run: RunNow, age_s: float, timeout_s: float) -> str | None:
    """Say what makes the switch impossible to confirm, or None."""
    order, waiting = switch.order, switch.state is SwitchState.ORDERED
    launches = 1 if order.mode is SwitchMode.RESTART else 0
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
    if age_s > timeout_s:
        return f"The time limit of {timeout_s:.0f} s passed ({age_s:.0f} s)"
    return None
