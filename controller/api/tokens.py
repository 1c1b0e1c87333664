"""Tokens of nodes' agents: an operator makes, rotates and revokes them; nobody reads them again."""

from datetime import timedelta

from wattmesh.controller.api.desk import Call, Desk
from wattmesh.controller.journal.tokens import TokenRow
from wattmesh.controller.views import Done, TokenMade
from wattmesh.reconfig.ranges import KeepHours
from wattmesh.reconfig.wire import read_value

KEEP_H = 24.0


def make(desk: Desk, call: Call) -> TokenMade:
    """Make the token of a node that has none."""
    return _made(desk, call, rotated=False)


def rotate(desk: Desk, call: Call) -> TokenMade:
    """Make a new token for a node; those it has end after `keep_h` hours (default 24)."""
    return _made(desk, call, rotated=True)


def revoke(desk: Desk, call: Call) -> Done:
    """End every token of a node at once."""
    node = _node(desk, call, "revoke tokens")
    ended = desk.journal.tokens.revoke(node, by=call.who, now=desk.now)
    _tell(desk, f"{call.who} revoked {ended} tokens of {node}.")
    if not ended:
        return Done(done=f"{node} has no valid token.")
    return Done(
        done=f"Revoked {ended} tokens of {node}: its agent is refused from now on, and keeps what "
        f"it measures until it shows a new one (`wattmesh nodes token make {node}`).",
        changed=(node,),
    )


def tokens(desk: Desk, call: Call) -> dict[str, tuple[TokenRow, ...]]:
    """List the tokens of all nodes, without their secrets."""
    call.as_operator(desk, "list the nodes' tokens")
    return {"tokens": desk.journal.tokens.all()}


def _made(desk: Desk, call: Call, *, rotated: bool) -> TokenMade:
    """Make a token."""
    node = _node(desk, call, "make tokens")
    keep_h = read_value(KeepHours, call.body.get("keep_h", KEEP_H), "keep_h")
    others_end = desk.now + timedelta(hours=keep_h) if rotated else None
    token = desk.journal.tokens.make(node, by=call.who, now=desk.now, others_end=others_end)
    _tell(desk, f"{call.who} {'rotated' if rotated else 'made'} the token of {node}.")
    kept = f"; those it had end in {keep_h:g} h" if rotated else ""
    return TokenMade(
        node=node,
        token=token,
        done=f"Made a token for {node}{kept}. It is told this once: put it into agent.token_file "
        "of that node (mode 0600), or into /etc/credstore there, and restart the agent.",
    )


def _node(desk: Desk, call: Call, act: str) -> str:
    """Let operators of the leader pass; give the node of the address."""
    call.as_operator(desk, act)
    desk.lead()
    return call.path["node"]


def _tell(desk: Desk, sentence: str) -> None:
    """Remember who did it, and let the door know at once."""
    desk.journal.events.add("token", sentence, desk.now)
    desk.pulse.tokens = desk.journal.tokens.valid(desk.now)
