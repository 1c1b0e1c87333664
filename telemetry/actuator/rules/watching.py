"""Checks whether our lock and cap are still in force, or someone else wrote. Pure.

A limit can be read back (field 192). A clock lock cannot: NVML has no getter, so someone else's
lock shows only in the SM clock: above ours at any time, or far below ours under load where no
reason bit explains it (docs/safety.md). A driver reload clears lock and limit; the energy counter
then starts anew, which tells a reload from a foreign writer.

Invariant: a value that someone else set is never overwritten while a wish lasts; what is still ours
is still restored.
"""

from dataclasses import dataclass, replace

from wattmesh.telemetry.actuator.rules.facts import (
    TROUBLED,
    GpuFacts,
    GpuWatch,
    LockAndCap,
    Reasons,
)

SETTLING_S = 0.5
"""After a write, while the SM clock may still be changing."""

LOOKS = 3
"""Heartbeats in a row, before the SM clock counts as proof of a foreign lock."""

SAME_W = 0.5
"""Two limits closer than this are equal: drivers round."""

_EXPLAINED = TROUBLED | Reasons.GPU_IDLE | Reasons.SW_POWER_CAP | Reasons.SYNC_BOOST


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchResult:
    """The result of one check.

    Attributes:
        note: a sentence for the operator's log; "" for none.
        repeat: the lock must be written again, because a driver reload cleared it.
        reset: the lock must be reset, because it is not known whether it is in force.
    """

    held: LockAndCap
    watch: GpuWatch
    note: str = ""
    repeat: bool = False
    reset: bool = False


def look(held: LockAndCap, watch: GpuWatch, facts: GpuFacts, now_s: float) -> WatchResult:
    """Compare one GPU's readings with our lock and cap. `now_s`: seconds since boot."""
    reloaded = (
        facts.energy_mj is not None
        and watch.energy_mj is not None
        and facts.energy_mj < watch.energy_mj
    )
    seen = replace(watch, energy_mj=facts.energy_mj)
    if reloaded:
        return _reloaded(held, seen, facts)
    if held.found_w is not None and not is_ours(held, facts.requested_w):
        ours = held.set_w
        blocked = (
            f"someone else set the power limit of {facts.gpu_uuid} to {facts.requested_w:g} W "
            f"(ours was {ours:g} W): left as it is; find who sets it, then `wattmesh restore-all "
            "--resume`"
        )
        return WatchResult(
            held=replace(held, found_w=None, set_w=None, prior_w=None),
            watch=replace(seen, blocked=blocked),
            note=blocked,
        )
    if watch.unsure and held.lock_mhz is not None:
        return WatchResult(held=held, watch=replace(seen, above=0, below=0), reset=True)
    if held.lock_mhz is None or (watch.wrote_s is not None and now_s < watch.wrote_s + SETTLING_S):
        return WatchResult(held=held, watch=replace(seen, above=0, below=0))
    return _clock(held, seen, facts)


def is_ours(held: LockAndCap, limit_w: float) -> bool:
    """Tell whether a limit is one that we wrote or were about to write."""
    return any(each is not None and same(each, limit_w) for each in (held.set_w, held.prior_w))


def same(one_w: float, other_w: float) -> bool:
    """Tell whether two limits are equal within `SAME_W`."""
    return abs(one_w - other_w) <= SAME_W


def _reloaded(held: LockAndCap, watch: GpuWatch, facts: GpuFacts) -> WatchResult:
    """Handle a driver reload, which may have cleared our lock and cap."""
    now = held
    if held.found_w is not None and not is_ours(held, facts.requested_w):
        now = replace(held, found_w=None, set_w=None, prior_w=None)
    note = "" if held.nothing else f"the driver of {facts.gpu_uuid} was reloaded; set again"
    repeat = held.lock_mhz is not None
    return WatchResult(held=now, watch=replace(watch, above=0, below=0), note=note, repeat=repeat)


def _clock(held: LockAndCap, watch: GpuWatch, facts: GpuFacts) -> WatchResult:
    lock = held.lock_mhz or 0
    margin = max(30.0, 0.03 * lock)
    above = below = 0
    if facts.sm_mhz is not None and facts.sm_mhz > lock + margin:
        above = watch.above + 1
    elif facts.sm_mhz is not None and facts.sm_mhz < 0.9 * lock - margin and _unexplained(facts):
        below = watch.below + 1
    now = replace(watch, above=above, below=below)
    if above < LOOKS and below < LOOKS:
        return WatchResult(held=held, watch=replace(now, hands_off=watch.hands_off and below > 0))
    blocked = watch.blocked or (
        f"the SM clock of {facts.gpu_uuid} is {facts.sm_mhz} MHz under our lock of {lock} MHz"
        f"{'' if above else ' for no reason that the driver gives'}: someone else locks it; "
        "left as it is; find who does, then `wattmesh restore-all --resume`"
    )
    note = blocked if not watch.blocked else ""
    if above:  # our lock is not in force, so there is nothing to reset
        return WatchResult(
            held=replace(held, lock_mhz=None), watch=replace(now, blocked=blocked), note=note
        )
    return WatchResult(held=held, watch=replace(now, blocked=blocked, hands_off=True), note=note)


def _unexplained(facts: GpuFacts) -> bool:
    """Tell whether the GPU is busy and no reason bit explains its low clock."""
    return facts.reasons is not None and not facts.reasons & _EXPLAINED and bool(facts.processes)
