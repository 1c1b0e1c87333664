"""The GPUs that `benchmarks.energy` measures: what each draws, what goes wrong with it, and when.

A world is one fake NVML library, so that what is lost or killed in one does not hurt another.
Invariant: every GPU draws `Case.quiet_w` before and after everything, so that its true energy is
known at any moment of those times, whenever a tool began or ended to look.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from wattmesh.telemetry.fake_nvml import Board, FakeGpu, FakeNvml

QUIET_W = 90.0
LOAD_S = 120.0
"""Long enough that the 0.1 s between two changes of a counter, which a reset loses, is 0.1 %."""

LOST_S = (14.0, 44.0)
KILLED_S = (20.0, 40.0)
RESET_S = 30.0

Moment = tuple[float, Callable[[FakeGpu], None]]
"""Seconds after the load began, and what happens to the GPU then."""

WITHOUT_COUNTER: Moment = (-1.0, lambda gpu: gpu.without_counter(True))
PART_TIME: Moment = (-1.0, lambda gpu: gpu.part_time(100, 25))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One GPU of a world.

    Attributes:
        goal: `exact` and `part-time` are held to a share of the truth; of `bounded` only the
            interval must hold, for nobody can know more. `integrated`: without a counter, steps of
            the power between two samples are guessed; held to 1 %, and in no goal.
        quiet_w: what it draws before and after.
    """

    name: str
    moments: tuple[Moment, ...]
    goal: str = "exact"
    quiet_w: float = QUIET_W


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One library. `killed`: tools are killed with -9 at KILLED_S[0], started again at [1]."""

    name: str
    cases: tuple[Case, ...]
    killed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A GPU at one moment at which it was quiet."""

    at_s: float
    energy_j: float
    quiet_w: float = QUIET_W

    def energy_at(self, at_s: float) -> float:
        """Give the true energy at another quiet moment of the same time."""
        return self.energy_j + self.quiet_w * (at_s - self.at_s)


def worlds() -> tuple[World, ...]:
    """Give every world. What is drawn follows from one seed; nothing was tuned on it."""
    return (
        World(
            name="steady",
            cases=(
                Case(name="constant 350 W", moments=_constant()),
                Case(name="steps of 1 to 4 s, 100 to 700 W", moments=tuple(_steps())),
                Case(name="counter reset", moments=(*_constant(), (RESET_S, _reset))),
                Case(name="sensor frozen for 30 s", moments=(*_constant(), *_frozen())),
                Case(
                    name="part-time sensor, 25 of each 100 ms, training steps",
                    moments=(PART_TIME, *_training()),
                    goal="part-time",
                ),
            ),
        ),
        World(
            name="counterless",
            cases=(
                Case(name="no counter, constant 350 W", moments=(WITHOUT_COUNTER,), quiet_w=350.0),
                Case(
                    name="no counter, steps",
                    moments=(WITHOUT_COUNTER, *_steps()),
                    goal="integrated",
                ),
            ),
        ),
        World(
            name="lost",
            cases=(
                Case(name="lost for 30 s", moments=(*_constant(), *_lost())),
                Case(name="driver hangs for 30 s", moments=(*_constant(), *_hung())),
                Case(
                    name="lost for 30 s, counter reset meanwhile",
                    moments=(*_constant(), *_lost(), (RESET_S, _reset)),
                    goal="bounded",
                ),
            ),
        ),
        World(
            name="killed",
            killed=True,
            cases=(
                Case(name="killed, started again after 20 s", moments=_constant()),
                Case(name="killed, steps", moments=tuple(_steps())),
                Case(
                    name="killed, counter reset during the outage",
                    moments=(*_constant(), (RESET_S, _reset)),
                    goal="bounded",
                ),
            ),
        ),
    )


def make(world: World, folder: Path) -> FakeNvml:
    """Make the GPUs of a world, quiet; their sensors change every 0.1 s, as those of real boards.

    What is true of a GPU from the beginning (its moments before 0) is so at once.
    """
    fake = FakeNvml.create(folder, gpus=len(world.cases), board=Board.H100)
    for index, case in enumerate(world.cases):
        gpu = fake.gpu(index)
        gpu.draw(case.quiet_w)
        for at_s, happens in case.moments:
            if at_s < 0:
                happens(gpu)
    return fake


def anchors(world: World, fake: FakeNvml) -> Mapping[str, Anchor]:
    """Look at every GPU in a quiet time."""
    found = {}
    for case, gpu in zip(world.cases, fake.gpus, strict=True):
        before_s = time.monotonic()
        truth = gpu.truth()
        at_s = (before_s + time.monotonic()) / 2
        found[gpu.uuid] = Anchor(at_s=at_s, energy_j=truth.energy_j, quiet_w=case.quiet_w)
    return found


def play(
    made: Mapping[World, FakeNvml],
    kill: Callable[[World], None],
    start: Callable[[World], None],
) -> None:
    """Let everything happen at its time, and be quiet again at the end."""
    agenda: list[tuple[float, Callable[[], None]]] = []
    for world, fake in made.items():
        for index, case in enumerate(world.cases):
            agenda += [
                (at_s, partial(happens, fake.gpu(index)))
                for at_s, happens in case.moments
                if at_s >= 0
            ]
        if world.killed:
            agenda.append((KILLED_S[0], partial(kill, world)))
            agenda.append((KILLED_S[1], partial(start, world)))
        agenda += [
            (LOAD_S, partial(_watts(case.quiet_w), gpu))
            for case, gpu in zip(world.cases, fake.gpus, strict=True)
        ]
    began_s = time.monotonic()
    for at_s, happens_now in sorted(agenda, key=lambda each: each[0]):
        time.sleep(max(0.0, began_s + at_s - time.monotonic()))
        happens_now()


def _watts(power_w: float) -> Callable[[FakeGpu], None]:
    return lambda gpu: gpu.draw(power_w)


def _reset(gpu: FakeGpu) -> None:
    gpu.reset_counter()


def _constant() -> tuple[Moment, ...]:
    return ((0.0, _watts(350.0)),)


def _lost() -> tuple[Moment, ...]:
    return ((LOST_S[0], FakeGpu.lose), (LOST_S[1], FakeGpu.come_back))


def _frozen() -> tuple[Moment, ...]:
    return (
        (LOST_S[0], lambda gpu: gpu.freeze_sensor(True)),
        (LOST_S[1], lambda gpu: gpu.freeze_sensor(False)),
    )


def _hung() -> tuple[Moment, ...]:
    return ((LOST_S[0], lambda gpu: gpu.hang(3600)), (LOST_S[1], lambda gpu: gpu.hang(0)))


def _steps() -> Iterator[Moment]:
    draw, at_s = random.Random(7), 0.0
    while at_s < LOAD_S - 4:
        yield at_s, _watts(float(draw.randint(100, 700)))
        at_s += draw.uniform(1, 4)


def _training() -> Iterator[Moment]:
    """Steps of 0.6 to 1 s, each with a fifth of it at less power (communication)."""
    draw, at_s = random.Random(11), 0.0
    while at_s < LOAD_S - 1:
        step_s = draw.uniform(0.6, 1.0)
        yield at_s, _watts(600.0)
        yield at_s + 0.8 * step_s, _watts(300.0)
        at_s += step_s
