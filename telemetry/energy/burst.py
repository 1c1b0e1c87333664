"""Samples at 10 Hz for a while: mean power with its error bound, for profiling.

Invariant: the ledger's own rules compute the joules (`meter.MeterState`), so a counter that resets,
sticks or stops answering is handled as everywhere; and every figure has an error bound, or is None.

An energy counter moves in steps, every `UPDATE_S` on current boards, so each end of a window is off
by up to one step: at 10 Hz that is 2 % of 10 s and 0.3 % of 60 s. A window below one second is
useless on boards whose sensor samples 25 ms of every 100 ms (arXiv 2312.02741).
"""

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.telemetry.energy.meter import MeterState
from wattmesh.telemetry.readings import (
    PowerReading,
    PowerSource,
    Quality,
    flags_of,
    merged_quality,
)

HZ = 10.0
UPDATE_S = 0.1
HOLD_US = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """The energy of one device in a window of monotonic time.

    Attributes: energy_j: None when part of the window was not observed. error_j: bound on the error
    of `energy_j`, in either direction, if power between two readings stays within what was read;
    only meaningful with a known energy. looks: number of readings in the window. quality: quality
    of their sum.
    """

    gpu_uuid: str
    start_s: float
    end_s: float
    energy_j: float | None
    error_j: float
    looks: int
    source: str
    quality: str

    @property
    def power_w(self) -> float | None:
        """The mean power; None when the energy is not known."""
        return None if self.energy_j is None else self.energy_j / (self.end_s - self.start_s)

    @property
    def error_share(self) -> float | None:
        """The error bound over the energy; None when that is not known or nothing was drawn."""
        return self.error_j / self.energy_j if self.energy_j else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """The energy up to a moment, since the first reading. `dark`: from here on unknown."""

    at_s: float
    energy_mj: int
    wobble_mj: float
    dark: bool


def figure(
    readings: Sequence[PowerReading], start_s: float, end_s: float, *, update_s: float = UPDATE_S
) -> Figure:
    """Compute what one device drew in [start_s, end_s). Pure.

    Args:
        readings: of one device, in time order, at least one.
        start_s: where the window begins, monotonic.
        end_s: where it ends, > start_s.
        update_s: seconds between two updates of its counter.

    Raises:
        InputInvalid: there is no reading, or the window is empty.
    """
    if not readings or end_s <= start_s:
        raise InputInvalid(f"burst: {len(readings)} readings for {start_s:g} to {end_s:g} s")
    marks, quality = _marks(readings)
    inside = [each for each in readings if start_s <= each.monotonic_s < end_s]
    known = marks[0].at_s <= start_s and end_s <= marks[-1].at_s
    first, last = _at(marks, start_s), _at(marks, end_s)
    if first.dark is not last.dark or any(
        each.dark for each in marks if start_s <= each.at_s <= end_s
    ):
        known = False
    counted = readings[-1].energy_mj is not None
    step_mj = 1000 * _highest_w(readings, marks) * update_s if counted else 0.0
    spacing_mj = _edge_mj(marks, start_s) + _edge_mj(marks, end_s)
    wobble_mj = last.wobble_mj - first.wobble_mj
    return Figure(
        gpu_uuid=readings[0].gpu_uuid,
        start_s=start_s,
        end_s=end_s,
        energy_j=(last.energy_mj - first.energy_mj) / 1000 if known else None,
        error_j=(2 * step_mj + spacing_mj + wobble_mj) / 1000,
        looks=len(inside),
        source=readings[-1].source,
        quality=quality,
    )


def _marks(readings: Sequence[PowerReading]) -> tuple[list[_Mark], str]:
    """Add up the energy from reading to reading by the ledger's rules, with its quality."""
    meter = MeterState.first(readings[0])
    quality = merged_quality((readings[0].quality,))
    marks = [_Mark(at_s=readings[0].monotonic_s, energy_mj=0, wobble_mj=0.0, dark=False)]
    for before, reading in pairwise(readings):
        advanced = meter.advanced(reading, hold_us=HOLD_US)
        if advanced is None:
            continue
        meter, piece = advanced
        guessed = Quality.ESTIMATED in flags_of(piece.quality) or reading.energy_mj is None
        quality = merged_quality((quality, piece.quality))
        wobble_w = abs((reading.power_w or 0.0) - (before.power_w or 0.0)) / 2 if guessed else 0.0
        newest = marks[-1]
        marks.append(
            _Mark(
                at_s=reading.monotonic_s,
                energy_mj=newest.energy_mj + (piece.energy_mj or 0),
                wobble_mj=newest.wobble_mj + wobble_w * piece.length_us / 1000,
                dark=piece.energy_mj is None,
            )
        )
    return marks, quality


def _at(marks: Sequence[_Mark], moment_s: float) -> _Mark:
    """Interpolate the mark at a moment linearly."""
    after = bisect_left([each.at_s for each in marks], moment_s)
    if after in {0, len(marks)}:
        return marks[min(after, len(marks) - 1)]
    low, high = marks[after - 1], marks[after]
    share = (moment_s - low.at_s) / (high.at_s - low.at_s)
    return _Mark(
        at_s=moment_s,
        energy_mj=round(low.energy_mj + share * (high.energy_mj - low.energy_mj)),
        wobble_mj=low.wobble_mj + share * (high.wobble_mj - low.wobble_mj),
        dark=high.dark,
    )


def _edge_mj(marks: Sequence[_Mark], moment_s: float) -> float:
    """Bound on the error of that interpolation."""
    after = bisect_left([each.at_s for each in marks], moment_s)
    if after in {0, len(marks)} or marks[after].at_s == moment_s:
        return 0.0
    low, high = marks[after - 1], marks[after]
    share = (moment_s - low.at_s) / (high.at_s - low.at_s)
    return max(share, 1 - share) * (high.energy_mj - low.energy_mj)


def _highest_w(readings: Sequence[PowerReading], marks: Sequence[_Mark]) -> float:
    """Highest power at a reading, or on average between two."""
    seen = [each.power_w for each in readings if each.power_w is not None]
    between = [
        (high.energy_mj - low.energy_mj) / 1000 / (high.at_s - low.at_s)
        for low, high in pairwise(marks)
        if high.at_s - low.at_s >= UPDATE_S / 2
    ]
    return max([*seen, *between], default=0.0)


def around(
    readings: Sequence[PowerReading], start_s: float, end_s: float
) -> Sequence[PowerReading]:
    """Cut readings to those that a window needs: one before it, and one after it."""
    first = bisect_right(readings, start_s, key=_moment) - 1
    last = bisect_left(readings, end_s, key=_moment)
    return readings[max(0, first) : last + 1] or readings[-1:]


def _moment(reading: PowerReading) -> float:
    return reading.monotonic_s


class CountedReadings:
    """One device's readings, folded as they come, so that a window costs next to nothing.

    Invariant: a window's figure is that of `figure` on its readings (`around`), to the bit. Where
    the counter alone gives it, it is a difference of two sums; in any other window, e.g. with a
    reset in it or without a counter, `figure` is asked.
    """

    def __init__(self, first: PowerReading) -> None:
        """Begin with a device's first reading."""
        self.readings = [first]
        self._meter = MeterState.first(first)
        self._energy_mj = [0]
        self._odd = [0]
        self._highest_w = _RangeHighest()
        self._between_w = _RangeHighest()
        self._add(_known_w(first), 0.0)

    def append(self, reading: PowerReading) -> None:
        """Add the next reading."""
        before, newest_mj = self.readings[-1], self._energy_mj[-1]
        advanced = self._meter.advanced(reading, hold_us=HOLD_US)
        odd, energy_mj, between_w = True, 0, 0.0
        if advanced is not None:
            self._meter, piece = advanced
            energy_mj = piece.energy_mj or 0
            odd = (
                piece.energy_mj is None
                or reading.energy_mj is None
                or bool(piece.note or piece.recovers or self._meter.guessed_mj)
                or piece.quality != reading.quality
                or (reading.quality, reading.source) != (before.quality, before.source)
            )
            length_s = reading.monotonic_s - before.monotonic_s
            if length_s >= UPDATE_S / 2:
                between_w = energy_mj / 1000 / length_s
        self._energy_mj.append(newest_mj + energy_mj)
        self._odd.append(self._odd[-1] + odd)
        self._add(_known_w(reading), between_w)
        self.readings.append(reading)  # the last, because another thread asks for windows

    def _add(self, power_w: float, between_w: float) -> None:
        self._highest_w.append(power_w)
        self._between_w.append(between_w)

    def figure(self, start_s: float, end_s: float, *, update_s: float) -> Figure:
        """Compute what the device drew in [start_s, end_s); see `figure`."""
        readings = self.readings
        first = max(0, bisect_right(readings, start_s, key=_moment) - 1)
        last = min(bisect_left(readings, end_s, key=_moment), len(readings) - 1)
        plain = (
            start_s < end_s
            and readings[first].monotonic_s <= start_s
            and end_s <= readings[last].monotonic_s
            # The reading before the first one too: it left the counter as it was read.
            and self._odd[last] == self._odd[max(0, first - 1)]
            and readings[first].energy_mj is not None
        )
        if not plain:
            return figure(around(readings, start_s, end_s), start_s, end_s, update_s=update_s)
        marks = [self._mark(each, first) for each in self._ends(start_s, end_s, first, last)]
        highest_w = max(
            self._highest_w.over(first, last + 1), self._between_w.over(first + 1, last + 1)
        )
        edges_mj = _edge_mj(marks, start_s) + _edge_mj(marks, end_s)
        return Figure(
            gpu_uuid=readings[0].gpu_uuid,
            start_s=start_s,
            end_s=end_s,
            energy_j=(_at(marks, end_s).energy_mj - _at(marks, start_s).energy_mj) / 1000,
            error_j=(2 * (1000 * highest_w * update_s) + edges_mj + 0.0) / 1000,
            looks=bisect_left(readings, end_s, key=_moment)
            - bisect_left(readings, start_s, key=_moment),
            source=readings[last].source,
            quality=merged_quality((readings[last].quality,)),
        )

    def _ends(self, start_s: float, end_s: float, first: int, last: int) -> list[int]:
        """List the readings on both sides of a window's ends, in order, each once."""
        after = bisect_left(self.readings, start_s, key=_moment)
        wanted = {first, after, bisect_left(self.readings, end_s, key=_moment) - 1, last}
        return sorted(each for each in wanted if first <= each <= last)

    def _mark(self, index: int, first: int) -> _Mark:
        """Give the mark of a reading, counted from the first of its window as `figure` does."""
        return _Mark(
            at_s=self.readings[index].monotonic_s,
            energy_mj=self._energy_mj[index] - self._energy_mj[first],
            wobble_mj=0.0,
            dark=False,
        )


class _RangeHighest:
    """Numbers of which the highest in any range is asked, none below 0."""

    BLOCK = 64

    def __init__(self) -> None:
        self._values: list[float] = []
        self._blocks: list[float] = []

    def append(self, value: float) -> None:
        if len(self._values) % self.BLOCK == 0:
            self._blocks.append(value)
        self._values.append(value)
        self._blocks[-1] = max(self._blocks[-1], value)

    def over(self, begin: int, end: int) -> float:
        """Return the highest of [begin, end); 0 where that is empty."""
        low, high = -(-begin // self.BLOCK), end // self.BLOCK
        if low >= high:
            return max(self._values[begin:end], default=0.0)
        ends = self._values[begin : low * self.BLOCK] + self._values[high * self.BLOCK : end]
        return max([*ends, *self._blocks[low:high]])


def _known_w(reading: PowerReading) -> float:
    return 0.0 if reading.power_w is None else reading.power_w


class Burst:
    """A context that samples a source at 10 Hz until it is left."""

    def __init__(
        self,
        source: PowerSource,
        gpus: Sequence[str] = (),
        *,
        hz: float = HZ,
        update_s: float = UPDATE_S,
    ) -> None:
        """Prepare.

        Args:
            source: the source to read; nobody else may read it meanwhile.
            gpus: only these devices; default all.
            hz: readings per second, in (0, 50].
            update_s: seconds between two updates of the devices' counters.
        """
        self._source = source
        self._gpus = frozenset(gpus)
        self._every_s = 1 / hz
        self._update_s = update_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="burst", daemon=True)
        self._devices: dict[str, CountedReadings] = {}
        self.trouble = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def looked(self) -> bool:
        """Whether a first reading was taken."""
        return bool(self._devices)

    def newest_s(self, gpu: str) -> float | None:
        """Return the moment of a device's newest reading; None without one."""
        return self._devices[gpu].readings[-1].monotonic_s if gpu in self._devices else None

    def readings(self, gpu: str, start_s: float, end_s: float) -> Sequence[PowerReading]:
        """Return the readings of a device in a window of monotonic time."""
        mine = self._devices[gpu].readings if gpu in self._devices else []
        first = bisect_left(mine, start_s, key=_moment)
        return mine[first : bisect_left(mine, end_s, key=_moment)]

    def figures(self, start_s: float, end_s: float) -> dict[str, Figure]:
        """Return the energy of each device in a window of monotonic time."""
        return {
            gpu: device.figure(start_s, end_s, update_s=self._update_s)
            for gpu, device in list(self._devices.items())
        }

    def _keep(self, reading: PowerReading) -> None:
        device = self._devices.get(reading.gpu_uuid)
        if device is None:
            self._devices[reading.gpu_uuid] = CountedReadings(reading)
        else:
            device.append(reading)

    def _look(self) -> None:
        next_s = time.monotonic()
        while True:
            try:
                for reading in self._source.read():
                    if not self._gpus or reading.gpu_uuid in self._gpus:
                        self._keep(reading)
            except SourceUnavailable as error:
                self.trouble = str(error)
            next_s = max(next_s + self._every_s, time.monotonic())
            if self._stop.wait(next_s - time.monotonic()):
                return
