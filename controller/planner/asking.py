"""When a plan is asked for, what it rests on, and why there is none. Pure.

Two keys decide. A plan may be followed only under the *terms* it was made for (catalogue, deadline,
limits, signal ...). When the *moment* changes (slot of the grid, issue of the forecast, where the
run is), a new plan is asked for, and the old one is followed until it comes.

Invariant: a plan made under other terms than now's is never given to a decision.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from wattmesh.controller.planner.joint_state import JointState
from wattmesh.policies.decision import Observation, PlanView, Rung, RunView
from wattmesh.policies.ladder import NAMES
from wattmesh.policies.menu import menu
from wattmesh.policies.reason_text import clause
from wattmesh.policies.run_context import OBSERVED, examine
from wattmesh.quantities import duration

Key = tuple[object, ...]

AGAIN = timedelta(minutes=30)
"""A new plan is made at least this often, whatever the grid does."""

LEAST_INTERVAL_S = 1.0
"""Shorter intervals come from a recording that is played too fast for plans to keep up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """How far planning of one run is.

    Attributes:
        plan: the newest one, made under `terms`; None while there is none.
        reason: why the newest question has no plan, as a clause; "" when it has one, or is not
            answered yet.
        solve_s: seconds that the newest answer took; None before the first.
        failures: questions in a row that the planning process did not answer; `trouble`: why.
        shared: by which joint plan its room is, as a clause; "" when it plans alone.
    """

    plan: PlanView | None = None
    terms: Key = ()
    reason: str = ""
    solve_s: float | None = None
    failures: int = 0
    trouble: str = ""
    shared: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """The state of planning for all runs.

    Attributes:
        runs: by run id. `waiting`: questions not answered yet.
        answered, failed: questions since the start; `in_a_row`: failures since the last answer.
        trouble: why the newest question was not answered; "" when it was.
        joint: the joint plan of all runs under a power cap.
    """

    runs: Mapping[str, PlanState] = field(default_factory=dict)
    waiting: int = 0
    answered: int = 0
    failed: int = 0
    in_a_row: int = 0
    trouble: str = ""
    joint: JointState = field(default_factory=JointState)


def terms(seen: Observation, run: RunView) -> Key:
    """Give what a plan rests on besides the grid; with other terms it is void."""
    return (
        run.attempt,
        run.catalogue,
        run.deadline,
        run.tokens_total,
        run.gpus_held,
        run.world_size,
        run.capabilities,
        seen.policy,
        seen.carbon.signal,
    )


def moment(seen: Observation, run: RunView) -> Key:
    """Give the key whose change asks for a new plan: the grid, the run, its menu, a cap or time."""
    carbon = seen.carbon
    return (
        carbon.slots[0].start if carbon.slots else None,
        carbon.forecast,
        run.current.id if run.current else "",
        run.suspended_s is None,
        tuple(each.id for each in menu(run, seen.policy)),
        seen.cap.until if seen.cap is not None and run.room_w is not None else None,
        tuple((each.start, each.until, each.cap_w) for each in run.caps_ahead),
        run.shared_room,
        seen.now.timestamp() // AGAIN.total_seconds(),
    )


def why_none(seen: Observation, run: RunView) -> str:
    """Say why no plan can be asked for, as a clause; "" when one can."""
    return _not_known(run) or _nothing_to_plan(seen, run) or why_forecast_forbids(seen)


def _not_known(run: RunView) -> str:
    """Say what must be known of the run and is not; "" when all is."""
    if not run.live:
        return "it does not report, so what is left of it is not known"
    if OBSERVED in run.capabilities:
        return "its script only lets it be observed, so its layout is not known"
    if run.catalogue is None:
        return f"it has no catalogue; name one in the settings as runs.{run.name}.catalogue"
    return "its layout is not a point of its catalogue" if run.current is None else ""


def _nothing_to_plan(seen: Observation, run: RunView) -> str:
    """Say that there is no work, no time or no end to plan for; "" when there is."""
    case = examine(seen, run)
    if case.guard is None:
        return case.missing[1] or "none of its points may be used"
    if case.guard.tokens_left <= 0:
        return "its work is done"
    return "its deadline has passed" if case.guard.time_left_s <= 0 else ""


def why_forecast_forbids(seen: Observation) -> str:
    """Say that the grid's forecast allows no plan of any run, as a clause; "" when it does."""
    carbon = seen.carbon
    if carbon.trouble or not carbon.slots:
        return f"the grid signal cannot be used ({clause(carbon.trouble) or 'it has no value'})"
    if carbon.rung is not Rung.ISSUED:
        why = clause(carbon.note) or f"{carbon.signal} rests on {NAMES[carbon.rung]}"
        return f"plans are made only from a forecast that was issued, and {why}"
    if 0.0 < carbon.interval_s < LEAST_INTERVAL_S:
        return (
            f"the grid's intervals of {duration(carbon.interval_s)} are too short to plan in "
            "(a recording that plays compressed)"
        )
    return ""
