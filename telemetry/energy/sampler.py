"""Reads a power source, applies the ledger's rules, and books absolute rows.

Invariant: counters advance in the same transaction as the rows computed from them. While the
journal is unavailable, amounts wait in memory; if the process dies with them, the next one books
the whole gap from the hardware counter, starting at the booked baseline. Nothing acknowledged is
lost, nothing is counted twice.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Protocol

from wattmesh.errors import JournalUnavailable, SourceUnavailable
from wattmesh.telemetry.deadline import Overdue, Worker
from wattmesh.telemetry.energy.attribution import IDLE, EnergyClaim
from wattmesh.telemetry.energy.ledger import (
    NO_COUNTER,
    CounterBaseline,
    DeviceTotal,
    EnergyRow,
    SlotGrid,
)
from wattmesh.telemetry.energy.meter import EnergyPiece, MeterState, micros
from wattmesh.telemetry.energy.pending import MICROSECOND, Pending, SlotPart, cells
from wattmesh.telemetry.readings import Closes, Component, Explains, PowerReading, PowerSource

log = logging.getLogger(__name__)

CLOCK_STEP_S = 1.0
"""A wall clock that moved this far against the monotonic clock was stepped, not slewed."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MOST_PENDING = 20_000
"""Rows kept while the journal is unavailable; beyond, the counters are left to cover the gap."""

MOST_DARK = 5_000
"""Slots kept of a device that does not answer, to be filled in when its counter answers again."""

GONE_US = 24 * 3600 * 1_000_000
"""A device that has not answered for so long counts as removed. The controller books its unobserved
time to a run that still holds it; if it comes back, its counter is booked."""


class Book(Protocol):
    """Stores ledger rows (the journal implements it)."""

    def book(self, rows: Iterable[EnergyRow], baselines: Iterable[CounterBaseline]) -> None:
        """Replace rows and counters in one transaction, or raise JournalUnavailable."""
        ...

    def baselines(self) -> dict[str, CounterBaseline]:
        """Return the booked counters by device."""
        ...

    def energy(
        self, start: datetime | None = None, end: datetime | None = None, run: str | None = None
    ) -> tuple[EnergyRow, ...]:
        """Return the rows of slots that begin in [start, end)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The result of one step.

    Attributes:
        readings: newest readings.
        missing: known devices that did not answer, or gave neither power nor energy.
        clock_step_s: how far the wall clock was stepped since the last step; 0 when it was not.
        trouble: why nothing was read; "" when something was.
        notes: (device, `EnergyPiece.note`) of every counter that was not used in this step.
        troubles: (device or source, why) of what was not read, as far as the reason is known.
    """

    readings: tuple[PowerReading, ...] = ()
    missing: tuple[str, ...] = ()
    clock_step_s: float = 0.0
    trouble: str = ""
    notes: tuple[tuple[str, str], ...] = ()
    troubles: tuple[tuple[str, str], ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """Every known device, whether it answered or not."""
        return (*(each.gpu_uuid for each in self.readings), *self.missing)


@dataclass(slots=True)
class _Clocks:
    """The ledger's wall clock: it follows the monotonic clock until the wall clock is stepped.

    `strayed_s`: its shift since `Sampler._since_us` was last set.
    """

    wall: datetime
    monotonic_us: int
    strayed_s: float = 0.0

    def at(self, monotonic_us: int) -> datetime:
        return self.wall + (monotonic_us - self.monotonic_us) * MICROSECOND

    def at_us(self, monotonic_us: int) -> int:
        """Microseconds since 1970 at a monotonic moment."""
        return (self.at(monotonic_us) - EPOCH) // MICROSECOND

    def follow(self, wall: datetime, monotonic_us: int) -> float:
        """Set both clocks; return how far the wall clock was stepped, or 0."""
        off_s = (wall - self.at(monotonic_us)).total_seconds()
        self.wall, self.monotonic_us = wall, monotonic_us
        self.strayed_s += off_s
        return off_s if abs(off_s) > CLOCK_STEP_S else 0.0


class Sampler:
    """Turns readings of one source into ledger rows. One thread calls `step` and `flush`."""

    def __init__(
        self,
        source: PowerSource,
        book: Book,
        grid: SlotGrid,
        *,
        boot_id: str,
        hold_s: float = 5.0,
        deadline_s: float = 2.0,
    ) -> None:
        """Prepare; nothing is read before the first step.

        Args:
            source: the source to read.
            book: where rows are stored.
            grid: borders of the slots.
            boot_id: id of this boot; monotonic times and counters of another boot are void.
            hold_s: longest time for which a power reading is used; some sampling periods.
            deadline_s: longest wait for the source in one step.
        """
        self._source = source
        self._book = book
        self._grid = grid
        self._boot_id = boot_id
        self._hold_us = micros(hold_s)
        self._deadline_s = deadline_s
        self._reader = Worker("power-source")
        self._meters: dict[str, MeterState] = {}
        self._dark: dict[str, list[SlotPart]] = {}
        self._gone: set[str] = set()
        self._claims: Mapping[str, EnergyClaim] | None = None
        self._clocks: _Clocks | None = None
        self._pending = Pending()
        # Devices whose meters must be read from the book first; None: all of them.
        self._waiting: set[str] | None = None
        self._booked: set[str] = set()
        self._totals: dict[str, DeviceTotal] = {}
        self._since_us: dict[str, int] = {}
        self._notes: list[tuple[str, str]] = []
        self._noted: dict[str, str] = {}  # newest note by device, so that it is logged once

    def step(
        self, now: datetime, monotonic_s: float, claims: Mapping[str, EnergyClaim] | None
    ) -> Sample:
        """Read once; charge the energy since the last step to the claims that held then.

        Args:
            now: the wall clock at this moment, aware.
            monotonic_s: the monotonic clock at this moment.
            claims: the claim on each GPU; None while not known yet (a daemon that has just
                started): then nothing is added, and a later step covers this time.
        """
        monotonic_us = micros(monotonic_s)
        self._notes = []
        if self._clocks is None:
            self._clocks = _Clocks(now, monotonic_us)
            with suppress(JournalUnavailable):  # every flush tries again
                self._resume(self._clocks)
        clock_step_s = self._clocks.follow(now, monotonic_us)
        if abs(self._clocks.strayed_s) > CLOCK_STEP_S:
            self._begin_anew(self._clocks)
        readings, trouble = self._read()
        # A node's meter includes its parts: booking both would count them twice.
        parts = [each for each in readings if each.component is not Component.NODE]
        if claims is None or self._waiting is None:
            for reading in parts:
                if reading.gpu_uuid not in self._meters:
                    self._begin(self._clocks, reading)
        else:
            held = claims if self._claims is None else self._claims
            self._claims = claims
            self._meter(self._clocks, parts, held)
        seen = {reading.gpu_uuid for reading in readings if reading.tells}
        return Sample(
            readings=tuple(readings),
            missing=tuple(gpu for gpu in self._meters if gpu not in seen | self._gone),
            clock_step_s=clock_step_s,
            trouble=trouble,
            notes=tuple(self._notes),
            troubles=tuple(self._troubles(readings).items()),
        )

    def totals(self) -> Mapping[str, DeviceTotal]:
        """Return each device's totals, amounts that still wait included."""
        return dict(self._totals)

    def flush(self) -> None:
        """Book all waiting amounts with the counters they were computed from.

        Raises:
            JournalUnavailable: the amounts go on waiting; call again.
        """
        if self._clocks is None:
            return
        if self._waiting is None or self._waiting:
            self._resume(self._clocks)
        try:
            unread = self._pending.unread()
            if unread is not None:
                self._pending.take_booked(self._book.energy(unread[0], unread[1] + MICROSECOND))
            rows = self._pending.rows()
            self._book.book(rows.values(), self._baselines(self._clocks))
        except JournalUnavailable:
            if len(self._pending) > MOST_PENDING:
                self._trust_counters()
            raise
        self._pending.acknowledged(rows)
        self._booked.update(self._meters)

    def regrid(self, grid: SlotGrid) -> None:
        """Use another grid of slots from now on (a reload named another signal)."""
        self._grid = grid

    def close(self) -> None:
        """Close the source. Counters cover the amounts that still wait."""
        self._reader.close()
        if isinstance(self._source, Closes):
            self._source.close()

    def _read(self) -> tuple[Sequence[PowerReading], str]:
        """Read the source with a deadline, so that a hung driver stalls nothing."""
        try:
            return self._reader.call(self._source.read, self._deadline_s), ""
        except Overdue as error:
            return (), (
                f"{self._source.name} has not answered for {error.waited_s:.0f} s; the energy "
                "meanwhile is booked from the counters when it does"
            )
        except (SourceUnavailable, OSError) as error:
            return (), str(error)

    def _troubles(self, readings: Sequence[PowerReading]) -> dict[str, str]:
        """Why devices and sources gave no reading, in the source's own words."""
        said = dict(self._source.troubles) if isinstance(self._source, Explains) else {}
        return said | {each.gpu_uuid: each.trouble for each in readings if each.trouble}

    def _resume(self, clocks: _Clocks) -> None:
        """Continue from the counters in the journal; unknown devices begin here."""
        for gpu, baseline in self._book.baselines().items():
            if self._waiting is not None and gpu not in self._waiting:
                continue
            moment_us = None
            if baseline.boot_id != self._boot_id:
                away_us = (clocks.wall - baseline.at) // MICROSECOND
                moment_us = clocks.monotonic_us - max(0, away_us)
            meter = self._meters[gpu] = MeterState.resumed(baseline, moment_us)
            self._totals[gpu] = DeviceTotal(
                booked_mj=baseline.booked_mj,
                unobserved_ms=baseline.unobserved_ms,
                recovered_ms=baseline.recovered_ms,
            )
            off_s = (clocks.at(meter.monotonic_us) - baseline.at).total_seconds()
            stepped = abs(off_s) > CLOCK_STEP_S
            self._since_us[gpu] = clocks.at_us(meter.monotonic_us) if stepped else baseline.since_us
            self._booked.add(gpu)
        self._waiting = set()

    def _begin(self, clocks: _Clocks, reading: PowerReading) -> None:
        meter = self._meters[reading.gpu_uuid] = MeterState.first(reading)
        self._since_us[reading.gpu_uuid] = clocks.at_us(meter.monotonic_us)

    def _begin_anew(self, clocks: _Clocks) -> None:
        """Reset the start of every gapless interval to the moment booked up to.

        With the old start, the time that a clock step skipped would count as observed.
        """
        clocks.strayed_s = 0.0
        for gpu, meter in self._meters.items():
            self._since_us[gpu] = clocks.at_us(meter.monotonic_us)

    def _meter(
        self, clocks: _Clocks, readings: Sequence[PowerReading], held: Mapping[str, EnergyClaim]
    ) -> None:
        """Add the energy, or the unobserved time, of every known device."""
        waiting = self._waiting or set()
        telling = [each for each in readings if each.tells]
        for reading in telling:
            if reading.gpu_uuid in waiting:
                continue
            meter = self._meters.get(reading.gpu_uuid)
            if meter is None:
                self._begin(clocks, reading)
                continue
            advanced = meter.advanced(reading, hold_us=self._hold_us)
            if advanced is not None:
                self._meters[reading.gpu_uuid] = advanced[0]
                self._add(clocks, reading.gpu_uuid, *advanced, held)
        answered = waiting.union(reading.gpu_uuid for reading in telling)
        self._gone -= answered
        for gpu in [each for each in self._meters if each not in answered | self._gone]:
            self._book_unobserved(clocks, gpu, held)

    def _add(
        self,
        clocks: _Clocks,
        gpu: str,
        after: MeterState,
        piece: EnergyPiece,
        held: Mapping[str, EnergyClaim],
    ) -> None:
        """Add a piece that ends at the moment of `after`."""
        if piece.note:
            self._notes.append((gpu, piece.note))
        if piece.note and piece.note != self._noted.get(gpu):
            log.warning("%s: %s; booked from its power instead, if known", gpu, piece.note)
        self._noted[gpu] = piece.note
        where = self._cells(clocks, gpu, after, piece, held)
        dark = self._dark.pop(gpu, [])
        if piece.recovers:
            self._pending.add([*dark, *where], piece, retract=len(dark))
            self._count(gpu, piece, recovered_ms=sum(each.unobserved_ms for each in dark))
        else:
            self._pending.add(where, piece)
            self._count(gpu, piece)

    def _book_unobserved(self, clocks: _Clocks, gpu: str, held: Mapping[str, EnergyClaim]) -> None:
        """Book the time of a silent device as unobserved, until its counter covers it."""
        meter = self._meters[gpu]
        length_us = clocks.monotonic_us - meter.monotonic_us
        if max(length_us, meter.dark_us) > GONE_US:
            # Its meter stays: if it ever answers again, the time from here on is booked.
            log.warning("%s has not answered for a day and counts as removed", gpu)
            self._gone.add(gpu)
            self._dark.pop(gpu, None)
            return
        if length_us <= 0 or (not meter.dark_us and length_us <= self._hold_us):
            return
        after, piece = meter.unseen(clocks.monotonic_us)
        self._count(gpu, piece)
        dark = self._dark.setdefault(gpu, [])
        for cell in self._cells(clocks, gpu, after, piece, held):
            self._pending.add([cell], piece)
            joined = dark[-1].joined(cell) if dark else None
            dark[-1:] = [joined] if joined else [*dark[-1:], cell]
        if len(dark) > MOST_DARK:
            dark.clear()
            after = after.uncounted()
        self._meters[gpu] = after

    def _count(self, gpu: str, piece: EnergyPiece, recovered_ms: int = 0) -> None:
        self._totals[gpu] = self._totals.get(gpu, DeviceTotal()).plus(
            energy_mj=piece.energy_mj,
            unobserved_ms=piece.unobserved_ms,
            recovered_ms=recovered_ms,
        )

    def _cells(
        self,
        clocks: _Clocks,
        gpu: str,
        after: MeterState,
        piece: EnergyPiece,
        held: Mapping[str, EnergyClaim],
    ) -> list[SlotPart]:
        end = clocks.at(after.monotonic_us)
        return cells(piece, end, gpu=gpu, claim=held.get(gpu, IDLE), grid=self._grid)

    def _baselines(self, clocks: _Clocks) -> list[CounterBaseline]:
        """Every device's counter, and the moment up to which it is booked."""
        return [
            CounterBaseline(
                gpu_uuid=gpu,
                energy_mj=NO_COUNTER if meter.counter_mj is None else meter.counter_mj,
                at=clocks.at(meter.monotonic_us),
                monotonic_s=meter.monotonic_us / 1e6,
                boot_id=self._boot_id,
                source=meter.counter_source,
                since_us=self._since_us.get(gpu, 0),
                **asdict(self._totals.get(gpu, DeviceTotal())),
            )
            for gpu, meter in self._meters.items()
        ]

    def _trust_counters(self) -> None:
        """Drop waiting rows that a booked counter covers, in one coarse interval."""
        counted = {
            gpu
            for gpu in self._booked
            if gpu in self._meters and self._meters[gpu].counter_mj is not None
        }
        log.warning(
            "%d ledger rows wait for the journal; the counters of %d devices will cover theirs",
            len(self._pending),
            len(counted),
        )
        self._pending.forget(counted)
        for gpu in counted:
            self._dark.pop(gpu, None)
        self._waiting = (self._waiting or set()) | counted
