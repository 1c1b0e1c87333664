"""A real pgbouncer before the tests' PostgreSQL, in transaction mode: private, gone afterwards."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests import postgresql

MISSING = "pgbouncer is not installed: run scripts/system-deps as root, or install that package"
START_DEADLINE_S = 30.0

SETTINGS = """\
[databases]
* = host={server}
[pgbouncer]
listen_addr =
unix_socket_dir = {folder}
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 4
max_client_conn = 200
logfile =
pidfile = {folder}/pid
user = {user}
{more}
"""


def program() -> str | None:
    """Find pgbouncer; None: it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def before(
    server: postgresql.Server, more: str = "", users: Sequence[str] = ()
) -> Iterator[postgresql.Server]:
    """Run one before `server`, with `more` settings; its databases are those of the server.

    `users`: of the server, beside its own, who may come through it.
    """
    command = program()
    assert command is not None, MISSING
    with tempfile.TemporaryDirectory(prefix="wattmesh-pb-") as name:
        folder = Path(name)
        # Not as root, which pgbouncer refuses; as the server's account, for its folder is closed.
        account = postgresql.server_account() or pwd.getpwuid(os.geteuid())
        user = account.pw_name
        shutil.chown(folder, user)
        settings = folder / "pgbouncer.ini"
        settings.write_text(
            SETTINGS.format(server=server.socket_folder, folder=folder, user=user, more=more)
        )
        listed = "".join(f'"{each}" ""\n' for each in ("wattmesh", *users))
        (folder / "users").write_text(listed)
        with (folder / "log").open("wb") as sink:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig=INT", command, str(settings)], stdout=sink, stderr=sink
            )
        made = postgresql.Server(socket_folder=folder, process_id=process.pid, port=6432)
        try:
            _wait_until_ready(made, process, folder / "log")
            yield made
        finally:
            process.terminate()
            process.wait(START_DEADLINE_S)


def _wait_until_ready(made: postgresql.Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_DEADLINE_S
    while True:
        try:
            with psycopg.connect(made.conninfo("postgres")) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"pgbouncer did not start: {log.read_text()[-2000:]}") from error
            time.sleep(0.05)
        else:
            return
