"""The install page, done: what it lets a person write on a machine, below a root of its own."""

import re
from pathlib import Path

import pytest

from wattmesh.controller.cli.main import main

PAGE = Path("docs/install.md")
DONE = ("units", "settings", "rules", "completion")
"""Commands of the page that need no other machine, driver or service."""


def commands() -> list[str]:
    """List the page's commands: lines of its blocks, and one within a sentence."""
    text = PAGE.read_text(encoding="utf-8")
    lines = [
        line for block in re.findall(r"```sh\n(.*?)```", text, re.S) for line in block.splitlines()
    ]
    lines += re.findall(r"`(wattmesh rules [^`]+)`", text)
    return [line for line in lines if line.startswith(tuple(f"wattmesh {each}" for each in DONE))]


def test_the_page_can_be_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every file stands where the next command, or systemd, looks for it."""
    found = commands()
    assert len(found) == 7
    for line in found:
        words = [re.sub(r"^(~?)/", f"{tmp_path}/", word) for word in line.split()[1:]]
        assert main(words) == 0, (line, capsys.readouterr().err)
    for name in (
        "etc/systemd/system/wattmesh.service",
        "etc/systemd/system/wattmesh-agent.service",
        "etc/sysusers.d/wattmesh.conf",
        "etc/wattmesh/wattmesh.toml",
        "etc/prometheus/rules/wattmesh-carbon.yml",
        ".local/share/bash-completion/completions/wattmesh",
    ):
        assert (tmp_path / name).is_file(), name
