"""What a power cap means for runs: the clocks that it may take each to, and each run's room. Pure.

An announced cap is planned as if it held now: who trains then, and where, nobody knows better.

Invariant: a run under a cap is shown at the point where its boards are really held, so that guard,
plan and sentence count on that speed; no point that needs more than its room is on its menu.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from wattmesh.policies.decision import CapAhead, CapView, Observation, RunView
from wattmesh.policies.powercap.powercap import Capping
from wattmesh.policies.reason_text import moment
from wattmesh.policies.run_context import examine
from wattmesh.policies.slowing import LEAST_W, Load, levels, needs_w
from wattmesh.quantities import watts


def loads(seen: Observation, boards: Mapping[str, tuple[str, ...]]) -> tuple[Load, ...]:
    """Give the runs that train, with the clocks that a cap may take them to.

    Args:
        seen: what the cycle saw, without the cap.
        boards: by run, the GPUs that it trains on.
    """
    return tuple(_load(seen, run, boards[run.run]) for run in seen.runs if boards.get(run.run))


def _load(seen: Observation, run: RunView, gpus: tuple[str, ...]) -> Load:
    alike = run.catalogue.points if run.catalogue else ()
    try:
        guard = examine(seen, run).guard
    except Exception:
        # `decide` names the cause; a cap outranks every deadline that the guard could not keep.
        guard = None
    affordable = [each.id for each in alike if guard is None or guard.may_stay(each)]
    return Load(run=run.run, gpus=gpus, levels=levels(run.current, alike, affordable))


def under(seen: Observation, capping: Capping, until: datetime) -> Observation:
    """Give the observation as it is while the cap is kept."""
    return replace(
        seen,
        cap=CapView(cap_w=capping.cap_w, until=until, runs_w=_runs_w(capping)),
        runs=tuple(_run(seen, run, capping, until) for run in seen.runs),
    )


def announced(
    seen: Observation,
    cappings: Sequence[tuple[Capping, datetime, datetime]],
    in_force: tuple[Capping, datetime, datetime] | None = None,
) -> Observation:
    """Give the observation with what caps that are announced will leave each run.

    Args:
        seen: what the cycle saw, without any cap.
        cappings: each cap as it would be kept now, its start and its end; the next first.
        in_force: the one that holds: for a run that sleeps it is still to come.
    """

    def coming(run: RunView) -> Sequence[tuple[Capping, datetime, datetime]]:
        sleeps = run.suspended_s is not None
        return (*cappings, in_force) if in_force is not None and sleeps else cappings

    return replace(
        seen,
        runs=tuple(
            replace(
                run,
                caps_ahead=tuple(
                    _ahead(run, capping, start, until)
                    for capping, start, until in coming(run)
                    if run.run in capping.room_w
                ),
            )
            for run in seen.runs
        ),
    )


def _ahead(run: RunView, capping: Capping, start: datetime, until: datetime) -> CapAhead:
    held, room_w = capping.points.get(run.run, run.current), max(0.0, capping.room_w[run.run])
    known = held is not None and needs_w(held) <= room_w + LEAST_W
    return CapAhead(
        start=start,
        until=until,
        cap_w=capping.cap_w,
        room_w=room_w,
        point=held.id if held is not None and known else "",
        runs_w=_runs_w(capping),
    )


def _runs_w(capping: Capping) -> float | None:
    """Give the watts of all runs together; None where the cap is not known to be kept."""
    return capping.runs_w if capping.meets else None


def _run(seen: Observation, run: RunView, capping: Capping, until: datetime) -> RunView:
    """Give a run with its room under the cap, and where it is held."""
    room_w = capping.room_w.get(run.run)
    if room_w is None:
        return run
    held = capping.points.get(run.run, run.current)
    what = f"the power cap of {watts(capping.cap_w)} until {moment(until, seen.now)}"
    capped = ""
    if held and run.current and held.id != run.current.id:
        capped = f"{what} holds it at {held.id} instead of {run.current.id}"
    elif capping.boards:
        capped = f"{what} leaves it {watts(max(0.0, room_w))}"
    return replace(run, current=held, room_w=room_w, capped=capped)
