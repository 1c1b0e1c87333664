"""The door of carbon answers: providers that answer anything, polled as the daemon polls them.

Each provider asks a server in a process of its own, which passes the grid server's honest answer on
and spoils it: parts replaced, bytes changed or missing, headers that lie, bombs. What the provider
makes of it goes through the poller into a real journal.

Invariant: a crash is any error but one of the tree (`WattmeshError`), or an intensity in the
journal that no grid has.
"""

import gzip
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from benchmarks.hostile.readers import peak_mib, reset_peak
from benchmarks.hostile.tried import Cost, Tried
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.signals.poller import Poller
from wattmesh.errors import WattmeshError
from wattmesh.integrations.carbon.electricity_maps import ElectricityMaps
from wattmesh.integrations.carbon.grid_server import GridServer
from wattmesh.integrations.carbon.http import JsonHttp, Patience
from wattmesh.integrations.carbon.neso import Neso
from wattmesh.integrations.carbon.watttime import WattTime
from wattmesh.migrations.upgrade import upgrade
from wattmesh.telemetry.carbon import Provider

NOW = datetime(2026, 11, 20, 12, 10, tzinfo=UTC)
HALF_DAY = timedelta(hours=12)
MOST_G_PER_KWH = 2000
PATIENCE = Patience(connect_s=2.0, read_s=2.0, try_s=3.0, tries=1)

PROVIDERS: Mapping[str, Callable[[JsonHttp], Provider]] = {
    "electricity_maps": lambda http: ElectricityMaps(zone="DE", key="k", http=http),
    "watttime": lambda http: WattTime(zone="CAISO_NORTH", username="u", password="p", http=http),
    "neso": lambda http: Neso(http=http),
}

NASTY: tuple[Any, ...] = (
    *(None, True, "", "x", "\0", "\ud800", [], {}, [[]], [None], {"a": 1}, -1, 0, 2**63, 10**400),
    *(1e308, -1e308, float("nan"), float("inf"), "9999-12-31T23:59:59-12:00", "A" * 100_000),
    *("0001-01-01T00:00:00+12:00", "2026-11-20T12:00:00", "2026-13-45T99:99Z"),
)


def measure(seed: int, count: int) -> Tried:
    """Poll each provider, one after the other, `count` times in all."""
    crashes: list[str] = []
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory() as folder, _spoiling(seed) as server:
        url = f"sqlite:///{folder}/journal.db"
        upgrade(url)
        journal = Journal.open(url)
        for number in range(count):
            name = list(PROVIDERS)[number % len(PROVIDERS)]
            words = f"seed {seed} number {number}: {name}"
            http = JsonHttp(f"{server}/{number}/{name}", patience=PATIENCE, pause=lambda _: None)
            provider = PROVIDERS[name](http)
            before_mib, begin_s = reset_peak(), time.process_time()
            try:
                _ask(provider, journal)
            except WattmeshError:
                pass
            except Exception as error:
                crashes.append(f"{words}: {type(error).__name__}: {error!s:.200}")
            finally:
                provider.close()
            mib = max(0.0, peak_mib() - before_mib)
            costs.append(Cost(words, 0, time.process_time() - begin_s, mib))
            points = journal.carbon.observed(provider.signal, NOW - HALF_DAY, NOW)
            if not all(0 < point.g_per_kwh <= MOST_G_PER_KWH for point in points):
                crashes.append(f"{words}: an impossible intensity is in the journal")
                break
        journal.close()
    return Tried(door="carbon answers", inputs=count, crashes=tuple(crashes), costs=tuple(costs))


def _ask(provider: Provider, journal: Journal) -> None:
    """Ask for everything that a daemon asks for."""
    Poller(provider, journal).poll(NOW)
    provider.latest(NOW)
    provider.history(NOW - HALF_DAY, NOW, now=NOW)
    provider.forecast(24.0, now=NOW)


@contextmanager
def _spoiling(seed: int) -> Iterator[str]:
    """Run the server in a process of its own; gives its address."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _serve(seed, write)
        finally:
            os._exit(1)
    os.close(write)
    try:
        with os.fdopen(read) as told:
            yield told.readline().strip()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _serve(seed: int, write: int) -> None:
    """Pass answers of the grid server on, spoilt; never returns."""
    with GridServer(clock=lambda: NOW).serving() as honest:

        class Handler(BaseHTTPRequestHandler):
            """One request; the first part of its address numbers the input."""

            def do_GET(self) -> None:
                """Ask the honest server, and spoil what it says."""
                number, name, rest = self.path.removeprefix("/").split("/", 2)
                rng = random.Random(f"{number} {seed}")
                asked = Request(f"{honest.base(name)}/{rest}", headers=dict(self.headers))
                status, body = _honest(asked)
                status, headers, body = rng.choice(SPOILING)(rng, status, body)
                self.send_response(status)
                for key, value in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        os.write(write, f"http://127.0.0.1:{server.server_port}\n".encode())
        threading.Thread(target=_end_with_parent, daemon=True).start()
        server.serve_forever()


def _end_with_parent() -> None:
    """Let no server outlive who started it."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def _honest(asked: Request) -> tuple[int, bytes]:
    try:
        with urlopen(asked, timeout=10) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()


Spoilt = tuple[int, dict[str, str], bytes]


def _parts(rng: random.Random, status: int, body: bytes) -> Spoilt:
    """Replace one to three parts of the document."""
    document = json.loads(body)
    for _ in range(rng.randint(1, 3)):
        document = _replaced(rng, document)
    text = json.dumps(document).replace(f'"{_HUGE}"', "9" * 400)
    return status, {}, text.encode(errors="surrogatepass")


_HUGE = "a number of 400 digits"


def _replaced(rng: random.Random, part: Any) -> Any:
    """Go down into a document, and put something nasty into the place where one ends."""
    keys = list(part) if isinstance(part, dict) else list(range(len(part))) * isinstance(part, list)
    if not keys or rng.random() < 1 / 8:
        nasty = rng.choice(NASTY)
        return _HUGE if isinstance(nasty, int) and nasty > 2**70 else nasty
    key = rng.choice(keys)
    copy = dict(part) if isinstance(part, dict) else list(part)
    copy[key] = _replaced(rng, part[key])
    return copy


def _bytes(rng: random.Random, status: int, body: bytes) -> Spoilt:
    """Change, cut off or insert bytes."""
    content = bytearray(body or b"{}")
    for _ in range(rng.randint(1, 8)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    return status, {}, bytes(content[: rng.choice([len(content), rng.randrange(len(content))])])


def _headers(rng: random.Random, status: int, body: bytes) -> Spoilt:
    """Let headers lie."""
    status = rng.choice([status, 204, 301, 302, 401, 403, 404, 429, 500, 503, 599])
    lies = [
        {"Content-Length": str(len(body) + 7)},
        {"Content-Length": "9" * 30},
        {"Content-Encoding": "gzip"},
        {"Content-Type": "text/html; charset=utf-99"},
        {"Retry-After": rng.choice(["-1", "1e400", "x" * 5000, "Thu, 99 Foo 0000 00:00:00 GMT"])},
        {"Location": "http://127.0.0.1:9/"},
        {"Date": "never"},
    ]
    return status, rng.choice(lies), body


def _bombs(rng: random.Random, status: int, body: bytes) -> Spoilt:
    """Send little that becomes much, or much."""
    row = {"from": "2026-11-20T11:00Z", "to": "2026-11-20T11:30Z", "intensity": {"actual": 1}}
    made = rng.choice(
        [
            lambda: ({"Content-Encoding": "gzip"}, gzip.compress(b" " * (64 << 20))),
            lambda: ({"Content-Encoding": "gzip"}, gzip.compress(b"[" * (4 << 20))),
            lambda: ({}, b"[" * 1_000_000),
            lambda: ({}, b'{"a":' * 200_000),
            lambda: ({}, b"9" * 3_000_000),
            lambda: ({}, b'{"data": [' + b",".join([json.dumps(row).encode()] * 30_000) + b"]}"),
            lambda: ({}, b'{"data": [' + b",".join([body or b"1"] * 50) + b"]}"),
            lambda: ({}, b" " * (8 << 20)),
        ]
    )()
    return status, *made


SPOILING: tuple[Callable[[random.Random, int, bytes], Spoilt], ...] = (
    *(_parts, _parts, _parts, _parts, _parts, _parts),
    *(_bytes, _headers, _bombs),
)
"""Parts most often: whatever is not JSON ends at the first door behind this one."""
