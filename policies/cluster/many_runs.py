"""The joint plan of very many runs under a power cap, in seconds: prices, then one run at a time.

Prices and bound come from runs that may mix their points (`mixed_runs.py`). Each run first keeps
what its slowest point takes that is in time all by itself, or its part of that where a cap is lower
still. Then one after the other is planned at the prices by its own planner, in what the others do
not take or keep, least relative slack first; one that finds no room goes first, and all are planned
again. What time is left then lets each run plan anew in the room of all the others; where it is too
short, those not planned yet stay at the point that was kept for them. Pure: how long there is, the
caller says.

Invariant: the plans are legal, each run is done when its own planner has to be done, and together
they take no more than there is in any slot; nor do the rooms that runs are given.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from wattmesh.policies.cluster.joint_question import JointAnswer, JointMenu, JointQuestion, JointRun
from wattmesh.policies.cluster.mixed_runs import mixed_runs
from wattmesh.policies.cluster.pricing import FULL, PlanColumn, PricedPlan, column, priced
from wattmesh.policies.cluster.share import RunShare
from wattmesh.policies.planner.arrays import Floats
from wattmesh.policies.planner.evaluate import evaluate
from wattmesh.policies.planner.problem import NoPlan, PlanningProblem

TRIES = (1.0, 1.0, 0.5, 0.0, 0.0)
"""Share of what is kept for runs that are not planned yet, in each try to plan one after the other.

What is kept above the least that a run takes lets many runs fit beside each other, and hinders few.
"""

WORTH = 1e-4
"""Share of the grams that planning all anew has to save for another time."""


def answered_together(
    asked: JointQuestion, more: Callable[[float], bool] = lambda _: True
) -> JointAnswer | NoPlan:
    """Plan all runs together.

    Args:
        asked: the question.
        more: asked with a share of the time there is: whether less of it has passed.
    """
    shares = _shares(asked)
    limit = _limit(asked, shares)
    mixed = mixed_runs(shares, limit, asked.seconds, asked.g_per_kwh, more=lambda: more(0.3))
    if mixed.undone:
        return NoPlan(reason=f"run {mixed.undone[0]} cannot be done in time even with all there is")
    order = sorted(shares, key=_relative_slack)
    taken = _all_in_turn(order, limit, mixed.prices, more)
    if isinstance(taken, NoPlan):
        return taken
    stopped = not more(0.6) or not _anew(order, limit, taken, more)
    grams = sum(each.grams for each in taken.values())
    return JointAnswer(
        rooms=_rooms(asked, shares, taken, limit),
        grams=grams,
        bound_g=min(mixed.bound_g, grams),
        stopped=stopped,
    )


def _shares(asked: JointQuestion) -> list[RunShare]:
    """Lay all runs out; watts are the one kind that is shared."""
    takes = [_takes(menu) for menu in asked.menus]
    found = []
    for run in asked.runs:
        menu, (staying, going) = asked.menus[run.menu], takes[run.menu]
        found.append(
            RunShare(
                name=run.run,
                first=0,
                problem=_problem(asked, run, menu),
                staying=staying,
                going=going,
            )
        )
    return found


def _problem(asked: JointQuestion, run: JointRun, menu: JointMenu) -> PlanningProblem:
    return PlanningProblem(
        tokens=run.tokens,
        seconds=(*asked.seconds[: run.slots - 1], run.last_s),
        g_per_kwh=asked.g_per_kwh[: run.slots],
        options=menu.options,
        start=run.start,
        transitions=menu.transitions,
        dwell_left_s=run.dwell_left_s,
    )


def _takes(menu: JointMenu) -> tuple[Floats, Floats]:
    """Give what staying at an option, and going from one to another, takes of the cap.

    A pause takes what the GPUs that are held draw.
    """
    needs_w = np.array([each.needs_w or each.power_w for each in menu.options])
    going = np.repeat(needs_w[None, :], len(needs_w), axis=0)
    for i, row in enumerate(menu.transitions):
        for j, way in enumerate(row):
            if way is not None and way.seconds:
                going[i, j] = max(needs_w[j], way.energy_j / way.seconds)
    return needs_w[:, None], going[:, :, None]


def _limit(asked: JointQuestion, shares: Sequence[RunShare]) -> Floats:
    """Give (T, 1): what there is; where no cap holds, enough for all."""
    enough_w = 2.0 * sum(float(each.going.max()) for each in shares)
    return np.array([[enough_w if each is None else max(0.0, each)] for each in asked.limit_w])


def _relative_slack(share: RunShare) -> float:
    problem = share.problem
    fastest = max(each.tokens_per_s for each in problem.options)
    return sum(problem.seconds) * fastest / problem.tokens


def _all_in_turn(
    order: Sequence[RunShare], limit: Floats, prices: Floats, more: Callable[[float], bool]
) -> dict[str, PlanColumn] | NoPlan:
    """Plan one run after the other; those that found no room go first in the next try."""
    first: list[str] = []
    why = NoPlan(reason="no time was left for a joint plan")
    for share in TRIES:
        place = {name: n for n, name in enumerate(first)}
        now = sorted(order, key=lambda each: place.get(each.name, len(first)))
        tried = _in_turn(now, limit, _kept(order, limit, share), prices, more)
        if not isinstance(tried, tuple):
            return tried
        late, why = tried
        if not late:
            break
        first = [*late, *(each for each in first if each not in late)]
    return why


def _in_turn(
    order: Sequence[RunShare],
    limit: Floats,
    kept: Mapping[str, Floats],
    prices: Floats,
    more: Callable[[float], bool],
) -> dict[str, PlanColumn] | tuple[list[str], NoPlan]:
    """Plan one run after the other; else name those without a plan, and say why."""
    room = limit - sum(each for each in kept.values())
    taken, near = dict[str, PlanColumn](), dict[int, float]()
    late, why = list[str](), NoPlan(reason="")
    for each in order:
        menu = id(each.problem.options)
        room += kept[each.name]
        if not more(0.7):
            mine = _steady(each, room)
            if mine is None:
                return [], NoPlan(reason="no time was left for a joint plan")
        else:
            found = priced(each, prices=prices, room=room, near_mu=near.get(menu))
            if isinstance(found, NoPlan):
                late.append(each.name)
                why = NoPlan(reason=f"run {each.name} finds no room: {found.reason}")
                continue
            near[menu], mine = found.mu_g_per_token, found.column
        taken[each.name] = mine
        room -= mine.spread(len(limit))
    return (late, why) if late else taken


def _steady(share: RunShare, room: Floats) -> PlanColumn | None:
    """Give the plan of staying at one point that is in time; None where it does not fit."""
    path = (_steady_point(share),) * len(share.problem.seconds)
    if not evaluate(share.problem, path).legal:
        return None
    found = column(share, path)
    most = room[: len(found.takes)] * (1 + FULL) + FULL
    return found if (found.takes <= most).all() else None


def _steady_point(share: RunShare) -> int:
    """Give the slowest option that is in time all by itself, else the fastest."""
    options = share.problem.options
    needed = share.problem.tokens / sum(share.problem.seconds)
    quick = [n for n, each in enumerate(options) if each.tokens_per_s >= needed]
    if quick:
        return min(quick, key=lambda n: options[n].tokens_per_s)
    return max(range(len(options)), key=lambda n: options[n].tokens_per_s)


def _kept(order: Sequence[RunShare], limit: Floats, share: float) -> dict[str, Floats]:
    """Give (T, 1) by run: what is kept for it until it is planned."""
    least, steady = dict[str, Floats](), dict[str, Floats]()
    for each in order:
        point = _steady_point(each)
        for found, watts in (
            (least, each.staying[:, 0].min()),
            (steady, each.staying[point, 0]),
        ):
            found[each.name] = np.zeros_like(limit)
            found[each.name][each.slots] = watts
    low, high = sum(least.values()), sum(steady.values())
    part = share * np.clip((limit - low) / np.maximum(high - low, 1e-9), 0.0, 1.0)
    return {name: least[name] + part * (steady[name] - least[name]) for name in steady}


def _anew(
    order: Sequence[RunShare],
    limit: Floats,
    taken: dict[str, PlanColumn],
    more: Callable[[float], bool],
) -> bool:
    """Let each run plan anew in the room of the others, while that saves; False: time ran out."""
    room = limit - sum(each.spread(len(limit)) for each in taken.values())
    saved_g, near = np.inf, dict[int, float]()
    while saved_g > WORTH * sum(each.grams for each in taken.values()):
        saved_g = 0.0
        for share in order:
            if not more(0.6):
                return False
            mine = taken[share.name]
            free = room + mine.spread(len(limit))
            menu = id(share.problem.options)
            found = priced(share, room=free, also=(mine.path,), near_mu=near.get(menu))
            if isinstance(found, PricedPlan):
                near[menu] = found.mu_g_per_token
                if found.column.grams < mine.grams:
                    saved_g += mine.grams - found.column.grams
                    taken[share.name] = found.column
                    room = free - found.column.spread(len(limit))
    return True


def _rooms(
    asked: JointQuestion,
    shares: Sequence[RunShare],
    taken: Mapping[str, PlanColumn],
    limit: Floats,
) -> dict[str, tuple[tuple[int, int, float], ...]]:
    """Give each run's watts by slot, where a cap holds.

    After its work is done a run needs nothing, unless it is done later than planned: for that it
    has what its last point takes, or its part of what the plans of all leave where that is less.
    """
    count = len(limit)
    left = limit[:, 0] - sum(each.spread(count)[:, 0] for each in taken.values())
    after = np.zeros(count)
    watts: dict[str, Floats] = {}
    for each in shares:
        path = taken[each.name].path
        mine = np.full(len(each.problem.seconds), each.staying[path[-1], 0])
        mine[: len(path)] = each.staying[list(path), 0]
        watts[each.name] = mine
        after[len(path) : len(mine)] += mine[len(path) :]
    part = np.clip(left / np.maximum(after, 1e-9), 0.0, 1.0)
    for each in shares:
        mine, done = watts[each.name], len(taken[each.name].path)
        mine[done:] *= part[done : len(mine)]
    return {name: _steps(asked, mine) for name, mine in watts.items()}


def _steps(asked: JointQuestion, watts: Floats) -> tuple[tuple[int, int, float], ...]:
    """Give watts by slot, where a cap holds; equal ones together."""
    steps: list[tuple[int, int, float]] = []
    for slot, room_w in enumerate(watts.tolist()):
        if asked.limit_w[slot] is None:
            continue
        if steps and steps[-1][1:] == (slot, room_w):
            steps[-1] = (steps[-1][0], slot + 1, room_w)
        else:
            steps.append((slot, slot + 1, room_w))
    return tuple(steps)
