"""The drill: a journal is lost and restored, and what sets GPUs obeys again; the old one cannot."""

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

from tests.agent.test_clock_path import SLOW_MHZ, Site, site
from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.waiting import wait_for
from wattmesh.controller.cli.main import main
from wattmesh.controller.journal.database.identity import APART

RULES = Path(__file__).parents[2] / "integrations/prometheus/rules/agent.yml"
FILES = ("journal.db", "journal.db-wal", "journal.db-shm")


def command(*words: str) -> dict[str, Any]:
    """Run a command that answers in JSON; give its answer."""
    with redirect_stdout(StringIO()) as out:
        assert main([*words, "--json"]) == 0
    answer: dict[str, Any] = json.loads(out.getvalue())
    return answer


def take(folder: Path, to: Path) -> None:
    """Let a journal be lost, all of it, and keep it elsewhere."""
    to.mkdir()
    for name in FILES:
        if (folder / name).exists():
            shutil.move(folder / name, to / name)


def put(kept: Path, to: Path) -> None:
    """Put what was kept in the place of whatever is there, by hand."""
    for name in FILES:
        (to / name).unlink(missing_ok=True)
        if (kept / name).exists():
            shutil.copy(kept / name, to / name)


def red(running: DaemonProcess) -> str:
    """Wait for the red line on actuators, and give it."""

    def lines() -> list[str]:
        return [each for each in running.status()["trouble"] if "actuator" in each]

    wait_for(lambda: bool(lines()), "a red line on the actuator", 60.0)
    (line,) = lines()
    return line


def hand_over(here: Site, line: str) -> None:
    """Run what a red line says, with the node's settings."""
    found = re.search("`(wattmesh actuator .*)`", line)
    assert found is not None
    words = found[1].replace("/etc/wattmesh/wattmesh.toml", f"{here.node.folder}/wattmesh.toml")
    # A process of its own: the command becomes the actuator's program.
    command = [sys.executable, "-m", "wattmesh.controller.cli.main", *words.split()[1:]]
    subprocess.run(command, check=True, timeout=60)


def wait_quiet(running: DaemonProcess) -> None:
    """Wait until no actuator refuses any more."""
    wait_for(lambda: "actuator" not in str(running.status()["trouble"]), "no red line", 60.0)


def test_a_lost_journal_is_restored_and_the_actuator_obeys_it_alone(tmp_path: Path) -> None:
    """Loss, a new journal that is refused in red, the restore, the hand-over, the old one back."""
    old = tmp_path / "old"
    with site(tmp_path) as here:
        settings = here.daemon.settings.read_text()
        config = ("--config", str(here.daemon.settings))
        here.order("S")
        here.wait_locks(SLOW_MHZ)
        lost = here.daemon.status()["journal"]["identity"]
        made = command("db", "backup", str(tmp_path / "b.db"), *config)
        assert made["journal"] == lost
        here.daemon.stop(signal.SIGKILL)
        take(tmp_path, old)

        with daemon(tmp_path, text=settings) as fresh:
            line = red(fresh)
            assert "1 actuator (n1) obeys another journal" in line
            assert lost in line
            until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
            answer = fresh.post("/v1/powercap", {"cap_w": 1000.0, "until": until})
            assert (answer.status, line in answer.body["error"]) == (409, True)
            assert fresh.get("/v1/powercap").body["trouble"] == [line]
            pages = re.findall(r"http://127\.0\.0\.1:\d+/metrics", fresh.log)
            with urllib.request.urlopen(pages[-1], timeout=30) as page:
                text = page.read().decode()
            assert 'wattmesh_actuators_fenced{reason="journal"} 1.0' in text
            assert "expr: wattmesh_actuators_fenced > 0\n" in RULES.read_text()
            assert here.node.locks() == {SLOW_MHZ}  # what stands, stands until its lease ends
            fresh.stop()

        put_back = command("db", "restore", str(tmp_path / "b.db"), *config, "--replace")
        assert (put_back["came_from"], put_back["journal"] != lost) == (lost, True)
        assert Path(put_back["aside"]).exists()
        with daemon(tmp_path, text=settings) as again:
            here.daemon = again
            line = red(again)
            assert f"obeys another journal ({lost})" in line
            assert put_back["next"] in line
            assert again.status()["epoch"] == put_back["epoch"] + 1 > APART
            hand_over(here, line)
            wait_quiet(again)
            here.order("A")
            here.wait_locks(None)
            here.order("S")
            here.wait_locks(SLOW_MHZ)
            again.stop()

        put(old, tmp_path)
        with daemon(tmp_path, text=settings) as stolen:
            assert f"obeys another journal ({put_back['journal']})" in red(stolen)
            assert here.node.locks() == {SLOW_MHZ}
            stolen.stop()
        made = command("db", "renew", *config)
        assert (made["came_from"], made["journal"] != lost) == (lost, True)
