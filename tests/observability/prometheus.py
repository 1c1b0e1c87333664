"""A real Prometheus and a real Alertmanager, each private to a test and stopped by its id."""

import http.client
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from tests.daemon.waiting import wait_for


def free_port() -> int:
    """Find a port of this machine that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServer:
    """One HTTP server of this machine."""

    port: int
    folder: Path

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def get(self, path: str, **query: str) -> Any:
        """Ask for JSON; None while nobody listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", f"{path}?{urlencode(query)}" if query else path)
            return json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()

    def query(self, expression: str, at_s: float | None = None) -> Any:
        """Run PromQL; give the answer with its `status`."""
        more = {} if at_s is None else {"time": str(at_s)}
        return self.get("/api/v1/query", query=expression, **more)

    def vector(self, expression: str) -> list[dict[str, Any]]:
        """Run PromQL that must succeed; give its samples."""
        answer = self.query(expression)
        assert answer is not None, "Prometheus does not answer"
        assert answer["status"] == "success", (expression, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found


@contextmanager
def prometheus(
    folder: Path, config: Mapping[str, Any], *, ready: str = "/-/ready"
) -> Iterator[LocalServer]:
    """Run a Prometheus with these settings."""
    folder.mkdir(exist_ok=True)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(dict(config)))
    port = free_port()
    command = [
        _program("prometheus"),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with _running(command, folder / "prometheus.log"):
        server = LocalServer(port=port, folder=folder)
        wait_for(lambda: _answers(server, ready), "Prometheus ready")
        yield server


@contextmanager
def alertmanager(folder: Path, config: Mapping[str, Any]) -> Iterator[LocalServer]:
    """Run an Alertmanager that is alone: it looks for no others."""
    folder.mkdir(exist_ok=True)
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(dict(config)))
    port = free_port()
    command = [
        _program("prometheus-alertmanager", "alertmanager"),
        f"--config.file={folder}/alertmanager.yml",
        f"--storage.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        "--log.level=warn",
    ]
    with _running(command, folder / "alertmanager.log"):
        server = LocalServer(port=port, folder=folder)
        wait_for(lambda: _answers(server, "/-/ready"), "Alertmanager ready")
        yield server


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[None]:
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20.0)
        if process.poll() is None:
            process.kill()
            process.wait()


def _answers(server: LocalServer, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _program(*names: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    assert found is not None, f"{names[0]} is not installed: run scripts/system-deps"
    return found
