"""The install page, done as it stands, on a head node and on a GPU node: each a root of its own."""

import re
from pathlib import Path

import pytest

from tests.docs import root
from tests.docs.blocks import block, blocks

PAGE = "docs/install.md"
LOGS = "cat /run/wattmesh-agent.log /run/wattmesh-actuator.log"
SETTINGS = "/etc/wattmesh/wattmesh.toml"
STATIC = r'provider = "static"\ng_per_kwh = 250.0\nkind = "average"\nfactor = "direct"\ngas = "CO2"'
SOCKET = "WATTMESH_URL=unix:///run/wattmesh/wattmesh.sock"

pytestmark = pytest.mark.skipif(bool(root.missing()), reason=root.missing() or "all is there")

Said = list[tuple[str, int, str]]


def lines(heading: str, number: int = 1) -> list[str]:
    """Give the lines of one of the page's blocks."""
    return block(PAGE, heading, number).splitlines()


def by(user: str, words: str) -> str:
    """Let a person type something."""
    return f"runuser -u {user} -- env {SOCKET} {words}"


def file(path: str, text: str) -> str:
    """Write a file, as an editor would."""
    return f"mkdir -p {Path(path).parent}; cat > {path} <<'END'\n{text}END"


def answer(said: Said, line: str, last: bool = False) -> tuple[int, str]:
    """Give the status of a line, and what it said."""
    found = [(status, text) for each, status, text in said if each == line]
    return found[-1 if last else 0]


def problems(doctor: str) -> list[str]:
    """Give the problems that doctor found; a Python below a home folder is this machine's own."""
    lines = [line for line in doctor.splitlines() if " problem " in line]
    return [line for line in lines if "cannot see that folder" not in line]


def failed(said: Said) -> list[str]:
    """List the lines that did not end well."""
    return [line for line, status, _ in said if status]


def test_a_head_node_is_made_upgraded_and_removed_as_the_page_says(tmp_path: Path) -> None:
    """Every line of it, as root; then people of each group, and a script that is observed."""
    script = block("docs/observe.md", "Observe a script")
    page = (root.REPOSITORY / PAGE).read_text("utf-8")
    (rules,) = re.findall(r"`(wattmesh rules [^`]+)`", page)
    (dashboards,) = re.findall(r"`(wattmesh dashboards [^`]+)`", page)
    people = [
        by("ann", "/opt/wattmesh/bin/python3 /run/train.py"),
        by("ann", "wattmesh runs"),
        by("ann", "wattmesh freeze --reason x"),
        by("olga", "wattmesh freeze --reason x"),
        by("eve", "wattmesh runs"),
    ]
    removed = [*lines("Remove", 2), *lines("Remove", 3)]
    said = root.run(
        tmp_path,
        [
            *(f"useradd {name}" for name in ("ann", "olga", "eve")),
            *lines("Head node", 1),
            "sed -i '/^source = /s/none/agents/;/^# group = .*wattmesh-jobs/s/^# //' " + SETTINGS,
            # No provider can be asked from this root: how soon one is missed is no business of it.
            f"sed -i '0,/^provider = .*/s//{STATIC}/' {SETTINGS}",
            *lines("Head node", 2),
            "systemd-analyze verify /etc/systemd/system/wattmesh.service",
            rules,
            dashboards,
            *lines("Your shell"),
            file("/run/train.py", script),
            *people,
            *lines("Upgrade", 1),
            "wattmesh runs",
            *removed,
            "ls /var/lib/wattmesh",
            "ls /etc/prometheus/rules /root/.local/share/bash-completion/completions",
            "ls -d /opt/wattmesh /etc/systemd/system/wattmesh* /etc/sysusers.d/wattmesh*",
            "ls /etc/systemd/system/multi-user.target.wants/wattmesh.service",
            "ls /run/wattmesh.pid",
        ],
    )
    freeze_ann, runs_eve = people[2], people[4]
    assert set(failed(said)) - {"wattmesh doctor"} == {
        freeze_ann,
        runs_eve,
        *(line for line, *_ in said[-3:]),
    }, said
    doctor = answer(said, "wattmesh doctor")[1]
    # Whether a time service runs is this machine's own matter.
    assert [line for line in problems(doctor) if "clock" not in line] == [], doctor
    assert "operators" in answer(said, freeze_ann)[1]
    assert "wattmesh-jobs" in answer(said, runs_eve)[1]
    assert "llama-8b" in answer(said, people[1])[1]
    # What was known before the upgrade is known after it.
    assert "llama-8b" in answer(said, "wattmesh runs")[1]
    assert answer(said, "ls /var/lib/wattmesh")[1].split()[:2] == [
        "before-upgrade.db",
        "journal.db",
    ]
    assert "wattmesh-carbon.yml" in said[-4][2]
    assert "/etc/grafana/dashboards/wattmesh/wattmesh-run.json" in answer(said, dashboards)[1]


def test_a_gpu_node_is_made_upgraded_and_removed_as_the_page_says(tmp_path: Path) -> None:
    """Every line of it, with the settings of docs/agent.md; there is no driver in this root."""
    said = root.run(
        tmp_path,
        [
            *lines("GPU node", 1),
            file(SETTINGS, block("docs/agent.md", "Install", 3)),
            file("/etc/credstore/wattmesh-agent.token", f"n17.{'x' * 32}\n"),
            "chmod 0600 /etc/credstore/wattmesh-agent.token; cp /etc/ssl/certs/ca-certificates.crt "
            "/etc/wattmesh/ca.pem",
            *lines("GPU node", 2),
            "cd /etc/systemd/system; systemd-analyze verify wattmesh-*.service",
            LOGS,
            *lines("Upgrade", 2),
            *lines("Remove", 1),
            *lines("Remove", 3),
            "ls -d /opt/wattmesh /etc/systemd/system/wattmesh* /etc/sysusers.d/wattmesh*",
            "ls /run/wattmesh-agent.pid /run/wattmesh-actuator.pid",
        ],
    )
    assert failed(said) == ["wattmesh doctor", *(line for line, *_ in said[-2:])], said
    doctor = answer(said, "wattmesh doctor")[1]
    # A node has no journal, no daemon and no signal of its own: none of them is missed.
    # Root sees the token that systemd loads, so the way to the controller is tried.
    assert {line.split()[0] for line in problems(doctor)} == {"actuator", "agent"}, doctor
    assert "no GPU answers" in doctor
    assert "https://head-1:9465: no such host" in doctor
    log = answer(said, LOGS)[1]
    assert "the actuator listens on" in log
    assert "mistake" not in log


def test_every_block_of_the_page_was_run() -> None:
    """A block that is added is followed as well."""
    run = re.findall(r'lines\("([^"]+)"(?:, (\d))?\)', Path(__file__).read_text("utf-8"))
    followed = {(heading, int(number or 1)) for heading, number in run}
    assert {(each.heading, each.number) for each in blocks(PAGE)} == followed
