"""The decision of one cycle: for every live run one act or a hold, and one sentence that says why.

Rules are asked in the order of priorities (safety > operator > deadline > grams) and the first that
has something to say decides; under an operator's power cap no menu has a point above it.
Level-triggered: nothing is remembered between two calls.

Invariant: law 7: without carbon data nothing is done for carbon's sake, and everything else works.
"""

from dataclasses import replace
from math import isfinite

from wattmesh.policies.case import LEAST_TOLD, OBSERVED, Case, examine
from wattmesh.policies.decision import Action, Decision, Observation, RunView
from wattmesh.policies.guard import Guard
from wattmesh.policies.isolation import cause, undecidable
from wattmesh.policies.ladder import ACTS, NAMES, waits
from wattmesh.policies.planner.constraints import usable
from wattmesh.policies.rules.asleep import asleep
from wattmesh.policies.rules.automatic import automatic
from wattmesh.policies.rules.orders import ordered
from wattmesh.policies.words import clause, moment
from wattmesh.quantities import duration, figures
from wattmesh.reconfig.catalogue import OperatingPoint

COVERAGE_FLOOR = 0.9
"""Share of a run's own GPUs that must have been read lately for an act that is to save grams."""


def decide(observation: Observation) -> tuple[Decision, ...]:
    """Decide about every live run that still has work to do, each on its own.

    A run that no rule can be asked about is held (`policies/isolation.py`); it stops nobody else.
    """
    return tuple(
        _alone(observation, run) for run in observation.runs if run.live and not _finished(run)
    )


def _alone(seen: Observation, run: RunView) -> Decision:
    """Decide about one run, whatever its numbers are."""
    if run.unreadable:
        return undecidable(run, run.unreadable)
    try:
        return _capped(run, _decide_run(seen, run))
    except Exception as error:
        return undecidable(run, cause(error))


def _capped(run: RunView, decision: Decision) -> Decision:
    """Say what an operator's power cap does to the run, whatever was decided."""
    if not run.capped:
        return decision
    return replace(decision, reason=f"{decision.reason.rstrip('.')}; {run.capped}.")


def _finished(run: RunView) -> bool:
    """Say whether a run has trained all it was to train."""
    return 0 < run.tokens_total <= run.tokens


def _decide_run(seen: Observation, run: RunView) -> Decision:
    """Ask the rules in the order of priorities."""
    case = examine(seen, run)
    if run.suspended_s is not None:
        return asleep(case, _blind(case))
    decision = _hands_off(case) or _no_catalogue(case)
    if decision:
        return decision
    order = ordered(case)
    if order and order.action is not Action.HOLD:
        return order
    deadline = _deadline(case)
    if deadline and not (order and deadline.kind in ("speed_unmeasured", "static_fastest")):
        return deadline
    return order or _unready(case) or _blind(case) or _for_grams(case)


def _hands_off(case: Case) -> Decision | None:
    """Leave a run alone that is frozen, has failed too often, or is in a switch already."""
    seen, run = case.seen, case.run
    if seen.frozen or run.frozen:
        what, command = (
            ("all runs are", "`wattmesh thaw`")
            if seen.frozen
            else ("it is", f"`wattmesh thaw {run.name}`")
        )
        why = clause(seen.frozen or run.frozen)
        undo = "" if "wattmesh thaw" in why else f"; {command} ends it"
        return case.hold("frozen", f"{what} frozen ({why}) and trains on unswitched{undo}")
    if run.failed_switches >= seen.policy.failed_limit:
        return case.say(
            Action.FREEZE,
            "failed_switches",
            f"freezing at {case.here}: {run.failed_switches} switches failed in a row, so a person "
            f"has to look: read `wattmesh why {run.name}`, mend the cause, then "
            f"`wattmesh thaw {run.name}`.",
        )
    if run.open_switch:
        switch = run.open_switch
        state = "waits for its next boundary" if switch.state == "ordered" else f"is {switch.state}"
        return case.hold(
            "switching",
            f"the switch to {switch.target} was ordered {duration(switch.age_s)} ago and {state}",
        )
    return None


def _no_catalogue(case: Case) -> Decision | None:
    """Hold a run of which no points are known."""
    if case.run.catalogue is not None:
        return None
    if OBSERVED in case.run.capabilities:
        return case.say(
            Action.HOLD,
            "observed",
            "only observed: measured and accounted, never switched; `wattmesh.attach` in its "
            "script lets it be moved.",
        )
    order = f", nor can the order to {case.run.ordered_point} be" if case.run.ordered_point else ""
    return case.hold(
        "no_catalogue",
        f"it has no catalogue, so nothing can be chosen{order}; name one in the settings as "
        f"runs.{case.run.name}.catalogue",
    )


def _deadline(case: Case) -> Decision | None:
    """Go to the fastest point when the deadline needs it; needs no carbon data."""
    guard, current, now = case.guard, case.run.current, case.seen.now
    if guard is None or current is None or case.run.deadline is None or guard.may_stay(current):
        return None
    at, refuge = moment(case.run.deadline, now), guard.refuge(current)
    if refuge is not None:
        late_s = guard.finish_by_s(current, refuge) - guard.time_left_s
        end = f"{duration(late_s)} late" if late_s > 0 else f"{duration(-late_s)} early"
        return case.go(
            "deadline",
            refuge,
            f"the deadline at {at} needs the fastest point from now on, which ends the run about "
            f"{end}, {case.promise}",
        )
    return _stays(case, guard, current, at)


def _stays(case: Case, guard: Guard, current: OperatingPoint, at: str) -> Decision:
    """Stay where no other point is sure to be better, and say that nothing is promised."""
    fastest = guard.rho(current) >= guard.rho(guard.fastest) and guard.feasible
    if guard.may_be_in_time(current) and case.unmeasured(current) >= LEAST_TOLD:
        return case.hold("speed_unmeasured", _measures_first(case, current, at))
    if guard.may_be_in_time(current) or fastest:
        return case.hold("static_fastest", _no_promise(case, at))
    rest_s = guard.finish_s(current)
    late_s = rest_s - guard.usable_s
    return case.hold(
        "deadline",
        f"no switch is sure to make it faster, the rest takes {duration(rest_s)} and the deadline "
        f"at {at} is likely to be missed by {duration(late_s)}{_after_cap(case, guard, current)}; "
        f"move runs.{case.run.name}.deadline if that is not acceptable",
    )


def _after_cap(case: Case, guard: Guard, current: OperatingPoint) -> str:
    """Say what becomes of the deadline once the operator's cap is over, as far as that helps."""
    cap, now, deadline = case.seen.cap, case.seen.now, case.run.deadline
    fastest = max(usable(case), key=lambda each: each.tokens_per_s, default=current)
    if (
        cap is None
        or case.run.room_w is None
        or deadline is None
        or not now < cap.until < deadline
        or fastest.tokens_per_s <= current.tokens_per_s
    ):
        return ""
    wait_s = (cap.until - now).total_seconds()
    trained = wait_s * current.tokens_per_s * guard.counted_on
    left = replace(guard, fastest=fastest, tokens_left=max(0.0, guard.tokens_left - trained))
    late_s = wait_s + left.finish_by_s(current, fastest) - guard.time_left_s
    how = f"misses it by {duration(late_s)}" if late_s > 0 else f"leaves {duration(-late_s)}"
    end = moment(cap.until, now)
    return f" at this speed, but {fastest.id} from {end} on, when the power cap ends, {how}"


def _measures_first(case: Case, current: OperatingPoint, at: str) -> str:
    """Say that nothing is done before the run's speed was measured where it is."""
    share = figures(100 * case.unmeasured(current), 2)
    return (
        f"{share} % of its speed is not counted on before more steps are measured here, and the "
        f"deadline at {at} leaves less than that: until then nothing is done for grams' sake, and "
        "nothing is promised"
    )


def _no_promise(case: Case, at: str) -> str:
    """Say that there is too little slack for a promise, and what is done without one."""
    return (
        f"the deadline at {at} leaves less than the reserve, {case.promise}: it keeps to its "
        "point, nothing is done for grams' sake, and nothing is promised; move "
        f"runs.{case.run.name}.deadline for more"
    )


def _unready(case: Case) -> Decision | None:
    """Hold while the run, its target or its deadline is unknown."""
    run = case.run
    if run.current is None:
        return case.hold(
            "unknown_point",
            f"the layout is not a point of its catalogue ({', '.join(_ids(case))}), so nothing can "
            "be compared; add it, or order a point with "
            f"`wattmesh switch {run.name} POINT`",
        )
    return case.hold(*case.missing) if case.missing[0] else None


def _ids(case: Case) -> list[str]:
    """Name the points of the catalogue."""
    return [each.id for each in case.run.catalogue.points] if case.run.catalogue else []


def _blind(case: Case) -> Decision | None:
    """Do nothing for carbon's sake while grid or power are not seen."""
    carbon, now = case.seen.carbon, case.seen.now
    trouble = clause(carbon.trouble)
    if not trouble and not (carbon.slots and carbon.slots[0].start <= now < carbon.slots[0].end):
        trouble = f"{carbon.signal or 'it'} gives no value for now"
    if not trouble and not all(_is_intensity(s.g_per_kwh, carbon.signal) for s in carbon.slots):
        trouble = f"{carbon.signal} gives a value that is no intensity"
    if not trouble and carbon.rung not in ACTS:
        trouble = carbon.note or f"{carbon.signal} rests on {NAMES[carbon.rung]}"
    if trouble:
        age = "never heard" if carbon.age_s is None else f"last heard {duration(carbon.age_s)} ago"
        return case.hold(
            "stale_signal",
            f"the grid signal cannot be used, {age} ({trouble}), so nothing is done for carbon's "
            "sake; `wattmesh doctor` checks the provider",
        )
    if wait := waits(carbon):
        return case.hold("signal_changed", wait)
    seen, expected = case.run.coverage
    if seen < COVERAGE_FLOOR * expected:
        return case.hold(
            "coverage",
            f"the power of only {seen} of {expected} GPUs is seen, so nothing is done for "
            "carbon's sake; see that `wattmesh agent` runs on their nodes",
        )
    return None


def _is_intensity(g_per_kwh: float, signal: str) -> bool:
    """Say whether a value can be an intensity: one kilowatt-hour more may come without grams."""
    zero = g_per_kwh == 0 and ":marginal:" in signal
    return isfinite(g_per_kwh) and (g_per_kwh > 0 or zero)


def _for_grams(case: Case) -> Decision:
    """Ask the automatic policy; say so where the forecast it planned with is second best."""
    decision, note = automatic(case), clause(case.seen.carbon.note)
    if not note:
        return decision
    return replace(decision, reason=f"{decision.reason.rstrip('.')}; {note}.")
