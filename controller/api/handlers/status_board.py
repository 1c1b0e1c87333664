"""`GET /v1/status`, answered from memory while the journal's server hangs.

Invariant: every caller gets an answer, however many ask and whatever the journal does; at most one
hanging read is kept, so these calls take no further worker.
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
"""After this long the screen is built from memory, so that the answer comes within 1 s."""

LOOK_S = 0.1


class StatusBoard:
    """Answers the call, and remembers the read that hangs."""

    def __init__(self, context: RequestContext, workers: Workers) -> None:
        """Begin without a hanging read."""
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
        """Read the whole screen, or give the last known one while the journal hangs."""
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
        """Give the last known screen, marked as such."""
        loop_facts = self._context.loop_facts
        return last_known(
            loop_facts, loop_facts.newest_status, self._context.journal.database.unanswered_s()
        )


def status_endpoint(
    context: RequestContext, workers: Workers
) -> Callable[[Request], Awaitable[Response]]:
    """Make the endpoint."""
    return StatusBoard(context, workers).answer
