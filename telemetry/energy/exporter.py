"""Exports the devices of one node as Prometheus metrics, from the process that samples them.

Counters of joules and of unobserved time are the ledger's totals and survive restarts; counters of
events start with the process. Invariant: no sample has a timestamp (that would break Prometheus'
staleness handling), an unknown value has no sample, and no counter ever falls.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from wattmesh.telemetry.energy.crosscheck import NOTES, Correction, CrossCheck, sentence
from wattmesh.telemetry.energy.ledger import DeviceTotal
from wattmesh.telemetry.energy.meter import micros
from wattmesh.telemetry.energy.residual import NodeBalance
from wattmesh.telemetry.energy.sampler import Sample
from wattmesh.telemetry.readings import Component, PowerReading, component_of
from wattmesh.telemetry.sources.stale import STOPPED

REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
    0x100: "display_clock",
}
"""NVML's clocks event reason bits (nvml.h)."""

LASTING = (Correction.STALE, Correction.LOST)
"""Corrections that go on until something is mended; the others are over with one reading."""

HERTZ_PER_MHZ = 1e6
MJ_PER_J = 1e3
MS_PER_S = 1e3


@dataclass(slots=True)
class _Device:
    """The state of one device. `reasons_us`: time under each clocks event reason."""

    newest: PowerReading
    check: CrossCheck
    reasons_us: Counter[str] = field(default_factory=Counter)
    corrections: Counter[Correction] = field(default_factory=Counter)
    troubled: frozenset[Correction] = frozenset()
    missing: bool = False

    def follow(self, reading: PowerReading, hold_us: int) -> None:
        length_us = micros(reading.monotonic_s) - micros(self.newest.monotonic_s)
        if 0 < length_us <= hold_us and self.newest.reasons is not None:
            for bit, name in REASONS.items():
                if self.newest.reasons & bit:
                    self.reasons_us[name] += length_us
        self.check = self.check.followed(reading, hold_us=hold_us)
        self.newest = reading

    def correct(self, found: frozenset[Correction]) -> None:
        """Count each correction once, when it begins, however many steps it lasts."""
        self.corrections.update(found - self.troubled)
        self.troubled = found
        self.missing = Correction.LOST in found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A consistent copy of all devices, for one scrape."""

    answering: Mapping[str, PowerReading]
    checks: Mapping[str, CrossCheck]
    corrections: Mapping[str, Mapping[Correction, int]]
    troubled: Mapping[str, frozenset[Correction]]
    reasons_us: Mapping[str, Mapping[str, int]]
    totals: Mapping[str, DeviceTotal]
    locks: Mapping[str, int]
    rest_w: float | None


class DeviceExporter(Collector):
    """Collects the samples of one node and exports them."""

    def __init__(self, node: str = "", *, hold_s: float = 5.0) -> None:
        """Begin with no device.

        Args:
            node: the node's name, for the info metric.
            hold_s: longest interval between two readings that counts as covered by them.
        """
        self._node = node
        self._hold_us = micros(hold_s)
        self._lock = threading.Lock()
        self._devices: dict[str, _Device] = {}
        self._totals: dict[str, DeviceTotal] = {}
        self._locks: dict[str, int] = {}
        self._balance = NodeBalance()

    def observe(self, sample: Sample, totals: Mapping[str, DeviceTotal]) -> None:
        """Take the sample of one step, and the totals booked so far."""
        with self._lock:
            for reading in sample.readings:
                known = self._devices.get(reading.gpu_uuid)
                if known is None:
                    check = CrossCheck.first(reading)
                    self._devices[reading.gpu_uuid] = _Device(newest=reading, check=check)
                else:
                    known.follow(reading, self._hold_us)
            self._balance.observe(sample.readings, sample.missing)
            answered = {each.gpu_uuid for each in sample.readings}
            found = _corrections(sample)
            for gpu, device in self._devices.items():
                device.correct(frozenset(found.get(gpu, ())))
                # A node's meter is not booked, so nobody misses it.
                if component_of(gpu) is Component.NODE:
                    device.missing = gpu not in answered
            for gpu, total in totals.items():
                self._totals[gpu] = _highest(self._totals.get(gpu, DeviceTotal()), total)

    def locked(self, clocks_mhz: Mapping[str, int]) -> None:
        """Take the clock locks now in force; a device that is not named has none."""
        with self._lock:
            self._locks = dict(clocks_mhz)

    def troubles(self) -> tuple[str, ...]:
        """Say which counters and meters cannot be trusted, and what to do."""
        with self._lock:
            said = [sentence(gpu, each.check) for gpu, each in sorted(self._devices.items())]
            said.append(self._balance.residual.trouble)
        return tuple(filter(None, said))

    def describe(self) -> tuple[Metric, ...]:
        """Declare no metrics at registration, because devices come and go."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        with self._lock:
            seen = _Seen(
                answering=self._answering(),
                checks={gpu: each.check for gpu, each in self._devices.items()},
                corrections={gpu: dict(each.corrections) for gpu, each in self._devices.items()},
                troubled={gpu: each.troubled for gpu, each in self._devices.items()},
                reasons_us={gpu: dict(each.reasons_us) for gpu, each in self._devices.items()},
                totals=dict(self._totals),
                locks=dict(self._locks),
                rest_w=self._balance.residual.power_w,
            )
        yield from _energy(seen)
        yield from _trust(seen)
        yield from _power(seen)
        yield from _clocks(seen)
        yield from _host(seen)
        yield from self._info(seen)

    def _answering(self) -> dict[str, PowerReading]:
        return {gpu: each.newest for gpu, each in self._devices.items() if not each.missing}

    def _info(self, seen: _Seen) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "wattmesh_gpu_info",
            "1; source and quality of the newest reading of a GPU, and why the GPU is shared.",
            labels=["gpu_uuid", "node", "source", "quality", "shared"],
        )
        at = GaugeMetricFamily(
            "wattmesh_gpu_last_sample_timestamp_seconds",
            "When the GPU last answered (Unix time).",
            labels=["gpu_uuid"],
        )
        for gpu, reading in _gpus(seen.answering):
            labels = [gpu, self._node, reading.source, reading.quality.value, reading.shared]
            info.add_metric(labels, 1)
            at.add_metric([gpu], reading.at.timestamp())
        yield from (info, at)


def _corrections(sample: Sample) -> Mapping[str, set[Correction]]:
    answered = {reading.gpu_uuid for reading in sample.readings}
    found = {gpu: {Correction.LOST} for gpu in sample.missing if gpu not in answered}
    for gpu, note in sample.notes:
        if note in NOTES:
            found.setdefault(gpu, set()).add(NOTES[note])
    for reading in sample.readings:
        if reading.trouble.startswith(STOPPED):
            found.setdefault(reading.gpu_uuid, set()).add(Correction.STALE)
    return found


def _energy(seen: _Seen) -> Iterator[Metric]:
    joules = CounterMetricFamily(
        "wattmesh_gpu_energy_joules",
        "Energy booked of a GPU since it was first seen; its rate() is watts.",
        labels=["gpu_uuid"],
    )
    dark = CounterMetricFamily(
        "wattmesh_gpu_unobserved_seconds",
        "Time in which nobody measured the GPU, counted as it passed.",
        labels=["gpu_uuid"],
    )
    recovered = CounterMetricFamily(
        "wattmesh_gpu_recovered_seconds",
        "Unobserved time that the GPU's own energy counter covered later.",
        labels=["gpu_uuid"],
    )
    for gpu, total in sorted(seen.totals.items()):
        if component_of(gpu) is Component.GPU:
            joules.add_metric([gpu], total.booked_mj / MJ_PER_J)
            dark.add_metric([gpu], total.unobserved_ms / MS_PER_S)
            recovered.add_metric([gpu], total.recovered_ms / MS_PER_S)
    yield from (joules, dark, recovered)


def _trust(seen: _Seen) -> Iterator[Metric]:
    corrections = CounterMetricFamily(
        "wattmesh_gpu_energy_corrections",
        "Times since the start that a GPU's energy counter was not taken as read: reset, "
        "implausible, stale (the sensor stands still), lost (no answer).",
        labels=["gpu_uuid", "reason"],
    )
    ratio = GaugeMetricFamily(
        "wattmesh_gpu_counter_power_ratio",
        "Energy by the counter over power x time, in the last hour; outside 0.9 to 1.1 it alerts.",
        labels=["gpu_uuid"],
    )
    fault = GaugeMetricFamily(
        "wattmesh_gpu_counter_fault",
        "1 while a GPU's sensor stands still (stale), or the GPU does not answer (lost).",
        labels=["gpu_uuid", "reason"],
    )
    for gpu, check in sorted(seen.checks.items()):
        if component_of(gpu) is not Component.GPU:
            continue
        for reason in LASTING:
            fault.add_metric([gpu, reason.value], float(reason in seen.troubled[gpu]))
        for reason in Correction:
            corrections.add_metric([gpu, reason.value], seen.corrections[gpu].get(reason, 0))
        if check.ratio is not None:
            ratio.add_metric([gpu], check.ratio)
    yield from (corrections, ratio, fault)


def _power(seen: _Seen) -> Iterator[Metric]:
    watts = GaugeMetricFamily(
        "wattmesh_gpu_power_watts",
        "Board power: now (instant), or over the last second (average) if the board reports both.",
        labels=["gpu_uuid", "window"],
    )
    limits = GaugeMetricFamily(
        "wattmesh_gpu_power_limit_watts",
        "Board power limit: in force (enforced), or set through the driver (requested).",
        labels=["gpu_uuid", "kind"],
    )
    for gpu, reading in _gpus(seen.answering):
        _add(watts, [gpu, "instant"], reading.power_w)
        _add(watts, [gpu, "average"], reading.average_power_w)
        _add(limits, [gpu, "enforced"], reading.power_limit_w)
        _add(limits, [gpu, "requested"], reading.requested_limit_w)
    yield from (watts, limits)


def _clocks(seen: _Seen) -> Iterator[Metric]:
    clock = GaugeMetricFamily("wattmesh_gpu_sm_clock_hertz", "SM clock.", labels=["gpu_uuid"])
    lock = GaugeMetricFamily(
        "wattmesh_gpu_locked_clock_hertz",
        "SM clock that wattmesh has locked the GPU to; absent while it holds no lock.",
        labels=["gpu_uuid"],
    )
    heat = GaugeMetricFamily(
        "wattmesh_gpu_temperature_celsius", "Temperature of the GPU.", labels=["gpu_uuid"]
    )
    work = GaugeMetricFamily(
        "wattmesh_gpu_utilization_ratio",
        "Share of time that the GPU was at work, 0 to 1.",
        labels=["gpu_uuid"],
    )
    reasons = CounterMetricFamily(
        "wattmesh_gpu_clock_event_seconds",
        "Time since the start under each of NVML's clock event reasons.",
        labels=["gpu_uuid", "reason"],
    )
    for gpu, reading in _gpus(seen.answering):
        hertz = None if reading.clock_mhz is None else reading.clock_mhz * HERTZ_PER_MHZ
        _add(clock, [gpu], hertz)
        _add(heat, [gpu], reading.temperature_c)
        _add(work, [gpu], reading.utilization)
    for gpu, mhz in sorted(seen.locks.items()):
        lock.add_metric([gpu], mhz * HERTZ_PER_MHZ)
    for gpu, times in sorted(seen.reasons_us.items()):
        for name, us in sorted(times.items()):
            reasons.add_metric([gpu, name], us / 1e6)
    yield from (clock, lock, heat, work, reasons)


def _host(seen: _Seen) -> Iterator[Metric]:
    cpu = CounterMetricFamily(
        "wattmesh_cpu_energy_joules", "Energy booked of a processor package.", labels=["zone"]
    )
    dram = CounterMetricFamily(
        "wattmesh_dram_energy_joules", "Energy booked of a package's memory.", labels=["zone"]
    )
    families = {Component.CPU: cpu, Component.DRAM: dram}
    for device, total in sorted(seen.totals.items()):
        family = families.get(component_of(device))
        if family is not None:
            family.add_metric([device.rpartition(":")[2]], total.booked_mj / MJ_PER_J)
    node = GaugeMetricFamily(
        "wattmesh_node_power_watts",
        "Power of the whole node by its own meter, which averages over 1 to 60 s.",
        labels=["zone"],
    )
    rest = GaugeMetricFamily(
        "wattmesh_node_residual_power_watts",
        "Power of the node's own meter beyond GPUs, processors and memory, mean of two minutes.",
    )
    _add(rest, [], seen.rest_w)
    info = GaugeMetricFamily(
        "wattmesh_host_info",
        "1; source and quality of the newest reading of a processor, memory or node.",
        labels=["component", "zone", "source", "quality"],
    )
    for device, reading in sorted(seen.answering.items()):
        if reading.component is not Component.GPU:
            zone = device.rpartition(":")[2]
            if reading.component is Component.NODE:
                _add(node, [zone], reading.power_w)
            labels = [reading.component.value, zone, reading.source, reading.quality.value]
            info.add_metric(labels, 1)
    yield from (cpu, dram, node, rest, info)


def _gpus(readings: Mapping[str, PowerReading]) -> Iterable[tuple[str, PowerReading]]:
    return [
        (gpu, each) for gpu, each in sorted(readings.items()) if each.component is Component.GPU
    ]


def _add(family: GaugeMetricFamily, labels: list[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)


def _highest(before: DeviceTotal, now: DeviceTotal) -> DeviceTotal:
    """Return totals that have not fallen.

    After a long outage of the journal the sampler restarts from the booked totals for one step.
    """
    return DeviceTotal(
        booked_mj=max(before.booked_mj, now.booked_mj),
        unobserved_ms=max(before.unobserved_ms, now.unobserved_ms),
        recovered_ms=max(before.recovered_ms, now.recovered_ms),
    )
