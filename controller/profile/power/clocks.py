"""Clocks of a profiled job's GPUs: locked by the node's actuator while a point is measured.

The actuator sets them in steps, which takes minutes with its default settings, and only on GPUs
that compute for the user who asks. Invariant: what was locked is given back on every way out; where
this process is killed, the lease ends by itself `LEASE_S` later.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from wattmesh.errors import WattmeshError
from wattmesh.telemetry.actuator.client import ActuatorClient
from wattmesh.telemetry.actuator.rules.facts import TROUBLED, Reasons
from wattmesh.telemetry.actuator.settings import ActuatorSettings
from wattmesh.telemetry.fake_nvml import FakeGpu
from wattmesh.telemetry.readings import PowerReading

LEASE_S = 20.0
RENEW_S = 1.0
TROUBLE_S = 15.0
"""A clock that is refused for longer is given up; GPUs of a job that just began count as unused."""

SETTLING_S = 1.0
"""After a clock was set, while the SM clock may still be changing."""


class Clocks(Protocol):
    """What sets clocks."""

    def ask(self, gpus: Sequence[str], clock_mhz: int | None) -> None:
        """Lock these GPUs from now on, and no others; None: no clock is locked."""
        ...

    @property
    def wanted_mhz(self) -> int | None:
        """What was asked for last."""
        ...

    def ready(self) -> bool:
        """Tell whether the clocks are as asked for."""
        ...

    def trouble(self) -> str:
        """Say why they will not be; "" where they may."""
        ...


class NoClocks:
    """Where nothing can set them."""

    wanted_mhz: int | None = None

    def ask(self, gpus: Sequence[str], clock_mhz: int | None) -> None:
        """Keep it in mind, to be refused."""
        self.wanted_mhz = clock_mhz

    def ready(self) -> bool:
        """Tell that no clock is locked."""
        return self.wanted_mhz is None

    def trouble(self) -> str:
        """Say nothing: a point with a clock is refused before it is gone to."""
        return ""


class FakeClocks(NoClocks):
    """Fake GPUs of our own, which need no actuator."""

    def __init__(self, gpus: Sequence[FakeGpu]) -> None:
        """Set the clocks of these."""
        self._gpus = gpus

    def ask(self, gpus: Sequence[str], clock_mhz: int | None) -> None:
        """Lock them at once."""
        super().ask(gpus, clock_mhz)
        for each in self._gpus:
            each.foreign_lock(clock_mhz if each.uuid in gpus else None)

    def ready(self) -> bool:
        """Tell that they are as asked for."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is asked of the actuator; without a clock, `gpus` are those that are given back."""

    gpus: tuple[str, ...]
    clock_mhz: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answered:
    """What it said: the locks in force by GPU, and why one is not as asked for."""

    asked: _Asked
    locks_mhz: Mapping[str, int | None]
    why: str


class ActuatorClocks:
    """Context manager that asks an actuator, and renews what it asked for, until it is left."""

    def __init__(self, socket: str = "", *, patience_s: float = 600.0) -> None:
        """Use the actuator at `socket`; "" is that of this node.

        `patience_s`: a clock that has not moved for so long on its way is given up.
        """
        self._client = ActuatorClient(Path(socket) if socket else ActuatorSettings().socket)
        self._patience_s = patience_s
        self._asked: _Asked | None = None
        self._answered: _Answered | None = None
        self._moved_s = self._well_s = time.monotonic()
        self._guard = threading.Lock()
        self._wake, self._over = threading.Event(), False
        self._thread = threading.Thread(target=self._renew, name="clocks", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give back what is locked; where nobody answers, the lease ends by itself."""
        self._over = True
        self._wake.set()
        self._thread.join()
        if self._asked is not None:
            with suppress(WattmeshError):
                self._client.lock((), 1, LEASE_S)

    @property
    def wanted_mhz(self) -> int | None:
        """What was asked for last."""
        return self._asked.clock_mhz if self._asked is not None else None

    def refused(self) -> str:
        """Say why the actuator would set nothing now, whatever is asked; "" where it would."""
        try:
            return self._client.state().trouble
        except WattmeshError as error:
            return str(error)

    def ask(self, gpus: Sequence[str], clock_mhz: int | None) -> None:
        """Lock these GPUs from now on, and no others; None: no clock is locked."""
        with self._guard:
            if clock_mhz is None:
                gpus = self._asked.gpus if self._asked is not None else ()
            self._asked = _Asked(gpus=tuple(gpus), clock_mhz=clock_mhz)
            self._moved_s = self._well_s = time.monotonic()
        self._wake.set()

    def ready(self) -> bool:
        """Tell whether the actuator says that every clock is as asked for."""
        with self._guard:
            asked, said = self._asked, self._answered
        if asked is None or not asked.gpus:
            return True
        return said is not None and said.asked == asked and not _away(said)

    def trouble(self) -> str:
        """Say why the clocks will not be as asked for; "" where they may."""
        now_s = time.monotonic()
        with self._guard:
            asked, said = self._asked, self._answered
            unwell_s, still_s = now_s - self._well_s, now_s - self._moved_s
        if said is None or said.asked != asked:
            return ""
        if said.why and unwell_s > TROUBLE_S:
            return said.why
        away = _away(said)
        if not away or still_s <= self._patience_s:
            return ""
        return (
            f"the actuator has not moved {', '.join(away)} for {still_s:.0f} s; look at its log, "
            "or raise job.silence_limit_s"
        )

    def _renew(self) -> None:
        """Ask for what is wanted, every `RENEW_S` and whenever that changes."""
        while not self._over:
            asked = self._asked
            if asked is not None:
                self._note(asked)
            self._wake.wait(RENEW_S)
            self._wake.clear()

    def _note(self, asked: _Asked) -> None:
        """Ask once, and keep what was answered."""
        gpus = asked.gpus if asked.clock_mhz is not None else ()
        before = self._answered
        locks: Mapping[str, int | None] = before.locks_mhz if before is not None else {}
        try:
            applied = self._client.lock(gpus, asked.clock_mhz or 1, LEASE_S)
            mine = [each for each in applied.gpus if each.gpu_uuid in asked.gpus]
            locks = {each.gpu_uuid: each.clock_mhz for each in mine}
            why = applied.trouble or "; ".join(dict.fromkeys(e.trouble for e in mine if e.trouble))
        except WattmeshError as error:
            why = str(error)
        now_s = time.monotonic()
        with self._guard:
            if before is None or locks != before.locks_mhz:
                self._moved_s = now_s
            if not why:
                self._well_s = now_s
            self._answered = _Answered(asked=asked, locks_mhz=locks, why=why)


def _away(said: _Answered) -> list[str]:
    """List the GPUs that are not yet as asked for."""
    asked = said.asked
    return [each for each in asked.gpus if said.locks_mhz.get(each) != asked.clock_mhz]


def clock_fault(readings: Mapping[str, Sequence[PowerReading]], clock_mhz: int | None) -> str:
    """Say why readings are not those of boards at the clock that was asked for. Pure.

    A board that throttles itself is at fault at any clock; one that its power limit slows down only
    where a clock is locked, for without one the limit is what sets the pace.

    Args:
        readings: by GPU, of a time in which it trained; where a source tells neither clock nor
            reasons there is nothing to find.
        clock_mhz: to which they are locked; None: not locked.
    """
    for gpu, mine in readings.items():
        for each in mine:
            if why := _fault(gpu, each, clock_mhz):
                return why
    return ""


def _fault(gpu: str, reading: PowerReading, clock_mhz: int | None) -> str:
    reasons = Reasons(reading.reasons or 0)
    if reasons & TROUBLED:
        words = ", ".join(each.name or "" for each in reasons & TROUBLED).lower().replace("_", " ")
        return f"{gpu} throttled itself ({words}): look at its cooling and power supply"
    if clock_mhz is None or reading.clock_mhz is None:
        return ""
    margin_mhz = max(30.0, 0.03 * clock_mhz)
    if reading.clock_mhz > clock_mhz + margin_mhz:
        return (
            f"{gpu} ran at {reading.clock_mhz} MHz, above its lock of {clock_mhz} MHz: somebody "
            "else sets its clock; find who does"
        )
    idle = reasons & Reasons.GPU_IDLE
    if reading.clock_mhz < clock_mhz - margin_mhz and not idle:
        limit = " by its power limit" if reasons & Reasons.SW_POWER_CAP else ""
        return (
            f"{gpu} was held at {reading.clock_mhz} MHz{limit}, below its lock of {clock_mhz} MHz: "
            "the board cannot keep that clock; take a lower one"
        )
    return ""
