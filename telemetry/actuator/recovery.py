"""Which locks and caps are ours after a start: the journal compared with the boards. Pure.

Invariant: every GPU that we may have written is found, unless a reboot has certainly reset it; a
limit that is neither the original one nor one of ours is someone else's and is left alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from wattmesh.telemetry.actuator.journal import Memory
from wattmesh.telemetry.actuator.rules.facts import GpuFacts, LockAndCap
from wattmesh.telemetry.actuator.rules.leases import BootTime
from wattmesh.telemetry.actuator.rules.watching import is_ours, same


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredState:
    """The state after a start. `notes`: sentences for the operator's log."""

    memory: Memory
    notes: tuple[str, ...] = ()


def recovered(
    memory: Memory, facts: Mapping[str, GpuFacts | None], now: BootTime, *, obligations: bool
) -> RecoveredState:
    """Find out what is ours now, and which obligations still hold.

    Args:
        memory: as the journal was read.
        facts: every GPU of the machine and of the journal; None: that GPU does not answer.
        now: this boot and its clock.
        obligations: whether obligations that have not ended are kept.
    """
    notes: list[str] = []
    held: dict[str, LockAndCap] = {}
    if memory.boot_id in ("", now.boot_id) or memory.damaged:
        held = dict(memory.held)
    elif memory.held:
        notes.append(
            f"the machine was rebooted, which reset what was set on {len(memory.held)} GPUs"
        )
    for uuid, seen in facts.items():
        if seen is None:
            continue
        if memory.damaged:
            held[uuid] = suspected(held.get(uuid), seen, memory.found_w.get(uuid))
        if uuid in held:
            held[uuid], note = settled(held[uuid], seen)
            notes += [note] if note else []
    if memory.damaged:
        notes.append(
            "the journal was damaged: every GPU of this machine is taken back to its baseline"
        )
    kept = memory.heard.after_boot(now).live(now)
    return RecoveredState(
        memory=Memory(
            boot_id=now.boot_id,
            found_w=_limits_to_restore(memory, facts, held),
            held={uuid: each for uuid, each in held.items() if not each.nothing},
            heard=kept if obligations else replace(kept, leases={}),
        ),
        notes=tuple(notes),
    )


def settled(held: LockAndCap, seen: GpuFacts) -> tuple[LockAndCap, str]:
    """Resolve an interrupted write by reading what the board has now.

    Returns:
        what is ours, and a sentence where the limit is somebody else's.
    """
    if held.found_w is None:
        return held, ""
    none = replace(held, found_w=None, set_w=None, prior_w=None)
    if same(seen.requested_w, held.found_w):
        return none, ""
    if is_ours(held, seen.requested_w):
        return replace(held, set_w=seen.requested_w, prior_w=None), ""
    return none, (
        f"{seen.gpu_uuid} has a limit of {seen.requested_w:g} W, neither the {held.found_w:g} W "
        f"that were found nor the {held.set_w or 0:g} W that we set: someone else's, left alone"
    )


def suspected(held: LockAndCap | None, seen: GpuFacts, found_w: float | None) -> LockAndCap:
    """Assume what may be ours on a GPU whose record may be lost.

    A lock cannot be read back, so one is assumed; a limit below the one that was found when the
    actuator started is assumed to be ours.
    """
    known = held or LockAndCap(gpu_uuid=seen.gpu_uuid)
    if known.lock_mhz is None:
        known = replace(known, lock_mhz=seen.lowest_mhz or 1)
    lowered = (
        found_w is not None and seen.requested_w < found_w and not same(seen.requested_w, found_w)
    )
    if known.found_w is None and lowered:
        known = replace(known, found_w=found_w, set_w=seen.requested_w)
    elif known.found_w is not None and lowered and not is_ours(known, seen.requested_w):
        known = replace(known, prior_w=seen.requested_w)
    return known


def _limits_to_restore(
    memory: Memory, facts: Mapping[str, GpuFacts | None], held: Mapping[str, LockAndCap]
) -> dict[str, float]:
    found = dict(memory.found_w)
    for uuid, seen in facts.items():
        ours = held.get(uuid)
        if ours is not None and ours.found_w is not None:
            found[uuid] = ours.found_w
        elif seen is not None:
            found[uuid] = seen.requested_w
    return found
