"""A real PostgreSQL server for tests: private folder, Unix socket only, gone afterwards.

Invariant: nothing of it outlives the test session. It is stopped by its own process id, and the
kernel stops it when the test process dies first.
"""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

MISSING = (
    "PostgreSQL's server programs are not installed: run scripts/system-deps as root, "
    "or install your distribution's `postgresql` package"
)
START_DEADLINE_S = 60.0

IN_MEMORY = Path("/dev/shm")
"""Where a server is kept if there is room: most of what a fresh database costs is its 300 files."""
ROOM_BYTES = 2 << 30
"""Some fifteen times what the largest server of a session has needed."""

COPIED = "STRATEGY file_copy"
"""How a database comes to be: half the work of writing each of its pages to the log."""


def find_programs() -> Path | None:
    """Find the folder of `initdb` and `postgres`: the newest packaged one, or the one on PATH."""
    packaged = [
        path.parent
        for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")
        if path.parent.parent.name.isdigit()
    ]
    if packaged:
        return max(packaged, key=lambda folder: int(folder.parent.name))
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server. `socket_folder`: where its Unix socket is; the user is `wattmesh`."""

    socket_folder: Path
    process_id: int
    port: int = 5432

    def url(self, database: str) -> str:
        """Give the SQLAlchemy address of one of its databases."""
        port = "" if self.port == 5432 else f"&port={self.port}"
        return f"postgresql+psycopg://wattmesh@/{database}?host={self.socket_folder}{port}"

    def conninfo(self, database: str) -> str:
        """Give the address of one of its databases as psycopg takes it."""
        return f"host={self.socket_folder} port={self.port} user=wattmesh dbname={database}"

    def execute(self, statement: str) -> None:
        """Run one statement outside a transaction, in the server's own database."""
        with psycopg.connect(
            host=str(self.socket_folder), user="wattmesh", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(statement.encode())

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop the server and every process of it, so that it takes bytes and never answers."""
        stopped: list[int] = []
        try:
            # The parent first: it starts no further ones.
            for number in (self.process_id, *_children(self.process_id)):
                os.kill(number, signal.SIGSTOP)
                stopped.append(number)
            yield
        finally:
            for number in stopped:
                os.kill(number, signal.SIGCONT)

    @contextmanager
    def fresh_database(self) -> Iterator[str]:
        """Give the address of an empty database; drop it afterwards, whoever is still in it."""
        name = f"test_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name} {COPIED}")
        try:
            yield self.url(name)
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _children(parent: int) -> list[int]:
    """List the processes that a process started and that live."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def server_account() -> pwd.struct_passwd | None:
    """PostgreSQL refuses root: the account that stands in for it; None when we are not root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return pwd.getpwnam("postgres" if "postgres" in names else "nobody")


def _shelf() -> Path | None:
    """Give where memory has room for a server; None where it has not."""
    if not os.access(IN_MEMORY, os.W_OK) or shutil.disk_usage(IN_MEMORY).free < ROOM_BYTES:
        return None
    return IN_MEMORY


def _command(account: pwd.struct_passwd | None, *words: str) -> list[str]:
    """Prefix a command so that it runs as `account` and gets SIGINT when we die before it."""
    prefix = ["setpriv", "--pdeathsig=INT"]
    if account is not None:
        prefix += [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    return [*prefix, *words]


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the server takes connections; fail with its own log when it does not."""
    deadline = time.monotonic() + START_DEADLINE_S
    while True:
        try:
            server.execute("SELECT 1")
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {log.read_text()}") from error
            time.sleep(0.02)
        else:
            return


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask for a fast shutdown (SIGINT), then for an immediate one (SIGQUIT)."""
    for request in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        process.send_signal(request)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            continue
        return


@contextmanager
def running(programs: Path) -> Iterator[Server]:
    """Run a new server from `programs` for as long as the block lasts.

    Durability towards the disk is off (`fsync`): a test's database need not survive a power cut,
    while commits behave as always. It is kept in memory where there is room.
    """
    account = server_account()
    # A socket's path may be 107 bytes long at most, so not below pytest's own deep folders.
    with tempfile.TemporaryDirectory(prefix="wattmesh-pg-", dir=_shelf()) as name:
        folder = Path(name)
        if account is not None:
            os.chown(folder, account.pw_uid, account.pw_gid)
        data, log = folder / "data", folder / "log"
        initdb = [str(programs / "initdb"), "--no-sync", "--auth=trust", "--username=wattmesh"]
        subprocess.run(
            _command(account, *initdb, "--encoding=UTF8", "--locale=C", f"--pgdata={data}"),
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
        )
        options = ["-F", "-D", str(data), "-k", str(folder), "-c", "listen_addresses="]
        with log.open("wb") as sink:
            process = subprocess.Popen(
                _command(account, str(programs / "postgres"), *options),
                stdout=sink,
                stderr=sink,
                cwd=folder,
            )
        server = Server(socket_folder=folder, process_id=process.pid)
        try:
            _wait_until_ready(server, process, log)
            yield server
        finally:
            _stop(process)
