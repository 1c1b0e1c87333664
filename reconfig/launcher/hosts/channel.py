"""Sentences between two supervisors of one run: JSON objects, one a line, over TCP.

Each side proves that it knows the run's secret before it is believed. Nothing is encrypted.
Invariant: a line is at most `LONGEST` bytes, and no call takes longer than its limit.
"""

import hashlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

LONGEST = 64 * 1024
"""Bytes of a line."""

GREETING_S = 10.0
"""How long a greeting may take."""

SEND_S = 5.0
"""How long a send may take; a line fits the kernel's buffer, so only a dead peer takes longer."""


class Gone(Exception):
    """The other side has gone, is not who it should be, or does not speak as it should."""


class Channel:
    """One connection. One thread receives; any may send."""

    def __init__(self, connected: socket.socket) -> None:
        """Take over a connected socket."""
        self._socket = connected
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = b""
        self._lock = threading.Lock()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send an object.

        Raises:
            Gone: it cannot be sent.
        """
        try:
            with self._lock:
                self._socket.settimeout(SEND_S)
                self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise Gone(str(error)) from error

    def receive(self, limit_s: float) -> dict[str, Any] | None:
        """Return the next object; None if none comes within the limit.

        Raises:
            Gone: the other side has closed, or sends no such object.
        """
        until = time.monotonic() + limit_s
        while b"\n" not in self._read:
            if len(self._read) > LONGEST:
                raise Gone(f"a line is longer than {LONGEST} bytes")
            try:
                self._socket.settimeout(max(until - time.monotonic(), 0.001))
                found = self._socket.recv(LONGEST)
            except TimeoutError:
                return None
            except OSError as error:
                raise Gone(str(error)) from error
            if not found:
                raise Gone("the connection was closed")
            self._read += found
        line, _, self._read = self._read.partition(b"\n")
        try:
            told = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Gone("a line is no JSON") from error
        if not isinstance(told, dict):
            raise Gone("a line is no JSON object")
        return told

    def close(self) -> None:
        """Close it, from any thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def admit(channel: Channel, secret: str) -> int:
    """Let a follower in; returns which host it is.

    Raises:
        Gone: it does not know the secret.
    """
    nonce = secrets.token_hex(16)
    channel.send({"nonce": nonce})
    told = _greeting(channel)
    host, theirs = told.get("host"), told.get("nonce")
    if type(host) is not int or not isinstance(theirs, str):
        raise Gone("it does not say which host it is")
    if not _proves(told, secret, "follower", nonce, theirs, host):
        raise Gone("it does not know the run's secret")
    channel.send({"proof": _proof(secret, "leader", nonce, theirs, host)})
    return host


def introduce(channel: Channel, secret: str, host: int) -> None:
    """Be let in by the leader.

    Raises:
        Gone: it does not answer, or does not know the secret.
    """
    theirs, nonce = _greeting(channel).get("nonce"), secrets.token_hex(16)
    if not isinstance(theirs, str):
        raise Gone("it does not greet")
    proof = _proof(secret, "follower", theirs, nonce, host)
    channel.send({"host": host, "nonce": nonce, "proof": proof})
    if not _proves(_greeting(channel), secret, "leader", theirs, nonce, host):
        raise Gone("it does not know the run's secret")


def _greeting(channel: Channel) -> dict[str, Any]:
    told = channel.receive(GREETING_S)
    if told is None:
        raise Gone(f"it did not greet within {GREETING_S:g} s")
    return told


def _proof(secret: str, *said: object) -> str:
    words = json.dumps(said).encode()
    return hmac.new(secret.encode(), words, hashlib.sha256).hexdigest()


def _proves(told: Mapping[str, Any], secret: str, *said: object) -> bool:
    # JSON may hold half a surrogate pair, which is no text; nobody has proved anything yet.
    proof = str(told.get("proof", "")).encode(errors="replace")
    return hmac.compare_digest(proof, _proof(secret, *said).encode())
