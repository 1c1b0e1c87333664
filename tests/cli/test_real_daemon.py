"""Every command against a real daemon and its real journal; then with the daemon killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.builders.points import point
from wattmesh.controller.cli.client import DaemonConnection, DaemonUnreachable
from wattmesh.controller.cli.main import main
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Catalogue
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.messages import Progress, Register
from wattmesh.telemetry.fake_nvml import FakeNvml

READY_S = 30.0
A, B = Layout(dp_shard=2, tp=2), Layout(tp=2)
ROWS = "\n".join(
    f"GB,2023-06-14T{hour:02d}:{half}:00Z,{150 + 3 * hour},average,direct,{152 + 3 * hour}"
    for hour in range(24)
    for half in ("00", "30")
)
HEAD = (
    "zone,timestamp_utc,carbon_intensity_gco2eq_per_kwh,kind,emission_factor_type,"
    "forecast_gco2_per_kwh"
)
SETTINGS = """\
mode = "act"
[journal]
url = "sqlite:///{folder}/journal.db"
trust_clock = true
[api]
socket = "{folder}/w.sock"
[metrics]
listen = ""
[loops]
cycle_s = 0.2
sample_s = 0.2
[power]
source = "nvml"
library = "{folder}/gpus/libnvidia-ml.so.1"
[carbon.accounting]
provider = "csv"
zone = "GB"
file = "{folder}/trace.csv"
plays_at = {now}
[runs.llama]
catalogue = "{folder}/catalogue.toml"
baseline = "A"
deadline_after_s = 3600
[budget.cluster]
grams = 1000.0
"""


@dataclass(frozen=True, slots=True)
class Site:
    """A folder with settings, a journal and a daemon."""

    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def socket(self) -> str:
        """The daemon's socket."""
        return str(self.folder / "w.sock")

    @property
    def config(self) -> str:
        """The daemon's settings."""
        return str(self.folder / "wattmesh.toml")

    def api(self) -> DaemonConnection:
        """Reach the daemon."""
        return DaemonConnection(self.socket)


def write_site(folder: Path) -> None:
    """Write trace, GPUs, catalogue and settings."""
    (folder / "trace.csv").write_text(f"{HEAD}\n{ROWS}\n")
    FakeNvml.create(folder / "gpus", 4)
    points = tuple(
        point(name, layout, 400.0 * layout.world_size, 700.0 * layout.world_size)
        for name, layout in {"A": A, "B": B}.items()
    )
    catalogue = Catalogue(job="llama", tokens_total=10**6, reference="A", points=points)
    catalogue_file.save(catalogue, folder / "catalogue.toml")
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    (folder / "wattmesh.toml").write_text(SETTINGS.format(folder=folder, now=now))


RUN = "0b6e0000-0000-4000-8000-000000000001"


def report_a_run(api: DaemonConnection) -> None:
    """Let a run register and report, as a hook does."""
    known: dict[str, Any] = {
        "run": RUN,
        "incarnation": "i1",
        "attempt": 1,
        "ranks": (0, 1, 2, 3),
    }
    register = Register(
        name="llama", layout=A, world_size=4, boundary_every=8, capabilities=("in_place",), **known
    )
    api.post(f"/v1/runs/{RUN}/register", register.to_json())
    progress = Progress(
        seq=1, step=8, samples=64, tokens=2048, tokens_per_s=1600.0, loss=5.0, layout=A, **known
    )
    api.post(f"/v1/runs/{RUN}/progress", progress.to_json())


def wait_until_decided(site: Site) -> None:
    """Wait until the daemon answers and has decided about the run."""
    deadline = time.monotonic() + READY_S
    reported = False
    while time.monotonic() < deadline:
        assert site.process.poll() is None, (site.folder / "log").read_text()
        try:
            if not reported:
                report_a_run(site.api())
                reported = True
            if site.api().get("/v1/decisions")["decisions"]:
                return
        except DaemonUnreachable:
            pass
        time.sleep(0.05)
    raise AssertionError((site.folder / "log").read_text())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A daemon that acts, with one run that trains at A."""
    with running(tmp_path_factory.mktemp("site")) as site:
        yield site


@contextmanager
def running(folder: Path) -> Iterator[Site]:
    """Run a daemon over a fresh site while the block runs."""
    write_site(folder)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "wattmesh.controller.daemon", "--config",
             str(folder / "wattmesh.toml")],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        site = Site(folder, process)
        wait_until_decided(site)
        yield site
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "command",
    ["status", "runs", "decisions", "why llama", "budget", "budget --audit llama", "report",
     "carbon now", "carbon history"],
)  # fmt: skip
def test_screens_and_json_of_a_real_daemon(
    command: str, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the daemon really answers fits every screen, and --json prints it as it came."""
    words = [*command.split(), "--socket", site.socket]
    assert main(words) == 0
    assert capsys.readouterr().out.strip()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_a_budget_is_planned_anew_over_the_socket(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operator is told what was done; a budget that is none is one sentence."""
    socket = ["--socket", site.socket]
    assert main(["budget", "--replan", "cluster", *socket]) == 0
    assert "Planned budget cluster anew" in capsys.readouterr().out
    assert main(["budget", *socket]) == 0
    assert "plan       made anew by" in capsys.readouterr().out
    assert main(["budget", "--replan", "nobody", *socket]) == 1
    assert "there is: cluster" in capsys.readouterr().err


def test_an_operator_s_acts_reach_the_journal(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Freeze shows in status until thaw; an impossible order is refused with the reason."""
    socket = ["--socket", site.socket]
    assert main(["freeze", "llama", "--reason", "maintenance", *socket]) == 0
    assert main(["status", *socket]) == 0
    assert "maintenance" in capsys.readouterr().out
    assert main(["thaw", "llama", *socket]) == 0
    assert main(["switch", "llama", "Z", "--reason", "trial", *socket]) == 1
    assert "it has A, B" in capsys.readouterr().err
    assert main(["why", "nobody", *socket]) == 1
    assert "There is no run 'nobody'" in capsys.readouterr().err


def test_doctor_finds_a_well_site_well(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """With everything in order no line is a problem, and the exit status is 0."""
    assert main(["doctor", "--config", site.config, "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {each["verdict"] for each in findings} == {"ok"}
    checked = {each["check"] for each in findings}
    assert {"settings", "journal", "disk", "catalogue llama", "daemon", "power"} <= checked


def test_the_journal_alone_tells_the_same(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """--offline gives the daemon's own answers from its journal; status still needs a daemon."""
    for words in (["runs"], ["why", "llama"], ["budget"], ["decisions", "--limit", "3"]):
        assert main([*words, "--offline", site.config]) == 0
        assert "llama" in capsys.readouterr().out or words[0] == "decisions"
    assert main(["why", "nobody", "--offline", site.config]) == 1
    assert "There is no run" in capsys.readouterr().err


def test_a_killed_daemon_leaves_its_last_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After kill -9 `status` says what the journal has, how old it is, and how to go on."""
    with running(tmp_path) as site:
        assert main(["freeze", "--reason", "works", "--socket", site.socket]) == 0
        capsys.readouterr()
        os.kill(site.process.pid, signal.SIGKILL)
        site.process.wait()
    assert main(["status", "--socket", site.socket, "--config", site.config]) == 1
    said = capsys.readouterr()
    assert "The daemon does not answer; this is what its journal says" in said.out
    assert "llama" in said.out
    assert "ago" in said.out
    assert "systemctl restart wattmesh" in said.err
    assert main(["status", "--socket", site.socket, "--config", site.config, "--json"]) == 1
    known = json.loads(capsys.readouterr().out)
    assert "is gone" in known["daemon"]
    assert [(run["name"], run["step"]) for run in known["runs"]] == [("llama", 8)]
    (run,) = known["runs"]
    assert known["frozen"] == run["frozen"]
    assert ("works" in run["frozen"], ", frozen: " in said.out) == (True, True)
    assert (known["leader"] != "", known["journal"]) == (True, "")
    assert main(["doctor", "--config", site.config]) == 1
    doctor = capsys.readouterr().out
    assert "daemon           problem" in doctor
    assert "journalctl -u wattmesh" in doctor


def test_status_without_daemon_and_journal_still_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With nothing to read, the answer is one line of what is missing and the next step."""
    config = str(tmp_path / "none.toml")
    assert main(["status", "--socket", str(tmp_path / "s"), "--config", config]) == 1
    said = capsys.readouterr()
    assert "The journal cannot be read either" in said.out
    assert "No such file" in said.out
    assert "systemctl start wattmesh" in said.err
    assert main(["status", "--json", "--socket", str(tmp_path / "s"), "--config", config]) == 1
    known = json.loads(capsys.readouterr().out)
    assert (known["runs"], known["leader"]) == (None, "")
    assert "No daemon runs" in known["daemon"]
    assert "No such file" in known["journal"]


def test_db_upgrades_once_and_shows_the_revision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new journal is behind, `upgrade` brings it up to date, and again changes nothing."""
    url = f"sqlite:///{tmp_path}/journal.db"
    (tmp_path / "journal.db").touch()
    assert main(["db", "current", "--url", url]) == 0
    assert "run `wattmesh db upgrade`" in capsys.readouterr().out
    for _ in range(2):
        assert main(["db", "upgrade", "--url", url]) == 0
        assert "is up to date" in capsys.readouterr().out
    assert main(["db", "current", "--url", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["current"] is True


def test_db_says_why_a_journal_cannot_be_upgraded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is no database is one sentence, and nothing is changed."""
    (tmp_path / "journal.db").write_bytes(b"not a database at all" * 100)
    assert main(["db", "upgrade", "--url", f"sqlite:///{tmp_path}/journal.db"]) == 1
    assert "nothing was changed" in capsys.readouterr().err


def test_configs_list_and_show(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """The catalogue's points with their evidence; an unknown point names those there are."""
    file = str(site.folder / "catalogue.toml")
    assert main(["configs", "list", file]) == 0
    assert "validated" in capsys.readouterr().out
    assert main(["configs", "show", file, "B", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpus"] == 2
    assert main(["configs", "show", file, "Z"]) == 1
    assert "it has A, B" in capsys.readouterr().err
