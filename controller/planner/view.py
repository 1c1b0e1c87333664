"""The plan of one run as a person asks for it: steps, grid, price, and why there is none. Pure.

Invariant: shows the plan that the newest cycle decided with, against the grid as that cycle saw it;
a plan that is void, or that another rule overrides, says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from math import isfinite

from wattmesh.controller import marks
from wattmesh.controller.planner.asking import PlanState, why_none
from wattmesh.policies.decision import IntensitySlot, Observation, PlanView, RunView
from wattmesh.policies.horizon import to_end
from wattmesh.policies.hull import lower_hull
from wattmesh.policies.reason_text import moment
from wattmesh.policies.rules.follow import FRESH
from wattmesh.quantities import duration, watts
from wattmesh.reconfig.catalogue import Catalogue
from wattmesh.telemetry.readings import J_PER_KWH


def expected_boundary(catalogue: Catalogue | None) -> str:
    """Give the energy boundary of expected grams: that of the catalogue's watts."""
    scope = f" ({catalogue.power_scope})" if catalogue else ""
    return f"power_w of the catalogue{scope}, without PUE"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """Where the plan has the run during [start, end).

    Attributes:
        point: "" while it is suspended.
    """

    start: datetime
    end: datetime
    point: str
    layout: str
    clock_mhz: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The intensity up to which one point is better than another.

    Attributes:
        faster: better below the threshold. `slower`: better above it; "": to be suspended.
    """

    slower: str
    faster: str
    g_per_kwh: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GridLine:
    """Expected intensity during [start, end)."""

    start: datetime
    end: datetime
    g_per_kwh: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLine:
    """The plan.

    Attributes:
        age_s: seconds since the observation that it was made from.
        origin: point that the run was at then.
        mu_g_per_token: what one token may cost. `mu`: that price as intensities of the grid.
        grams: expected grams of the plan. `bound_g`: no plan has less under the forecast used.
            `gap`: `grams` above `bound_g`, as a share of it; None when that is 0.
        layout_switches, clock_changes, sleeps: number of each in the plan, its first change
            included.
        level: what the plan does not keep of the service level, as a clause; "" otherwise.
            `budget`: what it does not keep of the budget; "" otherwise.
        cap: what operators' power caps do to the plan, in force or announced, as a clause; ""
            when there is none.
        flags: of its grams: estimated, and simulated if the catalogue or the signal is. `signal`:
            the signal of its grams. `boundary`: the energy boundary of its grams.
        slots: number of slots that it covers. `options`: number of choices in each (points, or
            suspended).
    """

    made_at: datetime
    age_s: float
    digest: str
    origin: str
    steps: tuple[StepLine, ...]
    mu_g_per_token: float
    mu: tuple[Threshold, ...]
    grams: float
    bound_g: float
    gap: float | None
    finish_at: datetime
    layout_switches: int
    clock_changes: int
    sleeps: int
    level: str = ""
    budget: str = ""
    cap: str = ""
    flags: tuple[str, ...] = ()
    signal: str = ""
    boundary: str = ""
    slots: int = 0
    options: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """Answer of `GET /v1/runs/{run}/plan`.

    Attributes:
        at: time of the cycle that decided with it.
        sentence: why there is no plan, or why it is not followed; "" when it is followed.
        decision: what the newest cycle decided, in its own words.
        extended: how the hours beyond the forecast were filled; "" when the forecast reaches the
            end.
        solve_s: seconds that the newest plan took. `failures`: of planning, in a row. `trouble`:
            why planning failed.
        simulated: the parts of it that are simulated. `flags`: of the grams in `decision`.
    """

    at: datetime | None
    run: str
    name: str
    current: str
    deadline: datetime | None
    signal: str
    sentence: str
    decision: str
    plan: PlanLine | None
    grid: tuple[GridLine, ...] = ()
    extended: str = ""
    solve_s: float | None = None
    failures: int = 0
    trouble: str = ""
    simulated: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


def plan_answer(seen: Observation, run: RunView, state: PlanState, decision: str) -> PlanAnswer:
    """Assemble the answer.

    Args:
        seen: what the newest cycle decided on.
        run: as it is in `seen`, its plan included.
        state: how far planning of it is.
        decision: the newest sentence about it.
    """
    plan = run.plan
    ends = [each for each in (run.deadline, plan.finish_at if plan else None) if each]
    carbon = seen.carbon
    horizon = to_end(carbon.slots, seen.now, max(ends), carbon.climatology) if ends else None
    flags = marks.expected_flags(run.catalogue, carbon.signal)
    return PlanAnswer(
        at=seen.now,
        run=run.run,
        name=run.name,
        current=run.current.id if run.current else "",
        deadline=run.deadline,
        signal=carbon.signal,
        sentence=_sentence(seen, run, state),
        decision=marks.sentence(decision, flags),
        plan=_plan_line(seen, run, plan, flags, state.shared) if plan else None,
        grid=tuple(_grid_line(each) for each in (horizon.slots if horizon else carbon.slots)),
        extended=horizon.extended if horizon else "",
        solve_s=state.solve_s,
        failures=state.failures,
        trouble=state.trouble,
        simulated=run.catalogue.simulated if run.catalogue else (),
        flags=flags,
    )


def _sentence(seen: Observation, run: RunView, state: PlanState) -> str:
    """Say why there is no plan, or why it is not followed; "" when it is."""
    missing = why_none(seen, run)
    if run.plan is None:
        return _none_yet(run, missing or state.reason, state.trouble)
    age = seen.now - run.plan.made_at
    if not missing and (seen.frozen or run.frozen):
        missing = "the run is frozen and trains on as it is"
    if not missing and age >= FRESH:
        why = f" ({state.trouble})" if state.trouble else ""
        missing = (
            f"it is {duration(age.total_seconds())} old and no newer one came{why}; the price rule "
            "decides"
        )
    return f"This plan is not followed: {missing}." if missing else ""


def _none_yet(run: RunView, missing: str, trouble: str) -> str:
    if missing:
        return f"{run.name} has no plan: {missing}."
    if trouble:
        return (
            f"{run.name} has no plan yet: {trouble}; it is asked for again, and the price rule "
            "decides meanwhile."
        )
    return f"{run.name} has no plan yet: it is being made, ask again in a moment."


def _plan_line(
    seen: Observation, run: RunView, plan: PlanView, flags: tuple[str, ...], shared: str
) -> PlanLine:
    changes = list(_changes(run, plan))
    points = {each.id: each for each in run.catalogue.points} if run.catalogue else {}
    return PlanLine(
        made_at=plan.made_at,
        age_s=max(0.0, (seen.now - plan.made_at).total_seconds()),
        digest=plan.digest,
        origin=plan.origin,
        steps=tuple(
            StepLine(
                start=each.start,
                end=each.end,
                point=each.point,
                layout=str(points[each.point].layout) if each.point in points else "",
                clock_mhz=points[each.point].clock_mhz if each.point in points else None,
            )
            for each in plan.steps
        ),
        mu_g_per_token=plan.price_mu,
        mu=tuple(_thresholds(run, plan)),
        grams=plan.grams,
        bound_g=plan.bound_g,
        gap=plan.gap if isfinite(plan.gap) else None,
        finish_at=plan.finish_at,
        layout_switches=changes.count("layout"),
        clock_changes=changes.count("clock"),
        sleeps=changes.count("sleep"),
        level=marks.sentence(plan.level, flags),
        budget=marks.sentence(plan.budget, flags),
        cap=shared or _points_under_cap(seen, run),
        flags=flags,
        signal=seen.carbon.signal,
        boundary=expected_boundary(run.catalogue),
        slots=plan.slots,
        options=plan.options,
    )


def _points_under_cap(seen: Observation, run: RunView) -> str:
    """Say what caps do to the plan, as a clause: the one in force, and the next one announced."""
    said = []
    if run.room_w is not None and seen.cap is not None:
        until = moment(seen.cap.until, seen.now)
        room = watts(max(0.0, run.room_w))
        said.append(f"no point above {room} until {until}, when the power cap ends")
    for each in run.caps_ahead[:1]:
        start, until = moment(each.start, seen.now), moment(each.until, seen.now)
        said.append(
            f"no point above {watts(each.room_w)} from {start} until {until}, for which a power "
            "cap is announced"
        )
    return ", and ".join(said)


def _changes(run: RunView, plan: PlanView) -> Iterator[str]:
    """Name the kind of each change in the plan; waking up is not counted."""
    layouts = {each.id: each.layout for each in run.catalogue.points} if run.catalogue else {}
    for before, after in pairwise((plan.origin, *(each.point for each in plan.steps))):
        if after == before or not before:
            continue
        if not after:
            yield "sleep"
        else:
            yield "clock" if layouts.get(before) == layouts.get(after) else "layout"


def _thresholds(run: RunView, plan: PlanView) -> Iterator[Threshold]:
    """Give the plan's price as intensities, between the points it uses."""
    if run.catalogue is None:
        return
    used = {plan.origin, *(each.point for each in plan.steps)}
    points = [each for each in run.catalogue.points if each.id in used]
    slower = ""
    for vertex in lower_hull(run.catalogue, points, max(run.gpus_held, run.world_size)).vertices:
        if slower or "" in used:
            g_per_kwh = plan.price_mu / vertex.marginal_j_per_token * J_PER_KWH
            yield Threshold(slower=slower, faster=vertex.point.id, g_per_kwh=g_per_kwh)
        slower = vertex.point.id


def _grid_line(slot: IntensitySlot) -> GridLine:
    return GridLine(start=slot.start, end=slot.end, g_per_kwh=slot.g_per_kwh)


def no_look(run: str, name: str, *, finished: bool) -> PlanAnswer:
    """Answer about a run that the newest cycle did not see."""
    why = "it has finished" if finished else "no cycle has looked at it yet"
    return PlanAnswer(
        at=None,
        run=run,
        name=name,
        current="",
        deadline=None,
        signal="",
        sentence=f"{name} has no plan: {why}.",
        decision="",
        plan=None,
    )
