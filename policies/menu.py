"""Which points a run may be switched to at all. Pure.

Invariant: no menu has a point that nobody validated, or whose equivalence the operator did not
allow.
"""

from collections.abc import Sequence
from dataclasses import replace

from wattmesh.policies.decision import PolicySettings, RunView
from wattmesh.policies.slowing import needs_w
from wattmesh.quantities import watts
from wattmesh.reconfig.catalogue import Equivalence, Evidence, OperatingPoint


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
    """Say that an operator's power cap does not allow a point, as a clause."""
    if run.room_w is None or needs_w(point) <= run.room_w:
        return ""
    return (
        f"{point.id} may need {watts(needs_w(point))} and the operator's power cap leaves it "
        f"{watts(max(0.0, run.room_w))}"
    )


def _cannot(point: OperatingPoint, run: RunView) -> str:
    """Say what the run itself cannot do, as a clause."""
    held = max(run.gpus_held, run.world_size)
    if max(point.gpus, point.layout.world_size) > held:
        return f"{point.id} needs {point.gpus} GPUs and the run holds {held}"
    if point.layout.world_size < run.world_size and "parking" not in run.capabilities:
        return (
            f"{point.id} leaves {run.world_size - point.layout.world_size} of {run.world_size} "
            "ranks without work and the run cannot park ranks"
        )
    if run.trouble and point.layout != run.layout:
        return f"{point.id} has another layout and the run can make no checkpoint ({run.trouble})"
    degree = run.layout.data_parallel
    if point.layout.data_parallel != degree and "fixed_data_parallel" in run.capabilities:
        return (
            f"{point.id} has data parallel degree {point.layout.data_parallel} and the run's "
            f"loader, which cannot seek by global sample, keeps {degree}"
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
    catalogue, able = run.catalogue, replace(run, clock_trouble="")
    return tuple(
        point
        for point in (catalogue.points if catalogue else ())
        if catalogue and catalogue.find(point.layout) is point and not why_not(point, able, policy)
    )
