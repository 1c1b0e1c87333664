"""The agent's process: what it loads, how it starts and ends, what it says."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.agent.nodes import node
from tests.daemon.waiting import wait_for
from tests.telemetry.sampler.test_sampler import Bench
from tests.telemetry.test_exporter import scraped, value
from tests.telemetry.world import World
from wattmesh.controller.agent.link import ControllerLink
from wattmesh.controller.agent.parts import AgentParts, own_source
from wattmesh.controller.settings.read import Settings, parse
from wattmesh.errors import FixInput, SettingsInvalid
from wattmesh.telemetry.energy.sampler import Sample
from wattmesh.telemetry.fake_nvml import FakeNvml

FOREIGN = {"torch", "numpy", "scipy", "matplotlib", "sqlalchemy", "alembic", "typer", "rich"}
FOREIGN |= {"starlette", "uvicorn", "apscheduler"}
"""What no agent needs: it has no journal, no HTTP framework, no screens."""

ETC = Path("/etc/wattmesh/wattmesh.toml")


def test_an_agent_loads_neither_the_journal_nor_the_http_server() -> None:
    """It runs on every node, beside jobs that want the memory."""
    code = "import sys, wattmesh.controller.agent.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert FOREIGN.isdisjoint(done.stdout.split())


def test_an_agent_without_a_controller_starts_and_says_what_it_waits_for(tmp_path: Path) -> None:
    """It serves its metrics, survives SIGHUP, and ends cleanly."""
    with node(tmp_path, "n1", f"unix://{tmp_path}/nobody") as one:
        one.start()
        wait_for(lambda: "gave no usable answer" in one.log, "what it waits for")
        one.running.send_signal(1)
        wait_for(lambda: "when it is restarted" in one.log, "the answer to SIGHUP")
        assert one.end() == 0


def test_an_agent_that_samples_seldom_sees_throttling_as_its_daemon_would(tmp_path: Path) -> None:
    """Its metrics hold a reading as long as its ledger does: 2.5 samples, where these are long."""
    text = f'''
[power]
source = "agents"
library = "{FakeNvml.create(tmp_path / "gpus", gpus=1).library}"
[loops]
sample_s = 10.0
[agent]
outbox = "{tmp_path / "agent.db"}"
controller = "unix://{tmp_path}/nobody"
metrics = ""
'''
    parts = AgentParts(parse(text, where=ETC))
    bench = Bench(World("G0"))
    for _ in range(2):
        (reading,) = bench.step(10.0).readings
        parts.exporter.observe(Sample(readings=(replace(reading, reasons=0x40),)), {})
    found = scraped(parts.exporter)
    parts.outbox.close()
    assert (
        value(found, "wattmesh_gpu_clock_event_seconds_total", reason="hw_thermal_slowdown") == 10.0
    )


def test_two_agents_cannot_share_an_outbox(tmp_path: Path) -> None:
    """The second ends with 2 and one sentence: a person must mend that first."""
    with node(tmp_path, "n1", f"unix://{tmp_path}/nobody") as one:
        one.start()
        command = [sys.executable, "-m", "wattmesh.controller.cli.main", "agent", "--config"]
        second = subprocess.run(
            [*command, str(one.folder / "wattmesh.toml")],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert second.returncode == 2
        assert "another agent uses the outbox" in second.stderr


def test_settings_that_an_agent_cannot_use_are_named(tmp_path: Path) -> None:
    """Each mistake with its key, and a node with nothing to read."""
    for address in ("https://head:99999", "https://[head"):
        with pytest.raises(FixInput, match=r"agent\.controller .* write https://host:port"):
            ControllerLink(address)
    # A host is no folder: nothing else is opened instead.
    for address in ("unix://run/wattmesh.sock", "unix:run/wattmesh.sock"):
        with pytest.raises(FixInput, match="is neither https://host:port nor unix:///path"):
            ControllerLink(address)
    with pytest.raises(FixInput, match=r"power\.source"):
        own_source(Settings())
    short = tmp_path / "token"
    short.write_text("short")
    short.chmod(0o644)
    with pytest.raises(SettingsInvalid) as caught:
        parse(
            f'[agent]\ncontroller = "http://head"\ntoken_file = "{short}"\nmetrics = "x"\n'
            f'[api]\nlisten = "0.0.0.0:9465"\ntls_key = "{short}"\n',
            where=ETC,
        )
    assert {key for key, _ in caught.value.mistakes} == {
        "agent.controller",
        "agent.token_file",
        "agent.metrics",
        "api.tls_certificate",
        "api.tls_key",
    }
    with pytest.raises(SettingsInvalid, match=r"agent\.token_file"):
        parse('[agent]\ncontroller = "https://head:1"\n', where=ETC)
    with pytest.raises(SettingsInvalid, match=r"only read with api\.listen"):
        parse(f'[api]\ntls_certificate = "{short}"\n', where=ETC)
