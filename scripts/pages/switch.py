"""docs/reference/switch.md: every state of a switch, and what it means."""

from scripts.pages.markdown import block, code, docstring, page, table
from wattmesh.reconfig import switch
from wattmesh.reconfig.switch import FINAL, SwitchState, position

INTRODUCTION = """A switch is one reconfiguration of one run, kept in the journal as a durable state
machine. The run reports each step; the daemon never infers one. A report may be lost (a later one
says as much), repeated, or late: those that do not move the switch forwards change nothing. What
brings a run back from each state is in [safety](../safety.md)."""

MEANING = {
    SwitchState.ORDERED: "the daemon committed the order; the run has not taken it",
    SwitchState.ANNOUNCED: "the run is at the boundary it will switch at, and all ranks know",
    SwitchState.CHECKPOINTING: "the run writes the checkpoint that it can go back to",
    SwitchState.REBUILDING: "in place: the old layout is torn down, the new one built",
    SwitchState.STOPPING: "by restart: every rank leaves, with the checkpoint written",
    SwitchState.LAUNCHING: "by restart: the launcher started the next attempt",
    SwitchState.LOADED: "the new layout holds the checkpoint's state",
    SwitchState.VERIFIED: "ranks agree on the state's digest, and the probe loss is what it was",
    SwitchState.CONFIRMED: "done: the run trains in the new layout",
    SwitchState.ROLLING_BACK: "the new layout failed; the old one is being built again",
    SwitchState.ROLLED_BACK: "the run trains on in its old layout",
    SwitchState.ABANDONED: "never begun: too late, withdrawn, or the run ended",
    SwitchState.FAILED: "no end was reported in time; `wattmesh why` tells what is known",
}


def render() -> str:
    """Write the page."""
    picture = docstring(switch).partition("\n\n")[2].rpartition("\n\n")[0]
    rows = (
        (
            code(state),
            "an end" if state in FINAL else f"{position(state)[0]} of {position(state)[1]}",
            MEANING[state],
        )
        for state in SwitchState
    )
    listed = table(("state", "how far", "what it means"), rows)
    return page("States of a switch", INTRODUCTION, block(picture), listed)
