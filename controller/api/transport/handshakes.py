"""A listening socket that bounds who has connected and not yet shown that it speaks TLS.

A connection costs some 300 KiB before its handshake is over. Invariant: so many such in all and of
one address are open, each for some seconds; what is more is closed as it comes.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from wattmesh.reconfig.link import cut_socket
from wattmesh.telemetry.places import Places

MOST = 256
MOST_OF_ONE = 64
"""Of one address: many nodes can be behind it."""

LIMIT_S = 10.0
"""For the handshake."""


class _Guest(socket.socket):
    """A connection that says when it is closed."""

    left: Callable[[], None]

    def close(self) -> None:
        """Close it."""
        self.left()
        super().close()


class HandshakeListener(socket.socket):
    """Accepts connections, while few enough are in their handshake."""

    def __init__(self, bound: socket.socket) -> None:
        """Take over a socket that listens."""
        super().__init__(fileno=bound.detach())
        self._places = Places(MOST, MOST_OF_ONE)
        self._unproven: dict[Any, asyncio.TimerHandle] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        """Take the next connection; on the server's own thread.

        Raises:
            ConnectionAbortedError: it is one too many and was closed; ask again.
        """
        connection, address = super().accept()
        if not self._places.take(address[0]):
            connection.close()
            raise ConnectionAbortedError
        guest = _Guest(fileno=connection.detach())
        guest.left = lambda: self.proven(address)
        limit = asyncio.get_running_loop().call_later(LIMIT_S, cut_socket, guest)
        self._unproven[address] = limit
        return guest, address

    def proven(self, address: Any) -> None:
        """Count a connection no longer: its handshake is over, or it is closed."""
        limit = self._unproven.pop(address, None)
        if limit is not None:
            limit.cancel()
            self._places.give_back(address[0])
