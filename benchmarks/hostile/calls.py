"""The door of calls: everything that the published description allows, and what it does not.

A real daemon on SQLite, and on PostgreSQL where there is one. A stranger and an operator, each a
process of its own uid, send what Schemathesis makes of `/v1/openapi.json`: calls as described,
calls that break the description, and requests whose bytes were changed. Meanwhile the owner of a
run reports, beats and reads the status.

Invariant: a crash is an answer that the description does not have, a fault of the server's (5xx,
but for a quota of the caller's own), no answer at all, or a daemon that ended. Whatever is answered
to the owner but 200 is counted as a call of another user that was refused.
"""

import grp
import json
import os
import random
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from requests.adapters import HTTPAdapter
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

from benchmarks.daemon import usage
from benchmarks.hostile.tried import Cost, Tried, merged
from tests import postgresql
from tests.api import facts
from tests.daemon.process import ask, daemon
from wattmesh.migrations.upgrade import upgrade

STRANGER, GROUP = 12_345, "users"
OWNED = "6d1c9d0e-0000-4000-8000-00000000beef"
"""The stranger's own run: what is sent of it goes deeper than a refusal."""

SETTINGS = """\
mode = "act"
[journal]
url = "{url}"
[api]
socket = "{folder}/w.sock"
group = "{group}"
[metrics]
listen = "127.0.0.1:0"
[loops]
cycle_s = 0.5
sample_s = 0.5
[runs.llama-8b]
catalogue = "catalogue.toml"
deadline_after_s = 86400
"""

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
PATIENCE_S = 60.0


def measure(seed: int, count: int) -> Tried:
    """Send `count` calls to a daemon on each kind of journal there is."""
    with tempfile.TemporaryDirectory(prefix="wattmesh-") as folder:
        tried = [_tried(seed, count, Path(folder), f"sqlite:///{folder}/journal.db")]
    programs = postgresql.find_programs()
    if programs is not None:
        with (
            postgresql.running(programs) as server,
            server.fresh_database() as url,
            tempfile.TemporaryDirectory(prefix="wattmesh-") as folder,
        ):
            upgrade(url)
            tried.append(_tried(seed + 1, count, Path(folder), url))
    return merged("calls", tried)


def _tried(seed: int, count: int, folder: Path, url: str) -> Tried:
    """Send `count` calls to one daemon."""
    folder.chmod(0o755)
    (folder / "catalogue.toml").write_text(facts.CATALOGUE)
    text = SETTINGS.format(folder=folder, url=url, group=GROUP)
    kind = url.partition(":")[0].partition("+")[0]
    with daemon(folder, text=text, migrated=url.startswith("sqlite")) as running:
        with _owner(running.socket) as refused:
            parts = [
                _as_user(uid, _Client(running.socket, seed + uid, count // 2, running.process.pid))
                for uid in (STRANGER, 0)
            ]
        ended = running.process.poll()
        log = running.log
    crashes = [f"{kind}: {each}" for part in parts for each in part.crashes]
    if ended is not None:
        crashes.append(f"{kind}: the daemon ended with {ended}: {log[-200:]}")
    crashes += [f"{kind}: {line:.200}" for line in log.splitlines() if "this is a bug" in line]
    return Tried(
        door="calls",
        inputs=sum(each.inputs for each in parts),
        crashes=tuple(dict.fromkeys(crashes)),
        costs=tuple(
            Cost(f"{kind}, {cost.words}", cost.nbytes, cost.cpu_s, cost.mib)
            for each in parts
            for cost in each.costs
        ),
        others_refused=len(refused),
    )


@contextmanager
def _owner(path: Path) -> Iterator[list[str]]:
    """Be an ordinary job and an ordinary person until the block ends; lists what was refused."""
    refused: list[str] = []
    over = threading.Event()
    answer = ask(path, "POST", f"/v1/runs/{facts.RUN}/register", facts.register())
    assert answer.status == 200, answer.body

    def live() -> None:
        seq = 0
        while not over.wait(0.05):
            seq += 1
            calls = (
                ("POST", f"/v1/runs/{facts.RUN}/progress", facts.progress(seq=seq, step=seq)),
                ("POST", f"/v1/runs/{facts.RUN}/heartbeat", facts.heartbeat()),
                ("GET", "/v1/status", None),
            )
            for method, target, body in calls:
                try:
                    found = ask(path, method, target, body, timeout_s=PATIENCE_S)
                except OSError as error:
                    refused.append(f"{target}: {error}")
                    continue
                if found.status != 200:
                    refused.append(f"{target}: {found.body}")

    thread = threading.Thread(target=live)
    thread.start()
    try:
        yield refused
    finally:
        over.set()
        thread.join()


def _as_user(uid: int, client: "_Client") -> Tried:
    """Let a client send as a user, from a process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if uid:
                os.setgroups([])
                os.setgid(grp.getgrnam(GROUP).gr_gid)
                os.setuid(uid)
            os.write(write, json.dumps(client.send().as_json()).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise RuntimeError(f"the client of uid {uid} failed; its traceback is above")
    return Tried.from_json(json.loads(said))


@dataclass(slots=True)
class _Client:
    """Sends hostile calls. `daemon`: the pid whose use of the machine is looked at."""

    path: Path
    seed: int
    count: int
    daemon: int
    inputs: int = 0
    attempt: int = 0
    crashes: list[str] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)

    def send(self) -> Tried:
        """Send everything: two thirds by the description, as many as it has; the rest raw."""
        session = requests.Session()
        session.trust_env = False
        session.mount("http://wattmesh/", _UnixAdapter(self.path))
        described = session.get("http://wattmesh/v1/openapi.json").json()
        schema = schemathesis.openapi.from_dict(described)
        operations = [each.ok() for each in schema.get_all_operations()]
        each_s = max(1, self.count * 2 // 3 // (2 * len(operations)))
        for number, operation in enumerate(operations):
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                # Some operations can be called in no wrong way.
                with suppress(hypothesis.errors.Unsatisfiable), self._measured(operation.label):
                    self._own_run()
                    _examples(operation, mode, self.seed + number, each_s, self._call(session))
        rng = random.Random(self.seed)
        with self._measured("raw bytes"):
            for number in range(self.count // 3):
                self._raw(rng, f"seed {self.seed} raw {number}")
        return Tried(
            door="calls",
            inputs=self.inputs,
            crashes=tuple(self.crashes),
            costs=tuple(self.costs),
        )

    @contextmanager
    def _measured(self, words: str) -> Iterator[None]:
        """Note what the daemon used for some calls, as the mean of one."""
        before, inputs = usage(self.daemon), self.inputs
        yield
        after, calls = usage(self.daemon), max(1, self.inputs - inputs)
        mib = max(0.0, after.peak_mib - before.peak_mib)
        self.costs.append(Cost(words, 0, (after.cpu_s - before.cpu_s) / calls, mib / calls))

    def _own_run(self) -> None:
        """Launch the own run anew, for what was sent may have ended it."""
        self.attempt += 1
        body = facts.register(
            run=OWNED, name="own", incarnation=f"own-{self.attempt}", attempt=self.attempt
        )
        ask(self.path, "POST", f"/v1/runs/{OWNED}/register", body, timeout_s=PATIENCE_S)

    def _call(self, session: requests.Session) -> Callable[[Any], None]:
        """Send one call, in two of three cases about the own run."""

        def call(case: Any) -> None:
            self.inputs += 1
            if "run" in case.path_parameters and self.inputs % 3:
                case.path_parameters["run"] = OWNED
                if isinstance(case.body, dict) and "run" in case.body:
                    case.body |= {"run": OWNED, "incarnation": f"own-{self.attempt}"}
            if "wait" in (case.query or {}):
                case.query["wait"] = "0"
            words = f"seed {self.seed}: {case.method} {case.formatted_path} {case.body!r:.300}"
            try:
                answer = case.call("http://wattmesh", session=session, timeout=PATIENCE_S)
            except (requests.RequestException, OSError) as error:
                self.crashes.append(f"{words}: no answer: {error!s:.200}")
                return
            if answer.status_code == 503 and b"waits_per_user" in answer.content:
                return
            try:
                case.validate_response(answer, checks=CHECKS)
            except (ExceptionGroup, AssertionError) as error:
                told = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
                why = "; ".join(f"{type(each).__name__} {each!s:.200}" for each in told)
                said = answer.content[:200].decode(errors="replace")
                self.crashes.append(f"{words}: {answer.status_code} {said}: {why}")

        return call

    def _raw(self, rng: random.Random, words: str) -> None:
        """Send a request with changed bytes; the daemon may refuse or hang up, and goes on."""
        self.inputs += 1
        body = json.dumps(facts.progress(seq=1)).encode()
        content = bytearray(
            f"POST /v1/runs/{facts.RUN}/progress HTTP/1.1\r\nhost: w\r\nconnection: close\r\n"
            f"content-length: {rng.choice([len(body), len(body), -1, 10**30])}\r\n\r\n".encode()
            + body
        )
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(content))
            content[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 3))
        with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE_S)
            client.connect(str(self.path))
            client.sendall(content[: rng.choice([len(content), rng.randrange(len(content))])])
            client.shutdown(socket.SHUT_WR)
            head = client.recv(65536).split(b" ", 2)
            if len(head) > 1 and head[1].startswith(b"5"):
                self.crashes.append(f"{words}: answered {head[1]!r}: {bytes(content)[:200]!r}")


def _examples(
    operation: Any, mode: GenerationMode, seed: int, count: int, act: Callable[[Any], None]
) -> None:
    """Act on so many cases of an operation; the same seed gives the same cases."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def each(case: Any) -> None:
        act(case)

    each()


class _UnixAdapter(HTTPAdapter):
    """Lets requests speak to the daemon's socket."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._pool = _UnixPool(path)

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> HTTPConnectionPool:
        """Give the one pool there is."""
        return self._pool


class _UnixPool(HTTPConnectionPool):
    """Connections to one socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("wattmesh")
        self._path = path

    def _new_conn(self) -> HTTPConnection:
        connection = HTTPConnection("wattmesh", timeout=PATIENCE_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(PATIENCE_S)
        connection.sock.connect(str(self._path))
        return connection
