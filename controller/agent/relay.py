"""Relay the calls of this node's jobs to the controller, with the caller's uid from the kernel.

One thread serves all connections; a call holds a worker thread only once it is complete and has a
place. Invariant: only the calls of runs pass; nothing that a job sends says who it is; and when the
controller does not answer, the job gets a 503 and trains on.
"""

import asyncio
import json
import logging
import re
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import responses
from pathlib import Path

from wattmesh.controller.agent.link import ControllerAnswer, Link
from wattmesh.controller.api.transport.sockets import listen
from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.concurrency_limit import ConcurrencyLimit
from wattmesh.telemetry.peer_credentials import credentials

log = logging.getLogger(__name__)

ATTESTED_UID = "Wattmesh-Attested-Uid"

PASSED = re.compile(
    r"/v1/runs/[^/]{1,200}/(register|progress|heartbeat|transitions|finish|order|spent|expert-tokens|expert-costs)"
)
TARGET = re.compile(r"/[!-~]*")
HEAD_LIMIT_BYTES = 32 << 10
BODY_LIMIT_BYTES = 1 << 20
CALL_LIMIT_S = 10.0
LONGEST_WAIT_S = 60.0
REQUEST_LIMIT_S = 10.0
"""Seconds for one whole request, from its first byte on."""

IDLE_S = 75.0
MOST_CALLS = 256
MOST_CALLS_PER_USER = 64
MOST_CONNECTIONS = 2048
MOST_CONNECTIONS_PER_USER = 256
"""Each rank of a job keeps one or two; an open connection holds memory and a file, no thread."""

STOP_LIMIT_S = 2.0


class Relay:
    """Serves a Unix socket to the jobs of this node."""

    def __init__(self, path: Path, group: str, link: Link) -> None:
        """Bind the socket with mode 0660; nothing is passed on before `start`.

        Raises:
            FixInput: the path cannot be bound.
        """
        self._listening = listen(path, group, "agent.relay")
        self._link = link
        self._calls = ConcurrencyLimit(MOST_CALLS, MOST_CALLS_PER_USER)
        self._connections = ConcurrencyLimit(MOST_CONNECTIONS, MOST_CONNECTIONS_PER_USER)
        self._workers = ThreadPoolExecutor(MOST_CALLS, thread_name_prefix="relay")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Take no further calls; those under way end with the process."""
        if self._thread.ident is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_LIMIT_S)
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._listening.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._listening.socket.setblocking(False)
        server = self._loop.run_until_complete(
            asyncio.start_unix_server(
                self._serve,
                sock=self._listening.socket,
                limit=HEAD_LIMIT_BYTES,
                backlog=MOST_CONNECTIONS,
            )
        )
        self._loop.run_forever()
        server.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=STOP_LIMIT_S / 2))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends, breaks off, or is idle for `IDLE_S`."""
        uid = credentials(writer.get_extra_info("socket")).uid
        if not self._connections.take(uid):
            writer.close()
            return
        try:
            going_on = True
            while going_on:
                going_on = await self._answer_next(reader, writer, uid)
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError) as error:
            log.debug("a relayed call broke off: %r", error)
        finally:
            self._connections.give_back(uid)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer_next(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, uid: int
    ) -> bool:
        """Wait for one request and answer it; say whether another may follow."""
        async with asyncio.timeout(IDLE_S):
            first = await reader.readexactly(1)
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                head = _Head.read(first + await reader.readuntil(b"\r\n\r\n"))
            refusal = head.refusal
        except asyncio.LimitOverrunError:
            refusal = _problem(
                431, f"the head of the request has more than {HEAD_LIMIT_BYTES} bytes", "invalid"
            )
        except ValueError:
            refusal = _problem(400, "this is no request of HTTP/1.1: send one", "invalid")
        if refusal is not None:
            # Its body was not read, so a further request on this connection could not be parsed.
            await _write(writer, refusal, closing=True)
            return False
        if not self._calls.take(uid):
            await _write(
                writer,
                _problem(503, "the agent passes on too many calls already", "unavailable"),
                closing=True,
            )
            return False
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                body = await reader.readexactly(head.length)
            # Refused only now: a caller that is still sending its body would not read the answer.
            reply = NOT_PASSED
            if head.passed:
                reply = await asyncio.get_running_loop().run_in_executor(
                    self._workers, self._passed_on, head, body, uid
                )
        finally:
            self._calls.give_back(uid)
        await _write(writer, reply, closing=head.closes)
        return not head.closes

    def _passed_on(self, head: "_Head", body: bytes, uid: int) -> ControllerAnswer:
        """Pass one call on under the uid that the kernel gives for the caller."""
        try:
            reply = self._link.call(
                head.method,
                head.target,
                body if head.method == "POST" else None,
                limit_s=CALL_LIMIT_S + (LONGEST_WAIT_S if head.method == "GET" else 0.0),
                headers={ATTESTED_UID: str(uid)},
            )
        except SourceUnavailable as error:
            return _problem(503, str(error), "unavailable")
        if reply.status == HTTPStatus.UNAUTHORIZED:
            # Our token was refused, not the job's message; a job told 401 would drop it for good.
            return _problem(
                503, "the controller does not take this node's token; see its agent", "unavailable"
            )
        return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The parts of a request's head (RFC 9112) that the relay needs."""

    method: str
    target: str
    fields: Mapping[str, str]

    @classmethod
    def read(cls, head: bytes) -> "_Head":
        """Parse a request's head.

        Raises:
            ValueError: this is not the head of a request.
        """
        line, *rest = head.decode("latin-1").split("\r\n")
        method, target, _ = line.split(" ")
        if not TARGET.fullmatch(target):
            raise ValueError(f"{target!r} is no address")
        pairs = (each.partition(":") for each in rest if each)
        return cls(
            method=method,
            target=target,
            fields={name.strip().lower(): value.strip() for name, _, value in pairs},
        )

    @property
    def length(self) -> int:
        """Length of the body in bytes."""
        return int(self.fields.get("content-length", "0"))

    @property
    def closes(self) -> bool:
        """Whether the caller wants the connection closed afterwards."""
        return self.fields.get("connection", "").lower() == "close"

    @property
    def refusal(self) -> ControllerAnswer | None:
        """The error answer if the body cannot be read; None if it can."""
        length = self.fields.get("content-length", "0")
        if "transfer-encoding" in self.fields or not (length.isascii() and length.isdecimal()):
            return _problem(411, "send a body with its Content-Length", "invalid")
        if len(length) > 8 or int(length) > BODY_LIMIT_BYTES:
            return _problem(413, f"the body has more than {BODY_LIMIT_BYTES} bytes", "invalid")
        return None

    @property
    def passed(self) -> bool:
        """Whether this is a call that runs make, and so is passed on."""
        # Not urlsplit: it raises on a malformed host.
        path, _, _ = self.target.partition("?")
        return self.method in ("GET", "POST") and PASSED.fullmatch(path) is not None


async def _write(writer: asyncio.StreamWriter, reply: ControllerAnswer, *, closing: bool) -> None:
    """Send an answer; raise TimeoutError if it is not read within `REQUEST_LIMIT_S`."""
    reason = responses.get(reply.status, "")
    close = "Connection: close\r\n" if closing else ""
    head = (
        f"HTTP/1.1 {reply.status} {reason}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(reply.content)}\r\n{close}\r\n"
    )
    writer.write(head.encode() + reply.content)
    async with asyncio.timeout(REQUEST_LIMIT_S):
        await writer.drain()


def _problem(status: int, sentence: str, kind: str) -> ControllerAnswer:
    return ControllerAnswer(
        status=status, content=json.dumps({"error": sentence, "kind": kind}).encode()
    )


NOT_PASSED = _problem(404, "the agent passes on the calls of runs only", "not_found")
