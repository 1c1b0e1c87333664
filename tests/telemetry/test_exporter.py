"""Devices as metrics: what a scrape of a node shows while its sensors misbehave."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.telemetry.sampler.test_sampler import Bench
from tests.telemetry.world import MemoryBook, World
from wattmesh.telemetry.energy.exporter import DeviceExporter
from wattmesh.telemetry.energy.ledger import DeviceTotal, SlotGrid
from wattmesh.telemetry.energy.sampler import Sample, Sampler
from wattmesh.telemetry.fake_nvml import FakeNvml
from wattmesh.telemetry.readings import utc_now
from wattmesh.telemetry.sources.nvml_source import NvmlSource
from wattmesh.telemetry.sources.stale import STOPPED

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def page(exporter: DeviceExporter) -> str:
    """Scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(exporter)
    return generate_latest(registry).decode()


def scraped(exporter: DeviceExporter) -> Samples:
    """Scrape and read every sample."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page(exporter))
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    """Give the one sample with these labels; None when there is none."""
    wanted = set(labels.items())
    found = [v for (n, given), v in samples.items() if n == name and wanted <= set(given)]
    assert len(found) <= 1
    return found[0] if found else None


class Node:
    """A scripted machine, its sampler, and the exporter that follows it."""

    def __init__(self) -> None:
        """Begin with a first sample."""
        self.bench = Bench(World("G0", "G1"))
        self.exporter = DeviceExporter("n1", hold_s=2.5)
        self.step()

    def step(self, count: int = 1) -> Samples:
        """Sample some seconds, then scrape."""
        for _ in range(count):
            self.exporter.observe(self.bench.step(), self.bench.sampler.totals())
        return scraped(self.exporter)


def test_joules_are_the_ledgers_and_outlive_the_process() -> None:
    """A new exporter over a sampler that went on shows what was ever booked."""
    node = Node()
    node.step(10)
    node.bench.sampler.flush()
    node.bench.start()
    node.exporter = DeviceExporter("n1")
    samples = node.step()
    assert value(samples, "wattmesh_gpu_energy_joules_total", gpu_uuid="G0") == 1100.0
    assert value(samples, "wattmesh_gpu_power_watts", gpu_uuid="G0", window="instant") == 100.0
    assert value(samples, "wattmesh_gpu_power_limit_watts", gpu_uuid="G0", kind="enforced") == 700.0


def test_a_device_that_is_gone_has_no_power_but_its_joules() -> None:
    """Unknown is no sample; the loss is counted once, its dark time while it passes."""
    node = Node()
    node.step(5)
    node.bench.world.gpu.answers = False
    samples = node.step(10)
    assert value(samples, "wattmesh_gpu_power_watts", gpu_uuid="G0", window="instant") is None
    assert value(samples, "wattmesh_gpu_info", gpu_uuid="G0") is None
    assert value(samples, "wattmesh_gpu_energy_joules_total", gpu_uuid="G0") == 500.0
    lost = {"gpu_uuid": "G0", "reason": "lost"}
    assert value(samples, "wattmesh_gpu_energy_corrections_total", **lost) == 1
    dark_s = value(samples, "wattmesh_gpu_unobserved_seconds_total", gpu_uuid="G0")
    assert dark_s is not None
    assert dark_s > 5
    node.bench.world.gpu.answers = True
    samples = node.step()
    assert value(samples, "wattmesh_gpu_energy_joules_total", gpu_uuid="G0") == 1600.0
    assert value(samples, "wattmesh_gpu_unobserved_seconds_total", gpu_uuid="G0") == dark_s
    assert value(samples, "wattmesh_gpu_recovered_seconds_total", gpu_uuid="G0") == dark_s


def test_a_reset_is_counted_by_its_reason() -> None:
    """And by no other."""
    node = Node()
    node.step(3)
    node.bench.world.gpu.reset()
    samples = node.step(3)
    counted = {
        reason: value(
            samples, "wattmesh_gpu_energy_corrections_total", gpu_uuid="G0", reason=reason
        )
        for reason in ("reset", "implausible", "stale", "lost")
    }
    assert counted == {"reset": 1, "implausible": 0, "stale": 0, "lost": 0}


def test_a_sensor_that_stops_is_counted_once() -> None:
    """However many samples it stands still; when it stops again, again."""
    exporter, good = DeviceExporter(), World("G0").read()[0]
    still = replace(good, energy_mj=None, power_w=None, trouble=f"{STOPPED}: for 6 s")
    for reading in (good, still, still, still, good, still):
        exporter.observe(Sample(readings=(reading,)), {})
    stale = {"gpu_uuid": "G0", "reason": "stale"}
    assert value(scraped(exporter), "wattmesh_gpu_energy_corrections_total", **stale) == 2
    assert value(scraped(exporter), "wattmesh_gpu_counter_fault", **stale) == 1
    exporter.observe(Sample(readings=(good,)), {})
    assert value(scraped(exporter), "wattmesh_gpu_counter_fault", **stale) == 0
    assert value(scraped(exporter), "wattmesh_gpu_energy_corrections_total", **stale) == 2


def test_no_counter_falls_when_totals_do() -> None:
    """A sampler that goes back to what was booked makes no reset for Prometheus."""
    exporter, node = DeviceExporter(), Node()
    sample = node.bench.step()
    exporter.observe(sample, {"G0": DeviceTotal(booked_mj=5_000, unobserved_ms=10)})
    exporter.observe(Sample(), {"G0": DeviceTotal(booked_mj=4_000)})
    samples = scraped(exporter)
    assert value(samples, "wattmesh_gpu_energy_joules_total", gpu_uuid="G0") == 5.0


def test_a_lock_is_shown_as_long_as_it_holds() -> None:
    """No lock, no sample."""
    node = Node()
    node.exporter.locked({"G0": 1305})
    assert value(node.step(), "wattmesh_gpu_locked_clock_hertz", gpu_uuid="G0") == 1.305e9
    node.exporter.locked({})
    assert value(node.step(), "wattmesh_gpu_locked_clock_hertz", gpu_uuid="G0") is None


def test_what_is_served_is_plain() -> None:
    """No time of its own on a sample, no `_created` series, help and type for everything."""
    node = Node()
    node.step(3)
    text = page(node.exporter)
    assert "_created" not in text
    for line in text.splitlines():
        if not line.startswith("#"):
            assert re.fullmatch(r"wattmesh_\w+(\{.*\})? \S+", line), line
    assert "wattmesh_gpu_clock_event_seconds_total" in text.replace(" counter", "")


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeNvml]:
    """Two GPUs behind the real NVML binding."""
    made = FakeNvml.create(tmp_path, gpus=2, update_ms=0)
    yield made
    made.close()


def test_a_real_binding_fills_every_gauge(fake: FakeNvml) -> None:
    """Through nvidia-ml-py: power, limits, clock, heat, work, and the time under each reason."""
    fake.gpu(0).load(1.0)
    fake.gpu(0).reasons(0x40)
    source = NvmlSource(fake.library)
    grid = SlotGrid(origin=utc_now(), interval_s=1800.0)
    sampler = Sampler(source, MemoryBook(), grid, boot_id="b")
    exporter = DeviceExporter("n1")
    try:
        for second in range(3):
            sample = sampler.step(utc_now(), 1_000.0 + second, {})
            exporter.observe(sample, sampler.totals())
    finally:
        sampler.close()
        source.close()
    samples, gpu = scraped(exporter), fake.gpu(0).uuid
    for name in (
        "wattmesh_gpu_sm_clock_hertz",
        "wattmesh_gpu_temperature_celsius",
        "wattmesh_gpu_utilization_ratio",
        "wattmesh_gpu_last_sample_timestamp_seconds",
    ):
        assert value(samples, name, gpu_uuid=gpu) is not None, name
    assert value(samples, "wattmesh_gpu_info", gpu_uuid=gpu, quality="simulated") == 1
    heat = {"gpu_uuid": gpu, "reason": "hw_thermal_slowdown"}
    under_s = value(samples, "wattmesh_gpu_clock_event_seconds_total", **heat)
    assert under_s is not None
    assert under_s > 0
