"""The way in for scrapes of /metrics, with a bound on those who connect and say nothing.

Invariant: so many connections in all and of one address are open, each for some seconds; what is
more is closed as it comes, and holds neither thread nor file.
"""

import logging
import socket
import threading
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from wattmesh.errors import FixInput
from wattmesh.reconfig.wire.link import cut_socket
from wattmesh.telemetry.concurrency_limit import ConcurrencyLimit

log = logging.getLogger(__name__)

MOST = 64
MOST_OF_ONE = 16
"""Connections of one address; a Prometheus and its pair need two."""

LIMIT_S = 10.0
"""From the connection to the end of the answer."""


class _Handler(WSGIRequestHandler):
    """Answers one request, and logs none."""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """A thread for each connection, and so many connections."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry) -> None:
        """Listen.

        Raises:
            OSError: the address cannot be had.
        """
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._places = ConcurrencyLimit(MOST, MOST_OF_ONE)
        super().__init__(address, _Handler)
        self.set_app(make_wsgi_app(registry))
        self._thread = threading.Thread(target=self.serve_forever, name="scrapes", daemon=True)

    @classmethod
    def started(cls, address: tuple[str, int], key: str, *collectors: Collector) -> "ScrapeServer":
        """Serve these metrics.

        Raises:
            FixInput: the address, which the setting `key` names, cannot be bound.
        """
        registry = CollectorRegistry(auto_describe=False)
        for each in collectors:
            registry.register(each)
        host, port = address
        try:
            server = cls(address, registry)
        except OSError as error:
            raise FixInput(
                f"cannot serve metrics on {host}:{port} ({error.strerror}); change {key}, or set "
                'it to "" for none'
            ) from error
        server.start()
        log.info("metrics on http://%s:%d/metrics", host, server.server_port)
        return server

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Take no further connections; those under way end with their limit."""
        self.shutdown()
        self.server_close()
        self._thread.join(1.0)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, or close it at once."""
        if not self._places.take(client_address[0]):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # No thread can begin.
            self._places.give_back(client_address[0])
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve it, for so long; a timeout of the socket alone would begin anew at each byte."""
        limit = threading.Timer(LIMIT_S, cut_socket, (request,))
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._places.give_back(client_address[0])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went, or was cut off."""
        log.debug("a scrape of %s ended", client_address[0], exc_info=True)
