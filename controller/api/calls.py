"""One request in, one answer out: limits, JSON, worker threads, and errors as sentences.

Invariant: every answer is JSON; whatever goes wrong, the caller gets one sentence with the next
step and the log gets the traceback of what nobody foresaw.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from wattmesh.controller.api.desk import Call, Conflict, Desk, NotFound
from wattmesh.controller.views import Problem, as_json
from wattmesh.errors import Fenced, FixInput, JournalUnavailable, Refused, RetryLater, WattmeshError

log = logging.getLogger(__name__)

BODY_LIMIT_BYTES = 1 << 20
BODY_LIMIT_S = 10.0

Handler = Callable[[Desk, Call], Any]
"""Reads a call, answers with a view or JSON value; runs in a worker thread."""


class BodyRefused(FixInput):
    """The body is too large, or no JSON object."""

    def __init__(self, sentence: str, status: int) -> None:
        """Keep the HTTP status beside the sentence."""
        super().__init__(sentence)
        self.status = status


def endpoint(
    desk: Desk, workers: ThreadPoolExecutor, handler: Handler
) -> Callable[[Request], Awaitable[Response]]:
    """Make a Starlette endpoint of a handler."""

    async def answer(request: Request) -> Response:
        try:
            call = await read_call(request)
            loop = asyncio.get_running_loop()
            run = guarded if request.method == "POST" else plain
            return success(await loop.run_in_executor(workers, run, desk, handler, call))
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:
            return failure(error, request.url.path)

    return answer


def guarded(desk: Desk, handler: Handler, call: Call) -> Any:
    """Run a handler that writes, noting whether the journal answers.

    Raises:
        JournalUnavailable: it does not; in an outage few callers even try.
    """
    outage = desk.pulse.outage
    if outage is not None and not desk.pulse.journal_worth_a_try():
        raise JournalUnavailable(outage.sentence)
    try:
        return handler(desk, call)
    except JournalUnavailable as error:
        desk.pulse.journal_failed(str(error))
        raise


def plain(desk: Desk, handler: Handler, call: Call) -> Any:
    """Run a handler that only reads: it may succeed while writers wait for a lock."""
    return handler(desk, call)


async def read_call(request: Request) -> Call:
    """Read the whole request.

    Raises:
        BodyRefused: too large, too slow, or no JSON object.
    """
    body: Any = {}
    if request.method == "POST":
        try:
            async with asyncio.timeout(BODY_LIMIT_S):
                body = parse_body(await _read_body(request))
        except TimeoutError:
            raise BodyRefused(f"the body did not arrive in {BODY_LIMIT_S:.0f} s", 408) from None
    return Call(
        peer=request.state.peer,
        path=request.path_params,
        query=request.query_params,
        body=body,
    )


async def _read_body(request: Request) -> bytes:
    """Collect the body, and stop at the limit."""
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > BODY_LIMIT_BYTES:
            raise BodyRefused(
                f"the body has more than {BODY_LIMIT_BYTES} bytes, which no call needs", 413
            )
    return bytes(content)


def parse_body(content: bytes) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        BodyRefused: it is none.
    """
    try:
        body = json.loads(content, parse_constant=_unknown)
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


def success(answer: Any) -> Response:
    """Write a view as JSON."""
    return JSONResponse(as_json(answer))


def failure(error: Exception, path: str) -> Response:
    """Write an error as JSON; log what nobody foresaw."""
    status, kind = _status(error)
    sentence = str(error)
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
    return JSONResponse(as_json(Problem(error=sentence, kind=kind)), status_code=status)


def _status(error: Exception) -> tuple[int, str]:
    """Give (HTTP status, kind) of an error."""
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
