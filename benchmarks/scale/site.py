"""A cluster of many runs before a daemon's own parts: nodes that deliver, runs that train.

Every run has 10 GPUs and a catalogue of 7 clocks, its own deadline, and reports before each turn;
every node has 8 GPUs, and delivers a reading of each. Joules are invented, and each node's facts
say so. The carbon signal is a recording with its own forecast, as long as the plans.

Invariant: what a turn reads, decides and writes is the daemon's own code over its own journal; only
nodes and runs are played, by the calls that the HTTP handlers make.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.daemon.site import CLOCKS_MHZ, catalogue, tokens_per_s, write_trace
from wattmesh.controller.daemon.wiring import Parts
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.controller.planner.joint_state import JointState
from wattmesh.controller.settings import read as reader
from wattmesh.controller.signals.grid import grid
from wattmesh.controller.signals.poller import Poller
from wattmesh.migrations.upgrade import upgrade
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.messages import Progress, Register
from wattmesh.telemetry.desired import Applied, GpuControl
from wattmesh.telemetry.energy.delivery import EnergyBatch
from wattmesh.telemetry.energy.delivery import Report as Delivery
from wattmesh.telemetry.energy.ledger import EnergyRow

GPUS_PER_NODE = 8
GPUS_PER_RUN = 10
HOURS = 24 * 33
"""Of the recording: a plan of a month has 720 slots of an hour."""

SETTINGS = """\
mode = "act"
[journal]
url = "{url}"
trust_clock = true
[api]
socket = "{folder}/w.sock"
[metrics]
listen = ""
[loops]
live_s = 600
[power]
source = "agents"
[carbon.accounting]
provider = "csv"
zone = "GB"
file = "trace.csv"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """How many runs train on how many GPUs."""

    runs: int
    gpus: int

    @property
    def nodes(self) -> int:
        """The nodes that the GPUs stand in."""
        return math.ceil(self.gpus / GPUS_PER_NODE)

    def gpus_of(self, run: int) -> tuple[str, ...]:
        """Name the GPUs of a run."""
        first = run * GPUS_PER_RUN
        return tuple(_gpu(each) for each in range(first, first + GPUS_PER_RUN))


def _gpu(number: int) -> str:
    return f"GPU-{number:06d}"


class ScaleSite:
    """The daemon's parts, and the cluster that they watch over."""

    def __init__(self, parts: Parts, crowd: Crowd) -> None:
        """Take the parts; nothing is registered yet."""
        self.parts, self.crowd = parts, crowd
        self._seq, self._began_s = 0, parts.loop_facts.clock.monotonic()
        text = catalogue().replace("gpus = 8", f"gpus = {GPUS_PER_RUN}")
        text = text.replace("dp_shard = 8", f"dp_shard = {GPUS_PER_RUN}")
        self._catalogue = catalogue_file.parse(text.encode(), "the benchmark's catalogue")
        self._layout = Layout(dp_shard=GPUS_PER_RUN)

    def poll(self) -> None:
        """Let the recording tell its values and its forecast."""
        now = self.parts.loop_facts.clock.now()
        for source in grid(self.parts.loop_facts.settings, now).providers:
            Poller(source, self.parts.journal, ahead=True).poll(now)

    def register(self) -> None:
        """Introduce every run; deadlines differ, so no two plans are the same."""
        now = self.parts.loop_facts.clock.now()
        for number in range(self.crowd.runs):
            message = Register(
                run=_run(number),
                name=_run(number),
                incarnation=f"i{number}",
                attempt=1,
                layout=self._layout,
                ranks=tuple(range(GPUS_PER_RUN)),
                world_size=GPUS_PER_RUN,
                gpus=self.crowd.gpus_of(number),
                tokens_total=round(0.6 * 3600 * 24 * 30 * tokens_per_s(CLOCKS_MHZ[0])),
                boundary_every=100,
                capabilities=("in_place", "parking"),
            )
            hours = 24 * 30 - number % 24
            plan = RunPlan(catalogue=self._catalogue, deadline_after_s=3600.0 * hours, named=True)
            self.parts.journal.runs.register(
                message,
                owner_uid=1000 + number % 50,
                now=now,
                epoch=self.parts.loop_facts.lead.epoch or 0,
                plan=plan,
                most=self.crowd.runs,
            )

    def report(self) -> None:
        """Let every run say how far it is, and every node what its GPUs draw."""
        self._seq += 1
        now = self.parts.loop_facts.clock.now()
        trained_s = self.parts.loop_facts.clock.monotonic() - self._began_s
        for number in range(self.crowd.runs):
            message = Progress(
                run=_run(number),
                incarnation=f"i{number}",
                attempt=1,
                seq=self._seq,
                step=int(trained_s),
                samples=int(trained_s),
                tokens=int(trained_s * tokens_per_s(CLOCKS_MHZ[0])),
                tokens_per_s=tokens_per_s(CLOCKS_MHZ[0]),
                loss=2.0,
                layout=self._layout,
                ranks=tuple(range(GPUS_PER_RUN)),
            )
            self.parts.journal.runs.progress(message, owner_uid=1000 + number % 50, now=now)
        for node in range(self.crowd.nodes):
            self.parts.journal.nodes.deliver(f"n{node}", self._delivery(node, now), (), now)

    def ingest_s(self, slots: int) -> float:
        """Let every node deliver joules of all its GPUs, slot by slot; return the seconds."""
        clock = self.parts.loop_facts.clock
        now = clock.now()
        batches = [
            self._batch(node, slot, now)
            for slot in range(slots)
            for node in range(self.crowd.nodes)
        ]
        began_s = clock.monotonic()
        for batch in batches:
            report = Delivery(batch=batch)
            self.parts.journal.nodes.deliver(batch.node, report, batch.rows, now)
        return clock.monotonic() - began_s

    def _batch(self, node: int, slot: int, now: datetime) -> EnergyBatch:
        first = node * GPUS_PER_NODE
        start = now - timedelta(hours=slot + 2)
        rows = tuple(
            EnergyRow(
                gpu_uuid=_gpu(each),
                run="",
                incarnation="",
                slot_start=start,
                slot_end=start + timedelta(hours=1),
                energy_mj=560 * 3600 * 1000,
                unobserved_ms=0,
                upper_mj=0,
                source="nvml",
                quality="simulated",
                line="idle",
            )
            for each in range(first, first + GPUS_PER_NODE)
        )
        return EnergyBatch(node=f"n{node}", boot_id="b", seq=slot + 1, at=now, rows=rows)

    def turn_s(self) -> float:
        """Run one turn of the cycle's loop; return its seconds.

        Raises:
            RuntimeError: the turn failed, or did not decide about every run.
        """
        clock = self.parts.loop_facts.clock
        began_s = clock.monotonic()
        self.parts.cycle.turn()
        took_s = clock.monotonic() - began_s
        turned = self.parts.loop_facts.turned
        if turned is None or turned.report.trouble:
            raise RuntimeError(f"a turn failed: {turned.report.trouble if turned else 'no turn'}")
        if len(turned.report.decisions) != self.crowd.runs:
            raise RuntimeError(f"decided about {len(turned.report.decisions)} runs only")
        return took_s

    def announce_cap(self, watts: float) -> None:
        """Announce a power cap from an hour from now on, for four weeks."""
        start = self.parts.loop_facts.clock.now() + timedelta(hours=1)
        self.parts.journal.caps.announce(
            watts,
            start,
            start + timedelta(days=28),
            by="benchmark",
            reason="a cap that binds",
            epoch=self.parts.loop_facts.lead.epoch or 0,
        )

    def joint(self) -> JointState:
        """Give how far the joint plan is."""
        return self.parts.loop_facts.planning().joint

    def planned(self) -> int:
        """Count the runs that have a plan."""
        return sum(each.plan is not None for each in self.parts.loop_facts.planning().runs.values())

    def _delivery(self, node: int, now: datetime) -> Delivery:
        first = node * GPUS_PER_NODE
        reading = {
            "at": now.isoformat(),
            "power_w": 560.0,
            "clock_mhz": CLOCKS_MHZ[0],
            "power_limit_w": 700.0,
            "source": "nvml",
            "quality": "simulated",
            "component": "gpu",
        }
        devices = {_gpu(each): reading for each in range(first, first + GPUS_PER_NODE)}
        control = [GpuControl(gpu_uuid=each, settable=True, limit_w=700.0) for each in devices]
        applied = Applied(mode="enforce", epoch=1, gpus=tuple(control))
        facts = {"version": "0", "applied": applied.to_json()}
        return Delivery(batch=None, devices=devices, facts=facts)


def _run(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


@contextmanager
def scale_site(folder: Path, url: str, crowd: Crowd) -> Iterator[ScaleSite]:
    """Build the parts over an empty database and let them lead; loops are turned by hand."""
    upgrade(url)
    (folder / "wattmesh.toml").write_text(SETTINGS.format(folder=folder, url=url))
    this_hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    write_trace(folder / "trace.csv", this_hour - timedelta(days=2), timedelta(hours=1), HOURS)
    parts = Parts(reader.load(folder / "wattmesh.toml"), folder / "wattmesh.toml")
    try:
        parts.leases.turn()
        yield ScaleSite(parts, crowd)
    finally:
        parts.stop()


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Give the median and the worst of some turns."""
    ordered = sorted(seconds)
    return {"median_s": ordered[len(ordered) // 2], "worst_s": ordered[-1]}
