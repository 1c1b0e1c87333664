"""Tokens of nodes' agents: operators make, rotate and revoke them; they cannot be read again."""

from datetime import timedelta

from wattmesh.controller.api.request_context import Call, RequestContext
from wattmesh.controller.journal.nodes.tokens import TokenRow
from wattmesh.controller.views import Done, TokenMade
from wattmesh.reconfig.ranges import KeepHours
from wattmesh.reconfig.wire.messages import read_value

KEEP_H = 24.0


def make(context: RequestContext, call: Call) -> TokenMade:
    """Make the token of a node that has none."""
    return _made(context, call, rotated=False)


def rotate(context: RequestContext, call: Call) -> TokenMade:
    """Make a new token for a node; those it has end after `keep_h` hours (default 24)."""
    return _made(context, call, rotated=True)


def revoke(context: RequestContext, call: Call) -> Done:
    """End every token of a node at once."""
    node = _node(context, call, "revoke tokens")
    ended = context.journal.tokens.revoke(node, by=call.who, now=context.now)
    _note_and_reload_tokens(context, f"{call.who} revoked {ended} tokens of {node}.")
    if not ended:
        return Done(done=f"{node} has no valid token.")
    return Done(
        done=f"Revoked {ended} tokens of {node}: its agent is refused from now on, and keeps what "
        f"it measures until it shows a new one (`wattmesh nodes token make {node}`).",
        changed=(node,),
    )


def tokens(context: RequestContext, call: Call) -> dict[str, tuple[TokenRow, ...]]:
    """List the tokens of all nodes, without their secrets."""
    call.as_operator(context, "list the nodes' tokens")
    return {"tokens": context.journal.tokens.all()}


def _made(context: RequestContext, call: Call, *, rotated: bool) -> TokenMade:
    node = _node(context, call, "make tokens")
    keep_h = read_value(KeepHours, call.body.get("keep_h", KEEP_H), "keep_h")
    others_end = context.now + timedelta(hours=keep_h) if rotated else None
    token = context.journal.tokens.make(node, by=call.who, now=context.now, others_end=others_end)
    _note_and_reload_tokens(
        context, f"{call.who} {'rotated' if rotated else 'made'} the token of {node}."
    )
    kept = f"; those it had end in {keep_h:g} h" if rotated else ""
    return TokenMade(
        node=node,
        token=token,
        done=f"Made a token for {node}{kept}. It is shown only this once: put it into "
        "agent.token_file of that node (mode 0600), or into /etc/credstore there, and restart "
        "the agent.",
    )


def _node(context: RequestContext, call: Call, act: str) -> str:
    """Let operators of the leader pass; give the node of the address."""
    call.as_operator(context, act)
    context.act()
    return call.path["node"]


def _note_and_reload_tokens(context: RequestContext, sentence: str) -> None:
    context.journal.events.add("token", sentence, context.now)
    context.loop_facts.tokens = context.journal.tokens.valid(context.now)
