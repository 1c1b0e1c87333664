"""The one line that a switch leaves in the training log: from, to, seconds, why, proof. Pure.

Invariant: `arrived` is logged only once all ranks stand in the new layout, and names what they
proved; what was not measured is not named.
"""

from collections.abc import Mapping

from wattmesh.reconfig import placement
from wattmesh.reconfig.launch.generation import Generation, SwitchNote
from wattmesh.reconfig.switch import how_equal
from wattmesh.reconfig.wire.messages import Order

TAKEN_BACK = "not switched from "
"""How the line of a switch that was taken back begins."""


def arrived(generation: Generation, elapsed_s: float, *, by_restart: bool) -> str:
    """Say that a switch succeeded.

    Args:
        generation: the new generation, in the ordered layout.
        elapsed_s: since the boundary began.
        by_restart: whether an earlier launch began the switch.
    """
    note = generation.switch
    assert note is not None
    how = "by restart" if by_restart else "in place"
    why = f" Why: {note.reason.rstrip('.')}." if note.reason else ""
    moved = placement.moved(note.old_placement, generation.placement)
    to = f"{generation.layout} with {moved} experts placed anew" if moved else generation.layout
    return (
        f"switched from {note.old_layout} to {to} {how} at step {generation.step} "
        f"in {elapsed_s:.2f} s.{why} Proof: {_proof(len(generation.ranks), note.evidence)}."
    )


def taken_back(note: SwitchNote, step: int, elapsed_s: float, why: str) -> str:
    """Say that a switch is given up; logged when the rollback begins, which may still fail."""
    return (
        f"{TAKEN_BACK}{note.old_layout} to {note.to or 'another layout'}: taken back at "
        f"step {step} after {elapsed_s:.2f} s. Why: {why.rstrip('.')}. The job goes back to "
        f"{note.old_layout}."
    )


def asleep(step: int, order: Order, held_as: str) -> str:
    """Say that the run leaves to sleep, once its next launch is held."""
    why = f" Why: {order.reason.rstrip('.')}." if order.reason else ""
    return (
        f"asleep from step {step} until {order.wakes_at} at the latest; {held_as} holds the next "
        f"launch.{why}"
    )


def _proof(ranks: int, evidence: Mapping[str, float | str]) -> str:
    held = f"{ranks} ranks hold" if ranks > 1 else "1 rank holds"
    found = [f"{held} what was saved"] if _equal_digests(evidence) else []
    before, after, allowed = (
        evidence.get(name) for name in ("probe_before", "probe_after", "probe_allowed")
    )
    if isinstance(before, float) and isinstance(after, float):
        moved = abs(after - before) / max(abs(before), 1e-300)
        limit = f" ({allowed:.0e} allowed)" if isinstance(allowed, float) else ""
        found.append(f"probe loss {how_equal(moved)}{limit}".replace("e-0", "e-"))
    return ", ".join(found) or "the ranks agree"


def _equal_digests(evidence: Mapping[str, float | str]) -> bool:
    before = evidence.get("digest_before")
    return before is not None and before == evidence.get("digest_after")
