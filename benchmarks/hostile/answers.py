"""The door of carbon answers: providers that answer anything, polled as the daemon polls them.

Each provider asks a server in a process of its own, which passes the grid server's honest answer on
and spoils it: parts replaced, bytes changed or missing, headers that lie, bombs. What the provider
makes of it goes through the poller into a real journal.

Invariant: a crash is any error but one of the tree (`WattmeshError`), or an intensity in the
journal that no grid has.
"""

import gzip
import json
import mmap
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from benchmarks.hostile.readers import peak_mib, reset_peak
from benchmarks.hostile.strange import replaced, written
from benchmarks.hostile.tried import Cost, Tried
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.signals.poller import Poller
from wattmesh.errors import WattmeshError
from wattmesh.integrations.carbon.electricity_maps import ElectricityMaps
from wattmesh.integrations.carbon.grid_server import GridServer
from wattmesh.integrations.carbon.neso import Neso
from wattmesh.integrations.carbon.reading.http import JsonHttp, RetryPolicy
from wattmesh.integrations.carbon.watttime import WattTime
from wattmesh.migrations.upgrade import upgrade
from wattmesh.telemetry.carbon import Provider

NOW = datetime(2026, 11, 20, 12, 10, tzinfo=UTC)
HALF_DAY = timedelta(hours=12)
MOST_G_PER_KWH = 2000
PATIENCE = RetryPolicy(connect_s=2.0, read_s=2.0, try_s=3.0, tries=1)

PROVIDERS: Mapping[str, Callable[[JsonHttp], Provider]] = {
    "electricity_maps": lambda http: ElectricityMaps(zone="DE", key="k", http=http),
    "watttime": lambda http: WattTime(zone="CAISO_NORTH", username="u", password="p", http=http),
    "neso": lambda http: Neso(http=http),
}


def measure(seed: int, count: int) -> Tried:
    """Poll each provider, one after the other, `count` times in all."""
    crashes: list[str] = []
    costs: list[Cost] = []
    sent = mmap.mmap(-1, 8)
    with tempfile.TemporaryDirectory() as folder, _spoiling(seed, sent) as server:
        url = f"sqlite:///{folder}/journal.db"
        upgrade(url)
        journal = Journal.open(url)
        for number in range(count):
            name = list(PROVIDERS)[number % len(PROVIDERS)]
            words = f"seed {seed} number {number}: {name}"
            http = JsonHttp(f"{server}/{number}/{name}", patience=PATIENCE, pause=lambda _: None)
            provider = PROVIDERS[name](http)
            sent[:] = bytes(8)
            before_mib, begin_s = reset_peak(), time.process_time()
            try:
                _ask(provider, journal)
            except WattmeshError:
                pass
            except Exception as error:
                crashes.append(f"{words}: {type(error).__name__}: {error!s:.200}")
            finally:
                http.close()
            mib = max(0.0, peak_mib() - before_mib)
            nbytes = int.from_bytes(sent[:])
            costs.append(Cost(words, nbytes, time.process_time() - begin_s, mib))
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
def _spoiling(seed: int, sent: mmap.mmap) -> Iterator[str]:
    """Run the server in a process of its own; gives its address. `sent` counts its bytes."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _serve(seed, sent, write)
        finally:
            os._exit(1)
    os.close(write)
    try:
        with os.fdopen(read) as told:
            yield told.readline().strip()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _serve(seed: int, sent: mmap.mmap, write: int) -> None:
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
                sent[:] = (int.from_bytes(sent[:]) + len(body)).to_bytes(8)
                with suppress(OSError):
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
        document = replaced(rng, document)
    return status, {}, written(document).encode()


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
    kinds: tuple[Callable[[], tuple[dict[str, str], bytes]], ...] = (
        lambda: ({"Content-Encoding": "gzip"}, gzip.compress(b" " * (64 << 20))),
        lambda: ({"Content-Encoding": "gzip"}, gzip.compress(b"[" * (4 << 20))),
        lambda: ({}, b"[" * 1_000_000),
        lambda: ({}, b'{"a":' * 200_000),
        lambda: ({}, b"9" * 3_000_000),
        lambda: ({}, b'{"data": [' + b",".join([json.dumps(row).encode()] * 30_000) + b"]}"),
        lambda: ({}, b'{"data": [' + b",".join([body or b"1"] * 50) + b"]}"),
        lambda: ({}, b" " * (8 << 20)),
    )
    headers, content = rng.choice(kinds)()
    return status, headers, content


SPOILING: tuple[Callable[[random.Random, int, bytes], Spoilt], ...] = (
    *(_parts, _parts, _parts, _parts, _parts, _parts),
    *(_bytes, _headers, _bombs),
)
"""Parts most often: whatever is not JSON ends at the first door behind this one."""
