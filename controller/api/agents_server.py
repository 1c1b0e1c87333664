"""The server for agents of other nodes: TCP with TLS and a token, for agents' calls only.

Invariant: without a valid token nothing is answered, not even whether an address exists. A token
belongs to one node, and gives access to what is that node's; the shared token, which gives access
to all nodes, is accepted only where the settings name it. For a relayed call, the agent says who
made it (it asked its kernel): that can be the owner of a run, and never an operator.
"""

import asyncio
import hmac
import logging
import socket
import ssl
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wattmesh.controller.api.app import CALLS, no_such_page, serving
from wattmesh.controller.api.attested import ATTESTED_UID, Endpoint, attested_peer, problem
from wattmesh.controller.api.request_context import RequestContext
from wattmesh.controller.api.server import Serving, configured
from wattmesh.controller.api.transport.certificate import Validity, trouble, validity
from wattmesh.controller.api.transport.handshakes import HandshakeListener
from wattmesh.controller.api.transport.peers import NOBODY, PeerProtocol
from wattmesh.controller.api.waits import Waits
from wattmesh.controller.api.workers import Workers
from wattmesh.controller.journal.nodes.tokens import digest_of
from wattmesh.controller.journal.runs.run_nodes import ANY
from wattmesh.controller.settings.checks import listen_address
from wattmesh.controller.settings.model import ApiSection
from wattmesh.controller.settings.secrets import is_credential, no_credential, read_secret
from wattmesh.errors import CallHuman, FixInput
from wattmesh.named_file import SECRET_BYTES, read_named

log = logging.getLogger(__name__)

WORKERS = 4
BACKLOG = 1024


class AgentsServer:
    """Serves agents on one TCP address."""

    def __init__(
        self,
        context: RequestContext,
        address: tuple[str, int],
        certificate: Path,
        key: Path,
        token: str = "",
    ) -> None:
        """Bind the address; nothing is served before `start`.

        Raises:
            FixInput: the address is taken, or certificate and key do not fit.
        """
        self._workers = Workers(WORKERS, "agents")
        self._socket = listener = HandshakeListener(_bound(address))

        class Proven(PeerProtocol):
            """Protocol of a connection whose TLS handshake is over."""

            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                listener.proven(transport.get_extra_info("peername"))
                super().connection_made(transport)

        try:
            for each in (certificate, key):
                read_named(each, SECRET_BYTES)
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            self._socket.close()
            if isinstance(error, FileNotFoundError) and is_credential(key) and not key.exists():
                raise no_credential("api.tls_key", key, error.strerror) from error
            raise FixInput(
                f"api.tls_certificate {certificate} and api.tls_key {key} cannot be used "
                f"({error}); make them anew"
            ) from error
        config = configured(
            application(context, self._workers, token),
            ssl_certfile=str(certificate),
            ssl_keyfile=str(key),
        )
        config.http = Proven
        config.load()
        self._pair, self._taken = (certificate, key), _state(certificate, key)
        self._tls = config.ssl
        self._refused, self._life = "", _life(certificate, key)
        self._serving = Serving("agents", config, self._socket)

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it listens on."""
        host, port = self._socket.getsockname()[:2]
        return host, port

    def renew(self) -> None:
        """Take certificate and key again if their files have changed; handshakes use them at once.

        Files that cannot be used are said in the log, and those from before are served on.
        """
        found = _state(*self._pair)
        if found == self._taken or self._tls is None:
            return
        self._taken = found
        try:
            # Tried apart, for a pair that does not fit would leave half of itself behind.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*self._pair)
            self._tls.load_cert_chain(*self._pair)
        except (OSError, ssl.SSLError) as error:
            self._refused = (
                f"the new {self._pair[0]} and {self._pair[1]} cannot be used ({error}), and those "
                "from before are served on: make them anew, and they are taken within minutes"
            )
            log.error("%s", self._refused)
            return
        self._refused, self._life = "", _life(*self._pair)
        log.info("agents are served with the new certificate in %s", self._pair[0])

    def trouble(self, now: datetime) -> str:
        """Say what is wrong with the certificate; "" where nothing is."""
        if self._refused:
            return f"{self._refused[:1].upper()}{self._refused[1:]}."
        return "" if self._life is None else trouble(self._pair[0], self._life, now)

    def start(self) -> None:
        """Begin to serve.

        Raises:
            CallHuman: the server did not come up.
        """
        if not self._serving.start():
            raise CallHuman(f"the server for agents did not start on {self.address}")
        log.info("agents are served on %s port %d", *self.address)

    def stop(self) -> bool:
        """Stop serving; False when the thread did not end in time."""
        ended = self._serving.stop()
        self._workers.close()
        self._socket.close()
        return ended


def agents_server(context: RequestContext, api: ApiSection) -> AgentsServer | None:
    """Make the server that the settings name; None without one.

    Raises:
        FixInput: it cannot be made.
    """
    address = listen_address(api.listen)
    if address is None:
        return None
    if api.tls_certificate is None or api.tls_key is None:
        raise FixInput("api.listen needs tls_certificate and tls_key")
    token = ""
    if api.agents_token_file is not None:
        token = read_secret("api.agents_token_file", api.agents_token_file)
        log.warning(
            "every agent may speak for every node with the shared token (api.agents_token_file): "
            "make one for each with `wattmesh nodes token make NODE`, then take that key out"
        )
    return AgentsServer(context, address, api.tls_certificate, api.tls_key, token)


def application(context: RequestContext, workers: Workers, token: str = "") -> Starlette:
    """Make the application: the agents' own calls, and those of runs that they relay.

    Args:
        context: what handlers share, and the tokens of single nodes.
        workers: run the handlers.
        token: the shared one; "" for none.
    """
    shared = digest_of(token) if token else ""
    waits = Waits(context)
    routes = [
        Route(
            call.path,
            _for_agents(
                serving(context, workers, call, waits), context, shared, attested=call.relayed
            ),
            methods=[call.method],
        )
        for call in CALLS
        if call.for_agents or call.relayed
    ]

    async def nothing(request: Request, error: Exception) -> Response:
        if not _node_of_token(request, context, shared):
            return _unknown()
        return await no_such_page(request, error)

    return Starlette(routes=routes, exception_handlers={HTTPException: nothing})


def _for_agents(
    endpoint: Endpoint, context: RequestContext, shared: str, *, attested: bool
) -> Endpoint:
    """Let only callers with a token pass; a relayed call acts as the user whom the agent names."""

    async def answer(request: Request) -> Response:
        node = _node_of_token(request, context, shared)
        if not node:
            return _unknown()
        peer = replace(NOBODY, agent=True, node=node)
        if attested:
            peer = attested_peer(request.headers.get(ATTESTED_UID, ""), node)
            if peer.uid == NOBODY.uid:
                return problem(403, "the call does not say for which user it is relayed", "refused")
        request.state.peer = peer
        return await endpoint(request)

    return answer


def _node_of_token(request: Request, context: RequestContext, shared: str) -> str:
    """Give the node whose token was sent; `*` for the shared token, "" without a valid one."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return ""
    given = digest_of(token.strip())
    if shared and hmac.compare_digest(given, shared):
        return ANY
    # Looked up by its hash, so the time of the look-up reveals nothing of a token.
    known = context.loop_facts.tokens.get(given)
    if known is None or (known.ends_at is not None and known.ends_at <= context.now):
        return ""
    return known.node


def _life(certificate: Path, key: Path) -> Validity | None:
    """Read the life of a certificate; None where it is served and cannot be judged from here."""
    try:
        return validity(certificate, key)
    except (OSError, ssl.SSLError, KeyError) as error:
        log.debug("the life of %s is not known: %s", certificate, error)
        return None


def _state(*paths: Path) -> tuple[tuple[int, int] | None, ...]:
    """Give what changes when a file is replaced or written: its inode, and when."""
    found: list[tuple[int, int] | None] = []
    for each in paths:
        try:
            known = each.stat()
        except OSError:
            found.append(None)
        else:
            found.append((known.st_ino, known.st_mtime_ns))
    return tuple(found)


def _unknown() -> Response:
    return problem(
        401,
        "show this node's token (agent.token_file) to speak here; an operator makes one with "
        "`wattmesh nodes token make`",
        "refused",
    )


def _bound(address: tuple[str, int]) -> socket.socket:
    """Listen on a TCP address.

    Raises:
        FixInput: the address cannot be bound.
    """
    try:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        listener = socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        raise FixInput(
            f"cannot listen on {address[0]} port {address[1]} ({error.strerror}); change api.listen"
        ) from error
    return listener
