"""What other programs want of wattmesh: written where they look, and never over other text."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from wattmesh.controller.cli.main import main
from wattmesh.controller.cli.services import install

UNITS = Path("integrations/systemd")
RULES = Path("integrations/prometheus/rules")
DASHBOARDS = Path("integrations/grafana/dashboards")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command that must work; give what it printed."""
    assert main(words) == 0
    return capsys.readouterr().out


def test_units_are_the_shipped_ones_with_this_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each named once, below the root that is given; a second time nothing changes."""
    words = ("units", "daemon", "agent", "daemon", "--install", str(tmp_path))
    assert said(capsys, *words).count("wrote") == 3
    folder = tmp_path / "etc/systemd/system"
    assert sorted(each.name for each in folder.iterdir()) == [
        "wattmesh-agent.service",
        "wattmesh.service",
    ]
    program = Path(sys.executable).parent / "wattmesh"
    text = (folder / "wattmesh.service").read_text()
    assert f"ExecStart={program} daemon --config /etc/wattmesh/wattmesh.toml" in text
    shipped = (UNITS / "wattmesh.service").read_text()
    assert text == shipped.replace(install.IN_UNITS, str(program))
    users = tmp_path / "etc/sysusers.d/wattmesh.conf"
    assert users.read_text() == (UNITS / "wattmesh.conf").read_text()
    again = said(capsys, *words)
    assert again.count("stands") == 3
    assert "enable --now wattmesh wattmesh-agent" in again


def test_a_file_that_says_something_else_is_not_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And neither is any other of the same command, until that is asked for."""
    unit = tmp_path / "etc/systemd/system/wattmesh.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    words = ("units", "--install", str(tmp_path))
    assert main(words) != 0
    assert "has other content already, and nothing was written" in capsys.readouterr().err
    assert [each.name for each in tmp_path.rglob("*") if each.is_file()] == ["wattmesh.service"]
    assert said(capsys, *words, "--replace").count("wrote") == 4
    assert "/bin/true" not in unit.read_text()


def test_nothing_is_written_where_nobody_says_where(capsys: pytest.CaptureFixture[str]) -> None:
    """It names the files, how to write them, and what comes then; JSON says the same."""
    told = said(capsys, "units", "agent")
    assert "wants   /etc/systemd/system/wattmesh-agent.service" in told
    assert "write   wattmesh units agent --install /" in told
    answer = json.loads(said(capsys, "units", "agent", "--json"))
    assert answer["written"] == []
    assert answer["files"][-1] == "/etc/systemd/system/wattmesh-agent.service"
    assert "wants   /etc/prometheus/rules/wattmesh-carbon.yml" in said(capsys, "rules")


def test_a_program_that_units_cannot_see_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ProtectHome hides a home folder from the service."""
    hidden = install.hidden_part(Path(sys.executable).parent / "wattmesh")
    assert ("note" in said(capsys, "units")) is (hidden is not None)
    monkeypatch.setattr(install, "_program", lambda: Path("/home/ann/venv/bin/wattmesh"))
    assert "install wattmesh elsewhere" in said(capsys, "units")


def test_rules_are_the_shipped_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them, each under a name of ours."""
    said(capsys, "rules", "--to", str(tmp_path))
    found = {each.name: each.read_text() for each in tmp_path.iterdir()}
    assert found == {f"wattmesh-{each.name}": each.read_text() for each in RULES.glob("*.yml")}


def test_rules_lead_to_the_runbook_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every link begins with the address, and nothing else of the rules changes."""
    address = "https://docs.example.org/wattmesh/runbook"
    said(capsys, "rules", "--to", str(tmp_path), "--runbook-url", address)
    for each in RULES.glob("*.yml"):
        text = (tmp_path / f"wattmesh-{each.name}").read_text()
        assert text.replace(address, "docs/runbook.md") == each.read_text()
        assert text.count(f"runbook_url: {address}#") == text.count("- alert:")
    for wrong in ("a b", "x\n- alert: y", "", "x" * 501, 'x"'):
        assert main(["rules", "--to", str(tmp_path), "--runbook-url", wrong]) != 0
        assert "is no address" in capsys.readouterr().err


def test_dashboards_are_the_shipped_ones_in_the_folder_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With files for Grafana's provisioning, which look for them there."""
    folder = tmp_path / "a folder"
    told = said(capsys, "dashboards", "--out", str(folder))
    assert told.count("wrote") == 5
    found = {each.name: each.read_text() for each in folder.glob("*.json")}
    assert found == {each.name: each.read_text() for each in DASHBOARDS.glob("*.json")}
    assert len(found) == 3
    provider = yaml.safe_load((folder / "provisioning/folder.yml").read_text())["providers"][0]
    assert provider["options"]["path"] == str(folder)
    source = yaml.safe_load((folder / "provisioning/datasource.yml").read_text())
    assert source["datasources"][0]["type"] == "prometheus"
    assert said(capsys, "dashboards", "--out", str(folder)).count("stands") == 5
    (folder / "wattmesh-run.json").write_text("{}")
    assert main(["dashboards", "--out", str(folder)]) != 0
    assert "has other content already" in capsys.readouterr().err
    assert "wants   /etc/grafana/dashboards/wattmesh/wattmesh-run.json" in said(
        capsys, "dashboards"
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A shell that asks, as bash does."""
    monkeypatch.setenv("_WATTMESH_COMPLETE", "complete_bash")
    return monkeypatch


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("wattmesh st", {"status"}),
        ("wattmesh carbon n", {"now"}),
        ("wattmesh units d", {"daemon"}),
        ("wattmesh nothing x", set()),
    ],
)
def test_a_shell_is_told_how_words_go_on(
    asked: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, found: set[str]
) -> None:
    """At the top, in a group, and of what a command takes."""
    asked.setenv("COMP_WORDS", line)
    asked.setenv("COMP_CWORD", str(len(line.split()) - 1))
    main([])
    assert set(capsys.readouterr().out.split()) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_or_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    """The same text both ways, and it asks by the variable that is answered."""
    text = said(capsys, "completion", shell)
    assert "_WATTMESH_COMPLETE=complete_" in text
    file = tmp_path / "wattmesh"
    said(capsys, "completion", shell, "--to", str(file))
    assert file.read_text() == text
