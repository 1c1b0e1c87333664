"""How many lines a quiet day leaves in the daemon's log, and in that of a job.

    python -m benchmarks.quiet_day --json

Daemon: the real one's parts under a virtual clock (`year_daemon` says which), turned as often as
they turn by themselves, for 24 hours: two runs on one node in mode `act`, hourly points of the
grid, reports and the steps of every switch through the handlers of the HTTP interface. Job: a real
launch of two ranks that trains as many steps as a day has of five seconds, saves every twenty, and
is switched four times. What is counted is what logging gives out at INFO and above.
"""

import argparse
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.report import Goal, Report, run
from benchmarks.year.daemon import Due
from benchmarks.year.world import Time
from wattmesh.controller.api.handlers import jobs, operators
from wattmesh.controller.api.request_context import Call, RequestContext
from wattmesh.controller.api.transport.peers import PeerIdentity
from wattmesh.controller.daemon.loop_bodies import Housekeeping, PollDuty
from wattmesh.controller.daemon.period_roll import PeriodRoll
from wattmesh.controller.daemon.wiring import Parts, run_plans
from wattmesh.controller.settings.read import parse
from wattmesh.controller.signals.forecaster import Forecaster
from wattmesh.controller.signals.poller import Poller
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Heartbeat, Order, Progress, Register, Transition
from wattmesh.telemetry.readings import PowerReading, Quality

START = datetime(2026, 6, 1, tzinfo=UTC)
HOURLY_G_PER_KWH = (90, 80, 80, 95, 140, 210, 290, 320, 300, 240, 160, 110)
"""Twice in a day: both runs have a reason to move, and one to move back."""

POINTS = {"A": (Layout(tp=2), 100_000, 700.0), "B": (Layout(dp_shard=2), 80_000, 350.0)}
"""Layout, tokens per second and watts of a GPU."""

ORDERED_H = (5, 10, 15, 20)
"""When an operator orders both runs to their other point."""

STATES = (
    SwitchState.ANNOUNCED,
    SwitchState.CHECKPOINTING,
    SwitchState.REBUILDING,
    SwitchState.LOADED,
    SwitchState.VERIFIED,
    SwitchState.CONFIRMED,
)

SETTINGS = """\
mode = "act"
[journal]
url = "sqlite:///{folder}/journal.db"
[api]
socket = "{folder}/w.sock"
[metrics]
listen = ""
[carbon.accounting]
provider = "csv"
zone = "GB"
file = "grid.csv"
plays_at = {start:%Y-%m-%dT%H:%M:%SZ}
[runs.one]
catalogue = "catalogue.toml"
deadline_after_s = 150000
[runs.two]
catalogue = "catalogue.toml"
deadline_after_s = 170000
"""

CATALOGUE = """\
[job]
name = "quiet"
tokens_total = 10_000_000_000
reference = "A"
release = "held"
[switch]
layout_s = 5.0
layout_energy_j = 2000
source = "measured"
"""

POINT = """\
[[point]]
id = "{id}"
gpus = 2
layout = {layout}
tokens_per_s = {tokens_per_s}
power_w = {power_w}
equivalence = "exact"
evidence = "validated"
"""


def gist(text: str) -> str:
    """Give the beginning of a line without its numbers."""
    return re.sub(r"\d[\d.,:]*", "#", text)[:70]


class Lines(logging.Handler):
    """Counts what is logged, by logger and message with its numbers left out."""

    def __init__(self) -> None:
        """Begin with none."""
        super().__init__(logging.INFO)
        self.counts: Counter[tuple[str, str]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Count one; a whole sentence that was handed over is known by its first words."""
        text = record.getMessage() if record.msg == "%s" else str(record.msg)
        self.counts[record.name, gist(text)] += 1


@contextmanager
def counted() -> Iterator[Lines]:
    """Count what the daemon's process would write, as it sets logging up."""
    root, lines = logging.getLogger(), Lines()
    before = root.level
    root.addHandler(lines)
    root.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        root.removeHandler(lines)
        root.setLevel(before)


@dataclass(slots=True, kw_only=True)
class Run:
    """One run as its hook tells it.

    Attributes:
        tokens: trained so far. `open`: its switch under way, and how many of its steps were told.
    """

    id: str
    name: str
    gpus: tuple[str, str]
    point: str = "A"
    tokens: float = 0.0
    seq: int = 0
    open: tuple[Order, int] | None = None
    switches: int = 0

    @property
    def who(self) -> dict[str, Any]:
        """What every message begins with."""
        return {"run": self.id, "incarnation": f"{self.name}-1", "attempt": 1}

    @property
    def step(self) -> int:
        """Optimizer steps done: one in five seconds."""
        return int(self.tokens // 500_000)


class Node:
    """The node's four GPUs, two for each run, as a source of power."""

    name = "invented"

    def __init__(self, time: Time, runs: Sequence[Run]) -> None:
        """Take whose they are."""
        self._time, self._runs = time, runs
        self._energy_mj = {gpu: 0.0 for each in runs for gpu in each.gpus}

    def gpu_uuids(self) -> Sequence[str]:
        """List the devices."""
        return [*self._energy_mj]

    def draw(self, seconds: float) -> None:
        """Let time pass."""
        for each in self._runs:
            for gpu in each.gpus:
                self._energy_mj[gpu] += 1000 * seconds * POINTS[each.point][2]

    def read(self) -> Sequence[PowerReading]:
        """Read every device."""
        return [
            PowerReading(
                gpu_uuid=gpu,
                at=self._time.now,
                monotonic_s=self._time.monotonic_s(),
                power_w=POINTS[each.point][2],
                energy_mj=int(self._energy_mj[gpu]),
                clock_mhz=None,
                power_limit_w=750.0,
                highest_limit_w=750.0,
                source=self.name,
                quality=Quality.MEASURED,
            )
            for each in self._runs
            for gpu in each.gpus
        ]


class Day:
    """The daemon, its node and its runs, from midnight on."""

    def __init__(self, folder: Path) -> None:
        """Write the settings, and let the daemon lead."""
        self.time = Time(START)
        self.runs = [
            Run(id=f"00000000-0000-4000-8000-00000000000{n}", name=name, gpus=(f"g{n}", f"h{n}"))
            for n, name in enumerate(("one", "two"))
        ]
        self.node = Node(self.time, self.runs)
        path = _written(folder)
        settings = parse(path.read_text("utf-8"), where=path)
        self.parts = Parts(settings, path, self.time.clock, self.node)
        self.parts.leases.turn()
        loop_facts = self.parts.loop_facts
        self.context = RequestContext(
            journal=self.parts.journal,
            loop_facts=loop_facts,
            changes=self.parts.changes,
            plan_for=run_plans(settings).__getitem__,
            wake=self.parts.cycle.wake,
        )
        source = self.parts.accounting_source
        poll = PollDuty(
            Poller(source, self.parts.journal, ahead=True),
            Forecaster(self.parts.journal, source.signal, source.series),
            loop_facts,
            lambda: None,
        )
        hour = timedelta(hours=1)
        self.dues = [
            Due(timedelta(seconds=source.series.cadence_s), poll.turn),
            Due(timedelta(seconds=self.parts.accounts.state.every_s), self.parts.accounts.turn),
            Due(hour, PeriodRoll(self.parts.journal, loop_facts).turn),
            Due(24 * hour, Housekeeping(self.parts.journal, loop_facts).turn),
        ]

    def live(self, hours: float, step_s: float) -> None:
        """Live on; every loop turns each `step_s`, where the real cycle does so every 5 s."""
        until = self.time.now + timedelta(hours=hours)
        for each in self.runs:
            if not each.seq:
                self._say(jobs.register, self._introduction(each))
        while self.time.now < until:
            self.node.draw(step_s)
            before = self.time.now
            self.time.now += timedelta(seconds=step_s)
            self.parts.leases.turn()
            self.parts.sampler.turn()
            for each in self.runs:
                self._train(each, step_s)
            if any(before < START + timedelta(hours=hour) <= self.time.now for hour in ORDERED_H):
                self._order()
            for due in self.dues:
                due.turn(self.time.now)
            self.parts.cycle.turn()

    def _order(self) -> None:
        """Let an operator order both runs to their other point."""
        for each in self.runs:
            body = {"point": "B" if each.point == "A" else "A", "reason": "a quiet day"}
            operators.switch(self.context, self._call(each.id, body))

    def _train(self, each: Run, step_s: float) -> None:
        """Do a step, or what is next of a switch; tell of it."""
        if each.open is None:
            row = self.parts.journal.switches.open(each.id)
            each.open = (row.order, 0) if row is not None else None
        if each.open is not None:
            order, told = each.open
            self._say(jobs.transition, self._transition(each, order, STATES[told]))
            each.open = (order, told + 1)
            if STATES[told] is SwitchState.CONFIRMED:
                each.point, each.open, each.switches = order.point, None, each.switches + 1
            return
        each.seq += 1
        each.tokens += POINTS[each.point][1] * step_s
        layout, tokens_per_s, _ = POINTS[each.point]
        progress = Progress(
            **each.who,
            seq=each.seq,
            step=each.step,
            samples=each.step,
            tokens=int(each.tokens),
            tokens_per_s=float(tokens_per_s),
            loss=2.0,
            layout=layout,
            ranks=(0, 1),
            boundary_every=20,
            checkpoint_step=each.step // 20 * 20,
        )
        self._say(jobs.progress, progress)
        self._say(jobs.heartbeat, Heartbeat(**each.who, phase="training"))

    def _introduction(self, each: Run) -> Register:
        return Register(
            **each.who,
            name=each.name,
            layout=POINTS["A"][0],
            ranks=(0, 1),
            world_size=2,
            gpus=each.gpus,
            tokens=0,
            tokens_total=10_000_000_000,
            boundary_every=20,
            capabilities=("in_place", "parking"),
            host="invented",
            pid=4711,
        )

    def _transition(self, each: Run, order: Order, state: SwitchState) -> Transition:
        done = state is SwitchState.CONFIRMED
        return Transition(
            **each.who,
            switch_id=order.switch_id,
            epoch=order.epoch,
            state=state,
            step=each.step,
            elapsed_s=5.0,
            layout=order.layout if done else None,
            ranks=order.ranks,
            evidence={"total_s": 5.0, "probe_before": 2.0, "probe_after": 2.0} if done else {},
        )

    def _say(self, handler: Any, message: Any) -> None:
        """Hand a message to the interface, as the run's own user."""
        handler(self.context, self._call(message.run, message.to_json()))

    def _call(self, run: str, body: Mapping[str, Any]) -> Call:
        peer = PeerIdentity(uid=os.getuid(), groups=frozenset())
        return Call(peer=peer, path={"run": run}, query={}, body=body)


def _written(folder: Path) -> Path:
    """Write settings, catalogue and grid of one day and the two after it."""
    points = (
        POINT.format(
            id=point,
            layout=f"{{ tp = {layout.tp} }}" if layout.tp > 1 else "{ dp_shard = 2 }",
            tokens_per_s=tokens_per_s,
            power_w=2 * power_w,
        )
        for point, (layout, tokens_per_s, power_w) in POINTS.items()
    )
    (folder / "catalogue.toml").write_text(CATALOGUE + "".join(points))
    columns = "timestamp_utc,zone,kind,emission_factor_type,carbon_intensity_gco2eq_per_kwh"
    rows = [f"{columns},forecast_gco2_per_kwh"]
    for hour in range(72):
        value = HOURLY_G_PER_KWH[hour % len(HOURLY_G_PER_KWH)]
        at = START + timedelta(hours=hour)
        rows.append(f"{at:%Y-%m-%dT%H:%M:%SZ},GB,average,direct,{value},{value}")
    (folder / "grid.csv").write_text("\n".join(rows) + "\n")
    path = folder / "wattmesh.toml"
    path.write_text(SETTINGS.format(folder=folder, start=START))
    return path


def daemon(folder: Path, hours: float, step_s: float) -> tuple[Counter[tuple[str, str]], Day]:
    """Live through so many hours; give what was logged, and the day."""
    with counted() as lines:
        day = Day(folder)
        day.live(hours, step_s)
        day.parts.stop()
    return lines.counts, day


def job(folder: Path, steps: int) -> tuple[Counter[tuple[str, str]], int]:
    """Let the job train; give what it logged, and how many switches it told of."""
    words = [
        *(sys.executable, "-m", "wattmesh.integrations.torchrun", "--nproc", "2"),
        *("--checkpoint-dir", str(folder), "--", "-m", "benchmarks.quiet_day.job", str(folder)),
    ]
    environment = {**os.environ, "QUIET_STEPS": str(steps), "OMP_NUM_THREADS": "1"}
    environment |= {"WATTMESH_URL": "", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-4000:])
    counts: Counter[tuple[str, str]] = Counter()
    for line in (done.stdout + done.stderr).splitlines():
        logger, _, text = line.partition(" ")
        if logger.startswith("wattmesh"):
            counts[logger, gist(text)] += 1
    switched = sum(count for (_, text), count in counts.items() if text.startswith("switched "))
    return counts, switched


def measure(chosen: argparse.Namespace) -> Report:
    """Count the lines that a day without trouble leaves in the logs of daemon and job."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job").mkdir()
        said, day = daemon(folder, chosen.hours, chosen.step_s)
        trained, switched = job(folder / "job", chosen.steps)
    rows: list[Mapping[str, Any]] = [
        {"log": log, "lines": count, "logger": logger.removeprefix("wattmesh."), "message": text}
        for log, counts in (("daemon", said), ("job", trained))
        for (logger, text), count in counts.most_common()
    ]
    taken = sum(each.switches for each in day.runs)
    rows.append({"log": "daemon", "message": f"{taken} switches in {chosen.hours:g} h"})
    rows.append({"log": "job", "message": f"{switched} switches in {chosen.steps} steps"})
    goals = (
        Goal(name="daemon_lines", value=sum(said.values()), goal=200, op="<="),
        Goal(name="job_lines", value=sum(trained.values()), goal=50, op="<="),
        Goal(name="lines_per_switch", value=switched / 4, goal=1, op="=="),
    )
    return Report(benchmark="quiet_day", rows=tuple(rows), goals=goals)


if __name__ == "__main__":
    sys.exit(run(measure, {"hours": 24.0, "step-s": 30.0, "steps": 17_280}))
