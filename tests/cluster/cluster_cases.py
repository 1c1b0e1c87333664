"""Small clusters that tests share, and a slow way to their best joint plan."""

from itertools import product

from hypothesis import strategies as st

from tests.policies.planning.planner_cases import wave
from wattmesh.policies.cluster.account import account
from wattmesh.policies.cluster.shared import SharedCluster, SharedRun, checked
from wattmesh.policies.planner.problem import Option, OptionTransition

HOUR = 3600.0
FAST = Option(name="fast", layout="L4", tokens_per_s=4.0, power_w=4000.0, gpus=4)
SLOW = Option(name="slow", layout="L2", tokens_per_s=2.5, power_w=1800.0, gpus=2)
WAITS = Option(name="paused", layout="paused", tokens_per_s=0.0, power_w=0.0, gpus=0)


def ways(
    kinds: tuple[Option, ...], seconds: float = 300.0, energy_j: float = 4e5
) -> tuple[tuple[OptionTransition | None, ...], ...]:
    """Transitions that all cost the same."""
    way = OptionTransition(seconds=seconds, energy_j=energy_j)
    return tuple(tuple(None if a is b else way for b in kinds) for a in kinds)


def waiting(
    name: str, first: int, deadline_h: float, hours: float, *, priority: int = 0
) -> SharedRun:
    """A run that waits for GPUs; `hours` of work at its fastest point."""
    kinds = (FAST, SLOW, WAITS)
    return SharedRun(
        name=name,
        first=first,
        deadline_s=deadline_h * HOUR,
        tokens=hours * HOUR * FAST.tokens_per_s,
        options=kinds,
        transitions=ways(kinds),
        start=2,
        submitted=0,
        priority=priority,
    )


def cluster(count: int = 24, *, gpus: int = 6, cap_w: float | None = None) -> SharedCluster:
    """A cluster whose idle GPUs draw 100 W each, on a made-up grid."""
    caps = () if cap_w is None else (cap_w,) * count
    return SharedCluster(
        seconds=(HOUR,) * count,
        g_per_kwh=wave(count),
        gpus=gpus,
        cap_w=caps,
        idle_w_per_gpu=100.0,
    )


@st.composite
def tiny(draw: st.DrawFn) -> tuple[SharedCluster, list[SharedRun]]:
    """Draw two or three runs, three or four slots, and limits that may be tight."""
    count = draw(st.integers(3, 4))
    site = SharedCluster(
        seconds=(HOUR,) * count,
        g_per_kwh=tuple(draw(st.sampled_from([50.0, 200.0, 500.0])) for _ in range(count)),
        gpus=draw(st.integers(4, 8)),
        cap_w=draw(st.sampled_from([(), (6000.0,) * count, (9000.0,) * (count - 1) + (4500.0,)])),
        idle_w_per_gpu=draw(st.sampled_from([0.0, 100.0])),
    )
    runs = [
        waiting(f"r{n}", draw(st.integers(0, 1)), count, draw(st.sampled_from([0.5, 1.0, 1.5])))
        for n in range(draw(st.integers(2, 3)))
    ]
    return site, [checked(site, each) for each in runs]


def try_all(site: SharedCluster, runs: list[SharedRun]) -> float | None:
    """Judge every set of paths there is, second by second; None when none is legal.

    A limit is kept in whole slots: in one with a switch the larger of both ends counts.
    """
    each_paths = [_paths(site, run) for run in runs]
    best: float | None = None
    for paths in product(*each_paths):
        used = [0.0] * len(site.seconds)
        drawn = [site.gpus * site.idle_w_per_gpu] * len(site.seconds)
        for run, path in zip(runs, paths, strict=True):
            _take(site, run, path, used, drawn)
        kept = all(each <= site.gpus for each in used)
        if site.cap_w:
            kept = kept and all(w <= c + 1e-6 for w, c in zip(drawn, site.cap_w, strict=True))
        if not kept:
            continue
        named = {run.name: path for run, path in zip(runs, paths, strict=True)}
        grams = account(site, runs, named).grams
        best = grams if best is None else min(best, grams)
    return best


def _paths(site: SharedCluster, run: SharedRun) -> list[tuple[int, ...]]:
    """All paths that do the work in time, cut after it."""
    found = set()
    slots = len(site.seconds) - run.first
    for path in product(range(len(run.options)), repeat=slots):
        mine = account(site, [run], {run.name: path}).runs[run.name]
        if mine.done_s is not None and mine.done_s <= run.deadline_s:
            last = next(n for n in range(slots) if mine.done_s <= (run.first + n + 1) * HOUR)
            found.add(path[: last + 1])
    return sorted(found)


def _take(
    site: SharedCluster,
    run: SharedRun,
    path: tuple[int, ...],
    used: list[float],
    drawn: list[float],
) -> None:
    at = run.start
    for slot, option in enumerate(path, start=run.first):
        old, new = run.options[at], run.options[option]
        way = run.transitions[at][option]
        gpus = new.gpus if way is None else max(old.gpus, new.gpus)
        above_w = new.power_w * (1 + site.margin) - new.gpus * site.idle_w_per_gpu
        if way is not None:
            going_w = way.energy_j / way.seconds * (1 + site.margin) - gpus * site.idle_w_per_gpu
            above_w = max(above_w, going_w)
        used[slot] += gpus
        drawn[slot] += above_w
        at = option
