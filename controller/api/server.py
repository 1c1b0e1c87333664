"""The HTTP server in a thread of its own: uvicorn on the socket that we bound.

Invariant: `stop` returns within its limit whatever clients do: waiting calls are answered first,
then connections are closed, then cut.
"""

import asyncio
import logging
import socket
import threading
from typing import Any

from starlette.applications import Starlette
from uvicorn import Config, Server

from wattmesh.controller.api.app import build
from wattmesh.controller.api.request_context import RequestContext
from wattmesh.controller.api.transport.peers import PeerProtocol
from wattmesh.controller.api.transport.sockets import Listening
from wattmesh.controller.api.workers import Workers
from wattmesh.errors import CallHuman

log = logging.getLogger(__name__)

WORKERS = 4
"""Threads that run handlers; the journal has few connections, so more threads would only wait."""

CONNECTION_LIMIT = 4096
HEAD_LIMIT_BYTES = 32 * 1024
START_LIMIT_S = 10.0
STOP_LIMIT_S = 3.0
TICK_S = 1.0


def configured(application: Starlette, **more: Any) -> Config:
    """Give uvicorn's configuration, the same for both servers."""
    return Config(
        application,
        http=PeerProtocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=CONNECTION_LIMIT,
        h11_max_incomplete_event_size=HEAD_LIMIT_BYTES,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(STOP_LIMIT_S),
        **more,
    )


class Serving:
    """One uvicorn server on one bound socket, in a thread of its own."""

    def __init__(self, name: str, config: Config, listener: socket.socket) -> None:
        """Prepare; nothing is served before `start`."""
        self._listener = listener
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> bool:
        """Begin to serve; False when it did not come up."""
        self._thread.start()
        return self._server.up.wait(START_LIMIT_S)

    def stop(self) -> bool:
        """Stop serving; False when the thread did not end in time."""
        self._server.end()
        if self._thread.ident is not None:
            self._thread.join(2 * STOP_LIMIT_S + TICK_S)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        try:
            self._server.run(sockets=[self._listener])
        except Exception:
            log.exception("the HTTP server ended by a bug in wattmesh; please report it")


class ApiServer:
    """Serves the API on a listening Unix socket."""

    def __init__(self, context: RequestContext, listening: Listening) -> None:
        """Prepare; nothing is served before `start`."""
        self._context = context
        self._listening = listening
        self._workers = Workers(WORKERS, "api")
        config = configured(build(context, self._workers))
        self._serving = Serving("api", config, listening.socket)

    def start(self) -> None:
        """Begin to serve; returns once requests are taken.

        Raises:
            CallHuman: the server did not come up.
        """
        if not self._serving.start():
            raise CallHuman(f"the HTTP server did not start within {START_LIMIT_S:.0f} s")

    def stop(self) -> bool:
        """Answer waiting calls and stop serving; False when the thread did not end in time."""
        self._context.changes.close()
        ended = self._serving.stop()
        self._workers.close()
        self._listening.close()
        return ended


class _Server(Server):
    """uvicorn's server, which sleeps until its end instead of waking ten times a second."""

    def __init__(self, config: Config) -> None:
        """Take uvicorn's configuration."""
        super().__init__(config)
        self.up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Make the server end; callable from any thread."""
        self.should_exit = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ending.set)

    async def main_loop(self) -> None:
        """Wait for the end."""
        self._loop = asyncio.get_running_loop()
        await self.on_tick(0)
        self.up.set()
        while not self.should_exit:
            await self._ending.wait()
