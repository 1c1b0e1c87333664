"""Secrets stay in their files: not in a log, the journal, a screen, metrics or a process list."""

import json
import os
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from tests import postgresql
from tests.agent.nodes import AGENTS
from tests.agent.test_api import certify
from tests.daemon.forking import start_anew
from tests.daemon.process import SETTINGS, DaemonProcess, daemon
from tests.daemon.waiting import wait_for
from wattmesh.controller.cli.main import main
from wattmesh.migrations.upgrade import upgrade
from wattmesh.telemetry.fake_nvml import FakeNvml

PASSWORD = "correct-horse-battery-staple-4711"
READ = ("/v1/status", "/v1/events", "/v1/tokens", "/v1/decisions", "/v1/runs", "/readyz")

DAEMON = """\
{agents}
[carbon.accounting]
provider = "electricity_maps"
zone = "GB"
key_file = "{folder}/map.key"
base_url = "http://127.0.0.1:9"
"""
API = """\
listen = "127.0.0.1:0"
tls_certificate = "{folder}/tls.pem"
tls_key = "{folder}/tls.key"
"""
NODE = """\
[power]
source = "agents"
library = "{library}"
[api]
socket = "{folder}/none.sock"
[agent]
node = "n1"
controller = "https://localhost:{port}"
ca_file = "{folder}/tls.pem"
token_file = "{folder}/agent.token"
outbox = "{folder}/agent.db"
metrics = "127.0.0.1:0"
deliver_s = 0.2
"""


def found_in(places: Mapping[str, str], secrets: Mapping[str, str]) -> list[str]:
    """Name each place in which a secret stands."""
    return [
        f"{name} in {place}"
        for place, text in places.items()
        for name, secret in secrets.items()
        if secret in text
    ]


def processes(folder: Path) -> Iterator[tuple[str, str]]:
    """Give command line and environment of every process that has to do with a folder."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(folder) in words:
                around = (entry / "environ").read_bytes().decode(errors="replace")
                yield f"process {words[:80]}", words + around


def tables(url: str) -> str:
    """Give everything that the journal holds, as text."""
    address = str(make_url(url).set(drivername="postgresql"))
    with psycopg.connect(address) as connection:
        names = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
        rows = (
            connection.execute(f"SELECT row_to_json(t)::text FROM {name} t".encode()).fetchall()
            for (name,) in names
        )
        return "\n".join(text for each in rows for (text,) in each)


def port_of(running: DaemonProcess, words: str) -> int:
    """Read a port from the log."""
    line = next(each for each in running.log.splitlines() if words in each)
    return int(line.rstrip("/metrics").replace(":", " ").split()[-1])


@pytest.fixture
def secrets(tmp_path: Path) -> dict[str, str]:
    """Every secret that a site has, in its file."""
    certify(tmp_path / "tls.pem", tmp_path / "tls.key")
    (tmp_path / "map.key").write_text("map-key-0123456789abcdef")
    (tmp_path / "password").write_text(PASSWORD)
    for name in ("tls.key", "map.key", "password"):
        (tmp_path / name).chmod(0o600)
    body = (tmp_path / "tls.key").read_text().splitlines()[1]
    return {"password": PASSWORD, "key of a provider": "map-key-0123456789abcdef", "TLS key": body}


def test_no_secret_is_anywhere_but_in_its_file(
    tmp_path: Path,
    postgresql_server: postgresql.Server,
    secrets: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a daemon and an agent that work with all of them, and of the commands about them."""
    with postgresql_server.fresh_database() as url:
        upgrade(url)
        text = SETTINGS.format(
            folder=tmp_path, more=DAEMON.format(agents=AGENTS, folder=tmp_path)
        ).replace(f'"sqlite:///{tmp_path}/journal.db"', f'"{url}"\npassword_file = "password"')
        text = text.replace("[metrics]", API.format(folder=tmp_path) + "[metrics]")
        with daemon(tmp_path, text=text, migrated=False, forked=False) as running:
            made = running.post("/v1/agents/n1/token", {}).body["token"]
            rotated = running.post("/v1/agents/n1/token/rotate", {}).body["token"]
            secrets |= {"token": made, "rotated token": rotated}
            delivered(tmp_path, running, rotated)
            places = {
                "the daemon's log": running.log,
                "the agent's log": (tmp_path / "agent.log").read_text(),
                "the journal": tables(url),
                **{each: json.dumps(running.get(each).body) for each in READ},
                "metrics": metrics(port_of(running, "metrics on")),
                **dict(processes(tmp_path)),
            }
            config = str(tmp_path / "wattmesh.toml")
            for words in (
                ("settings", "check", config, "--json"),
                ("doctor", "--config", config, "--json"),
                ("nodes", "token", "list", "--json", "--socket", str(running.socket)),
            ):
                main(words)
                said = capsys.readouterr()
                places[" ".join(words)] = said.out + said.err
    assert len([each for each in places if each.startswith("process")]) >= 1
    assert all(places.values())
    assert found_in(places, secrets) == []
    assert '"n1"' in places["/v1/tokens"], "the journal knows of the token"
    # The sabotaged twin: a log line with a token in it is found.
    places["the daemon's log"] += f"Authorization: Bearer {rotated}"
    assert found_in(places, secrets) == ["rotated token in the daemon's log"]


def delivered(folder: Path, running: DaemonProcess, token: str) -> None:
    """Let an agent deliver over TLS with a token, then end it."""
    port = port_of(running, "agents are served on")
    (folder / "agent.token").write_text(token)
    (folder / "agent.token").chmod(0o600)
    fake = FakeNvml.create(folder / "gpus", gpus=1)
    (folder / "node.toml").write_text(NODE.format(folder=folder, port=port, library=fake.library))
    with (folder / "agent.log").open("ab") as log:
        config = str(folder / "node.toml")
        agent = start_anew("wattmesh.controller.agent", "--config", config, log=log)
        try:
            wait_for(lambda: running.status()["power"]["gpus"] == 1, "the agent's GPU", 60.0)
            assert found_in(dict(processes(folder)), {"token": token}) == []
        finally:
            os.kill(agent.pid, 15)
            agent.wait(30.0)
    fake.close()


def metrics(port: int) -> str:
    """Scrape the daemon."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20.0) as answer:
        text: str = answer.read().decode()
    return text
