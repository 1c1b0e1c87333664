"""The durable state machine of one switch. Pure: states, legal steps, and what each one means.

    ordered -> announced -> checkpointing -> rebuilding -> loaded -> verified -> confirmed
    restart path:           checkpointing -> stopping -> launching -> loaded -> ...
    in place, but the old layout is still held in memory: rebuilding -> stopping -> ...
    anything that fails:    -> rolling_back -> rolled_back | failed
    never begun:            -> abandoned

Invariant: the run reports every step after `ordered`; the daemon never infers one. A step that is
repeated or arrives late changes nothing (`advance` says so), so every report may be sent twice.
"""

from enum import StrEnum


class SwitchState(StrEnum):
    """Where one switch stands."""

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
"""States that nothing leaves."""

# How far along a state is. A report may skip states (messages get lost) but never go back.
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
"""Evidence of a switch that is over: seconds from its boundary until the first step at normal pace
had ended, what was compiled for the layout included. Told by a repeat of the last state."""


def advance(current: SwitchState, reported: SwitchState) -> bool:
    """Say whether `reported` moves a switch on from `current`.

    False for a repeat, for a late report of an earlier state, and for anything after a final
    state: such a report is acknowledged and changes nothing.
    """
    if current in FINAL:
        return False
    if reported is SwitchState.CONFIRMED and current is SwitchState.ROLLING_BACK:
        return False
    return _ORDER[reported] > _ORDER[current]


def position(state: SwitchState) -> tuple[int, int]:
    """Give (n, of) for a screen: `loaded (6 of 8)`."""
    return min(_ORDER[state], 8), 8


def how_equal(moved: float) -> str:
    """Say how a relative move of a probe's loss reads: `bitwise equal`, `equal to 5e-8`."""
    return f"equal to {moved:.0e}".replace("e-0", "e-") if moved else "bitwise equal"
