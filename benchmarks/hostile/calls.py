"""The door of calls: everything that the published description allows, and what it does not.

A real daemon on SQLite, and on PostgreSQL where there is one. A stranger and an operator
(connections of their uids) send what Schemathesis makes of `/v1/openapi.json`: calls as described,
calls that break the description, and requests whose bytes were changed. Meanwhile the owner of a
run reports, beats and reads the status.

Invariant: a crash is an answer that the description does not have, a fault of the server's (5xx,
but for a quota of the caller's own), no answer at all, or a daemon that ended. Whatever is answered
to the owner but 200 is counted as a call of another user that was refused.
"""

import json
import random
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
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

from benchmarks.daemon.__main__ import usage
from benchmarks.hostile.others import training
from benchmarks.hostile.strange import replaced, written
from benchmarks.hostile.tried import Cost, Tried, merged
from tests import postgresql
from tests.api.stranger import GROUP, STRANGER, connecting
from tests.builders import messages
from tests.daemon.process import ask, daemon
from wattmesh.migrations.upgrade import upgrade
from wattmesh.reconfig.switch import SwitchState

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
EACH_LAUNCH = 20
"""Calls after which the own run is launched anew."""


def measure(seed: int, count: int) -> Tried:
    """Send `count` calls to a daemon on each kind of journal there is."""
    programs = postgresql.find_programs()
    tried = [on_sqlite(seed, count)]
    if programs is not None:
        with postgresql.running(programs) as server, server.fresh_database() as url:
            upgrade(url)
            tried.append(_tried(seed + 1, count, url))
    return merged("calls", tried)


def on_sqlite(seed: int, count: int) -> Tried:
    """Send `count` calls to a daemon on SQLite."""
    return _tried(seed, count, "")


def _tried(seed: int, count: int, url: str) -> Tried:
    """Send `count` calls to one daemon, on a journal at `url` or on SQLite."""
    with ExitStack() as stack:
        # Others may enter it, which pytest's own folders do not allow.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wattmesh-")))
        folder.chmod(0o755)
        (folder / "catalogue.toml").write_text(messages.CATALOGUE)
        kind = url.partition(":")[0].partition("+")[0] or "sqlite"
        url = url or f"sqlite:///{folder}/journal.db"
        text = SETTINGS.format(folder=folder, url=url, group=GROUP)
        running = stack.enter_context(daemon(folder, text=text, migrated=kind == "sqlite"))
        parts: list[Tried] = []
        owner = partial(ask, running.socket, timeout_s=PATIENCE_S)
        with training(owner, "/v1/status") as refused:
            for user, uid in enumerate((STRANGER, 0)):
                with connecting(running.socket, uid) as connect:
                    client = _Client(connect, seed + uid, count // 2, running.process.pid, user)
                    parts.append(client.send())
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


@dataclass(slots=True)
class _Client:
    """Sends hostile calls. `daemon`: the pid whose use of the machine is looked at."""

    connect: Callable[[], socket.socket]
    seed: int
    count: int
    daemon: int
    user: int
    inputs: int = 0
    attempt: int = 0
    crashes: list[str] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)

    def send(self) -> Tried:
        """Send everything: a third by the description, a third nearly right, a third raw.

        Too few for all of the description are dealt to both users: each operation gets right calls
        of one of them, and wrong ones of the other.
        """
        session = requests.Session()
        session.trust_env = False
        session.mount("http://wattmesh/", _Adapter(self.connect))
        described = session.get("http://wattmesh/v1/openapi.json").json()
        schema = schemathesis.openapi.from_dict(described)
        operations: list[Any] = [each.ok() for each in schema.get_all_operations()]  # type: ignore[union-attr]
        each_s = self.count // 3 // (2 * len(operations))
        at_least = max(1, each_s)
        for number, operation in enumerate(operations):
            for turn, mode in enumerate((GenerationMode.POSITIVE, GenerationMode.NEGATIVE)):
                if each_s == 0 and (number + turn + self.user) % 2:
                    continue
                # Some operations can be called in no wrong way.
                with suppress(hypothesis.errors.Unsatisfiable), self._measured(operation.label):
                    self._own_run(session)
                    _examples(operation, mode, self.seed + number, at_least, self._call(session))
        rng = random.Random(self.seed)
        with self._measured("nearly right"):
            for number in range(self.count // 3):
                if number % EACH_LAUNCH == 0:
                    self._own_run(session)
                self._nearly(session, rng, f"seed {self.seed} nearly {number}")
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

    def _own_run(self, session: requests.Session) -> None:
        """Launch the own run anew, for what was sent may have ended it."""
        self.attempt += 1
        body = messages.register(
            run=OWNED, name="own", incarnation=f"own-{self.attempt}", attempt=self.attempt
        )
        session.post(f"http://wattmesh/v1/runs/{OWNED}/register", json=body, timeout=PATIENCE_S)

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
            except (BaseExceptionGroup, AssertionError) as error:
                told = error.exceptions if isinstance(error, BaseExceptionGroup) else (error,)
                why = "; ".join(f"{type(each).__name__} {each!s:.200}" for each in told)
                said = answer.content[:200].decode(errors="replace")
                self.crashes.append(f"{words}: {answer.status_code} {said}: {why}")

        return call

    def _nearly(self, session: requests.Session, rng: random.Random, words: str) -> None:
        """Send a call as a job or an operator does, with one or two fields of another kind."""
        self.inputs += 1
        target, sound = rng.choice(self._sound())
        body: Any = json.loads(json.dumps(sound))
        for _ in range(rng.randint(1, 2)):
            body = replaced(rng, body)
        text = written(body)
        words = f"{words}: {target} {text[:300]!r}"
        url = f"http://wattmesh{target}"
        try:
            answer = session.post(url, data=text, timeout=PATIENCE_S)
            told = answer.json()
        except (requests.RequestException, OSError) as error:
            self.crashes.append(f"{words}: no answer: {error!s:.200}")
            return
        if answer.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR or not isinstance(told, dict):
            self.crashes.append(f"{words}: {answer.status_code} {answer.text[:200]}")

    def _sound(self) -> list[tuple[str, dict[str, Any]]]:
        """Calls as they should be, about the own run."""
        run = {"run": OWNED, "incarnation": f"own-{self.attempt}", "attempt": self.attempt}
        step = messages.transition("p", 1, SwitchState.ANNOUNCED, **run)
        jobs: dict[str, dict[str, Any]] = {
            "register": messages.register(name="own", **run),
            "progress": messages.progress(seq=self.inputs, step=self.inputs, **run),
            "heartbeat": messages.heartbeat(**run),
            "transitions": step,
            "finish": messages.finish(**run),
            "switch": {"point": "B", "reason": "because"},
            "retire": {"reason": "because"},
        }
        acts: dict[str, dict[str, Any]] = {
            "freeze": {"run": OWNED, "reason": "because"},
            "thaw": {"run": OWNED},
            "powercap": {"cap_w": 1e3, "until": "2027-01-01T00:00:00Z", "reason": "because"},
            "powercap/end": {},
        }
        return [
            *((f"/v1/runs/{OWNED}/{name}", body) for name, body in jobs.items()),
            *((f"/v1/{name}", body) for name, body in acts.items()),
        ]

    def _raw(self, rng: random.Random, words: str) -> None:
        """Send a request with changed bytes; the daemon may refuse or hang up, and goes on."""
        self.inputs += 1
        body = json.dumps(messages.progress(seq=1)).encode()
        content = bytearray(
            f"POST /v1/runs/{messages.RUN}/progress HTTP/1.1\r\nhost: w\r\nconnection: close\r\n"
            f"content-length: {rng.choice([len(body), len(body), -1, 10**30])}\r\n\r\n".encode()
            + body
        )
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(content))
            content[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 3))
        with suppress(OSError), self.connect() as client:
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


class _Adapter(HTTPAdapter):
    """Lets requests speak through sockets that somebody else connects."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        super().__init__()
        self._pool = _Pool(connect)

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> HTTPConnectionPool:
        """Give the one pool there is."""
        return self._pool


class _Pool(HTTPConnectionPool):
    """Connections to one daemon."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        super().__init__("wattmesh")
        self._connect = connect

    def _new_conn(self) -> HTTPConnection:
        connection = _Connection("wattmesh", timeout=PATIENCE_S)
        connection.connected = self._connect
        return connection


class _Connection(HTTPConnection):
    """One of them."""

    connected: Callable[[], socket.socket]

    def _new_conn(self) -> socket.socket:
        return self.connected()
