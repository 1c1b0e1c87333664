"""Models of boards for fake GPUs: ranges of power and clock, and power as a function of clock.

Nominal numbers: limits and idle power are those of NVIDIA's own mock configurations; the split of
active power is assumed, such that full load at full clock stays just below the default limit.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from wattmesh.errors import InputInvalid


class Board(StrEnum):
    """The boards, by name."""

    A100 = "a100"
    H100 = "h100"
    H200 = "h200"
    B200 = "b200"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardModel:
    """A model of board, and its power as a function of clock and load.

    Power at load u in 0..1 and clock f, with x = f / clock_max_mhz, is
    `idle_w + u * (active_w + linear_w * x + switching_w * x * max(voltage_floor, x)**2)`.

    Attributes:
        name: what NVML calls it. `architecture`: NVML's number.
        default_w, min_w, max_w: the power limit.
        voltage_floor: below this share of the full clock, voltage falls no further.
        clock_step_mhz: distance of the clocks it supports, from `clock_max_mhz` down.
        averages: power usage is an average of one second (all since Ampere but GA100).
        power_profiles: it knows workload power profiles (Blackwell).
    """

    name: str
    architecture: int
    compute: tuple[int, int]
    default_w: float
    min_w: float
    max_w: float
    idle_w: float
    active_w: float
    linear_w: float
    switching_w: float
    voltage_floor: float = 0.6
    clock_max_mhz: int
    clock_min_mhz: int
    clock_step_mhz: int = 15
    clock_idle_mhz: int
    memory_clock_mhz: int
    averages: bool = True
    power_profiles: bool = False
    memory_gib: int

    def __post_init__(self) -> None:
        """Refuse values that no board can have."""
        if not (self.name.isascii() and self.name.isprintable() and 0 < len(self.name) < 64):
            raise InputInvalid(
                f"fake board {self.name!r}: a name has 1 to 63 printable ASCII letters"
            )
        watts = (self.idle_w, self.active_w, self.linear_w, self.switching_w, self.min_w)
        if not all(0 <= each < 1e5 for each in (*watts, self.max_w)):
            raise InputInvalid(f"fake board {self.name}: watts must lie in [0, 100000): {watts}")
        if not 0 < self.min_w <= self.default_w <= self.max_w:
            raise InputInvalid(
                f"fake board {self.name}: limits must be 0 < min {self.min_w} <= default "
                f"{self.default_w} <= max {self.max_w} W"
            )
        clocks = (self.clock_min_mhz, self.clock_idle_mhz, self.clock_max_mhz, 100_000)
        if not 0 < clocks[0] <= clocks[1] <= clocks[2] <= clocks[3] or self.clock_step_mhz < 1:
            raise InputInvalid(
                f"fake board {self.name}: clocks must be 0 < min <= idle <= max <= 100000 MHz in "
                f"steps of 1 or more: {clocks[:3]}, step {self.clock_step_mhz}"
            )
        if not 0 <= self.voltage_floor <= 1:
            raise InputInvalid(
                f"fake board {self.name}: voltage_floor {self.voltage_floor} must lie in 0..1"
            )

    def power_w(self, clock_mhz: float, load: float) -> float:
        """Return the watts at a load in 0..1 and a clock, before any power limit."""
        share = clock_mhz / self.clock_max_mhz
        switching_w = self.switching_w * share * max(self.voltage_floor, share) ** 2
        return self.idle_w + load * (self.active_w + self.linear_w * share + switching_w)


BOARDS = {
    Board.A100: BoardModel(
        name="NVIDIA A100-SXM4-40GB",
        architecture=7,
        compute=(8, 0),
        default_w=400,
        min_w=100,
        max_w=400,
        idle_w=72,
        active_w=28,
        linear_w=80,
        switching_w=214,
        clock_max_mhz=1410,
        clock_min_mhz=210,
        clock_idle_mhz=210,
        memory_clock_mhz=1215,
        averages=False,
        memory_gib=40,
    ),
    Board.H100: BoardModel(
        name="NVIDIA H100 80GB HBM3",
        architecture=9,
        compute=(9, 0),
        default_w=700,
        min_w=200,
        max_w=700,
        idle_w=95,
        active_w=45,
        linear_w=140,
        switching_w=410,
        clock_max_mhz=1980,
        clock_min_mhz=210,
        clock_idle_mhz=345,
        memory_clock_mhz=2619,
        memory_gib=80,
    ),
    Board.H200: BoardModel(
        name="NVIDIA H200",
        architecture=9,
        compute=(9, 0),
        default_w=700,
        min_w=200,
        max_w=700,
        idle_w=95,
        active_w=55,
        linear_w=135,
        switching_w=405,
        clock_max_mhz=1980,
        clock_min_mhz=210,
        clock_idle_mhz=345,
        memory_clock_mhz=3201,
        memory_gib=141,
    ),
    Board.B200: BoardModel(
        name="NVIDIA B200",
        architecture=10,
        compute=(10, 0),
        default_w=1000,
        min_w=400,
        max_w=1200,
        idle_w=130,
        active_w=75,
        linear_w=195,
        switching_w=585,
        clock_max_mhz=1965,
        clock_min_mhz=120,
        clock_idle_mhz=120,
        memory_clock_mhz=3996,
        power_profiles=True,
        memory_gib=180,
    ),
}

DEMO_BOARD = replace(
    BOARDS[Board.H100],
    name="Simulated accelerator",
    idle_w=55,
    active_w=75,
    linear_w=170,
    switching_w=400,
    voltage_floor=0.0,
)
"""What the demo and profiles without GPUs run on: no product, power as clock cubed (assumed)."""
