"""One fake GPU: load it, break it, repair it, and read its true state."""

import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from wattmesh.errors import InputInvalid
from wattmesh.telemetry.fake_nvml.native import Flag, Knob, StateFile

_PJ_PER_MJ = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The true state of a GPU, whatever its sensor reports.

    Attributes:
        energy_j: drawn since the GPU was created; never reset. `energy_pj`: the same, exactly.
        counter_mj: what the energy counter says, quirks of the sensor included.
        power_w, sm_clock_mhz: now. `loaded_clock_mhz`: what the clock would be under full load.
        lock_mhz: the locked clock, None without one; NVML has no call that tells it.
        utilization: 0 to 1.
        reasons: clocks event reason bits. `capped`: the power limit holds the clock down.
        owner_pid: the process that keeps it busy (`FakeGpu.busy`), None without one.
    """

    uuid: str
    index: int
    power_w: float
    energy_j: float
    energy_pj: int
    counter_mj: int
    sm_clock_mhz: int
    loaded_clock_mhz: int
    max_clock_mhz: int
    lock_mhz: int | None
    requested_limit_w: float
    enforced_limit_w: float
    default_limit_w: float
    utilization: float
    reasons: int
    capped: bool
    lost: bool
    mig: bool
    persistence: bool
    owner_pid: int | None


@dataclass(slots=True)
class Work:
    """The result of one piece of work; `overrun_s` is the body's time beyond `seconds`."""

    seconds: float
    elapsed_s: float = 0.0
    overrun_s: float = 0.0


class FakeGpu:
    """One GPU of a `FakeNvml`. Every process that reads it sees a change at once."""

    def __init__(self, session: StateFile, index: int) -> None:
        """Use GPU `index` of an open state file; `FakeNvml.gpu` calls this."""
        self._session = session
        self.index = index
        self.uuid: str = session.truth(index).uuid.decode()

    def truth(self) -> Truth:
        """Return the true state of this GPU now."""
        raw = self._session.truth(self.index)
        energy_pj = raw.energy_mj * _PJ_PER_MJ + raw.energy_pj
        return Truth(
            uuid=self.uuid,
            index=self.index,
            power_w=raw.power_mw / 1000,
            energy_j=energy_pj / 1e12,
            energy_pj=energy_pj,
            counter_mj=raw.counter_mj,
            sm_clock_mhz=raw.clock_mhz,
            loaded_clock_mhz=raw.loaded_clock_mhz,
            max_clock_mhz=raw.max_clock_mhz,
            lock_mhz=raw.lock_mhz or None,
            requested_limit_w=raw.requested_mw / 1000,
            enforced_limit_w=raw.enforced_mw / 1000,
            default_limit_w=raw.default_mw / 1000,
            utilization=raw.load_permille / 1000,
            reasons=raw.reasons,
            capped=bool(raw.capped),
            lost=bool(raw.flags & Flag.LOST),
            mig=bool(raw.flags & Flag.MIG),
            persistence=bool(raw.flags & Flag.PERSISTENCE),
            owner_pid=raw.owner_pid or None,
        )

    def load(self, utilization: float) -> None:
        """Put load on it, 0 to 1; power follows from clock, limit and load."""
        self._turn(Knob.LOAD, round(1000 * _ranged("utilization", utilization, 0, 1)))

    def draw(self, power_w: float | None) -> None:
        """Fix its power in watts, cut at the limit; None returns to the power model."""
        wanted = -1 if power_w is None else _milliwatts("power_w", power_w)
        self._turn(Knob.DRAW, wanted)

    def process(
        self,
        pid: int,
        *,
        utilization: float = 1.0,
        memory_bytes: int = 1 << 30,
        lingers: bool = False,
    ) -> None:
        """List a compute process.

        Args:
            pid: a process that is alive now is dropped when it ends; any other number stays.
            utilization: its share of the SMs, 0 to 1.
            memory_bytes: of the GPU, in use by it.
            lingers: it stays in the list when it has ended.
        """
        self._session.process(
            self.index,
            round(_ranged("pid", pid, 1, 2**32 - 1)),
            utilization=round(100 * _ranged("utilization", utilization, 0, 1)),
            memory_bytes=memory_bytes,
            lingers=lingers,
        )

    def processes(self, pids: Iterable[int]) -> None:
        """List these compute processes and no others."""
        self._turn(Knob.CLEAR_PROCESSES)
        for pid in pids:
            self.process(pid)

    def reset_counter(self) -> None:
        """Set the energy counter to zero; the true energy is kept."""
        self._turn(Knob.ZERO)

    def lose(self) -> None:
        """Make it fall off the bus: every NVML call fails; its processes still draw power."""
        self._set_flag(Flag.LOST, True)

    def come_back(self) -> None:
        """Bring it back to the bus; its counter counted meanwhile."""
        self._set_flag(Flag.LOST, False)

    def hang(self, seconds: float) -> None:
        """Delay every call on it by so many seconds, 0 to 3600; 0 also ends calls that hang."""
        self._turn(Knob.HANG, round(1e9 * _ranged("seconds", seconds, 0, 3600)))

    def part_time(self, period_ms: int, window_ms: int) -> None:
        """Let its sensor see the first `window_ms` of each `period_ms` (up to 60000) only.

        Power and counter change once a period and stand for all of it. Equal numbers: a sensor
        that misses nothing, and changes every `update` again.
        """
        if not 1 <= window_ms <= period_ms <= 60_000:
            raise InputInvalid(
                f"fake NVML: a sensor's window of {window_ms} ms in {period_ms} ms must be "
                "1 <= window <= period <= 60000"
            )
        same = window_ms == period_ms
        self._turn(Knob.WINDOW, 1 if same else period_ms, 1 if same else window_ms)

    def update(self, update_ms: int) -> None:
        """Let power and counter change every `update_ms`, 0 to 60000; 0: always up to date."""
        self._turn(Knob.UPDATE, round(_ranged("update_ms", update_ms, 0, 60_000)))

    def freeze_sensor(self, frozen: bool) -> None:
        """Freeze power and counter at their present values until unfrozen."""
        self._turn(Knob.FREEZE, int(frozen))

    def without_counter(self, missing: bool) -> None:
        """Make the energy counter unsupported, as before Volta."""
        self._set_flag(Flag.NO_COUNTER, missing)

    def mig(self, enabled: bool) -> None:
        """Switch MIG on (two instances) or off."""
        self._set_flag(Flag.MIG, enabled)

    def virtual(self, enabled: bool) -> None:
        """Make it a virtual GPU (vGPU) of a guest."""
        self._set_flag(Flag.VIRTUAL, enabled)

    def persistence(self, enabled: bool) -> None:
        """Set persistence mode, as an operator does."""
        self._set_flag(Flag.PERSISTENCE, enabled)

    def reasons(self, bits: int) -> None:
        """Force clocks event reason bits, beside those that follow from its state; 0: none."""
        self._turn(Knob.REASONS, int(_ranged("bits", bits, 0, 2**63 - 1)))

    def power_profile(self, active: bool) -> None:
        """Activate a workload power profile."""
        self._set_flag(Flag.POWER_PROFILE, active)

    def foreign_limit(self, watts: float) -> None:
        """Set the power limit as another program of the node, whatever we are permitted."""
        self._turn(Knob.LIMIT, _milliwatts("watts", watts))

    def foreign_lock(self, clock_mhz: int | None) -> None:
        """Lock the clock as another program of the node; None resets it."""
        self._turn(Knob.LOCK, round(_ranged("clock_mhz", clock_mhz or 0, 0, 100_000)))

    def out_of_band_cap(self, watts: float | None) -> None:
        """Cap its power as a baseboard controller (BMC); only the enforced limit shows it."""
        self._turn(Knob.OUT_OF_BAND, 0 if watts is None else _milliwatts("watts", watts))

    @contextmanager
    def busy(self, utilization: float = 1.0) -> Iterator[None]:
        """Keep it busy while the body runs, and list this process on it meanwhile.

        When the process dies, the GPU turns idle: at its last sign of life, as far as anybody
        looked, and within a tenth of a second of it.

        Raises:
            InputInvalid: another living process keeps it busy, or this one already does.
        """
        load = round(1000 * _ranged("utilization", utilization, 0, 1))
        self._turn(Knob.TAKE, os.getpid(), load)
        try:
            yield
        finally:
            self._turn(Knob.RELEASE, os.getpid())

    @contextmanager
    def work(self, seconds: float, utilization: float = 1.0) -> Iterator[Work]:
        """Run the body as work that takes this GPU `seconds`.

        It is busy while the body runs and until `seconds` have passed. A body that takes longer is
        not hidden: the GPU is busy as long as it runs, and `overrun_s` says by how much. A body
        that raises ends the work at once.
        """
        work = Work(seconds=seconds)
        start_s = time.monotonic()
        with self.busy(utilization):
            yield work
            work.overrun_s = max(0.0, time.monotonic() - start_s - seconds)
            time.sleep(max(0.0, start_s + seconds - time.monotonic()))
            work.elapsed_s = time.monotonic() - start_s

    def _turn(self, knob: Knob, a: int = 0, b: int = 0) -> None:
        self._session.turn(self.index, knob, a, b)

    def _set_flag(self, flag: Flag, on: bool) -> None:
        self._turn(Knob.FLAG, flag, int(on))


def _ranged(name: str, value: float, low: float, high: float) -> float:
    """Give a number that lies in its range.

    Raises:
        InputInvalid: it does not, or is no number at all.
    """
    if not math.isfinite(value) or not low <= value <= high:
        raise InputInvalid(f"fake NVML: {name} {value} must lie in {low}..{high}")
    return value


def _milliwatts(name: str, watts: float) -> int:
    return round(1000 * _ranged(name, watts, 0, 1e6))
