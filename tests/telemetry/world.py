"""A scripted machine for the sampler: GPUs with known power, two clocks, a driver, a book.

All of it can misbehave. Invariant: `Gpu.truth_mj` is what was really drawn, whatever the driver,
the clocks or the book say.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from wattmesh.errors import JournalUnavailable, SourceUnavailable
from wattmesh.telemetry.energy.ledger import CounterBaseline, EnergyRow
from wattmesh.telemetry.energy.pending import Key
from wattmesh.telemetry.readings import PowerReading, Quality

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
NJ_PER_MJ = 1_000_000


@dataclass(slots=True)
class Gpu:
    """One device.

    Attributes:
        answers: False: left out of readings. `counts`: its counter can be read.
        tells_power: its power can be read. `drawn_nj`: the truth. `zero_nj`: truth at the
            counter's last reset.
    """

    uuid: str
    power_mw: int = 100_000
    limit_w: float | None = 700.0
    answers: bool = True
    counts: bool = True
    tells_power: bool = True
    drawn_nj: int = 0
    zero_nj: int = 0

    @property
    def truth_mj(self) -> int:
        """What it has drawn since the world began."""
        return self.drawn_nj // NJ_PER_MJ

    @property
    def counter_mj(self) -> int:
        """What its counter shows."""
        return self.truth_mj - self.zero_nj // NJ_PER_MJ

    def reset(self) -> None:
        """Set the counter to zero, as a driver reload does."""
        self.zero_nj = self.drawn_nj


class World:
    """The machine: its GPUs, and its two clocks."""

    def __init__(self, *uuids: str) -> None:
        """Begin at T0 with idle devices."""
        self.gpus = {uuid: Gpu(uuid) for uuid in uuids or ("G0",)}
        self.monotonic_us = 50_000_000
        self.now = T0
        self.hangs = threading.Event()
        self.hangs.set()  # set: reads pass
        self.driver_gone = False

    @property
    def gpu(self) -> Gpu:
        """The first device."""
        return next(iter(self.gpus.values()))

    @property
    def monotonic_s(self) -> float:
        """The monotonic clock."""
        return self.monotonic_us / 1e6

    def pass_time(self, seconds: float) -> None:
        """Let time pass for clocks and devices alike."""
        us = round(seconds * 1e6)
        self.monotonic_us += us
        self.now += timedelta(microseconds=us)
        for gpu in self.gpus.values():
            gpu.drawn_nj += gpu.power_mw * us

    def reboot(self, seconds: float) -> None:
        """Be away for so long, and come back with counters and the monotonic clock at zero."""
        self.pass_time(seconds)
        self.monotonic_us = 7_000_000
        for gpu in self.gpus.values():
            gpu.reset()

    # The power source of this world (`PowerSource`).

    @property
    def name(self) -> str:
        """What it is called."""
        return "scripted"

    def gpu_uuids(self) -> Sequence[str]:
        """List the devices."""
        return list(self.gpus)

    def read(self) -> Sequence[PowerReading]:
        """Read every device that answers."""
        self.hangs.wait(30)
        if self.driver_gone:
            raise SourceUnavailable("the scripted driver is gone; wait for it")
        return [self._reading(gpu) for gpu in self.gpus.values() if gpu.answers]

    def _reading(self, gpu: Gpu) -> PowerReading:
        """Give one device as its driver tells it."""
        return PowerReading(
            gpu_uuid=gpu.uuid,
            at=self.now,
            monotonic_s=self.monotonic_s,
            power_w=gpu.power_mw / 1000 if gpu.tells_power else None,
            energy_mj=gpu.counter_mj if gpu.counts else None,
            clock_mhz=None,
            power_limit_w=gpu.limit_w,
            source="scripted",
            quality=Quality.MEASURED,
        )


@dataclass(slots=True)
class MemoryBook:
    """A ledger in memory with the journal's rules.

    Attributes:
        down: every call fails, nothing is changed. `loses_answer`: the next booking is carried out
            and then reported as failed, as a commit whose answer got lost.
    """

    rows: dict[Key, EnergyRow] = field(default_factory=dict)
    counters: dict[str, CounterBaseline] = field(default_factory=dict)
    down: bool = False
    loses_answer: bool = False

    def book(self, rows: Iterable[EnergyRow], baselines: Iterable[CounterBaseline]) -> None:
        """Replace rows and counters in one step."""
        self._require_up()
        for row in rows:
            self._put(row)
        for baseline in baselines:
            self.counters[baseline.gpu_uuid] = baseline
        if self.loses_answer:
            self.loses_answer = False
            raise JournalUnavailable("the answer to a commit got lost")

    def _put(self, row: EnergyRow) -> None:
        """Replace one row."""
        self.rows[row.gpu_uuid, row.run, row.slot_start, row.line] = row

    def baselines(self) -> dict[str, CounterBaseline]:
        """Give the counters."""
        self._require_up()
        return dict(self.counters)

    def energy(
        self, start: datetime | None = None, end: datetime | None = None, run: str | None = None
    ) -> tuple[EnergyRow, ...]:
        """Give the rows of slots that begin in [start, end)."""
        self._require_up()
        return tuple(
            row
            for row in self.rows.values()
            if (start is None or row.slot_start >= start)
            and (end is None or row.slot_start < end)
            and (run is None or row.run == run)
        )

    def _require_up(self) -> None:
        """Fail while down."""
        if self.down:
            raise JournalUnavailable("the scripted journal is down")

    @property
    def energy_mj(self) -> int:
        """All joules in it."""
        return sum(row.energy_mj or 0 for row in self.rows.values())

    @property
    def unobserved_ms(self) -> int:
        """All unobserved time in it."""
        return sum(row.unobserved_ms for row in self.rows.values())

    @property
    def upper_mj(self) -> int:
        """The most that can have been drawn in that time."""
        return sum(row.upper_mj for row in self.rows.values())

    def by_run(self) -> dict[str, int]:
        """Give joules per run."""
        sums: dict[str, int] = {}
        for row in self.rows.values():
            sums[row.run] = sums.get(row.run, 0) + (row.energy_mj or 0)
        return sums


class AddingBook(MemoryBook):
    """Sabotaged: adds to a row what should replace it."""

    def _put(self, row: EnergyRow) -> None:
        held = self.rows.get((row.gpu_uuid, row.run, row.slot_start, row.line))
        if held is not None:
            row = replace(row, energy_mj=(row.energy_mj or 0) + (held.energy_mj or 0))
        self.rows[row.gpu_uuid, row.run, row.slot_start, row.line] = row


class TornBook(MemoryBook):
    """Sabotaged: books counters in another transaction than rows, and fails between the two."""

    def book(self, rows: Iterable[EnergyRow], baselines: Iterable[CounterBaseline]) -> None:
        """Replace the counters; lose the rows of a booking that then fails."""
        if not self.loses_answer:
            super().book(rows, baselines)
            return
        self.loses_answer = False
        self.counters |= {each.gpu_uuid: each for each in baselines}
        raise JournalUnavailable("failed between two transactions")
