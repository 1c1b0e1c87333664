"""Two daemons on one PostgreSQL, and one node whose agent knows both: what `failover` breaks.

Every daemon reaches the server through a socket of ours, which can be cut, and as a database user
of its own, so that the server itself writes down who changed what. The agent reaches every daemon
through a socket that reads along and strikes when a run tells of a certain state. Invariant:
whatever was started is ended by its id.
"""

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import make_url

from tests import pgbouncer, postgresql
from tests.agent.nodes import AGENTS, Node, node
from tests.agent.proxy import whole
from tests.daemon.process import SETTINGS, DaemonProcess, ask, daemon
from wattmesh.migrations.upgrade import upgrade

NAMES = ("alpha", "beta")
LEASE_S = 2.0
PATIENCE_S = 60.0

AUDIT = """\
CREATE TABLE written (what text, how text, who text, leader text, at timestamptz);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
INSERT INTO written SELECT TG_TABLE_NAME, TG_OP, session_user,
  (SELECT holder FROM leadership), clock_timestamp(); RETURN NULL; END $$;
"""
LED = """\
CREATE TABLE led (holder text, at timestamptz);
CREATE FUNCTION note_leader() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
INSERT INTO led VALUES (NEW.holder, clock_timestamp()); RETURN NULL; END $$;
CREATE TRIGGER noted AFTER UPDATE ON leadership FOR EACH ROW
  WHEN (OLD.holder IS DISTINCT FROM NEW.holder) EXECUTE FUNCTION note_leader()
"""
NOTES = (
    "CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON {table} "
    "FOR EACH ROW EXECUTE FUNCTION note()"
)
OWN = ("alembic_version", "schema_floor", "leadership", "clock_marks", "events", "written", "led")
"""Tables that every daemon writes for itself, whoever leads."""


def until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Poll a condition until it holds; give its value."""
    ends_s = time.monotonic() + patience_s
    while not (value := condition()):
        if time.monotonic() > ends_s:
            raise TimeoutError(f"{what}: not within {patience_s:g} s")
        time.sleep(0.03)
    return value


class Wire:
    """A socket before another one; what it carries can be cut without a word, and healed."""

    def __init__(self, address: Path, target: Path) -> None:
        """Carry from `address` to `target`."""
        address.parent.mkdir(exist_ok=True)
        self._target = target
        self._passing = threading.Event()
        self._passing.set()
        self._open: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(address))
        self._listener.listen(64)
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """Carry nothing from now on; nobody is told, as when packets are lost."""
        self._passing.clear()

    def heal(self) -> None:
        """Carry what comes from now on; connections from before end."""
        self._passing.set()
        for each in tuple(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.heal()
        for each in self._threads:
            each.join(10.0)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                pair = threading.Thread(target=self._connect, args=(near,), daemon=True)
                self._threads.append(pair)
                pair.start()

    def _connect(self, near: socket.socket) -> None:
        """Carry both ways until one side ends."""
        with near, socket.socket(socket.AF_UNIX) as far, suppress(OSError):
            far.connect(str(self._target))
            self._open |= {near, far}
            back = threading.Thread(target=self._carry, args=(far, near), daemon=True)
            back.start()
            self._carry(near, far)
            back.join(10.0)
            self._open -= {near, far}

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                self._passing.wait()
                other.sendall(data)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Tap:
    """A socket before a daemon that reads along: the agent makes one connection for each call."""

    def __init__(self, address: Path, target: Path) -> None:
        """Carry calls from `address` to `target`."""
        self.strike: tuple[str, Callable[[], None]] | None = None
        self._target = target
        self._once = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(address))
        self._listener.listen(64)
        self.restarts = False
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """End it; calls under way end with their caller or their daemon."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for each in self._threads:
            each.join(10.0)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                call = threading.Thread(target=self._carry, args=(near,), daemon=True)
                self._threads = [each for each in self._threads if each.is_alive()]
                self._threads.append(call)
                call.start()

    def _carry(self, near: socket.socket) -> None:
        with near, socket.socket(socket.AF_UNIX) as far, suppress(OSError):
            call = whole(near)
            if b"/transitions" in call.partition(b"\r\n")[0]:
                body = json.loads(call.partition(b"\r\n\r\n")[2])
                self._struck(str(body.get("state")))
            if self.restarts and b"/register " in call.partition(b"\r\n")[0]:
                call = _without_in_place(call)
            far.settimeout(90.0)
            far.connect(str(self._target))
            far.sendall(call)
            answer = whole(far)
            if b"/order" in call.partition(b"\r\n")[0] and b'"plan"' in answer:
                self._struck("ordered")
            near.sendall(answer)

    def _struck(self, state: str) -> None:
        """Strike, once, if this is the state."""
        with self._once:
            if self.strike is not None and self.strike[0] == state:
                strike, self.strike = self.strike[1], None
                strike()


def _without_in_place(call: bytes) -> bytes:
    """Let a run introduce itself as one that can be moved by a restart only."""
    head, _, content = call.partition(b"\r\n\r\n")
    body = json.loads(content)
    body["capabilities"] = [each for each in body["capabilities"] if each != "in_place"]
    made = json.dumps(body).encode()
    lines = [
        b"Content-Length: %d" % len(made) if line.lower().startswith(b"content-length") else line
        for line in head.split(b"\r\n")
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + made


@dataclass(slots=True)
class Member:
    """One of the two daemons, and the ways to and from it."""

    name: str
    folder: Path
    text: str
    wire: Wire
    tap: Tap
    process: DaemonProcess | None = None
    life: ExitStack = field(default_factory=ExitStack)

    @property
    def socket(self) -> Path:
        """Where it listens itself."""
        return self.folder / "w.sock"

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self.life = ExitStack()
        self.process = self.life.enter_context(daemon(self.folder, text=self.text, migrated=False))

    def send(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.process.send_signal(number)

    def sentence(self) -> str:
        """Ask what its newest cycle did."""
        try:
            view = ask(self.socket, "GET", "/v1/status", timeout_s=10.0).body
        except OSError:
            return ""
        return str(view["cycle"]["sentence"])

    def leads(self) -> bool:
        """Ask whether it leads, as its own socket says."""
        try:
            answer = ask(self.socket, "GET", "/readyz", timeout_s=2.0)
        except OSError:
            return False
        return answer.status == 200 and bool(answer.body.get("leading"))


class Site:
    """The two daemons, the node, and what the server wrote down."""

    def __init__(self, folder: Path, database: str, members: tuple[Member, Member]) -> None:
        """Keep the parts."""
        self.folder, self.members = folder, members
        self.agent: Node | None = None
        self._database = psycopg.connect(database, autocommit=True)

    @property
    def leader(self) -> Member:
        """The one that leads now, as the journal says."""

        def named() -> Member | None:
            holder = self.rows("SELECT holder FROM leadership")
            here = [each for each in self.members if holder and str(each.folder) in holder[0][0]]
            return next((each for each in here if each.leads()), None)

        found: Member = until(named, "a leader")
        return found

    def now(self) -> Any:
        """Read the server's clock."""
        return self.rows("SELECT clock_timestamp()")[0][0]

    def led_since(self, one: Member, since: Any) -> Any:
        """Give when a daemon took the lead after a moment; None: it has not."""
        query = "SELECT min(at) FROM led WHERE at > %s AND position(%s in holder) > 0"
        return self.rows(query, since, str(one.folder))[0][0]

    def other(self, one: Member) -> Member:
        """The one that stands by."""
        return self.members[1] if one is self.members[0] else self.members[0]

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Ask the server."""
        done = self._database.execute(query.encode(), values or None)
        return done.fetchall() if done.description else []

    def close(self) -> None:
        """End the daemons and the ways between them."""
        for each in self.members:
            if each.process is not None:
                each.send(signal.SIGCONT)
            each.life.close()
            each.wire.close()
            each.tap.close()
        self._database.close()


@contextmanager
def site(folder: Path, server: postgresql.Server, *, pooled: bool, more: str) -> Iterator[Site]:
    """Bring both daemons and the agent up.

    Args:
        folder: an empty one with a short name.
        server: on which a database is made.
        pooled: whether the daemons go through pgbouncer in transaction mode.
        more: further settings of both.
    """
    with ExitStack() as stack:
        url = make_url(stack.enter_context(server.fresh_database()))
        upgrade(url.render_as_string())
        name = str(url.database)
        _audit(server, name)
        behind, port = server.socket_folder / ".s.PGSQL.5432", ""
        if pooled:
            pooler = stack.enter_context(pgbouncer.before(server, users=NAMES))
            behind, port = pooler.socket_folder / f".s.PGSQL.{pooler.port}", ""
        members = []
        for each in NAMES:
            home = folder / each
            home.mkdir()
            address = f"postgresql+psycopg://{each}@/{name}?host={home}/pg{port}"
            text = SETTINGS.format(folder=home, more=AGENTS + more)
            text = text.replace(f"sqlite:///{home}/journal.db", address)
            text = text.replace("lease_s = 2", f"lease_s = {LEASE_S:g}")
            made = Member(
                name=each,
                folder=home,
                text=text,
                wire=Wire(home / "pg" / ".s.PGSQL.5432", behind),
                tap=Tap(home / "tap", home / "w.sock"),
            )
            members.append(made)
        here = Site(folder, server.conninfo(name), (members[0], members[1]))
        stack.callback(here.close)
        for member in members:
            member.start()
        standbys = f'standbys = ["unix://{folder}/beta/tap"]'
        here.agent = stack.enter_context(
            node(folder, "n1", f"unix://{folder}/alpha/tap", more=standbys)
        )
        here.agent.start_actuator()
        here.agent.start()
        yield here


def _audit(server: postgresql.Server, name: str) -> None:
    """Let the server write down which user changes what, and who leads at that moment."""
    for each in NAMES:
        server.execute(
            f"DO $$ BEGIN CREATE ROLE {each} SUPERUSER LOGIN; "
            "EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        )
    with psycopg.connect(server.conninfo(name), autocommit=True) as connection:
        connection.execute(AUDIT.encode())
        connection.execute(LED.encode())
        tables = connection.execute(
            b"SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
        for (table,) in tables:
            if table not in OWN:
                connection.execute(NOTES.format(table=table).encode())
