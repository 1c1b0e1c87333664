"""`wattmesh status` with an odd standard output, and with a socket away from its usual place."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli import facts
from tests.cli.answering import answering
from wattmesh.controller.cli import client
from wattmesh.controller.cli.main import main

STATUS = (sys.executable, "-m", "wattmesh.controller.cli.main", "status", "--socket")


def status(folder: Path, shell: str = "", **environment: str) -> tuple[int, str, str]:
    """Ask a daemon for its status in a process of its own; `shell`: what follows the command."""
    with answering(folder / "s", {"/v1/status": (200, facts.status())}):
        ran = subprocess.run(
            ["sh", "-c", f'"$@" {shell}', "sh", *STATUS, str(folder / "s")],
            capture_output=True,
            env=os.environ | environment,
            check=False,
        )
    return ran.returncode, ran.stdout.decode("latin-1"), ran.stderr.decode()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_console_without_our_signs(tmp_path: Path, encoding: str) -> None:
    """A serial console, or an old locale: the screen is whole, with `?` for what it lacks."""
    code, screen, said = status(tmp_path, PYTHONIOENCODING=encoding)
    assert (code, said) == (0, "")
    assert "wattmesh" in screen
    assert "llama-8b" in screen
    assert "?" in screen


def test_json_loses_nothing_there(tmp_path: Path) -> None:
    """What the console lacks is written as an escape."""
    view: dict[str, Any] = facts.status() | {"host": "höst ▃"}
    with answering(tmp_path / "s", {"/v1/status": (200, view)}):
        ran = subprocess.run(
            [*STATUS, str(tmp_path / "s"), "--json"],
            capture_output=True,
            env=os.environ | {"PYTHONIOENCODING": "ascii"},
            check=True,
        )
    assert json.loads(ran.stdout)["host"] == "höst ▃"


def test_no_standard_output_at_all(tmp_path: Path) -> None:
    """Closed by whoever started the command."""
    assert status(tmp_path, ">&-") == (0, "", "")


def test_a_full_disk_behind_standard_output(tmp_path: Path) -> None:
    """One sentence, and not a bug."""
    code, _, said = status(tmp_path, "> /dev/full")
    assert code == 1
    assert said == (
        "wattmesh: what it has to say cannot be written (No space left on device): make room, or "
        "name another place for its output\n"
    )


def test_a_socket_that_only_the_settings_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is at the usual place: the daemon is asked where its settings put it."""
    monkeypatch.setattr(client, "DEFAULT_SOCKET", str(tmp_path / "none.sock"))
    monkeypatch.setattr("wattmesh.controller.cli.runs.quick.DEFAULT_SOCKET", client.DEFAULT_SOCKET)
    monkeypatch.delenv("WATTMESH_URL", raising=False)
    config = tmp_path / "wattmesh.toml"
    config.write_text('[api]\nsocket = "s"\n')
    with answering(tmp_path / "s", {"/v1/status": (200, facts.status())}):
        assert main(["status", "--config", str(config)]) == 0
        assert "llama-8b" in capsys.readouterr().out
        # A socket that was named is the one that was meant.
        assert main(["status", "--config", str(config), "--socket", f"{tmp_path}/other"]) == 1
    capsys.readouterr()
    assert main(["status", "--config", str(config)]) == 1
    assert str(tmp_path / "s") in capsys.readouterr().err
    config.write_text("[api]\nsocket = 7\n")
    assert main(["status", "--config", str(config)]) == 1
    assert "none.sock" in capsys.readouterr().err
