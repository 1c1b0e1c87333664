"""The durable state machine of one switch: its states and legal transitions. Pure.

    ordered -> announced -> checkpointing -> rebuilding -> loaded -> verified -> confirmed
    restart path:           checkpointing -> stopping -> launching -> loaded -> ...
    in place, but the old layout's memory is still held: rebuilding -> stopping -> ...
    any failure:            -> rolling_back -> rolled_back | failed
    never begun:            -> abandoned

Invariant: the run reports every state after `ordered`; the daemon never infers one. A repeated or
late report changes nothing (`advance`), so every report may be sent twice.
"""

from enum import StrEnum


class SwitchState(StrEnum):
    """The states of one switch."""

    ORDERED = "ordered"
    ANNOUNCED = "announced"
    CHECKPOINTING = "checkpointing"
    REBUILDING = "rebuilding"
    STOPPING = "stopping"
    LAUNCHING = "launching"
    LOADED = "loaded"
    VERIFIED = "verified"
    CONFIRMED = "confirmed"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    ABANDONED = "abandoned"
    FAILED = "failed"


FINAL = frozenset(
    {
        SwitchState.CONFIRMED,
        SwitchState.ROLLED_BACK,
        SwitchState.ABANDONED,
        SwitchState.FAILED,
    }
)
"""Final states."""

# Progress of a state. A report may skip states (messages get lost) but never go back.
_ORDER = {
    SwitchState.ORDERED: 0,
    SwitchState.ANNOUNCED: 1,
    SwitchState.CHECKPOINTING: 2,
    SwitchState.REBUILDING: 3,
    SwitchState.STOPPING: 4,
    SwitchState.LAUNCHING: 5,
    SwitchState.LOADED: 6,
    SwitchState.VERIFIED: 7,
    SwitchState.ROLLING_BACK: 8,
    SwitchState.CONFIRMED: 9,
    SwitchState.ROLLED_BACK: 9,
    SwitchState.ABANDONED: 9,
    SwitchState.FAILED: 9,
}


AT_PACE = "at_pace_s"
"""Key in the evidence of a finished switch: seconds from its boundary to the end of the first step
at normal pace, with compilation. It is sent by repeating the last state."""


REFUSED = "refused"
"""Key in the evidence of a switch that was rolled back before anything was left: why the launcher
holds no next launch. The run trained on in the same processes."""


def advance(current: SwitchState, reported: SwitchState) -> bool:
    """Tell whether `reported` moves a switch on from `current`.

    False for a repeat, for a late report of an earlier state, and for anything after a final
    state: such a report is acknowledged and has no effect.
    """
    if current in FINAL:
        return False
    if reported is SwitchState.CONFIRMED and current is SwitchState.ROLLING_BACK:
        return False
    return _ORDER[reported] > _ORDER[current]


def position(state: SwitchState) -> tuple[int, int]:
    """Return (n, of) for a screen: `loaded (6 of 8)`."""
    return min(_ORDER[state], 8), 8


def how_equal(moved: float) -> str:
    """Format a relative change of the probe's loss: `bitwise equal`, `equal to 5e-8`."""
    return f"equal to {moved:.0e}".replace("e-0", "e-") if moved else "bitwise equal"
