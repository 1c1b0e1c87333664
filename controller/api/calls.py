"""One request in, one answer out: limits, JSON, worker threads, and errors as sentences.

Invariant: every answer is JSON; whatever goes wrong, the caller gets one sentence with the next
step, and the log gets the traceback of an unexpected error.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from wattmesh.controller.api.request_context import Call, Conflict, NotFound, RequestContext
from wattmesh.controller.api.transport.peers import PeerIdentity
from wattmesh.controller.api.workers import RETRY_AFTER_S, Caller, Crowded, Workers
from wattmesh.controller.views import Problem, as_json
from wattmesh.errors import Fenced, FixInput, JournalUnavailable, Refused, RetryLater, WattmeshError
from wattmesh.reconfig.ranges import clean, shown

log = logging.getLogger(__name__)

BODY_LIMIT_BYTES = 1 << 20
BODY_LIMIT_S = 10.0

WORD_LENGTH = 400
"""Most characters in one part of an address; the longest such part names a signal."""

WHOLE_DIGITS = 20
"""Most characters of a whole number of 64 bits, its sign included."""

Handler = Callable[[RequestContext, Call], Any]
"""Takes a call, gives a view or JSON value; runs in a worker thread."""


class BodyRefused(FixInput):
    """The body is too large, or no JSON object."""

    def __init__(self, sentence: str, status: int) -> None:
        """Keep the HTTP status beside the sentence."""
        super().__init__(sentence)
        self.status = status


def endpoint(
    context: RequestContext, workers: Workers, handler: Handler
) -> Callable[[Request], Awaitable[Response]]:
    """Make a Starlette endpoint of a handler."""

    async def answer(request: Request) -> Response:
        try:
            received = await receive(request)
            run = guarded if request.method == "POST" else plain
            return await workers.do(
                received.caller(context), partial(_carried_out, context, run, handler, received)
            )
        except Exception as error:
            return failure(error, request.url.path)

    return answer


def _carried_out(
    context: RequestContext,
    run: Callable[[RequestContext, Handler, Call], Any],
    handler: Handler,
    received: "Received",
) -> Response:
    """Read the body, answer the call, and write the answer; runs in a worker thread."""
    return success(run(context, handler, received.call()))


def guarded(context: RequestContext, handler: Handler, call: Call) -> Any:
    """Run a handler that writes, noting whether the journal answers.

    Raises:
        JournalUnavailable: it does not; in an outage, most calls fail without asking it.
    """
    outage = context.loop_facts.outage
    if outage is not None and not context.loop_facts.journal_worth_a_try():
        raise JournalUnavailable(outage.sentence)
    try:
        return handler(context, call)
    except JournalUnavailable as error:
        context.loop_facts.journal_failed(str(error))
        raise


def plain(context: RequestContext, handler: Handler, call: Call) -> Any:
    """Run a handler that only reads: it may succeed while writers wait for a lock."""
    return handler(context, call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A request as it arrived. `content`: its body, not parsed yet; None: it has none.

    Attributes:
        listens: whether the sender is still connected.
    """

    peer: PeerIdentity
    path: Mapping[str, str]
    query: Mapping[str, str]
    content: bytes | None
    listens: Callable[[], bool]

    def caller(self, context: RequestContext) -> Caller:
        """Give the caller whose share of the workers this request takes."""
        return Caller.of(context, self.peer, self.listens)

    def call(self) -> Call:
        """Parse the body; a large one takes long, so call this in a worker.

        Raises:
            BodyRefused: it is not a JSON object.
        """
        body = {} if self.content is None else parse_body(self.content)
        return Call(peer=self.peer, path=self.path, query=self.query, body=body)


async def receive(request: Request) -> Received:
    """Receive the whole request.

    Raises:
        BodyRefused: the body is too large, or came too slowly.
    """
    content = None
    if request.method == "POST":
        try:
            async with asyncio.timeout(BODY_LIMIT_S):
                content = await _read_body(request)
        except TimeoutError:
            raise BodyRefused(f"the body did not arrive in {BODY_LIMIT_S:.0f} s", 408) from None
    return Received(
        peer=request.state.peer,
        path=_words(request.path_params),
        query=_words(request.query_params),
        content=content,
        listens=request.state.listens,
    )


async def _read_body(request: Request) -> bytes:
    """Collect the body, and refuse it at the size limit."""
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > BODY_LIMIT_BYTES:
            raise BodyRefused(
                f"the body has more than {BODY_LIMIT_BYTES} bytes, which no call needs", 413
            )
    return bytes(content)


def parse_body(content: bytes) -> dict[str, Any]:
    """Parse a JSON object whose numbers are finite and whose texts every database can store.

    Raises:
        BodyRefused: it is not such an object.
    """
    try:
        text = content.decode()
        body = json.loads(text, parse_constant=_unknown, parse_float=_finite, parse_int=_whole)
        # UTF-8 and JSON forbid these characters as they are; only an escape can bring them.
        if "\\u" in text:
            _bearable(body)
    except (ValueError, RecursionError) as error:
        raise BodyRefused(f"the body is not JSON ({error}); send one JSON object", 400) from error
    if not isinstance(body, dict):
        raise BodyRefused(
            f"the body is a JSON {type(body).__name__}; send one JSON object, {{...}}", 400
        )
    return body


def _unknown(name: str) -> None:
    """Read NaN and Infinity, which JSON does not know but Python writes, as "not known"."""
    log.debug("%s in a body counts as null", name)


def _finite(text: str) -> float:
    """Read a number with a fraction or an exponent.

    Raises:
        BodyRefused: it is not finite.
    """
    value = float(text)
    if not isfinite(value):
        raise BodyRefused(f"{text[:20]} is no finite number; send null where one is not known", 422)
    return value


def _whole(text: str) -> int:
    """Read a whole number.

    Raises:
        BodyRefused: it has more than 64 bits.
    """
    if len(text) > WHOLE_DIGITS or not -(2**63) <= (value := int(text)) < 2**64:
        raise BodyRefused(f"{text[:20]}... has more than 64 bits; send a smaller number", 422)
    return value


def _bearable(value: object) -> None:
    """Refuse text that a database cannot store or an answer cannot carry, at any depth.

    Raises:
        BodyRefused: it has a NUL, or half of a surrogate pair.
    """
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
            raise BodyRefused(
                f"the text {shown(value)} has a NUL or half a surrogate pair; leave it out", 422
            )
    elif isinstance(value, list):
        for item in value:
            _bearable(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _bearable(key)
            _bearable(item)


def _words(named: Mapping[str, str]) -> Mapping[str, str]:
    """Refuse parts of an address that are not printable.

    Raises:
        BodyRefused: one is too long, or has control characters.
    """
    for name, value in named.items():
        if len(value) > WORD_LENGTH or clean(value) != value:
            raise BodyRefused(
                f"{shown(name)} in the address is {shown(value)}; send at most {WORD_LENGTH} "
                "printable characters",
                422,
            )
    return named


def success(answer: Any) -> Response:
    """Write a view as JSON."""
    return JSONResponse(as_json(answer))


def failure(error: Exception, path: str) -> Response:
    """Write an error as JSON; log an unexpected one with its traceback."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=400)
    status, kind = _status(error)
    sentence = clean(str(error))
    if not isinstance(error, WattmeshError):
        log.error(
            "%s: unexpected error; this is a bug in wattmesh, please report it",
            path,
            exc_info=error,
        )
        sentence = (
            f"A bug in wattmesh ended this call ({type(error).__name__}); the daemon goes on. The "
            "log has the traceback: please report it."
        )
    headers = {"Retry-After": str(RETRY_AFTER_S)} if isinstance(error, Crowded) else None
    return JSONResponse(
        as_json(Problem(error=sentence, kind=kind)), status_code=status, headers=headers
    )


def _status(error: Exception) -> tuple[int, str]:
    if isinstance(error, BodyRefused):
        return error.status, "invalid"
    table: tuple[tuple[type[Exception], int, str], ...] = (
        (NotFound, 404, "not_found"),
        (Conflict, 409, "invalid"),
        (Fenced, 409, "fenced"),
        (Refused, 403, "refused"),
        (FixInput, 422, "invalid"),
        (RetryLater, 503, "unavailable"),
    )
    return next(
        ((status, kind) for known, status, kind in table if isinstance(error, known)), (500, "bug")
    )
