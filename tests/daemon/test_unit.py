"""The systemd unit: what systemd itself says of it, and that it fits the daemon."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "integrations" / "systemd" / "wattmesh.service"
EXPOSURE = 2.0
"""The bar for a controller without privileges."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (package systemd)"
)


def analyze(folder: Path, text: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Let systemd judge a unit, its program replaced by one that every machine has."""
    unit = folder / "wattmesh.service"
    unit.write_text(text.replace("/opt/wattmesh/bin/wattmesh", "/bin/true"))
    return subprocess.run(
        ["systemd-analyze", *command, str(unit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@needs_systemd
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """No unknown key, no wrong value; a unit with a typing mistake is not accepted silently."""
    found = analyze(tmp_path, UNIT.read_text(), "verify")
    assert found.returncode == 0, found.stderr
    assert "wattmesh.service" not in found.stderr, found.stderr
    broken = UNIT.read_text().replace("Type=notify\n", "Type=notifi\n")
    assert "notifi" in analyze(tmp_path, broken, "verify").stderr


@needs_systemd
def test_the_unit_is_hardened(tmp_path: Path) -> None:
    """The exposure that systemd computes stays below the bar; without hardening it does not."""
    judge = ("security", "--offline=true", f"--threshold={EXPOSURE * 10:.0f}")
    found = analyze(tmp_path, UNIT.read_text(), *judge)
    assert found.returncode == 0, found.stdout[-300:]
    bare = re.sub(r"(?m)^(Cap|Protect|Restrict|System|NoNew|User|Device).*$", "", UNIT.read_text())
    assert analyze(tmp_path, bare, *judge).returncode != 0


def test_the_unit_fits_the_daemon() -> None:
    """Exit status 2 is not retried, a reload is SIGHUP, and the watchdog outlasts a slow cycle."""
    text = UNIT.read_text()
    assert "RestartPreventExitStatus=2" in text
    assert "ExecReload=/bin/sh -c 'kill -HUP $$MAINPID'" in text
    watchdog = re.search(r"(?m)^WatchdogSec=(\d+)$", text)
    assert watchdog is not None
    # loops.cycle_s is at most 60 s; a fed watchdog needs a turn of each loop between two feeds.
    assert int(watchdog[1]) >= 3 * 60
