"""How right the energy ledger is, on GPUs whose true energy is known, beside other tools.

    python -m benchmarks.energy [--json]

A fake NVML library under the real nvidia-ml-py draws known power (simulated, all of it) while
counters are reset, GPUs fall off the bus for 30 s, and the measuring process is killed with -9 and
started again 20 s later. Our sampler with its SQLite journal and every peer that is installed
measure the same GPUs at the same time, each in processes of its own. Nothing was tuned on it.
"""

import argparse
import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.energy.peers import PEERS, environment, sweep, warm
from benchmarks.energy.sampler import PERIOD_S
from benchmarks.energy.worlds import Anchor, Case, World, anchors, make, play, worlds
from benchmarks.report import Goal, Report, run
from wattmesh.controller.journal.journal import Journal
from wattmesh.telemetry.energy.ledger import CounterBaseline
from wattmesh.telemetry.fake_nvml import FakeNvml

OURS = "wattmesh"
MISSING = "not installed"
SETTLE_S = 2.0
ANSWER_S = 60.0
TOLERANCE, INTEGRATED = 1e-3, 1e-2
"""A bound is violated by more than this share of the truth: the counter moves every 0.1 s. And
where there is no counter."""


@dataclass(slots=True)
class Tool:
    """One tool in one world: its process, and what its lives said.

    Attributes:
        listening: its present life has not yet said that it measures.
        first, last: monotonic seconds at which each GPU was looked at first and last.
        again: the same for the first look after a restart. `killed_at`: the counters of our
            journal when the process was dead.
    """

    name: str
    world: World
    fake: FakeNvml
    folder: Path
    process: subprocess.Popen[str] | None = None
    listening: bool = False
    first: Mapping[str, float] = field(default_factory=dict)
    again: Mapping[str, float] = field(default_factory=dict)
    last: Mapping[str, float] = field(default_factory=dict)
    joules: tuple[float, ...] = ()
    killed_at: Mapping[str, CounterBaseline] = field(default_factory=dict)
    trouble: str = ""

    def start(self) -> None:
        """Start a life of it."""
        if self.trouble:
            return
        self.listening = True
        command = [sys.executable, "-m"]
        if self.name == OURS:
            command += ["benchmarks.energy.sampler", str(self.fake.library), str(self._database)]
        else:
            gpus = str(len(self.fake.gpus))
            command += ["benchmarks.energy.peers", self.name, gpus]
        log = (self.folder / f"{self.name}-{self.world.name}.log").open("ab")
        self.process = subprocess.Popen(
            command,
            env=environment(self.fake, self.folder),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        log.close()

    def begun(self) -> None:
        """Wait until it measures."""
        if self.process is None or not self.listening:
            return
        times = self._times(self._heard().get("first"))
        self.first, self.again, self.listening = (self.first or times), times, False

    def kill(self) -> None:
        """Kill it as the kernel's out-of-memory killer does."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait(ANSWER_S)
        sweep(self.process)
        if self.name == OURS and not self.last:
            journal = Journal.open(f"sqlite:///{self._database}")
            self.killed_at = journal.ledger.baselines()
            journal.close()

    def stop(self) -> None:
        """Ask it to end, and take what it says."""
        if self.process is None:
            return
        self.begun()
        self.process.send_signal(signal.SIGTERM)
        said = self._heard()
        self.last = self._times(said.get("last"))
        self.joules = tuple(said.get("joules", ()))
        try:
            self.process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(ANSWER_S)
        sweep(self.process)

    @property
    def _database(self) -> Path:
        return self.folder / f"{self.world.name}.db"

    def _heard(self) -> dict[str, Any]:
        """Read the next line of JSON that it prints; other lines are its own affair."""
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                said: dict[str, Any] = json.loads(line)
                return said
        self.trouble = f"ended by itself ({self.process.wait(ANSWER_S)})"
        return {}

    def _times(self, told: Any) -> dict[str, float]:
        """Give a moment per GPU: a peer tells them by index."""
        if isinstance(told, Mapping):
            return {str(gpu): float(at_s) for gpu, at_s in told.items()}
        moments = zip(self.fake.gpus, told or (), strict=False)
        return {gpu.uuid: float(at_s) for gpu, at_s in moments}

    def booked(self) -> dict[str, tuple[float, float, float]]:
        """Give (joules, unobserved seconds, most joules in them) of our ledger, by GPU."""
        journal = Journal.open(f"sqlite:///{self._database}")
        sums: dict[str, tuple[float, float, float]] = {}
        for row in journal.ledger.energy():
            energy_j, unobserved_s, upper_j = sums.get(row.gpu_uuid, (0.0, 0.0, 0.0))
            sums[row.gpu_uuid] = (
                energy_j + (row.energy_mj or 0) / 1e3,
                unobserved_s + row.unobserved_ms / 1e3,
                upper_j + row.upper_mj / 1e3,
            )
        journal.close()
        return sums


def rows(
    tool: Tool, start: Mapping[str, Anchor], end: Mapping[str, Anchor]
) -> Iterator[dict[str, Any]]:
    """Compare what a tool says with the truth, GPU by GPU."""
    if tool.trouble:
        where = "all" if tool.trouble == MISSING else f"all of world {tool.world.name!r}"
        yield {"case": where, "tool": tool.name, "note": tool.trouble}
        return
    booked = tool.booked() if tool.name == OURS and tool.last else {}
    for index, case in enumerate(tool.world.cases):
        gpu = tool.fake.gpu(index).uuid
        row: dict[str, Any] = {"case": case.name, "tool": tool.name}
        if gpu not in tool.last or gpu not in tool.first:
            yield row | {"note": "said nothing of it"}
            continue
        truth_j = end[gpu].energy_at(tool.last[gpu]) - start[gpu].energy_at(tool.first[gpu])
        joules = booked[gpu][0] if booked else tool.joules[index]
        row |= {"truth_j": truth_j, "joules": joules, "error": joules / truth_j - 1}
        if booked:
            row |= _bounds(tool, case, gpu, booked[gpu], truth_j)
        yield row


def _bounds(
    tool: Tool, case: Case, gpu: str, booked: tuple[float, float, float], truth_j: float
) -> dict[str, Any]:
    """Check that the truth lies in the interval that the ledger gives, and its dark time."""
    _, unobserved_s, upper_j = booked
    expected_s = _dark_s(tool, case, gpu)
    tolerance = INTEGRATED if case.goal == "integrated" else TOLERANCE
    wrong = violated(
        booked,
        truth_j,
        expected_s,
        tolerance=tolerance,
        sensor_sees_all=case.goal != "part-time",
    )
    return {
        "unobserved_s": unobserved_s,
        "expected_s": expected_s,
        "upper_j": upper_j,
        "violated": int(wrong),
        "goal": case.goal,
    }


def violated(
    booked: tuple[float, float, float],
    truth_j: float,
    expected_s: float,
    *,
    tolerance: float = TOLERANCE,
    sensor_sees_all: bool = True,
) -> bool:
    """Say whether a ledger claims what is not so.

    Args:
        booked: joules, unobserved seconds, and the most joules in them.
        truth_j: what was drawn.
        expected_s: the time that nobody can know of.
        tolerance: by so much of the truth it may be off.
        sensor_sees_all: False where the board itself sees a part of the time only: then the truth
            may lie outside what its counter says.
    """
    energy_j, unobserved_s, upper_j = booked
    slack_j = tolerance * truth_j
    inside = energy_j - slack_j <= truth_j <= energy_j + upper_j + slack_j
    exact = abs(unobserved_s - expected_s) <= PERIOD_S
    known = inside or not sensor_sees_all
    return not (known and exact and energy_j >= 0 and unobserved_s >= 0)


def _dark_s(tool: Tool, case: Case, gpu: str) -> float:
    """Give the seconds that no counter can tell of: only where it was reset in the dark."""
    if case.goal != "bounded":
        return 0.0
    if tool.world.killed:
        return tool.again[gpu] - tool.killed_at[gpu].monotonic_s
    lost, back = (at_s for at_s, happens in case.moments if happens.__name__ in LOST_AND_BACK)
    return back - lost


LOST_AND_BACK = ("lose", "come_back")


def _tools(made: Mapping[World, FakeNvml], folder: Path) -> list[Tool]:
    """Name every tool in every world; one that is not installed says so."""
    tools = []
    for world, fake in made.items():
        tools.append(Tool(name=OURS, world=world, fake=fake, folder=folder))
        for name, module in PEERS.items():
            missing = "" if importlib.util.find_spec(module) else MISSING
            tool = Tool(name=name, world=world, fake=fake, folder=folder, trouble=missing)
            tools.append(tool)
    return tools


def _measured(folder: Path) -> list[dict[str, Any]]:
    """Let everything happen and give a row per case and tool."""
    made = {world: make(world, folder / world.name) for world in worlds()}
    tools = _tools(made, folder)
    warm(folder)
    try:
        for tool in tools:  # one after the other: some give up when they start slowly
            tool.start()
            tool.begun()
        start = {world: anchors(world, fake) for world, fake in made.items()}
        play(made, partial(_kill, tools), partial(_restart, tools))
        time.sleep(SETTLE_S)
        end = {world: anchors(world, fake) for world, fake in made.items()}
        for tool in tools:
            tool.stop()
    finally:
        for tool in tools:
            tool.kill()
    found = [row for tool in tools for row in rows(tool, start[tool.world], end[tool.world])]
    return [row for index, row in enumerate(found) if row not in found[:index]]


def _kill(tools: Sequence[Tool], world: World) -> None:
    """Kill every tool of a world."""
    for tool in tools:
        if tool.world == world:
            tool.kill()


def _restart(tools: Sequence[Tool], world: World) -> None:
    """Start every tool of a world again."""
    for tool in tools:
        if tool.world == world:
            tool.start()


def measure(_: argparse.Namespace) -> Report:
    """Measure the energy of GPUs whose true energy is known, with faults."""
    with tempfile.TemporaryDirectory(prefix="wattmesh-bench-") as name:
        found = _measured(Path(name))
    ours = [row for row in found if row["tool"] == OURS]

    def worst(goal: str) -> float | None:
        errors = [abs(row["error"]) for row in ours if row.get("goal") == goal]
        return max(errors, default=None)

    whole = all("violated" in row for row in ours)
    violations = sum(row.get("violated", 1) for row in ours)
    goals = (
        Goal(name="worst_error", value=worst("exact"), goal=0.001, op="<="),
        Goal(name="worst_error_part_time", value=worst("part-time"), goal=0.01, op="<="),
        Goal(name="interval_violations", value=violations if whole else None, goal=0, op="=="),
    )
    return Report(benchmark="energy", rows=tuple(found), goals=goals)


if __name__ == "__main__":
    sys.exit(run(measure))
