"""`wattmesh doctor` and `status` by people who are not root, and of services that are not root."""

import json
import os
import pwd
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout
from importlib.resources import files
from io import StringIO
from pathlib import Path

import pytest

from tests.api.conftest import open_folder
from tests.api.stranger import STRANGER, needs_root
from tests.builders.journals import empty_journal
from wattmesh.controller.cli.doctor import checks, install_checks, journal_checks, service_checks
from wattmesh.controller.cli.doctor.findings import CheckStatus, Finding
from wattmesh.controller.cli.main import main
from wattmesh.controller.cli.services.install import hidden_part
from wattmesh.controller.settings import read as reader

__all__ = ["open_folder"]


def as_stranger(body: Callable[[], object]) -> object:
    """Run it in a forked child of another uid; give what it returned, as JSON carries it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            os.write(write, json.dumps(body()).encode())
        except BaseException as error:
            os.write(write, json.dumps(repr(error)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return json.loads(said)


def typed(*words: str) -> str:
    """Run a command; give its exit status and all that it printed."""
    out = StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        status = main(list(words))
    return f"{status} {out.getvalue()}"


def head_node(folder: Path) -> Path:
    """Make what a head node has: settings that all may read, and a state folder that is closed."""
    state = folder / "state"
    state.mkdir()
    (state / "journal.db").write_bytes(empty_journal())
    state.chmod(0o750)
    (key := folder / "carbon.key").write_text("k" * 32)
    key.chmod(0o600)
    config = folder / "wattmesh.toml"
    config.write_text(
        f'[journal]\nurl = "sqlite:///{state}/journal.db"\n[api]\nsocket = "{folder}/none.sock"\n'
        '[carbon.accounting]\nprovider = "electricity_maps"\nzone = "DE"\n'
        f'key_file = "{key}"\n'
    )
    return config


@needs_root
def test_an_operator_may_ask_what_is_wrong(open_folder: Path) -> None:
    """Who may not see the journal and the secrets hears so; no line of it is a bug or a problem."""
    config = head_node(open_folder)
    found = as_stranger(
        lambda: [(a.check, a.verdict, a.text) for a in checks.examine(config, None)]
    )
    verdicts = {check: (verdict, text) for check, verdict, text in found}  # type: ignore[attr-defined]
    assert verdicts["settings"][0] == "ok", verdicts
    verdict, text = verdicts["journal"]
    assert (verdict, "Permission denied" in text) == ("unknown", True), verdicts
    assert "disk" in verdicts


@needs_root
@pytest.mark.parametrize("words", [("status", "--socket", "none.sock"), ("db", "current")])
def test_an_operator_hears_that_the_journal_is_closed(
    open_folder: Path, words: tuple[str, ...]
) -> None:
    """While no daemon answers, `status` and `db current` say who may look, and call it no bug."""
    config = str(head_node(open_folder))
    said = str(as_stranger(lambda: typed(*words, "--config", config)))
    assert said.startswith("1 "), said
    assert f"is closed to uid {STRANGER}" in said
    assert "a bug" not in said


@needs_root
def test_settings_that_are_closed_are_not_to_be_written_anew(open_folder: Path) -> None:
    """Who may not read them is not sent to make some, but to who may."""
    config = head_node(open_folder)
    config.chmod(0o600)
    words = ("status", "--socket", "none.sock", "--config", str(config))
    said = str(as_stranger(lambda: typed(*words)))
    assert "run this as root" in said
    assert "settings sample" not in said


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A whole journal without a daemon."""
    (path := tmp_path / "journal.db").write_bytes(empty_journal())
    return path


def alter(path: Path, *statements: str) -> None:
    """Change a database by hand."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for each in statements:
            connection.execute(each)


NEWER = "UPDATE alembic_version SET version_num = '9999'"


def test_a_journal_that_the_daemon_refuses_is_a_problem(journal: Path) -> None:
    """An empty file, another program's database, a newer version's journal: none of them is ok."""
    assert journal_checks.file(journal).verdict is CheckStatus.OK
    alter(journal, NEWER)  # it was only added to
    assert journal_checks.file(journal).verdict is CheckStatus.OK
    alter(journal, "UPDATE schema_floor SET oldest = '9998'")
    newer = journal_checks.file(journal)
    assert (newer.verdict, newer.do.startswith("install the newer")) == (CheckStatus.PROBLEM, True)
    alter(journal, "DELETE FROM alembic_version")
    assert "holds no journal" in journal_checks.file(journal).text
    journal.write_bytes(b"")
    assert "is empty" in journal_checks.file(journal).text
    journal.write_bytes(b"notes of the day\n" * 1000)
    assert "damaged" in journal_checks.file(journal).text


def test_a_newer_journal_is_not_to_be_upgraded(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`db current` names what would help, and not the command that would not."""
    alter(journal, NEWER)
    assert main(["db", "current", "--url", f"sqlite:///{journal}"]) == 0
    said = capsys.readouterr().out
    assert "install that" in said
    assert "db upgrade" not in said


def shipped(folder: Path, config: Path, user: str = "nobody") -> Path:
    """Install the daemon's unit, with a user that every machine has."""
    text = (files("wattmesh.integrations") / "systemd" / "wattmesh.service").read_text()
    text = text.replace("User=wattmesh\n", f"User={user}\n")
    units = folder / "units"
    units.mkdir(exist_ok=True)
    (units / "wattmesh.service").write_text(
        text.replace("/etc/wattmesh/wattmesh.toml", str(config))
    )
    return units


def seen(config: Path, units: Path) -> list[Finding]:
    """Give what doctor, as root, says of the services' own view."""
    return list(service_checks.services(reader.load(config), config, units))


@needs_root
def test_a_secret_of_root_is_not_the_services(open_folder: Path) -> None:
    """Root finds the key in order, and the service cannot read it: the command that mends it."""
    config = head_node(open_folder)
    units = shipped(open_folder, config)
    dropin = units / "wattmesh.service.d"
    dropin.mkdir()
    (dropin / "here.conf").write_text("[Service]\nPrivateTmp=no\nProtectHome=no\n")
    os.chown(open_folder / "state", pwd.getpwnam("nobody").pw_uid, -1)
    (found,) = seen(config, units)
    assert "carbon.accounting.key_file" in found.text
    assert found.do == f"chown nobody {open_folder}/carbon.key"
    subprocess.run(found.do.split(), check=True)
    assert seen(config, units) == []
    open_folder.chmod(0o700)
    assert {each.do for each in seen(config, units)} == {f"chmod o+x {open_folder}"}


@needs_root
def test_what_the_unit_hides_is_a_problem(open_folder: Path) -> None:
    """Files below /home and /tmp are there for root, and not for the service."""
    config = head_node(open_folder)
    assert str(open_folder).startswith(("/tmp/", "/var/tmp/"))
    found = seen(config, shipped(open_folder, config))
    assert all("the unit hides /" in each.text for each in found)
    assert {"settings", "carbon.accounting.key_file", "journal.url"} <= {
        each.text.partition("(")[2].partition(")")[0] for each in found
    }


def test_a_user_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    """`systemd-sysusers` was forgotten: the service cannot start."""
    config = head_node(tmp_path)
    (found,) = seen(config, shipped(tmp_path, config, "no-such-user"))
    assert "runs as no-such-user" in found.text
    assert "systemd-sysusers" in found.do


def test_settings_of_another_place_are_not_the_services(tmp_path: Path) -> None:
    """A file that no unit names is judged for whoever asks, not for the service."""
    config = head_node(tmp_path)
    assert seen(config, shipped(tmp_path, Path("/etc/wattmesh/other.toml"))) == []


def test_a_python_that_the_unit_cannot_see(tmp_path: Path) -> None:
    """An environment in /opt whose Python lies below a home folder does not start."""
    program = tmp_path / "wattmesh"
    program.write_text(f"#!{tmp_path}/python\n")
    (tmp_path / "python").symlink_to("/root/.local/share/uv/python/bin/python3.11")
    real = Path(os.path.realpath(tmp_path))
    assert str(hidden_part(program)).startswith(("/root/", f"{real}/"))
    units = tmp_path / "units"
    units.mkdir()
    program.chmod(0o755)
    text = (files("wattmesh.integrations") / "systemd" / "wattmesh.service").read_text()
    (units / "wattmesh.service").write_text(
        text.replace("/opt/wattmesh/bin/wattmesh", str(program))
    )
    (found,) = install_checks.units(units)
    assert "cannot see that folder" in found.text
    assert hidden_part(Path("/bin/true")) is None


def test_a_head_node_that_has_an_agent_too_is_examined_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file for head and nodes: on the machine that serves agents the journal is looked at."""
    (token := tmp_path / "token").write_text("t" * 32)
    token.chmod(0o600)
    config = tmp_path / "wattmesh.toml"
    config.write_text(
        f'[journal]\nurl = "sqlite:///{tmp_path}/gone.db"\n[api]\nsocket = "{tmp_path}/w.sock"\n'
        f'[agent]\ncontroller = "https://127.0.0.1:1"\ntoken_file = "{token}"\n'
    )
    monkeypatch.setattr(install_checks, "UNITS", tmp_path)
    assert "journal" not in {each.check for each in checks.examine(config, None)}
    (tmp_path / "wattmesh.service").write_text("[Service]\n")
    found = {each.check: each.verdict for each in checks.examine(config, None)}
    assert found["journal"] is found["daemon"] is found["agent"] is CheckStatus.PROBLEM


def test_units_are_not_written_for_a_path_that_systemd_reads_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A blank or a percent sign in the program's path would make a unit that cannot start."""
    for name in ("my envs", "100%"):
        monkeypatch.setattr(sys, "executable", f"/opt/{name}/bin/python")
        assert main(["units", "daemon", "--install", str(tmp_path)]) == 1
        assert "systemd reads" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
