"""What every hostile door tells: how much was tried, what broke, what the worst input cost.

Inputs of less than 1 MiB count as 1 MiB, so that starting costs of a small one are no ratio.
"""

import os
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
MANY = 20


@dataclass(frozen=True, slots=True)
class Cost:
    """What one input cost: its bytes, seconds of processor time, MiB beyond what was in use."""

    words: str
    nbytes: int
    cpu_s: float
    mib: float

    @property
    def mib_per_mib(self) -> float:
        """MiB of memory for each MiB of input."""
        return self.mib / max(1.0, self.nbytes / MIB)

    @property
    def s_per_mib(self) -> float:
        """Processor seconds for each MiB of input."""
        return self.cpu_s / max(1.0, self.nbytes / MIB)


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of one door.

    Attributes:
        door: its name. `inputs`: how many were tried.
        crashes: a sentence each: which input, and what happened.
        costs: of the inputs; where they are not kept for each, of the worst ones.
        others_refused: calls of other users that were refused meanwhile; None where a door has no
            other users.
    """

    door: str
    inputs: int
    crashes: tuple[str, ...] = ()
    costs: tuple[Cost, ...] = ()
    others_refused: int | None = None

    def as_json(self) -> dict[str, Any]:
        """For a parent process: the worst inputs stand for all."""
        return {**asdict(self), "costs": [asdict(each) for each in _worst(self.costs)]}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> "Tried":
        """Read what a child printed."""
        costs = tuple(Cost(**each) for each in told["costs"])
        return cls(**{**told, "crashes": tuple(told["crashes"]), "costs": costs})

    def row(self) -> dict[str, Any]:
        """As a line of the report."""
        memory = max(self.costs, key=lambda each: each.mib_per_mib, default=None)
        clock = max(self.costs, key=lambda each: each.s_per_mib, default=None)
        return {
            "door": self.door,
            "inputs": self.inputs,
            "crashes": len(self.crashes),
            "others_refused": self.others_refused,
            "worst_mib_per_mib": round(memory.mib_per_mib, 2) if memory else None,
            "worst_memory": memory.words if memory else "",
            "worst_s_per_mib": round(clock.s_per_mib, 4) if clock else None,
            "worst_time": clock.words if clock else "",
            "first_crash": self.crashes[0] if self.crashes else "",
        }


def _worst(costs: Iterable[Cost]) -> list[Cost]:
    found = list(costs)
    by_memory = sorted(found, key=lambda each: -each.mib_per_mib)[:MANY]
    by_time = sorted(found, key=lambda each: -each.s_per_mib)[:MANY]
    return list(dict.fromkeys((*by_memory, *by_time)))


def merged(door: str, parts: Iterable[Tried]) -> Tried:
    """Several parts of one door as one."""
    every = list(parts)
    refused = [each.others_refused for each in every if each.others_refused is not None]
    return Tried(
        door=door,
        inputs=sum(each.inputs for each in every),
        crashes=tuple(crash for each in every for crash in each.crashes),
        costs=tuple(cost for each in every for cost in each.costs),
        others_refused=sum(refused) if refused else None,
    )


def used(pid: int) -> tuple[float, float]:
    """Give a process's seconds of processor time, and its MiB in memory."""
    # clock_getcpuclockid(3), which Python has no name for: the clock of another process.
    cpu_s = time.clock_gettime((~pid << 3) | 2)
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return cpu_s, pages * os.sysconf("SC_PAGESIZE") / MIB


def said_as_expected(said: str, expected: str) -> bool:
    """Whether a door said what it should of an input."""
    return re.search(expected, said) is not None
