"""Which points a run may be switched to at all, and whether it may be put to sleep. Pure.

Invariant: no menu has a point that nobody validated, or whose equivalence the operator did not
allow; no run is put to sleep that nobody would wake, nor by a plan without knowing how long it
takes to stop and to start.
"""

from collections.abc import Sequence
from dataclasses import replace

from wattmesh.policies.decision import SUSPENDS, PolicySettings, RunView, Sleep
from wattmesh.policies.slowing import needs_w
from wattmesh.quantities import duration, watts
from wattmesh.reconfig.catalogue import (
    PAUSED,
    Catalogue,
    Equivalence,
    Evidence,
    OperatingPoint,
    Release,
)

UNKNOWN_WAIT = "nobody measured how long it takes until they are there again (switch.reacquire_s)"


REST_S = 900.0
"""How long a launcher that refused is not asked again: each time costs a checkpoint."""


def why_not(point: OperatingPoint, run: RunView, policy: PolicySettings) -> str:
    """Say why `run` may not be switched to `point`, as a clause; "" when it may."""
    found = (
        unproven(point, policy.equivalence)
        or _stale(point, run)
        or _over(point, run)
        or _cannot(point, run)
    )
    if found:
        return found
    if run.clock_trouble and run.current and point.clock_mhz != run.current.clock_mhz:
        return f"{point.id} needs another GPU clock and {run.clock_trouble}"
    return ""


def unproven(point: OperatingPoint, allowed: Sequence[Equivalence]) -> str:
    """Say why nobody may be switched to `point`, by its evidence and class; "" when one may.

    Args:
        point: of a catalogue.
        allowed: the classes of equivalence that the operator allows.
    """
    if point.evidence is not Evidence.VALIDATED:
        return f"{point.id} is {point.evidence}, not validated; {next_command(point.evidence)}"
    if point.equivalence not in allowed:
        return (
            f"{point.id} trains with equivalence {point.equivalence} and the settings allow "
            f"{', '.join(allowed) or 'none'} (policy.equivalence)"
        )
    return ""


def next_command(evidence: Evidence) -> str:
    """Say what to run next for a point of this evidence."""
    if evidence is Evidence.MEASURED:
        return "prove it with `wattmesh configs validate`"
    return (
        "measure it with `wattmesh configs profile`, then prove it with `wattmesh configs validate`"
    )


def _stale(point: OperatingPoint, run: RunView) -> str:
    """Say that the proof of a point no longer holds, as a clause."""
    why = run.stale.get(point.id, "")
    return f"{why}; prove it anew with `wattmesh configs validate`" if why else ""


def _over(point: OperatingPoint, run: RunView) -> str:
    """Say that the power cap does not allow a point, as a clause."""
    if run.room_w is None or needs_w(point) <= run.room_w:
        return ""
    return (
        f"{point.id} may need {watts(needs_w(point))} and the power cap leaves it "
        f"{watts(max(0.0, run.room_w))}"
    )


def _cannot(point: OperatingPoint, run: RunView) -> str:
    """Say what the run itself cannot do, as a clause."""
    if why := _wrong_size(point, run):
        return why
    if run.trouble and point.layout != run.layout:
        return f"{point.id} has another layout and the run can make no checkpoint ({run.trouble})"
    degree = run.layout.data_parallel
    if point.layout.data_parallel != degree and "fixed_data_parallel" in run.capabilities:
        return (
            f"{point.id} has data parallel degree {point.layout.data_parallel} and the run's "
            f"loader, which cannot seek by global sample, keeps {degree}"
        )
    return ""


def rests(run: RunView) -> str:
    """Say that a run's launcher refused lately to hold its next launch, as a clause."""
    if run.refused_s is None or run.refused_s >= REST_S:
        return ""
    return (
        f"its launcher would not hold its next launch {duration(run.refused_s)} ago ({run.refused})"
    )


def resized(point: OperatingPoint, run: RunView) -> bool:
    """Say whether the run would go to `point` as a launch of another number of ranks."""
    return run.resizes and point.layout.world_size != run.world_size


def _wrong_size(point: OperatingPoint, run: RunView) -> str:
    """Say why the run cannot have as many ranks as a point needs, as a clause."""
    ranks, held = point.layout.world_size, max(run.gpus_held, run.world_size)
    if resized(point, run):
        known = run.catalogue is not None and run.catalogue.switch.reacquire_s is not None
        if not known:
            return f"{point.id} needs other GPUs, and {UNKNOWN_WAIT}"
        return f"{point.id} needs other GPUs, and {rests(run)}" if rests(run) else ""
    if max(point.gpus, ranks) > held:
        return f"{point.id} needs {point.gpus} GPUs and the run holds {held}"
    if ranks < run.world_size and "parking" not in run.capabilities:
        return (
            f"{point.id} leaves {run.world_size - ranks} of {run.world_size} ranks without work "
            "and the run cannot park ranks"
        )
    return ""


def menu(run: RunView, policy: PolicySettings) -> tuple[OperatingPoint, ...]:
    """List the points that `run` may be switched to, in the catalogue's order."""
    points = run.catalogue.points if run.catalogue else ()
    return tuple(point for point in points if not why_not(point, run, policy))


def unheld(run: RunView, policy: PolicySettings) -> tuple[OperatingPoint, ...]:
    """List the points that a run may be at while nobody holds the clock of its GPUs.

    It does not matter here that clocks cannot be set: a lock that nobody wishes any more ends by
    itself.
    """
    able = replace(run, clock_trouble="")
    unlocked = run.catalogue.unlocked().values() if run.catalogue else ()
    at = {each.id for each in unlocked if not why_not(each, able, policy)}
    return tuple(each for each in (run.catalogue.points if run.catalogue else ()) if each.id in at)


def why_not_sleep(run: RunView, policy: PolicySettings) -> str:
    """Say why a run may not be put to sleep by a plan, as a clause; "" when it may."""
    if policy.sleep is Sleep.NEVER:
        return "the settings let no plan stop a run (policy.sleep)"
    found = cannot_sleep(run, policy) or rests(run)
    return found or (_unmeasured(run) if policy.sleep is Sleep.MEASURED else "")


def cannot_sleep(run: RunView, policy: PolicySettings) -> str:
    """Say why nobody, an operator neither, may put a run to sleep, as a clause; "" when one may."""
    catalogue, current = run.catalogue, run.current
    if SUSPENDS not in run.capabilities:
        return (
            "nobody holds its next launch meanwhile: start it with `python -m "
            "wattmesh.integrations.torchrun`, or under a scheduler that wattmesh knows"
        )
    if run.trouble:
        return f"it can make no checkpoint ({run.trouble})"
    if catalogue is None or current is None:
        return "it is at no point of its catalogue, so nobody knows where it would wake"
    if catalogue.release is Release.RELEASED and catalogue.switch.reacquire_s is None:
        return f"it gives its GPUs back, and {UNKNOWN_WAIT}"
    return why_not(current, run, policy)


def _unmeasured(run: RunView) -> str:
    """Say which way, to sleep or back, nobody measured; by the catalogue's pair or by the run."""
    assert run.catalogue is not None
    assert run.current is not None
    here = run.current.id
    ways = ((here, PAUSED), (PAUSED, here))
    unknown = [way for way in ways if not _known(run, run.catalogue, *way)]
    if not unknown:
        return ""
    return (
        f"nobody measured how long it takes from {unknown[0][0]} to {unknown[0][1]}: give the pair "
        f"in its catalogue, or let it sleep once with `wattmesh switch {run.name} {PAUSED}` and "
        f"wake it with `wattmesh switch {run.name} {here}`"
    )


def _known(run: RunView, catalogue: Catalogue, origin: str, target: str) -> bool:
    if catalogue.switch.between(origin, target) is not None:
        return True
    alike = (each for each in run.switches if (each.origin, each.target) == (origin, target))
    return any(each.complete and not each.failed for each in alike)
