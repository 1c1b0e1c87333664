"""When a joint plan is asked for, what it rests on, and what is said of it. Pure."""

from datetime import datetime

from wattmesh.controller.planner.asking import AGAIN, Key, terms, why_forecast_forbids
from wattmesh.controller.planner.joint_state import JointState, JointTerms
from wattmesh.policies.decision import Observation
from wattmesh.policies.reason_text import moment
from wattmesh.quantities import duration

ALONE = "each run plans alone in what the cap leaves it"


def joint_terms(seen: Observation) -> JointTerms:
    """Give what a joint plan of now would rest on; empty where no cap is shared."""
    force = None if seen.cap is None else (seen.cap.until, seen.cap.cap_w)
    ahead = {(e.start, e.until, e.cap_w) for run in seen.runs for e in run.caps_ahead}
    # To a run that sleeps the cap in force is one to come.
    caps = frozenset(each for each in ahead if each[1:] != force)
    if not caps and force is None:
        return JointTerms()
    runs = {run.run: terms(seen, run) for run in seen.runs if not run.unreadable}
    return JointTerms(force=force, ahead=caps, runs=runs)


def joint_moment(seen: Observation) -> Key:
    """Give the key whose change asks for a new joint plan: grid, caps, who reports, time.

    Of a cap it tells whether it is known to be kept, as when actuators have answered.
    """
    carbon, cap = seen.carbon, seen.cap
    ahead = {
        (e.start, e.until, e.cap_w)
        for run in seen.runs
        for e in run.caps_ahead
        if e.runs_w is not None
    }
    return (
        carbon.slots[0].start if carbon.slots else None,
        carbon.forecast,
        carbon.rung,
        cap is not None and cap.runs_w is not None,
        tuple(sorted(ahead)),
        tuple(run.live for run in seen.runs),
        seen.now.timestamp() // AGAIN.total_seconds(),
    )


def why_not_asked(seen: Observation) -> str:
    """Say why no joint plan can be asked for under the caps there are, as a clause."""
    now = () if seen.cap is None else (seen.cap.runs_w,)
    leaves = (*now, *(each.runs_w for run in seen.runs for each in run.caps_ahead))
    if all(each is None for each in leaves):
        return "it is not known that the cap is kept, so nor is what it leaves all runs together"
    forbids = why_forecast_forbids(seen) if len(seen.runs) > 1 else ""
    return forbids or "fewer than two runs can be planned under it"


def shared_clause(state: JointState, now: datetime) -> str:
    """Say by which joint plan a run's room is, as a clause."""
    if state.made_at is None or state.gap is None:
        return ""
    return (
        f"its room is by the joint plan of {len(state.rooms)} runs made at "
        f"{moment(state.made_at, now)}"
    )


def joint_sentence(state: JointState, now: datetime) -> str:
    """Say how runs share a cap, with a space before it; "" where nothing was ever asked."""
    if state.trouble:
        return f" There is no joint plan ({state.trouble.rstrip('.')}), so {ALONE}."
    if state.rooms and state.made_at is not None and state.gap is not None:
        if not state.fresh(now):
            return f" The joint plan is too old to be followed, so {ALONE}."
        age = duration((now - state.made_at).total_seconds())
        return (
            f" A joint plan of {len(state.rooms)} runs, {age} old, shares it; no other could save "
            f"more than {100 * state.gap:.2g} % of its grams."
        )
    if state.reason:
        return f" There is no joint plan ({state.reason}), so {ALONE}."
    return f" A joint plan is being made; until then {ALONE}." if state.waiting else ""
