"""The likeliest mistakes of an operator: each is provoked, found, and its fix is said.

docs/operations.md lists them (`test_the_page_lists_them`); what runs well has no problem in
test_real_daemon.py.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests import postgresql
from tests.agent.test_api import TOKEN, Remote, certify, opened_to_agents
from tests.api.conftest import Served, open_folder, served, settings
from tests.api.stranger import STRANGER, needs_root
from tests.builders import messages
from tests.builders.journals import empty_journal, fresh
from wattmesh.controller.cli.doctor import checks, install_checks, power_checks, tls_checks
from wattmesh.controller.cli.doctor.checks import examine
from wattmesh.controller.cli.doctor.findings import CheckStatus, Finding
from wattmesh.controller.settings.model import AgentSection, ApiSection, Settings
from wattmesh.controller.settings.paths_and_times import credentials_folder

__all__ = ["open_folder", "served", "settings"]

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
PROVOKED: dict[str, str] = {}
"""By mistake, as the page has it: the function that provokes it."""

Provoke = Callable[..., None]


def mistake(words: str) -> Callable[[Provoke], Provoke]:
    """Note which line of the page a test provokes."""

    def note(test: Provoke) -> Provoke:
        PROVOKED[words] = test.__name__
        return test

    return note


def doctor(folder: Path, text: str = "", check: str = "", *, socket: str | None = None) -> Finding:
    """Write settings, examine the machine, and give the one problem of a check."""
    path = folder / "wattmesh.toml"
    lines = f'[api]\nsocket = "{folder}/none.sock"\n'
    if "[journal]" not in text:
        lines += f'[journal]\nurl = "sqlite:///{folder}/journal.db"\n'
    path.write_text(lines + text)
    return the(list(examine(path, socket)), check)


def the(found: list[Finding], check: str) -> Finding:
    """Give the one finding of a check that is not ok; its next step is said."""
    (one,) = [each for each in found if each.check == check and each.verdict is not CheckStatus.OK]
    assert one.do
    return one


@mistake("a typing mistake in the settings")
def test_a_typing_mistake(tmp_path: Path) -> None:
    """The key, what was meant, and the command that lists all of them."""
    found = doctor(tmp_path, "[loops]\ncycle = 5\n", "settings")
    assert "has 1 mistake: loops.cycle" in found.text
    assert "wattmesh settings check" in found.do


@mistake("no settings file")
def test_no_settings(tmp_path: Path) -> None:
    """The file that was looked for."""
    found = the(list(examine(tmp_path / "none.toml", None)), "settings")
    assert "none.toml" in found.text


@mistake("the daemon was never started")
def test_never_started(tmp_path: Path) -> None:
    """There is no journal and no socket: start it."""
    assert "systemctl start wattmesh" in doctor(tmp_path, "", "daemon").do
    assert "start the daemon once" in doctor(tmp_path, "", "journal").do


@mistake("the journal is damaged")
def test_a_damaged_journal(tmp_path: Path) -> None:
    """Restore it."""
    whole = bytearray(empty_journal())
    whole[8192:12288] = bytes(4096)
    (tmp_path / "journal.db").write_bytes(whole)
    found = doctor(tmp_path, "", "journal")
    assert "damaged" in found.text or "malformed" in found.text


@needs_root
@mistake("the daemon was run by hand as root")
def test_a_journal_of_another_user(tmp_path: Path) -> None:
    """Its files are root's, and the service may not write them: the command that mends it."""
    (tmp_path / "journal.db").write_bytes(empty_journal())
    os.chown(tmp_path, STRANGER, STRANGER)
    found = doctor(tmp_path, "", "journal")
    assert f"its folder to uid {STRANGER}" in found.text
    assert found.do == f"chown {STRANGER}:{STRANGER} {tmp_path}/journal.db"
    subprocess.run(found.do.split(), check=True)
    with pytest.raises(ValueError, match="not enough values"):
        doctor(tmp_path, "", "journal")


@mistake("PostgreSQL does not answer")
def test_no_server(tmp_path: Path) -> None:
    """Where it was looked for, and that it must be started."""
    url = f"postgresql+psycopg://wattmesh@/wattmesh?host={tmp_path}"
    found = doctor(tmp_path, f'[journal]\nurl = "{url}"\n', "journal")
    assert "does not answer" in found.text
    assert "start it" in found.do


@mistake("`wattmesh db upgrade` was forgotten")
def test_no_tables(tmp_path: Path, postgresql_url: str) -> None:
    """An empty database: the command."""
    found = doctor(tmp_path, f'[journal]\nurl = "{postgresql_url}"\n', "journal")
    assert "has no tables yet" in found.text
    assert "wattmesh db upgrade" in found.do


@mistake("nobody leads")
def test_nobody_leads(tmp_path: Path, postgresql_server: postgresql.Server) -> None:
    """Since when, and what tells why."""
    with postgresql_server.fresh_database() as url, closing(fresh(url)) as journal:
        text = f'[journal]\nurl = "{url}"\n'
        assert "no daemon leads on it" in doctor(tmp_path, text, "journal").text
        assert journal.leadership.acquire("one", 600.0) == 1
        with pytest.raises(ValueError, match="not enough values"):
            doctor(tmp_path, text, "journal")
        journal.leadership.release("one", 1)
        assert "leads on it since 20" in doctor(tmp_path, text, "journal").text


@mistake("the disk is full")
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much is left."""
    monkeypatch.setattr(checks, "LEAST_FREE_GIB", 1e9)
    assert "make room" in doctor(tmp_path, "", "disk").do


@mistake("no power source is set")
def test_no_power_source(tmp_path: Path) -> None:
    """Which sources there are."""
    assert '"agents" for those of others' in doctor(tmp_path, "", "power source").do


@mistake("a GPU does not answer")
def test_a_lost_gpu() -> None:
    """Its name, and what to look at; a GPU that is gone from the start is the daemon's to know."""
    found = power_checks.judged("power by nvml", [], ["GPU-lost"])
    assert "GPU-lost" in found.text
    assert "nvidia-smi -L" in found.do
    view: dict[str, Any] = {
        "power": {"trouble": "", "gpus": 7, "expected": 8},
        "trouble": [],
        "carbon": None,
    }
    (one,) = checks._of_status(view | {"accounting": None})
    assert "7 of 8 GPUs answer" in one.text


@mistake("the actuator is to act and does not run")
def test_no_actuator(tmp_path: Path) -> None:
    """What to look at."""
    text = f'[actuator]\nmode = "enforce"\nsocket = "{tmp_path}/actuator.sock"\n'
    assert "systemctl status wattmesh-actuator" in doctor(tmp_path, text, "actuator").do


@mistake("a run has no catalogue, in mode `act`")
def test_nothing_to_switch_to(tmp_path: Path) -> None:
    """And what makes one."""
    path = tmp_path / "wattmesh.toml"
    path.write_text(
        f'mode = "act"\n[journal]\nurl = "sqlite:///{tmp_path}/j.db"\n'
        f'[api]\nsocket = "{tmp_path}/none.sock"\n'
    )
    assert "configs profile" in the(list(examine(path, None)), "mode").do


@mistake("a catalogue has fewer than two validated points")
def test_one_point(tmp_path: Path) -> None:
    """Only validated ones are switched to."""
    text = messages.CATALOGUE.replace('"validated"', '"measured"', 1)
    (tmp_path / "catalogue.toml").write_text(text)
    found = doctor(
        tmp_path, '[runs.llama-8b]\ncatalogue = "catalogue.toml"\n', "catalogue llama-8b"
    )
    assert "2 points, 1 validated" in found.text
    assert "validate another one" in found.do


@mistake("no grid signal is set")
def test_no_signal(tmp_path: Path) -> None:
    """Nothing is booked: which section is missing."""
    assert "[carbon.accounting]" in doctor(tmp_path, "", "grid signal").do


@needs_root
@mistake("you are not in the group that may connect")
def test_not_in_the_group(served: Served) -> None:
    """Which group, and to log in again."""
    number = os.fork()
    if number == 0:
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            found = checks._daemon(str(served.socket))[1]
            os._exit(0 if "You may not open" in found.text and "log in again" in found.do else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 0


@mistake("a group of the settings is not there")
def test_no_group(tmp_path: Path) -> None:
    """The command that makes it."""
    api = ApiSection(group="no-such-group")
    (found,) = install_checks.groups(api)
    assert "there is no group no-such-group" in found.text
    assert "systemd-sysusers" in found.do


@mistake("the unit starts a program that is gone, or is of an older version")
def test_an_old_unit(tmp_path: Path) -> None:
    """The command that replaces it."""
    shipped = (files("wattmesh.integrations") / "systemd" / "wattmesh.service").read_text()
    unit = tmp_path / "wattmesh.service"
    unit.write_text(shipped.replace("/opt/wattmesh/bin/wattmesh", "/nowhere/wattmesh"))
    assert "which is not there" in the(list(install_checks.units(tmp_path)), "units").text
    unit.write_text(shipped.replace("/opt/wattmesh/bin/wattmesh", "/bin/true"))
    assert not list(install_checks.units(tmp_path))
    unit.write_text(unit.read_text().replace("ProtectHome=true\n", ""))
    found = the(list(install_checks.units(tmp_path)), "units")
    assert found.do.startswith("wattmesh units daemon --install / --replace")


@mistake("the settings were changed and not reloaded")
def test_not_reloaded() -> None:
    """What runs, what the file says, and the command."""
    (found,) = install_checks.running(Settings(), {"mode": "act"})
    assert "the file says observe, the daemon runs in act" in found.text
    assert found.do == "systemctl reload wattmesh"


@mistake("the certificate has expired, ends soon, or is not its key's")
def test_certificates(tmp_path: Path) -> None:
    """Agents are shut out: which file, and until when."""
    certify(pem := tmp_path / "a.pem", key := tmp_path / "a.key")
    now = datetime.now(UTC)
    assert re.search(
        r"ends at .* and agents are shut out", tls_checks.certificate(pem, key, now).text
    )
    early = tls_checks.certificate(pem, key, now - timedelta(days=30))
    assert early.verdict is CheckStatus.OK
    certify(tmp_path / "b.pem", other := tmp_path / "b.key")
    assert "do not fit" in tls_checks.certificate(pem, other, now).text
    expire(pem, key)
    assert "has expired" in tls_checks.certificate(pem, key, now).text


def test_a_credential_is_looked_for_where_systemd_takes_it(tmp_path: Path) -> None:
    """Whoever may look into the store sees the file; elsewhere, or for others, it stays unknown."""
    named = credentials_folder() / "wattmesh-tls.key"
    (store := tmp_path / "credstore").mkdir()
    assert tls_checks.loaded_from(named, (store,)) == named
    certify(tmp_path / "a.pem", store / named.name)
    assert tls_checks.loaded_from(named, (tmp_path, store)) == store / named.name
    assert tls_checks.loaded_from(tmp_path / named.name, (store,)) == tmp_path / named.name


def expire(certificate: Path, key: Path) -> None:
    """Make a certificate whose time is over."""
    folder = certificate.parent
    (folder / "ca.cnf").write_text(
        f"[ca]\ndefault_ca = own\n[own]\ndatabase = {folder}/index\nserial = {folder}/serial\n"
        f"new_certs_dir = {folder}\ndefault_md = sha256\npolicy = any\n"
        "[any]\ncommonName = supplied\n"
    )
    (folder / "index").touch()
    (folder / "serial").write_text("01")
    asked = ["req", "-new", "-key", str(key), "-subj", "/CN=localhost", "-out", f"{folder}/csr"]
    over = ["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"]
    signed = ["ca", "-batch", "-selfsign", "-notext", "-config", f"{folder}/ca.cnf", *over]
    signed += ["-keyfile", str(key), "-in", f"{folder}/csr", "-out", str(certificate)]
    for words in (asked, signed):
        subprocess.run(["openssl", *words], check=True, capture_output=True)


@pytest.fixture
def remote(served: Served) -> Iterator[Remote]:
    """A controller as agents of other nodes reach it."""
    with opened_to_agents(served, TOKEN) as opened:
        yield opened


def asked(remote: Remote, token: str = TOKEN, **changes: object) -> Finding:
    """Examine a node whose settings name that controller."""
    folder = remote.certificate.parent
    (folder / "token").write_text(token)
    section = AgentSection(
        node="n1", controller=remote.url, token_file=folder / "token", ca_file=remote.certificate
    ).model_copy(update=changes)
    (found,) = list(tls_checks.controllers(section))
    return found


@mistake("the node's token is missing, revoked, or another node's")
def test_tokens(served: Served, remote: Remote) -> None:
    """Which command makes one; the right one is ok, or told to ask again."""
    assert "does not know this node's token" in asked(remote, "x" * 32).text
    made = served.post("/v1/agents/n2/token", {}).body["token"]
    found = asked(remote, made)
    assert "the token is not n1's" in found.text
    assert "wattmesh nodes token make n1" in found.do
    assert asked(remote).verdict is not CheckStatus.PROBLEM
    served.post("/v1/agents/n2/token/revoke", {})
    assert "does not know" in asked(remote, made).text


@mistake("the controller is not reached, or its certificate not trusted")
def test_the_way_to_the_controller(remote: Remote) -> None:
    """What stands in the way, and which key of the settings it is."""
    assert "agent.ca_file" in asked(remote, ca_file=None).do
    assert "not trusted" in asked(remote, ca_file=None).text
    gone = asked(remote, controller="https://localhost:1")
    assert "nobody listens there" in gone.text
    assert "api.listen" in gone.do


@mistake("the clock is wrong, or nobody keeps it right")
def test_clocks() -> None:
    """By itself, and beside the daemon's."""
    now = datetime.now(UTC)
    assert "time service" in checks.clock(now.replace(year=2001), None, None).do
    apart = checks.clock(now, {"at": (now - timedelta(hours=2)).isoformat()}, True)
    assert "apart from the daemon's" in apart.text
    assert "timedatectl" in checks.clock(now, None, False).do


def test_the_page_lists_them() -> None:
    """At least twenty, in the words of the page, each with a test that provokes it."""
    section = PAGE.read_text().partition("## `wattmesh doctor`")[2].partition("\n## ")[0]
    listed = re.findall(r"(?m)^\| ([^|]+) \| ", section)[1:]
    assert [each for each in listed if "---" not in each] == list(PROVOKED)
    assert len(PROVOKED) >= 20
