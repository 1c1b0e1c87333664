"""A network between agent and controller that can misbehave: one Unix socket before another."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from enum import StrEnum
from pathlib import Path

END_S = 10.0


class Fault(StrEnum):
    """What becomes of a call.

    REFUSED: nobody is there. SILENT: taken, and never answered. HALF: the answer breaks off.
    ERRORS: 500 and no JSON. LOST: the call arrives, its answer does not. TWICE: the call arrives
    twice.
    """

    REFUSED = "refused"
    SILENT = "silent"
    HALF = "half"
    ERRORS = "errors"
    LOST = "lost"
    TWICE = "twice"


class Network:
    """Carries calls, one per connection."""

    def __init__(self, listener: socket.socket, controller: Path) -> None:
        """Carry from `listener` to the socket at `controller`."""
        self.fault: Fault | None = None
        self.met = 0
        self._listener = listener
        self._controller = controller
        self._held: list[socket.socket] = []

    def serve(self) -> None:
        """Carry until the listener is shut."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                break
            threading.Thread(target=self._guarded, args=(connection,), daemon=True).start()
        for connection in self._held:
            connection.close()

    def _guarded(self, connection: socket.socket) -> None:
        """Carry one call; a side that breaks off ends it."""
        try:
            with suppress(OSError):
                self._carry(connection)
        finally:
            if connection not in self._held:
                connection.close()

    def _carry(self, connection: socket.socket) -> None:
        """Carry one call, as well as the fault of now lets it."""
        connection.settimeout(30.0)
        fault = self.fault
        if fault is Fault.REFUSED:
            self._meet(b"")
            return
        call = whole(connection)
        polls = b"/desired" in call.partition(b"\r\n")[0]
        if fault is Fault.SILENT:
            self._held.append(connection)
            self._meet(call)
            connection.settimeout(0.5)
            with suppress(TimeoutError):
                connection.recv(1)
            self._held.remove(connection)
            return
        if fault is Fault.ERRORS:
            connection.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\noops")
            self._meet(call)
            return
        if fault is Fault.TWICE and not polls:
            self._ask(call)
        answer = self._ask(call)
        if fault is Fault.HALF:
            connection.sendall(answer[: len(answer) // 2])
        elif fault is not Fault.LOST:
            connection.sendall(answer)
        if fault is not None:
            self._meet(call)

    def _meet(self, call: bytes) -> None:
        """Count deliveries that met a fault, and refused calls of any kind."""
        if not call or b"/readings" in call.partition(b"\r\n")[0]:
            self.met += 1

    def _ask(self, call: bytes) -> bytes:
        """Make the call."""
        with socket.socket(socket.AF_UNIX) as controller:
            controller.settimeout(30.0)
            controller.connect(str(self._controller))
            controller.sendall(call)
            return whole(controller)


def whole(connection: socket.socket) -> bytes:
    """Read one message with its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionError
        data += piece
    head, _, _ = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    while len(data) < len(head) + 4 + length:
        data += connection.recv(65536)
    return data


@contextmanager
def proxy(address: Path, controller: Path) -> Iterator[Network]:
    """Serve at `address`."""
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(address))
        listener.listen()
        network = Network(listener, controller)
        thread = threading.Thread(target=network.serve, daemon=True)
        thread.start()
        try:
            yield network
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(END_S)
