"""Who is at the other end of a connection, as the kernel says; and how long we wait for them.

Invariant: `PeerIdentity` comes from SO_PEERCRED of this connection, never from anything that was
sent. A client that does not finish a request in time is cut off; it holds no thread meanwhile.
"""

import asyncio
import json
import os
import pwd
import socket
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from wattmesh.controller.api.transport.sockets import group_id
from wattmesh.telemetry.peer_credentials import credentials, supplementary_groups

REQUEST_LIMIT_S = 10.0
"""Time for one whole request, head and body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerIdentity:
    """The process at the other end.

    Attributes:
        groups: its primary and supplementary groups at the moment it connected.
        pid: its process, in the daemon's pid namespace; 0: not known, or an agent relays for it.
        node: the node whose token was sent; `*`: any (the shared token); "": no token was sent,
            because the caller is on this machine.
        agent: whether this is a node's agent that sent its token. `attested`: whether an agent
            named the uid, which then is never an operator's.
    """

    uid: int
    groups: frozenset[int]
    agent: bool = False
    attested: bool = False
    pid: int = 0
    node: str = ""


NOBODY = PeerIdentity(uid=-1, groups=frozenset())


def peer_of(connection: socket.socket) -> PeerIdentity:
    """Ask the kernel who connected."""
    who = credentials(connection)
    groups = frozenset({who.gid, *_more_groups(connection, who.uid, who.gid)})
    return PeerIdentity(uid=who.uid, groups=groups, pid=who.pid)


def is_operator(peer: PeerIdentity, group: str) -> bool:
    """Say whether a peer may act on everybody's runs.

    Members of the operators' group may; so may root and the daemon's own user, who could write the
    journal's file anyway.
    """
    if peer.attested or peer.agent:
        return False
    return is_root_or_us(peer) or group_id(group) in peer.groups


def is_root_or_us(peer: PeerIdentity) -> bool:
    """Say whether a peer is root or the daemon's own user, as the kernel says."""
    return not peer.attested and not peer.agent and peer.uid in (0, os.geteuid())


def _more_groups(connection: socket.socket, uid: int, gid: int) -> tuple[int, ...]:
    """List the supplementary groups from the kernel, or else from the user database."""
    try:
        return supplementary_groups(connection)
    except OSError:
        # An old kernel, or a user in more groups than the buffer holds.
        pass
    try:
        return tuple(os.getgrouplist(pwd.getpwuid(uid).pw_name, gid))
    except KeyError:
        return ()


CONNECTIONS_PER_USER = 1024
"""A quarter of all there may be (`server.CONNECTION_LIMIT`); a run needs three. Root, our own user
and agents of other nodes have no such limit: they speak for many."""

FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s"
)


class PeerProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with the peer in `request.state.peer`, and limits on time and number."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take uvicorn's arguments."""
        super().__init__(*args, **kwargs)
        self._limit: asyncio.TimerHandle | None = None
        self._peer = NOBODY

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Ask the kernel who this is, before the first byte is read."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        self._peer = peer_of(connection)
        self.app_state = {
            **self.app_state,
            "peer": self._peer,
            "listens": lambda: not transport.is_closing(),
        }
        self._start_request_limit()
        if self._user_has_too_many():
            self._turn_away()

    def data_received(self, data: bytes) -> None:
        """Read on; the time limit ends with the request, and starts anew with the next."""
        super().data_received(data)
        if self._request_is_whole():
            self._end_limit()
        elif self._limit is None:
            self._start_request_limit()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limit with the connection."""
        self._end_limit()
        super().connection_lost(exc)

    def _user_has_too_many(self) -> bool:
        peer = self._peer
        if peer.uid < 0 or is_root_or_us(peer) or len(self.connections) <= CONNECTIONS_PER_USER:
            return False
        held = [each for each in self.connections if isinstance(each, PeerProtocol)]
        return len([each for each in held if each._peer.uid == peer.uid]) > CONNECTIONS_PER_USER

    def _turn_away(self) -> None:
        said = (
            f"uid {self._peer.uid} holds {CONNECTIONS_PER_USER} connections already; close some of "
            "them, and ask again"
        )
        content = json.dumps({"error": said, "kind": "unavailable"}).encode()
        self.transport.write(FULL % (len(content), content))
        self.transport.close()

    def _request_is_whole(self) -> bool:
        return self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)

    def _start_request_limit(self) -> None:
        self._limit = self.loop.call_later(REQUEST_LIMIT_S, self._too_slow)

    def _end_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _too_slow(self) -> None:
        self._limit = None
        if not self.transport.is_closing():
            self.logger.info("a client did not finish its request in %.0f s", REQUEST_LIMIT_S)
            self.transport.abort()
