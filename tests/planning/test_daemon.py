"""The plan of a run in a real daemon: made in its child, shown, counted, and gone with it."""

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.builders import messages
from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.waiting import wait_for
from tests.daemon.whole.test_life import trace
from tests.planning.children import runs, wait_gone
from wattmesh.controller.cli.main import main

SETTINGS = """\
[carbon.accounting]
provider = "csv"
zone = "GB"
file = "trace.csv"
compress = {compress}
[runs.llama-8b]
catalogue = "catalogue.toml"
deadline_after_s = 2000
"""
PATH = f"/v1/runs/{messages.RUN}/plan"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon with a run that has trained for a while; half-hours of its grid take 150 s."""
    (tmp_path / "catalogue.toml").write_text(messages.CATALOGUE)
    trace(tmp_path)
    with daemon(tmp_path, SETTINGS.format(compress=12)) as process:
        answer = process.post(f"/v1/runs/{messages.RUN}/register", messages.register())
        assert answer.status == 200, answer.body
        process.post(f"/v1/runs/{messages.RUN}/progress", messages.progress())
        yield process


def planned(running: DaemonProcess) -> dict[str, Any]:
    """Wait until cycles decide with a plan; give the answer."""
    wait_for(lambda: running.get(PATH).body["plan"], f"a plan; log:\n{running.log}")
    body: dict[str, Any] = running.get(PATH).body
    return body


def child_of(pid: int) -> int:
    """Give the only child of a process."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    children = " ".join((each / "children").read_text() for each in threads).split()
    assert len(children) == 1
    return int(children[0])


def metric(running: DaemonProcess, name: str) -> float:
    """Scrape one metric."""
    found = re.search(r"metrics on (\S+)", running.log)
    assert found is not None
    with urlopen(found[1]) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(each.split()[-1]) for each in lines if each.startswith(name))


def test_a_run_is_planned_shown_and_counted(
    running: DaemonProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the API, on the terminal, as a picture and for Prometheus; gone with a clean stop."""
    answer = planned(running)
    assert answer["sentence"] == ""
    assert answer["plan"]["steps"][-1]["end"] == answer["plan"]["finish_at"] <= answer["deadline"]
    assert answer["grid"][-1]["end"] == answer["deadline"]
    assert answer["solve_s"] > 0
    assert metric(running, 'wattmesh_plan_age_seconds{run="llama-8b",run_id=') >= 0
    assert metric(running, 'wattmesh_planner_questions_total{outcome="answered"}') >= 1
    assert metric(running, 'wattmesh_planner_questions_total{outcome="failed"}') == 0
    words = ["policy", "plan", "llama-8b", "--socket", str(running.socket)]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "llama-8b"
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.startswith("llama-8b · plan made ")
    assert "gap to bound" in said
    assert main([*words, "--png", str(tmp_path / "plan.png")]) == 0
    data = (tmp_path / "plan.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n")
    assert min(struct.unpack(">II", data[16:24])) > 600
    child = child_of(running.process.pid)
    assert running.stop() == 0
    assert not runs(child)


def test_a_killed_daemon_takes_its_planner_with_it(running: DaemonProcess) -> None:
    """The child has numpy in memory, the daemon has not, and kill -9 leaves neither."""
    planned(running)
    pid = running.process.pid
    child = child_of(pid)
    assert "numpy" in Path(f"/proc/{child}/maps").read_text()
    assert "numpy" not in Path(f"/proc/{pid}/maps").read_text()
    assert runs(child)
    running.process.kill()
    running.process.wait()
    wait_gone(child)


def test_a_compressed_recording_is_not_planned_and_says_why(tmp_path: Path) -> None:
    """A half-hour in half a second: plans would come late, the price rule decides."""
    (tmp_path / "catalogue.toml").write_text(messages.CATALOGUE)
    trace(tmp_path)
    with daemon(tmp_path, SETTINGS.format(compress=3600)) as running:
        running.post(f"/v1/runs/{messages.RUN}/register", messages.register())
        running.post(f"/v1/runs/{messages.RUN}/progress", messages.progress())
        wait_for(lambda: "too short" in running.get(PATH).body["sentence"], "the reason")
        assert running.get(PATH).body["plan"] is None
        assert running.get("/v1/runs/nobody/plan").status == 404
