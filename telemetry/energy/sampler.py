"""The sampler: reads a power source, applies the ledger rules, and books absolute rows.

Invariant: counters advance in the transaction of the rows computed from them. While the journal
is gone, amounts wait here; if the process dies with them, the counters stand where they were booked
and the next one books the whole gap from the hardware counter. Nothing acknowledged is lost,
nothing is counted twice.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Protocol

from wattmesh.errors import JournalUnavailable, SourceUnavailable
from wattmesh.telemetry.deadline import Overdue, Worker
from wattmesh.telemetry.energy.attribution import IDLE, Claim
from wattmesh.telemetry.energy.ledger import (
    NO_COUNTER,
    CounterBaseline,
    DeviceTotal,
    EnergyRow,
    SlotGrid,
)
from wattmesh.telemetry.energy.meter import Meter, Piece, micros
from wattmesh.telemetry.energy.pending import MICROSECOND, Cell, Pending, cells
from wattmesh.telemetry.readings import Closes, Component, Explains, PowerReading, PowerSource

log = logging.getLogger(__name__)

CLOCK_STEP_S = 1.0
"""A wall clock that moved this much against the monotonic one was stepped, not slewed."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MOST_PENDING = 20_000
"""Rows kept while the journal is gone; beyond, the counters are trusted to cover the gap."""

MOST_DARK = 5_000
"""Slots of one silent device that are kept to be filled in when its counter answers again."""

GONE_US = 24 * 3600 * 1_000_000
"""A device silent for so long was taken out: nobody expects it any more. Whoever holds it still is
told its unread time by the controller, and what its counter says should it come back is booked."""


class Book(Protocol):
    """Where rows are kept (the journal's ledger)."""

    def book(self, rows: Iterable[EnergyRow], baselines: Iterable[CounterBaseline]) -> None:
        """Replace rows and counters in one transaction, or raise JournalUnavailable."""
        ...

    def baselines(self) -> dict[str, CounterBaseline]:
        """Give the counters that were booked up to."""
        ...

    def energy(
        self, start: datetime | None = None, end: datetime | None = None, run: str | None = None
    ) -> tuple[EnergyRow, ...]:
        """Give the rows of slots that begin in [start, end)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one step saw.

    Attributes:
        readings: newest readings. `missing`: devices known from before that did not answer, or told
            neither power nor energy.
        clock_step_s: how far the wall clock was stepped since the step before; 0 when it was not.
        trouble: why nothing was read; "" when something was.
        notes: (device, why) of every counter that was not believed in this step, as `Piece.note`.
        troubles: (device or source, why) of what was not read, as far as that is known.
    """

    readings: tuple[PowerReading, ...] = ()
    missing: tuple[str, ...] = ()
    clock_step_s: float = 0.0
    trouble: str = ""
    notes: tuple[tuple[str, str], ...] = ()
    troubles: tuple[tuple[str, str], ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """Every device that is known, whether it answered or not."""
        return (*(each.gpu_uuid for each in self.readings), *self.missing)

    @property
    def power_w(self) -> float | None:
        """All devices together; None when none told its power."""
        known = [each.power_w for each in self.readings if each.power_w is not None]
        return sum(known) if known else None


@dataclass(slots=True)
class _Clocks:
    """The wall clock as the ledger sees it: anchored to the monotonic one until it is stepped.

    `strayed_s`: how far it is from the one by which the stretches began that are being read.
    """

    wall: datetime
    monotonic_us: int
    strayed_s: float = 0.0

    def at(self, monotonic_us: int) -> datetime:
        """Give the wall time of a monotonic moment."""
        return self.wall + (monotonic_us - self.monotonic_us) * MICROSECOND

    def at_us(self, monotonic_us: int) -> int:
        """Give the same in microseconds since 1970."""
        return (self.at(monotonic_us) - EPOCH) // MICROSECOND

    def follow(self, wall: datetime, monotonic_us: int) -> float:
        """Take the clocks as they are now; give how far the wall clock was stepped, or 0."""
        off_s = (wall - self.at(monotonic_us)).total_seconds()
        self.wall, self.monotonic_us = wall, monotonic_us
        self.strayed_s += off_s
        return off_s if abs(off_s) > CLOCK_STEP_S else 0.0


class Sampler:
    """Turns readings of one source into ledger rows; one thread calls `step` and `flush`."""

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
            source: where readings come from.
            book: where rows go.
            grid: where slots end.
            boot_id: names this boot; monotonic times and counters of another one mean nothing.
            hold_s: longest time that a power is believed to last; some sampling periods.
            deadline_s: after which a source that does not answer is passed over.
        """
        self._source = source
        self._book = book
        self._grid = grid
        self._boot_id = boot_id
        self._hold_us = micros(hold_s)
        self._deadline_s = deadline_s
        self._reader = Worker("power-source")
        self._meters: dict[str, Meter] = {}
        self._dark: dict[str, list[Cell]] = {}
        self._gone: set[str] = set()
        self._claims: Mapping[str, Claim] | None = None
        self._clocks: _Clocks | None = None
        self._pending = Pending()
        # Devices whose meters must first be taken from the book; None: all of them.
        self._waiting: set[str] | None = None
        self._booked: set[str] = set()
        self._totals: dict[str, DeviceTotal] = {}
        self._since_us: dict[str, int] = {}
        self._notes: list[tuple[str, str]] = []
        self._noted: dict[str, str] = {}  # each device's newest, so that a log says it once

    def step(self, now: datetime, monotonic_s: float, claims: Mapping[str, Claim] | None) -> Sample:
        """Read once and add what was drawn since the step before to whoever held each GPU then.

        Args:
            now: the wall clock at this moment, aware.
            monotonic_s: the monotonic clock at this moment.
            claims: who holds which GPU; None while that is not known yet (a daemon that has just
                started): then nothing is added, and a later step adds what this one did not.
        """
        monotonic_us = micros(monotonic_s)
        self._notes = []
        if self._clocks is None:
            self._clocks = _Clocks(now, monotonic_us)
            with suppress(JournalUnavailable):  # tried again by every flush
                self._resume(self._clocks)
        clock_step_s = self._clocks.follow(now, monotonic_us)
        if abs(self._clocks.strayed_s) > CLOCK_STEP_S:
            self._begin_anew(self._clocks)
        readings, trouble = self._read()
        # A node's meter reads what its parts read: booking both would count them twice.
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
        """Give everything ever booked, or about to be, by device."""
        return dict(self._totals)

    def flush(self) -> None:
        """Book everything that waits, with the counters it came from.

        Raises:
            JournalUnavailable: it goes on waiting; call again.
        """
        if self._clocks is None:
            return
        if self._waiting is None or self._waiting:
            self._resume(self._clocks)
        try:
            unread = self._pending.unread()
            if unread is not None:
                self._pending.found(self._book.energy(unread[0], unread[1] + MICROSECOND))
            rows = self._pending.rows()
            self._book.book(rows.values(), self._baselines(self._clocks))
        except JournalUnavailable:
            if len(self._pending) > MOST_PENDING:
                self._trust_counters()
            raise
        self._pending.acknowledged(rows)
        self._booked.update(self._meters)

    def regrid(self, grid: SlotGrid) -> None:
        """Take another grid of slots from now on (a reload named another signal)."""
        self._grid = grid

    def close(self) -> None:
        """Let go of the source; what waits is covered by the counters."""
        self._reader.close()
        if isinstance(self._source, Closes):
            self._source.close()

    def _read(self) -> tuple[Sequence[PowerReading], str]:
        """Read the source, so that a hung driver stalls nothing; give (readings, trouble)."""
        try:
            return self._reader.call(self._source.read, self._deadline_s), ""
        except Overdue as error:
            return (), (
                f"{self._source.name} has not answered for {error.waited_s:.0f} s; what is drawn "
                "meanwhile is booked from the counters when it does"
            )
        except (SourceUnavailable, OSError) as error:
            return (), str(error)

    def _troubles(self, readings: Sequence[PowerReading]) -> dict[str, str]:
        """Give why devices and sources tell nothing, in the source's own words."""
        said = dict(self._source.troubles) if isinstance(self._source, Explains) else {}
        return said | {each.gpu_uuid: each.trouble for each in readings if each.trouble}

    def _resume(self, clocks: _Clocks) -> None:
        """Begin where the counters in the journal stand; devices it does not know begin here."""
        for gpu, baseline in self._book.baselines().items():
            if self._waiting is not None and gpu not in self._waiting:
                continue
            moment_us = None
            if baseline.boot_id != self._boot_id:
                away_us = (clocks.wall - baseline.at) // MICROSECOND
                moment_us = clocks.monotonic_us - max(0, away_us)
            meter = self._meters[gpu] = Meter.resumed(baseline, moment_us)
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
        """Begin with a device's first reading."""
        meter = self._meters[reading.gpu_uuid] = Meter.first(reading)
        self._since_us[reading.gpu_uuid] = clocks.at_us(meter.monotonic_us)

    def _begin_anew(self, clocks: _Clocks) -> None:
        """Begin every device's stretch where it is booked up to, by the wall clock as it is now.

        By the one before, time would count as read that only the wall clock has passed.
        """
        clocks.strayed_s = 0.0
        for gpu, meter in self._meters.items():
            self._since_us[gpu] = clocks.at_us(meter.monotonic_us)

    def _meter(
        self, clocks: _Clocks, readings: Sequence[PowerReading], held: Mapping[str, Claim]
    ) -> None:
        """Add what every known device drew, or that nobody knows."""
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
            self._missed(clocks, gpu, held)

    def _add(
        self, clocks: _Clocks, gpu: str, after: Meter, piece: Piece, held: Mapping[str, Claim]
    ) -> None:
        """Add a piece that ends at the moment of the meter `after`."""
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

    def _missed(self, clocks: _Clocks, gpu: str, held: Mapping[str, Claim]) -> None:
        """Book the time of a device that did not answer as unobserved, until its counter tells."""
        meter = self._meters[gpu]
        length_us = clocks.monotonic_us - meter.monotonic_us
        if max(length_us, meter.dark_us) > GONE_US:
            # Its meter stays: what passes from here on is booked should it ever answer again.
            log.warning("%s has not answered for a day; it is taken for removed", gpu)
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

    def _count(self, gpu: str, piece: Piece, recovered_ms: int = 0) -> None:
        """Add a piece to what was ever booked of a device."""
        self._totals[gpu] = self._totals.get(gpu, DeviceTotal()).plus(
            energy_mj=piece.energy_mj,
            unobserved_ms=piece.unobserved_ms,
            recovered_ms=recovered_ms,
        )

    def _cells(
        self, clocks: _Clocks, gpu: str, after: Meter, piece: Piece, held: Mapping[str, Claim]
    ) -> list[Cell]:
        """Lay a piece over the slots it lies in."""
        end = clocks.at(after.monotonic_us)
        return cells(piece, end, gpu=gpu, claim=held.get(gpu, IDLE), grid=self._grid)

    def _baselines(self, clocks: _Clocks) -> list[CounterBaseline]:
        """Give every device's counter and moment up to which it is booked."""
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
        """Drop what waits where the counters in the journal cover it, in one coarse interval."""
        counted = {
            gpu
            for gpu in self._booked
            if gpu in self._meters and self._meters[gpu].counter_mj is not None
        }
        log.warning(
            "%d ledger rows wait for the journal; those of %d devices are left to their counters",
            len(self._pending),
            len(counted),
        )
        self._pending.forget(counted)
        for gpu in counted:
            self._dark.pop(gpu, None)
        self._waiting = (self._waiting or set()) | counted
