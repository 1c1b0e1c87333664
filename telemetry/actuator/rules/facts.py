"""A GPU's readings, our lock and cap on it, and the act decided for it. Pure types.

Invariant: unknown is None, never zero; an act that depends on a value is not decided while the
value is None.
"""

from dataclasses import dataclass, replace
from enum import IntFlag, StrEnum


class Reasons(IntFlag):
    """NVML's clocks event reason bits that matter here (nvml.h, nvmlClocksEventReason*)."""

    GPU_IDLE = 0x1
    APPLICATION_CLOCKS = 0x2
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    HW_POWER_BRAKE = 0x80
    DISPLAY = 0x100


TROUBLED = Reasons.HW_SLOWDOWN | Reasons.SW_THERMAL | Reasons.HW_THERMAL | Reasons.HW_POWER_BRAKE
"""The board throttles itself: nothing is lowered to save carbon meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A compute process that the driver lists. `uid` None: it could not be read."""

    pid: int
    uid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """The readings of one GPU at one moment.

    Attributes:
        board: its name, as the driver spells it.
        min_w, max_w, default_w: the board's limits in watts. `requested_w`: the limit last asked
            for through NVML (field 192), by anybody; `enforced_w`: the one in force, which an
            out-of-band cap may hold lower (field 190).
        lowest_mhz, highest_mhz: range of SM clocks that the board supports.
        reasons: `Reasons` bits. `energy_mj`: energy counter; it falls when the driver is loaded
            again.
        processes: compute processes that live (a zombie does not); None: not known.
        shared: why the GPU cannot belong to one run alone ("mig", "vgpu", "unknown"), "" when it
            can.
        profile: a workload power profile is active; None: not known.
    """

    gpu_uuid: str
    board: str
    min_w: float
    max_w: float
    default_w: float
    requested_w: float
    enforced_w: float | None
    lowest_mhz: int | None
    highest_mhz: int | None
    sm_mhz: int | None
    reasons: int | None
    energy_mj: int | None
    persistence: bool | None
    profile: bool | None
    shared: str
    processes: tuple[GpuProcess, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockAndCap:
    """Our lock and cap on one GPU, as the journal keeps it.

    Attributes:
        found_w: the requested limit before our first cap; None: we hold no cap.
        set_w: the cap that was written or was about to be.
        prior_w: the cap before `set_w`. After a crash the board has `set_w`, `prior_w` or still
            `found_w`.
        lock_mhz: the SM clock that was locked or was about to be; None: we hold no lock.
    """

    gpu_uuid: str
    found_w: float | None = None
    set_w: float | None = None
    prior_w: float | None = None
    lock_mhz: int | None = None

    @property
    def nothing(self) -> bool:
        """Tell whether we hold neither a lock nor a cap."""
        return self.found_w is None and self.lock_mhz is None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWatch:
    """What is remembered of one GPU between heartbeats, in memory only.

    Attributes:
        wrote_s: when it was last written, in seconds since boot; None: not since our start.
        energy_mj: the energy counter at the last heartbeat.
        above, below: heartbeats in a row at which the SM clock was above, or far below, our lock.
        blocked: why the GPU is no longer set (someone else writes it); "" when it is.
        hands_off: someone else's lock may be in force, so ours is not even reset meanwhile.
        unsure: a lock was written without an answer; it is reset once the GPU answers.
    """

    wrote_s: float | None = None
    energy_mj: int | None = None
    above: int = 0
    below: int = 0
    blocked: str = ""
    hands_off: bool = False
    unsure: bool = False


class Cause(StrEnum):
    """Why a GPU is written."""

    ECONOMY = "economy"
    OBLIGATION = "obligation"
    RESTORE = "restore"
    REPEAT = "repeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWrite:
    """One write to a GPU: the state of the levers it sets.

    Attributes:
        group: acts of one group succeed together or are taken back together; "" stands alone.
        clock_mhz: SM clock to lock; None with `clock`: the lock is reset.
        clock, cap: whether that lever is written at all.
        cap_w: limit to set.
        found_w: the original limit, to go back to later; None: `cap_w` is the original one, and
            from then on we hold no cap.
        seen_w: the limit that the board had when this was decided.
    """

    gpu_uuid: str
    cause: Cause
    group: str = ""
    clock: bool = False
    clock_mhz: int | None = None
    cap: bool = False
    cap_w: float | None = None
    found_w: float | None = None
    seen_w: float | None = None

    def before(self, held: LockAndCap) -> LockAndCap:
        """Return what may be ours once this act begins; the journal records it first.

        A lock that is being reset is still ours; a cap may be the old or the new one.
        """
        lock = held.lock_mhz
        if self.clock and self.clock_mhz is not None:
            lock = self.clock_mhz
        if not self.cap or self.found_w is None:
            return replace(held, lock_mhz=lock)
        return replace(
            held, lock_mhz=lock, found_w=self.found_w, set_w=self.cap_w, prior_w=self.seen_w
        )

    def after(self, held: LockAndCap, *, baseline_lock_mhz: int | None) -> LockAndCap:
        """Return what is ours once this act is done."""
        now = held
        if self.clock:
            ours = self.clock_mhz != baseline_lock_mhz
            now = replace(now, lock_mhz=self.clock_mhz if ours else None)
        if self.cap:
            ours = self.found_w is not None
            now = replace(
                now, found_w=self.found_w, set_w=self.cap_w if ours else None, prior_w=None
            )
        return now
