"""A listening socket that bounds the connections whose TLS handshake is not over.

Such a connection costs some 300 KiB. Invariant: at most `MOST` in all and `MOST_OF_ONE` from one
address are open, each for at most `LIMIT_S`; a further one is closed on arrival.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from wattmesh.reconfig.wire.link import cut_socket
from wattmesh.telemetry.concurrency_limit import ConcurrencyLimit

MOST = 256
MOST_OF_ONE = 64
"""Connections from one address; many nodes can be behind it."""

LIMIT_S = 10.0
"""Seconds for the handshake."""


class _Guest(socket.socket):
    """A connection that calls `left` when it is closed."""

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
        self._places = ConcurrencyLimit(MOST, MOST_OF_ONE)
        self._unproven: dict[Any, asyncio.TimerHandle] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        """Take the next connection; runs on the server's own thread.

        Raises:
            ConnectionAbortedError: it was one too many and was closed; call again.
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
        """Stop counting a connection: its handshake is over, or it is closed."""
        limit = self._unproven.pop(address, None)
        if limit is not None:
            limit.cancel()
            self._places.give_back(address[0])
