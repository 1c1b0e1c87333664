"""Doctor's look at power: each source by itself, on the fake NVML library."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from wattmesh.controller.cli.doctor import power_checks
from wattmesh.controller.cli.doctor.findings import CheckStatus, Finding
from wattmesh.controller.settings.model import (
    PowerSection,
    PrometheusSection,
    Settings,
    StaticPowerSection,
)
from wattmesh.telemetry.fake_nvml import Board, FakeNvml


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeNvml]:
    """Three fake H100."""
    made = FakeNvml.create(tmp_path / "gpus", gpus=3, board=Board.H100)
    yield made
    made.close()


def found(section: PowerSection) -> dict[str, Finding]:
    """Run the checks."""
    return {each.check: each for each in power_checks.power(Settings(power=section))}


def test_gpus_are_counted_and_called_what_they_are(fake: FakeNvml) -> None:
    """How many, how their energy is known, that one is shared, and that they are not real."""
    fake.gpu(0).mig(True)
    (finding,) = found(PowerSection(source="nvml", library=fake.library)).values()
    assert finding.verdict is CheckStatus.OK
    assert finding.text == (
        "3 GPUs, energy counted by hardware, 1 shared: observed, never acted on, simulated"
    )


def test_a_board_without_a_counter_is_said_to_be_integrated(fake: FakeNvml) -> None:
    """So that nobody takes its joules for counted ones."""
    fake.gpu(1).without_counter(True)
    (finding,) = found(PowerSection(source="nvml", library=fake.library)).values()
    assert "2 with an energy counter, the others by their power" in finding.text


def test_a_missing_driver_is_a_problem_with_what_to_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is named, and the next step."""
    monkeypatch.setattr(power_checks, "PATIENCE_S", 0.3)
    (finding,) = found(PowerSection(source="nvml", library=tmp_path / "none.so")).values()
    assert finding.verdict is CheckStatus.PROBLEM
    assert "none.so" in finding.text
    assert "power.library" in finding.do


def test_each_source_of_a_chain_has_its_own_line(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that works does not hide one that does not."""
    monkeypatch.setattr(power_checks, "PATIENCE_S", 3.0)
    lines = found(
        PowerSection(
            source="nvml",
            library=fake.library,
            prometheus=PrometheusSection(url="http://127.0.0.1:9", exporter="dcgm"),
            static=StaticPowerSection(gpu_power_w=400.0, gpu_uuids=("GPU-x",)),
        )
    )
    assert lines["power by nvml"].verdict is CheckStatus.OK
    assert lines["power by prometheus-dcgm"].verdict is CheckStatus.PROBLEM
    assert "does not answer" in lines["power by prometheus-dcgm"].text
    assert lines["power by static"].text.endswith("assumed, not measured")


def test_no_source_is_a_problem_and_agents_are_not_ours_to_ask() -> None:
    """Without any, nothing is measured; agents answer for themselves."""
    (finding,) = found(PowerSection()).values()
    assert finding.verdict is CheckStatus.PROBLEM
    assert '"agents"' in finding.do
    assert found(PowerSection(source="agents")) == {}


def test_a_gpu_that_is_lost_is_named(fake: FakeNvml) -> None:
    """A device that was there and tells nothing now is a problem with its name."""
    readings = [gpu.uuid for gpu in fake.gpus]
    finding = power_checks.judged("power by nvml", [], readings)
    assert finding.verdict is CheckStatus.PROBLEM
    assert fake.gpu(0).uuid in finding.text
