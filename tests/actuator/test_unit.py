"""The systemd units of actuator and agent: accepted, hardened, and right about who ends what."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "integrations" / "systemd"
ACTUATOR = (UNITS / "wattmesh-actuator.service").read_text()
AGENT = (UNITS / "wattmesh-agent.service").read_text()
EXPOSURE = {"wattmesh-actuator": 3.0, "wattmesh-agent": 2.0}

HARDENING = (
    "NoNewPrivileges=true",
    "ProtectSystem=strict",
    "ProtectHome=true",
    "ProtectKernelTunables=true",
    "ProtectKernelModules=true",
    "ProtectControlGroups=true",
    "RestrictNamespaces=true",
    "RestrictSUIDSGID=true",
    "SystemCallFilter=@system-service",
    "DevicePolicy=closed",
    "DeviceAllow=char-nvidia* rw",
)

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (package systemd)"
)


def analyze(folder: Path, name: str, text: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Let systemd judge a unit, its program replaced by one that every machine has."""
    unit = folder / f"{name}.service"
    unit.write_text(text.replace("/opt/wattmesh/bin/wattmesh", "/bin/true"))
    return subprocess.run(
        ["systemd-analyze", *command, str(unit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def read(name: str) -> str:
    """Read a unit."""
    return (UNITS / f"{name}.service").read_text()


@needs_systemd
@pytest.mark.parametrize("name", EXPOSURE)
def test_systemd_accepts_the_units(name: str, tmp_path: Path) -> None:
    """No unknown key, no wrong value; a typing mistake is not accepted silently."""
    found = analyze(tmp_path, name, read(name), "verify")
    assert found.returncode == 0, found.stderr
    assert f"{name}.service" not in found.stderr, found.stderr
    broken = read(name).replace("Type=notify\n", "Type=notifi\n")
    assert "notifi" in analyze(tmp_path, name, broken, "verify").stderr


@needs_systemd
@pytest.mark.parametrize("name", EXPOSURE)
def test_the_units_are_hardened(name: str, tmp_path: Path) -> None:
    """The exposure that systemd computes stays below the bar; without hardening it does not."""
    judge = ("security", "--offline=true", f"--threshold={EXPOSURE[name] * 10:.0f}")
    found = analyze(tmp_path, name, read(name), *judge)
    assert found.returncode == 0, found.stdout[-300:]
    bare = re.sub(r"(?m)^(Cap|Protect|Restrict|System|NoNew|User|Device).*$", "", read(name))
    assert analyze(tmp_path, name, bare, *judge).returncode != 0


@pytest.mark.parametrize("name", EXPOSURE)
@pytest.mark.parametrize("line", HARDENING)
def test_every_hardening_line_is_there(name: str, line: str) -> None:
    """Also where no systemd is at hand to judge."""
    assert line in read(name).splitlines()


def test_however_the_actuator_ends_everything_is_given_back() -> None:
    """ExecStopPost runs after a crash, SIGKILL and the watchdog, and it always starts again."""
    assert re.search(r"(?m)^ExecStopPost=\S+ actuator --config \S+ --restore$", ACTUATOR)
    assert "Restart=always" in ACTUATOR
    assert re.search(r"(?m)^WatchdogSec=\d+$", ACTUATOR)


def test_nobody_elses_end_ends_the_actuator() -> None:
    """An agent restart or a controller upgrade gives nothing back at once."""
    for word in ("Requires", "BindsTo", "PartOf", "Requisite", "PropagatesStopTo", "Upholds"):
        assert not re.search(rf"(?m)^{word}=", ACTUATOR + AGENT)
    assert "wattmesh-actuator.service" not in "".join(
        line for line in AGENT.splitlines() if not line.startswith(("#", "After="))
    )


def test_the_agents_end_takes_no_socket_of_the_daemons_with_it() -> None:
    """Systemd deletes a runtime folder with its service; two services must not share one."""
    folders = [
        set(re.findall(r"(?m)^RuntimeDirectory=(.*)$", text))
        for text in (ACTUATOR, AGENT, read("wattmesh"))
    ]
    assert all(len(each) == 1 for each in folders)
    assert len(set.union(*folders)) == 3
    assert "UnsetEnvironment=RUNTIME_DIRECTORY" in AGENT, "api.socket would be looked for elsewhere"


def test_the_actuator_reaches_no_network_and_keeps_its_journal() -> None:
    """No address but Unix sockets; journal and socket lie where its settings look by default."""
    assert "PrivateNetwork=true" in ACTUATOR
    assert "RestrictAddressFamilies=AF_UNIX\n" in ACTUATOR
    assert "StateDirectory=wattmesh-actuator\n" in ACTUATOR
    assert "RuntimeDirectory=wattmesh-actuator\n" in ACTUATOR
