"""What the joint planner is asked about all runs under a power cap, and what it answers. Pure.

The daemon makes the question from what one cycle saw and reads the answer; nothing here imports
numpy. Watts are what runs share: none is planned on more GPUs than it has, and those that it gives
back are promised to nobody. Slots are those of the runs' own plans, joined further far ahead, and
runs with the same options are written once.

Invariant: the same observation gives the same question and digest; a run that does not fit the
common slots, or of which no plan could be asked, is left out, and its present room is not touched.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from wattmesh.policies.decision import Observation, RoomStep, RunView
from wattmesh.policies.planner.mpc import Question, question
from wattmesh.policies.planner.options import Transitions
from wattmesh.policies.planner.problem import Option
from wattmesh.policies.shared_grid import SharedGrid

EARLY_S = 1e-3
"""Seconds by which two borders may differ."""

FAR = ((timedelta(hours=48), timedelta(hours=3)), (timedelta(days=7), timedelta(hours=8)))
"""From so far ahead on, the least length of slots of a joint plan, which is soon made anew."""

MANY = 200
FAR_OF_MANY = ((timedelta(hours=24), timedelta(hours=3)), (timedelta(days=4), timedelta(hours=12)))
"""The same for more runs than so many: time for each is short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointMenu:
    """What runs can be at, and the ways between; the same for many runs."""

    options: tuple[Option, ...]
    transitions: Transitions


@dataclass(frozen=True, slots=True, kw_only=True)
class JointRun:
    """One run.

    Attributes:
        menu: index of its menu. `start`: of the option that it is at.
        tokens: left to train, > 0.
        slots: how many of the common slots it has. `last_s`: length of its last one.
        dwell_left_s: no transition to another layout before this.
    """

    run: str
    menu: int
    start: int
    tokens: float
    slots: int
    last_s: float
    dwell_left_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JointQuestion:
    """All runs.

    Attributes:
        starts, seconds, g_per_kwh: of each slot. `limit_w`: watts there are for these runs in it;
            None where no cap holds.
        digest: of all that the answer depends on.
    """

    made_at: datetime
    starts: tuple[datetime, ...]
    seconds: tuple[float, ...]
    g_per_kwh: tuple[float, ...]
    limit_w: tuple[float | None, ...]
    menus: tuple[JointMenu, ...]
    runs: tuple[JointRun, ...]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JointAnswer:
    """Room of each run.

    Attributes:
        rooms: by run, (slot from which on, slot until which, watts); no cap holds in others.
        grams, bound_g: of all runs' plans; no joint plan emits less than the bound.
        stopped: time ran out before all was tried.
    """

    rooms: Mapping[str, tuple[tuple[int, int, float], ...]]
    grams: float
    bound_g: float
    stopped: bool = False

    @property
    def gap(self) -> float:
        """Most that a better joint plan could save, as a share of the bound."""
        return max(0.0, self.grams - self.bound_g) / self.bound_g if self.bound_g > 0 else 0.0


def joint_question(
    seen: Observation, may_plan: Callable[[RunView], bool] = lambda _: True
) -> JointQuestion | None:
    """Ask for a joint plan; None where no cap is known or fewer than two runs share it.

    Args:
        seen: what the cycle saw.
        may_plan: whether a plan of a run's own could be asked for; called just before its part of
            the question is worked out.
    """
    if seen.cap is None and not any(each.caps_ahead for each in seen.runs):
        return None
    far = FAR_OF_MANY if len(seen.runs) > MANY else FAR
    grid = SharedGrid(seen)
    asked = {
        run.run: _with_its_gpus(run, question(seen, run, far=far, grid=grid))
        for run in seen.runs
        if not run.unreadable and may_plan(run)
    }
    known = {run: each for run, each in asked.items() if each is not None}
    if len(known) < 2:
        return None
    longest = max(known.values(), key=lambda each: (len(each.starts), sum(each.problem.seconds)))
    known = {run: each for run, each in known.items() if _fits(each, longest)}
    limit_w = _limit_w(seen, longest.starts, known)
    if len(known) < 2 or limit_w is None:
        return None
    menus: dict[JointMenu, int] = {}
    runs = []
    for run, each in known.items():
        problem = each.problem
        menu = JointMenu(options=problem.options, transitions=problem.transitions)
        runs.append(
            JointRun(
                run=run,
                menu=menus.setdefault(menu, len(menus)),
                start=problem.start,
                tokens=problem.tokens,
                slots=len(problem.seconds),
                last_s=problem.seconds[-1],
                dwell_left_s=problem.dwell_left_s,
            )
        )
    found = JointQuestion(
        made_at=seen.now,
        starts=longest.starts,
        seconds=longest.problem.seconds,
        g_per_kwh=longest.problem.g_per_kwh,
        limit_w=limit_w,
        menus=tuple(menus),
        runs=tuple(runs),
        digest="",
    )
    return replace(found, digest=hashlib.sha256(repr(found).encode()).hexdigest()[:16])


def rooms(asked: JointQuestion, answer: JointAnswer) -> dict[str, tuple[RoomStep, ...]]:
    """Give each run's room by time, until its last slot ends."""
    found = {}
    for run in asked.runs:
        end = asked.starts[run.slots - 1] + timedelta(seconds=run.last_s)
        borders = (*asked.starts[: run.slots], end)
        found[run.run] = tuple(
            RoomStep(start=borders[first], until=borders[until], room_w=room_w)
            for first, until, room_w in answer.rooms.get(run.run, ())
            if 0 <= first < until <= run.slots
        )
    return found


def _with_its_gpus(run: RunView, asked: Question | None) -> Question | None:
    """Take away what needs more GPUs than the run has; None where it cannot do without them.

    More of them wait in a queue, for whoever comes first: two runs would be planned on the same.
    """
    if asked is None or run.current is None or not run.resizes:
        return asked
    problem = asked.problem
    most = max(run.current.gpus, problem.options[problem.start].gpus)
    kept = [n for n, each in enumerate(problem.options) if each.gpus <= most]
    if len(kept) == len(problem.options):
        return asked
    options = tuple(problem.options[n] for n in kept)
    fastest = max(each.tokens_per_s for each in options)
    if fastest * sum(problem.seconds) < problem.tokens:
        return None
    fewer = replace(
        problem,
        options=options,
        transitions=tuple(tuple(problem.transitions[n][m] for m in kept) for n in kept),
        start=kept.index(problem.start),
    )
    return replace(asked, problem=fewer, ids=tuple(asked.ids[n] for n in kept))


def _fits(each: Question, longest: Question) -> bool:
    """Say whether a run's slots are the first of the common ones, but for the end of its last."""
    count = len(each.starts)
    seconds, common = each.problem.seconds, longest.problem.seconds
    alike = zip(each.starts, longest.starts[:count], strict=True)
    return (
        count <= len(longest.starts)
        and all(abs((one - other).total_seconds()) < EARLY_S for one, other in alike)
        and seconds[-1] <= common[count - 1] + EARLY_S
        and each.problem.g_per_kwh[: count - 1] == longest.problem.g_per_kwh[: count - 1]
    )


def _limit_w(
    seen: Observation, starts: Sequence[datetime], known: Mapping[str, Question]
) -> tuple[float | None, ...] | None:
    """Give the watts of each slot for the runs that are planned; None where no cap says any.

    What a run that is left out may use now is taken off: nothing is planned with it.
    """
    spans: list[tuple[datetime | None, datetime, float]] = []
    if seen.cap is not None and seen.cap.runs_w is not None:
        now_w = {run.run: run.room_w for run in seen.runs if run.room_w is not None}
        spans.append((None, seen.cap.until, _left_w(seen.cap.runs_w, now_w, known)))
    ahead: dict[tuple[datetime, datetime, float], dict[str, float]] = {}
    for run in seen.runs:
        for each in run.caps_ahead:
            if each.runs_w is not None:
                key = (each.start, each.until, each.runs_w)
                ahead.setdefault(key, {})[run.run] = each.room_w
    spans += [(*key[:2], _left_w(key[2], rooms_w, known)) for key, rooms_w in ahead.items()]
    limit = [
        min(
            (
                limit_w
                for begin, until, limit_w in spans
                if (begin is None or begin <= start) and start < until
            ),
            default=None,
        )
        for start in starts
    ]
    return tuple(limit) if any(each is not None for each in limit) else None


def _left_w(runs_w: float, rooms_w: Mapping[str, float], known: Mapping[str, Question]) -> float:
    """Give the watts of a cap that are left for the runs that are planned.

    Each room has in it all that nobody uses, which the runs that are left out can take once only.
    """
    others_w = [max(0.0, room_w) for run, room_w in rooms_w.items() if run not in known]
    unused_w = (sum(rooms_w.values()) - runs_w) / (len(rooms_w) - 1) if len(rooms_w) > 1 else 0.0
    return runs_w - sum(others_w) + max(0, len(others_w) - 1) * max(0.0, unused_w)
