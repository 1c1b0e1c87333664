"""`GET /v1/status`, answered from memory while the journal's server hangs.

Invariant: whoever asks gets an answer, however many do and whatever the journal does; at most one
reading that hangs is kept, so they take no worker from anybody.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from wattmesh.controller.api.calls import Received, failure, plain, receive, success
from wattmesh.controller.api.handlers.reading import read_status
from wattmesh.controller.api.request_context import RequestContext
from wattmesh.controller.api.workers import Workers
from wattmesh.controller.status.status import last_known
from wattmesh.controller.views import StatusView

PATIENCE_S = 0.7
"""A question that has waited for so long makes the screen one from memory: an answer within 1 s."""

LOOK_S = 0.1


class StatusBoard:
    """Answers the call, remembering the reading that hangs."""

    def __init__(self, context: RequestContext, workers: Workers) -> None:
        """Begin with none."""
        self._context = context
        self._workers = workers
        self._hanging: asyncio.Future[StatusView] | None = None

    async def answer(self, request: Request) -> Response:
        """Serve the call."""
        try:
            return success(await self._view(await receive(request)))
        except Exception as error:
            return failure(error, request.url.path)

    async def _view(self, received: Received) -> StatusView:
        """Read the whole screen, or give what is known when the journal hangs."""
        if self._hanging is not None and not self._hanging.done():
            return self._from_memory()
        loop, context = asyncio.get_running_loop(), self._context
        reading: asyncio.Future[StatusView] = asyncio.ensure_future(
            self._workers.do(
                received.caller(context), partial(plain, context, read_status, received.call())
            )
        )
        asked_s = loop.time()
        while not reading.done():
            await asyncio.wait({reading}, timeout=LOOK_S)
            if loop.time() - asked_s >= PATIENCE_S <= context.journal.database.unanswered_s():
                self._hanging = reading
                return self._from_memory()
        return reading.result()

    def _from_memory(self) -> StatusView:
        """Give what was last known, and say so."""
        pulse = self._context.pulse
        return last_known(pulse, pulse.newest_status, self._context.journal.database.unanswered_s())


def status_endpoint(
    context: RequestContext, workers: Workers
) -> Callable[[Request], Awaitable[Response]]:
    """Make the endpoint."""
    return StatusBoard(context, workers).answer
