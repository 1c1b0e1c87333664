"""For which runs a node's agent may relay calls: for those of its own node.

An agent with a node's token says which user is calling there, and is believed only for runs that
live on that node. A run that is no longer heard may start again elsewhere; while it lives, no other
node may end it, replace it or report for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from wattmesh.controller.api.request_context import Call, RequestContext
from wattmesh.controller.journal.runs.run_nodes import ANY, HERE
from wattmesh.errors import RetryLater


class SpeaksElsewhere(RetryLater):
    """The run lives on another node; its launches there have to end, or fall silent, first."""


@contextmanager
def speaking(context: RequestContext, call: Call, *, registers: bool = False) -> Iterator[None]:
    """Let a call for the run in its address pass, then bind the run to the calling node.

    Args:
        context: its journal keeps the binding.
        call: who calls, for which run.
        registers: whether it begins a launch; only such a call binds a run to this machine, or
            to no node.

    Raises:
        SpeaksElsewhere: the run lives on another node.
    """
    run, node = call.path["run"], call.peer.node
    bound = check(context, call)
    yield
    if bound == node or (node in (HERE, ANY) and not registers):
        return
    context.journal.run_nodes.bind(run, node, context.loop_facts.lead.epoch)
    if bound not in (None, ANY) and node not in (HERE, ANY):
        said = f"{run} speaks on {node} now, no longer on {bound or 'this machine'}."
        context.journal.events.add("run_moved", said, context.now)


def check(context: RequestContext, call: Call) -> str | None:
    """Give the node that the run of a call is bound to; None when it is not bound.

    Raises:
        SpeaksElsewhere: the run lives on another node than the caller's.
    """
    run, node = call.path["run"], call.peer.node
    bound = context.journal.run_nodes.of(run, context.loop_facts.lead.epoch)
    if node in (HERE, ANY, bound) or bound in (None, ANY):
        return bound
    row = context.journal.runs.find(run, context.now)
    if row is not None and row.state == "live":
        raise SpeaksElsewhere(
            f"Run {run} lives on {bound or 'the head node'}, so {node} may not speak for it; if it "
            "was started anew here, it is let in when the launch there has not been heard for "
            f"{context.loop_facts.settings.loops.live_s:g} s."
        )
    return bound
