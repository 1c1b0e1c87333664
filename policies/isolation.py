"""A run whose numbers make a rule fail is held, with a sentence; the others go on. Pure.

The last resort, behind the ranges of the wire and the checks of a catalogue: an error that one
run's numbers cause stops no decision about another run.
"""

from wattmesh.policies.decision import Action, Decision, RunView

UNDECIDABLE = "undecidable"
"""Kind of the hold of a run that no rule could be asked about."""

SAID = 160
"""Characters that are kept of what an error says."""


def cause(error: Exception) -> str:
    """Name what went wrong and where, as a clause."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = ""
    if trace is not None:
        file = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
        where = f" in {file} line {trace.tb_lineno}"
    said = " ".join(str(error).split())[:SAID]
    return f"{type(error).__name__}{where}{f', {said}' if said else ''}"


def undecidable(run: RunView, why: str) -> Decision:
    """Hold a run where it is.

    Args:
        run: which.
        why: the cause, as a clause.
    """
    return Decision(
        run=run.run,
        action=Action.HOLD,
        kind=UNDECIDABLE,
        current=run.current.id if run.current else "",
        target=run.current.id if run.current else "",
        reason=(
            f"staying where it is: nothing can be decided about it ({why.rstrip('.')}), and other "
            f"runs go on; check its step {run.step:.15g}, its tokens {run.tokens:.15g} of "
            f"{run.tokens_total:.15g}, the {run.boundary_every:.15g} steps between its saves and "
            "its catalogue, and report a bug in wattmesh where they are right."
        ),
    )
