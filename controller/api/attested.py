"""Calls that an agent relays for a user of its node, and says whose they are.

Invariant: only an agent is believed, and the user it names is never an operator.
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wattmesh.controller.api.transport.peers import NOBODY, PeerIdentity, is_root_or_us
from wattmesh.controller.views import Problem, as_json

ATTESTED_UID = "wattmesh-attested-uid"
"""Header in which an agent gives the uid that made a relayed call."""

HIGHEST_UID = 1 << 32

Endpoint = Callable[[Request], Awaitable[Response]]


def relayed(endpoint: Endpoint) -> Endpoint:
    """Let agents of this machine, which are root or our own user, make calls for others."""

    async def answer(request: Request) -> Response:
        peer: PeerIdentity = request.state.peer
        said = request.headers.get(ATTESTED_UID)
        if said is not None:
            if not is_root_or_us(peer):
                return problem(403, "only an agent may say whose call it relays", "refused")
            request.state.peer = attested_peer(said)
            if request.state.peer is NOBODY:
                return problem(403, f"{said!r} is no uid", "refused")
        return await endpoint(request)

    return answer


def attested_peer(said: str, node: str = "") -> PeerIdentity:
    """Read the uid that an agent (of `node`, if it sent a token) names; `NOBODY`: it is no uid."""
    if not said.isdecimal() or len(said) > 10 or int(said) >= HIGHEST_UID - 1:
        return NOBODY
    return PeerIdentity(uid=int(said), groups=frozenset(), attested=True, node=node)


def problem(status: int, sentence: str, kind: str) -> Response:
    """Write a refusal in the shape that all refusals have."""
    return JSONResponse(as_json(Problem(error=sentence, kind=kind)), status_code=status)
