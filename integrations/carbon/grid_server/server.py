"""The server: one address for all providers, each under its own prefix.

`/electricity_maps/v4/...`, `/watttime/login`, `/neso/intensity/...`, `/neso/api/3/action/...` (its
data portal), `/eia930/v2/...`,
`/http_json/now/DE`, `/entsoe/api`, `/open_meteo/v1/forecast`, `/open_electricity/v4/...`;
`/control/...` switches faults.
Invariant: values depend on the grid and on the
clock alone, so a virtual year can drive it; requests are counted whatever becomes of them.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.grid_server import (
    eia930,
    electricity_maps,
    entsoe,
    http_json,
    neso,
    open_electricity,
    watttime,
)
from wattmesh.integrations.carbon.grid_server.answers import (
    ReceivedRequest,
    Reply,
    Request,
    ServedProvider,
)
from wattmesh.integrations.carbon.grid_server.control import controlled
from wattmesh.integrations.carbon.grid_server.exogenous import neso_portal, open_meteo
from wattmesh.integrations.carbon.grid_server.faults import (
    ActiveFault,
    AnswerFaults,
    Fault,
    FaultBook,
)
from wattmesh.integrations.carbon.grid_server.grids import SimulatedGrid
from wattmesh.integrations.carbon.grid_server.spoiled import instead_of, sent

MOST_ASKED = 1 << 17
"""Requests remembered; older ones are forgotten."""

ZONE_OF: dict[ServedProvider, Callable[[Request], str]] = {
    ServedProvider.ELECTRICITY_MAPS: electricity_maps.zone_of,
    ServedProvider.WATTTIME: watttime.zone_of,
    ServedProvider.NESO: neso.zone_of,
    ServedProvider.EIA930: eia930.zone_of,
    ServedProvider.HTTP_JSON: http_json.zone_of,
    ServedProvider.ENTSOE: entsoe.zone_of,
    ServedProvider.OPEN_METEO: open_meteo.zone_of,
    ServedProvider.OPEN_ELECTRICITY: open_electricity.zone_of,
}


def utc_now() -> datetime:
    """Give the time of this machine."""
    return datetime.now(UTC)


@dataclass(slots=True, kw_only=True)
class GridServer:
    """All providers on one local address.

    Attributes:
        clock: what time it is; give your own to run a virtual year.
        keys: API keys that are known; empty: every key will do.
        accounts: WattTime's passwords by user; empty: any will do.
        neso_delay, eia_lag: how long after its end an interval is published.
        asked: the requests so far, oldest first.
        url: the address, without a slash at its end; "" while not serving.
    """

    clock: Callable[[], datetime] = utc_now
    grid: SimulatedGrid = field(default_factory=SimulatedGrid)
    keys: frozenset[str] = frozenset()
    accounts: dict[str, str] = field(default_factory=dict)
    neso_delay: timedelta = timedelta()
    eia_lag: timedelta = timedelta(hours=6)
    asked: list[ReceivedRequest] = field(default_factory=list)
    url: str = ""
    faults: FaultBook = field(default_factory=FaultBook)
    tokens: watttime.Tokens = field(init=False)
    released: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.tokens = watttime.Tokens(self.accounts)

    def base(self, service: ServedProvider | str) -> str:
        """Give the address under which a provider answers: what `base_url` must be."""
        version = {ServedProvider.ELECTRICITY_MAPS: "/v4", ServedProvider.EIA930: "/v2"}
        return f"{self.url}/{service}{version.get(ServedProvider(service), '')}"

    def fail(
        self,
        fault: Fault,
        *,
        provider: ServedProvider | str | None = None,
        zone: str = "",
        path: str = "",
        times: int | None = None,
        during: tuple[datetime | None, datetime | None] = (None, None),
        about: tuple[datetime, datetime] | None = None,
        retry_after_s: int = 60,
    ) -> None:
        """Switch a fault on; `ActiveFault` says what the arguments mean.

        Raises:
            InputInvalid: no such provider, or it cannot have that fault.
        """
        if provider is not None and provider not in set(ServedProvider):
            names = ", ".join(ServedProvider)
            raise InputInvalid(f"no provider {provider!r}; there are {names}")
        self.faults.add(
            ActiveFault(
                fault=fault,
                service=None if provider is None else ServedProvider(provider),
                zone=zone,
                path=path,
                times=times,
                during=during,
                about=about,
                retry_after_s=retry_after_s,
            )
        )

    def mend(self, fault: Fault | None = None, *, provider: ServedProvider | None = None) -> None:
        """Switch off one fault, those of one provider, or all."""
        self.faults.clear(fault, provider)

    def count(self, service: ServedProvider | str, path: str = "") -> int:
        """Give how many requests a provider got whose path contains `path`."""
        with self._lock:
            return sum(each.service == service and path in each.path for each in self.asked)

    def note(self, asked: ReceivedRequest) -> None:
        """Count a request."""
        with self._lock:
            self.asked.append(asked)
            if len(self.asked) > MOST_ASKED:
                del self.asked[: MOST_ASKED // 2]

    def answer(self, service: ServedProvider, request: Request) -> tuple[Reply, AnswerFaults]:
        """Answer a request, with the faults that still have to be done to its bytes."""
        path = "/".join(request.path)
        zone = ZONE_OF[service](request)
        suffering = self.faults.take(service, zone, path, request.now)
        rule = suffering.instead()
        if rule is not None:
            if rule.fault is Fault.TOKEN_EXPIRED:
                self.tokens.void()
            reply = instead_of(rule, service, request.now, self.url)
            if reply is not None:
                return reply, suffering
        return self._whole(service, request, suffering), suffering

    def _whole(self, service: ServedProvider, request: Request, suffering: AnswerFaults) -> Reply:
        """Give the answer of a provider that is up."""
        if service is ServedProvider.ELECTRICITY_MAPS:
            return electricity_maps.answer(request, self.grid, suffering, self.keys)
        if service is ServedProvider.WATTTIME:
            return watttime.answer(request, self.grid, suffering, self.tokens)
        if service is ServedProvider.NESO:
            if request.path[:1] == ("api",):
                return neso_portal.answer(request, suffering)
            return neso.answer(request, self.grid, suffering, self.neso_delay)
        if service is ServedProvider.EIA930:
            return eia930.answer(request, self.grid, suffering, self.keys, self.eia_lag)
        return self._whole_of_others(service, request, suffering)

    def _whole_of_others(
        self, service: ServedProvider, request: Request, suffering: AnswerFaults
    ) -> Reply:
        if service is ServedProvider.ENTSOE:
            return entsoe.answer(request, self.grid, suffering, self.keys)
        if service is ServedProvider.OPEN_ELECTRICITY:
            return open_electricity.answer(request, self.grid, suffering, self.keys)
        if service is ServedProvider.OPEN_METEO:
            return open_meteo.answer(request, suffering)
        return http_json.answer(request, self.grid, suffering, self.keys)

    @contextmanager
    def serving(self, host: str = "127.0.0.1", port: int = 0) -> Iterator["GridServer"]:
        """Serve for as long as the block runs; port 0: a free one.

        Raises:
            OSError: the address is in use or not ours.
        """
        handler = type("Handler", (_Handler,), {"server_of_grids": self})
        with _Http((host, port), handler) as http:
            self.url = f"http://{host}:{http.server_port}"
            thread = threading.Thread(target=http.serve_forever, args=(0.02,))
            thread.start()
            try:
                yield self
            finally:
                self.released.set()
                http.shutdown()
                thread.join()


class _Http(ThreadingHTTPServer):
    """Threads that nobody waits for, and that say nothing when a client hangs up."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what is not a client that hung up."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server_of_grids: GridServer
    protocol_version = "HTTP/1.1"
    # One packet per answer: with two, delayed acknowledgements cost 40 ms each.
    wbufsize = 1 << 16
    timeout = 60

    def do_GET(self) -> None:
        """Answer, or misbehave."""
        self._respond()

    def do_POST(self) -> None:
        """Switch faults, or register."""
        self._respond()

    def do_DELETE(self) -> None:
        """Switch faults off."""
        self._respond()

    def _respond(self) -> None:
        server = self.server_of_grids
        parts = urlsplit(self.path)
        first, *rest = [part for part in parts.path.split("/") if part] or [""]
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        service = ServedProvider(first) if first in set(ServedProvider) else None
        now = server.clock()
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(path=tuple(rest), query=_query(parts.query), headers=headers, now=now)
        quiet = AnswerFaults(now=now)
        try:
            if first == "control":
                sent(self, controlled(self.command, rest, body, server), quiet, server.released)
                return
            server.note(ReceivedRequest(service=service, path=self.path, key=_key(request), at=now))
            if service is None:
                sent(self, Reply(status=404, body={"error": NOWHERE}), quiet, server.released)
            else:
                sent(self, *server.answer(service, request), server.released)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def date_time_string(self, timestamp: float | None = None) -> str:
        """Give the `Date` of an answer: the server's own time, as in everything else it says."""
        return format_datetime(self.server_of_grids.clock(), usegmt=True)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


NOWHERE = "begin the path with a provider: " + ", ".join(ServedProvider)


def _query(text: str) -> dict[str, str]:
    """Read parameters; several values of one name are joined by commas."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


def _key(request: Request) -> str:
    headers = request.headers
    return (
        headers.get("auth-token")
        or headers.get("authorization")
        or request.query.get("api_key", "")
        or request.query.get("securityToken", "")
    )
