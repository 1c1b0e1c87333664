"""The decision of one cycle: for every live run one act or a hold, and one sentence that says why.

Rules are asked in the order of priorities (safety > operator > deadline > grams); the first that
applies decides. Under an operator's power cap no menu has a point above the cap. Nothing is
remembered between two calls: the decision is level-triggered.

Invariant: without carbon data nothing is done to save carbon, and every other rule works.
"""

from dataclasses import replace
from math import inf

from wattmesh.policies.decision import Action, CarbonView, Decision, Observation, RunView
from wattmesh.policies.guard import Guard
from wattmesh.policies.isolation import cause, undecidable
from wattmesh.policies.ladder import ACTS, NAMES, waits
from wattmesh.policies.planner.constraints import usable
from wattmesh.policies.reason_text import clause, moment
from wattmesh.policies.rules.asleep import asleep
from wattmesh.policies.rules.automatic import automatic
from wattmesh.policies.rules.orders import ordered
from wattmesh.policies.run_context import LEAST_TOLD, OBSERVED, RunContext, examine
from wattmesh.policies.shared_grid import SharedGrid
from wattmesh.quantities import duration, figures
from wattmesh.reconfig.catalogue import OperatingPoint

COVERAGE_FLOOR = 0.9
"""Share of a run's own GPUs that must have been read lately for an act that is to save grams."""


def decide(observation: Observation) -> tuple[Decision, ...]:
    """Decide about every live run that still has work to do, each on its own.

    A run that no rule can be asked about is held (`policies/isolation.py`); it stops nobody else.
    """
    grid = SharedGrid(observation)
    return tuple(
        _alone(observation, run, grid)
        for run in observation.runs
        if run.live and not _finished(run)
    )


def _alone(seen: Observation, run: RunView, grid: SharedGrid) -> Decision:
    """Decide about one run; an error in its numbers holds that run alone."""
    if run.unreadable:
        return undecidable(run, run.unreadable)
    try:
        return _with_cap_sentence(run, _decide_run(seen, run, grid))
    except Exception as error:
        return undecidable(run, cause(error))


def _with_cap_sentence(run: RunView, decision: Decision) -> Decision:
    if not run.capped:
        return decision
    return replace(decision, reason=f"{decision.reason.rstrip('.')}; {run.capped}.")


def _finished(run: RunView) -> bool:
    return 0 < run.tokens_total <= run.tokens


def _decide_run(seen: Observation, run: RunView, grid: SharedGrid) -> Decision:
    context = examine(seen, run, grid)
    if run.suspended_s is not None:
        return asleep(context, _blind(context))
    if run.queued_s is not None:
        return _queued(context)
    decision = _hands_off(context) or _no_catalogue(context)
    if decision:
        return decision
    order = ordered(context)
    if order and order.action is not Action.HOLD:
        return order
    deadline = _deadline(context)
    if deadline and not (order and deadline.kind in ("speed_unmeasured", "static_fastest")):
        return deadline
    return order or _unready(context) or _blind(context) or _for_grams(context)


def _queued(context: RunContext) -> Decision:
    """Wait for a launch of another size: nobody of ours can do anything about it."""
    run, now = context.run, context.seen.now
    there = f"to {run.open_switch.target} " if run.open_switch else ""
    back = ""
    if run.wakes_at is not None:
        back = f"; one of the old size may begin from {moment(run.wakes_at, now)} on"
    return context.say(
        Action.HOLD,
        "queued",
        f"waiting for GPUs: it left {context.here} {duration(run.queued_s or 0.0)} ago to go on "
        f"{there}as another job, and {run.held_as or 'its launcher'} starts it{back}.",
    )


def _hands_off(context: RunContext) -> Decision | None:
    """Leave a run alone that is frozen, whose switches failed too often, or that is switching."""
    seen, run = context.seen, context.run
    if seen.frozen or run.frozen:
        what, command = (
            ("all runs are", "`wattmesh thaw`")
            if seen.frozen
            else ("it is", f"`wattmesh thaw {run.name}`")
        )
        why = clause(seen.frozen or run.frozen)
        undo = "" if "wattmesh thaw" in why else f"; {command} ends it"
        return context.hold("frozen", f"{what} frozen ({why}) and trains on unswitched{undo}")
    if run.failed_switches >= seen.policy.failed_limit:
        return context.say(
            Action.FREEZE,
            "failed_switches",
            f"freezing at {context.here}: {run.failed_switches} switches failed in a row, so a "
            f"person has to look: read `wattmesh why {run.name}`, mend the cause, then "
            f"`wattmesh thaw {run.name}`.",
        )
    if run.open_switch:
        switch = run.open_switch
        state = "waits for its next boundary" if switch.state == "ordered" else f"is {switch.state}"
        return context.hold(
            "switching",
            f"the switch to {switch.target} was ordered {duration(switch.age_s)} ago and {state}",
        )
    return None


def _no_catalogue(context: RunContext) -> Decision | None:
    if context.run.catalogue is not None:
        return None
    if OBSERVED in context.run.capabilities:
        return context.say(
            Action.HOLD,
            "observed",
            "only observed: measured and accounted, never switched; `wattmesh.attach` in its "
            "script lets it be moved.",
        )
    order = (
        f", and the order to {context.run.ordered_point} waits" if context.run.ordered_point else ""
    )
    return context.hold(
        "no_catalogue",
        f"it has no catalogue, so nothing can be chosen{order}; name one in the settings as "
        f"runs.{context.run.name}.catalogue",
    )


def _deadline(context: RunContext) -> Decision | None:
    """Go to the fastest point when the deadline needs it; needs no carbon data."""
    guard, current, now = context.guard, context.run.current, context.seen.now
    if guard is None or current is None or context.run.deadline is None or guard.may_stay(current):
        return None
    at, refuge = moment(context.run.deadline, now), guard.refuge(current)
    if refuge is not None:
        late_s = guard.finish_by_s(current, refuge) - guard.time_left_s
        end = f"{duration(late_s)} late" if late_s > 0 else f"{duration(-late_s)} early"
        return context.go(
            "deadline",
            refuge,
            f"the deadline at {at} needs the fastest point from now on, which ends the run about "
            f"{end}, {context.promise}",
        )
    return _stays(context, guard, current, at)


def _stays(context: RunContext, guard: Guard, current: OperatingPoint, at: str) -> Decision:
    """Stay where no other point is sure to be better, and say that nothing is promised."""
    fastest = guard.rho(current) >= guard.rho(guard.fastest) and guard.feasible
    if guard.may_be_in_time(current) and context.unmeasured(current) >= LEAST_TOLD:
        return context.hold("speed_unmeasured", _waits_for_measurement(context, current, at))
    if guard.may_be_in_time(current) or fastest:
        return context.hold("static_fastest", _no_promise(context, at))
    rest_s = guard.finish_s(current)
    late_s = rest_s - guard.usable_s
    return context.hold(
        "deadline",
        f"no switch is sure to make it faster, the rest takes {duration(rest_s)} and the deadline "
        f"at {at} is likely to be missed by {duration(late_s)}"
        f"{_after_cap(context, guard, current)}; move runs.{context.run.name}.deadline if that is "
        "not acceptable",
    )


def _after_cap(context: RunContext, guard: Guard, current: OperatingPoint) -> str:
    """Say whether the deadline can be met at full speed once the operator's cap has ended."""
    cap, now, deadline = context.seen.cap, context.seen.now, context.run.deadline
    fastest = max(usable(context), key=lambda each: each.tokens_per_s, default=current)
    if (
        cap is None
        or context.run.room_w is None
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


def _waits_for_measurement(context: RunContext, current: OperatingPoint, at: str) -> str:
    share = figures(100 * context.unmeasured(current), 2)
    return (
        f"{share} % of its speed is kept in reserve until more steps are measured here, and the "
        f"deadline at {at} leaves less than that: until then nothing is done to save grams, and "
        "the deadline is not promised"
    )


def _no_promise(context: RunContext, at: str) -> str:
    return (
        f"the deadline at {at} leaves less than the reserve, {context.promise}: it stays where it "
        "is, nothing is done to save grams, and the deadline is not promised; a later "
        f"runs.{context.run.name}.deadline changes that"
    )


def _unready(context: RunContext) -> Decision | None:
    """Hold while the run, its target or its deadline is unknown."""
    run = context.run
    if run.current is None:
        return context.hold(
            "unknown_point",
            f"the layout is not a point of its catalogue ({', '.join(_ids(context))}), so nothing "
            "can be compared; add it, or order a point with "
            f"`wattmesh switch {run.name} POINT`",
        )
    return context.hold(*context.missing) if context.missing[0] else None


def _ids(context: RunContext) -> list[str]:
    return [each.id for each in context.run.catalogue.points] if context.run.catalogue else []


def _blind(context: RunContext) -> Decision | None:
    """Hold where the grid's intensity or the run's power is not known."""
    carbon, now = context.seen.carbon, context.seen.now
    trouble = clause(carbon.trouble)
    if not trouble and not (carbon.slots and carbon.slots[0].start <= now < carbon.slots[0].end):
        trouble = f"{carbon.signal or 'it'} gives no value for now"
    if not trouble and not _are_intensities(carbon):
        trouble = f"{carbon.signal} gives a value that is no intensity"
    if not trouble and carbon.rung not in ACTS:
        trouble = carbon.note or f"{carbon.signal} rests on {NAMES[carbon.rung]}"
    if trouble:
        age = "never heard" if carbon.age_s is None else f"last heard {duration(carbon.age_s)} ago"
        return context.hold(
            "stale_signal",
            f"the grid signal cannot be used, {age} ({trouble}), so nothing is done for carbon's "
            "sake; `wattmesh doctor` checks the provider",
        )
    if wait := waits(carbon):
        return context.hold("signal_changed", wait)
    seen, expected = context.run.coverage
    if seen < COVERAGE_FLOOR * expected:
        return context.hold(
            "coverage",
            f"the power of only {seen} of {expected} GPUs is seen, so nothing is done for "
            "carbon's sake; see that `wattmesh agent` runs on their nodes",
        )
    return None


def _are_intensities(carbon: CarbonView) -> bool:
    """Say whether each value can be an intensity: only a marginal one may be 0 g/kWh."""
    zero = ":marginal:" in carbon.signal
    values = [slot.g_per_kwh for slot in carbon.slots]
    return all(0 < each < inf or (zero and each == 0) for each in values)


def _for_grams(context: RunContext) -> Decision:
    """Ask the automatic policy; add why the forecast it used is not the best one."""
    decision, note = automatic(context), clause(context.seen.carbon.note)
    if not note:
        return decision
    return replace(decision, reason=f"{decision.reason.rstrip('.')}; {note}.")
