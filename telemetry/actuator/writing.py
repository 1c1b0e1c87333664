"""Carries out acts: records them in the journal, writes them, reads them back.

A group is written whole or not at all. Invariant: before a GPU is written, the disk holds what it
may have from then on; `recovery` resolves whatever is interrupted here.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wattmesh.errors import JournalUnavailable, SourceUnavailable, WattmeshError
from wattmesh.telemetry.actuator.device import Device
from wattmesh.telemetry.actuator.journal import ActuatorJournal
from wattmesh.telemetry.actuator.rules.facts import Cause, GpuWatch, GpuWrite, LockAndCap
from wattmesh.telemetry.actuator.rules.watching import same
from wattmesh.telemetry.sources.nvml_library import NvmlFailed

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Pause after a failed write to a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why the last write to a GPU failed, and when to try again (`retry_s`, since boot).

    `restoring`: it was to take back what is ours.
    """

    sentence: str
    retry_s: float
    restoring: bool = False


class Writer:
    """Carries out what the rules decided. Not thread safe: the engine's lock guards it."""

    def __init__(
        self,
        *,
        journal: ActuatorJournal,
        device: Device,
        baseline_lock_mhz: int | None,
        boot_s: Callable[[], float],
    ) -> None:
        """Write to a device; `boot_s` gives the seconds since boot."""
        self._journal = journal
        self._device = device
        self._baseline_lock_mhz = baseline_lock_mhz
        self._boot_s = boot_s
        self._failures: dict[str, Failure] = {}
        self.watches: dict[str, GpuWatch] = {}

    def watch(self, gpu_uuid: str) -> GpuWatch:
        """Return what is remembered of a GPU between heartbeats."""
        return self.watches.get(gpu_uuid) or GpuWatch()

    def failed(self, gpu_uuid: str) -> str:
        """Say why the last write to a GPU failed, while its pause lasts; else ""."""
        failure = self._failures.get(gpu_uuid)
        return failure.sentence if failure and self._boot_s() < failure.retry_s else ""

    def fault(self, gpu_uuid: str) -> str:
        """Say what a person must look at (`telemetry.desired.FAULTS`); "" for nothing."""
        if self.watch(gpu_uuid).blocked:
            return "foreign"
        failure = self._failures.get(gpu_uuid)
        return "restore" if failure is not None and failure.restoring else ""

    def forget_failures(self) -> None:
        """End every pause, so that each GPU is tried again at once."""
        self._failures.clear()

    def carry_out(self, acts: Sequence[GpuWrite]) -> None:
        """Write all acts; the failure of one group or GPU does not stop the others."""
        groups: dict[str, list[GpuWrite]] = {}
        for act in acts:
            if act.group:
                groups.setdefault(act.group, []).append(act)
            else:
                self._carry_out((act,))
        for members in groups.values():
            self._carry_out(tuple(members))

    def _carry_out(self, acts: tuple[GpuWrite, ...]) -> None:
        """Write one group: all of it, or nothing."""
        held = {act.gpu_uuid: self._journal.held(act.gpu_uuid) for act in acts}
        announced, after = dict(held), dict(held)
        for act in acts:
            announced[act.gpu_uuid] = act.before(announced[act.gpu_uuid])
            after[act.gpu_uuid] = act.after(
                after[act.gpu_uuid], baseline_lock_mhz=self._baseline_lock_mhz
            )
        done: list[GpuWrite] = []
        try:
            self._journal.hold(*announced.values())
            for act in acts:
                self._write(act)
                done.append(act)
            self._journal.hold(*after.values())
        except WattmeshError as error:
            self._note(acts, len(done), error)
            if acts[0].cause is not Cause.RESTORE and not isinstance(error, JournalUnavailable):
                self._take_back(done, acts[len(done)], held, error)
            return
        for act in acts:
            self._failures.pop(act.gpu_uuid, None)
            log.info("%s", sentence(act))

    def _write(self, act: GpuWrite) -> None:
        """Write one lever of one GPU and read it back.

        Raises:
            SourceUnavailable: the GPU refused, did not answer, or reads back another value.
        """
        uuid = act.gpu_uuid
        if act.clock:
            self._device.lock_clock(uuid, act.clock_mhz)
        if act.cap and act.cap_w is not None:
            self._device.set_limit(uuid, act.cap_w)
            taken_w = self._device.requested_w(uuid)
            if not same(taken_w, act.cap_w):
                raise SourceUnavailable(
                    f"{uuid} was set to {act.cap_w:g} W and reads back {taken_w:g} W: it does not "
                    "obey, or someone else writes it"
                )
        self.watches[uuid] = replace(
            self.watch(uuid),
            wrote_s=self._boot_s(),
            above=0,
            below=0,
            unsure=self.watch(uuid).unsure and not act.clock,
        )

    def _note(self, acts: Sequence[GpuWrite], done: int, error: WattmeshError) -> None:
        """Remember a failure: of the GPU that failed, or of all of them when the disk did."""
        whole = isinstance(error, JournalUnavailable) or done == len(acts)
        now_s, known = self._boot_s(), dict(self._failures)
        for act in acts if whole else acts[done : done + 1]:
            self._failures[act.gpu_uuid] = Failure(
                sentence=str(error),
                retry_s=now_s + RETRY_S,
                restoring=act.cause is Cause.RESTORE,
            )
        for act in acts:
            self.watches[act.gpu_uuid] = replace(self.watch(act.gpu_uuid), wrote_s=now_s)
        failed = acts[min(done, len(acts) - 1)]
        again = known.get(failed.gpu_uuid)
        if again is None or again.sentence != str(error):  # logged once, not at every attempt
            log.warning("%s: failed: %s", sentence(failed), error)

    def _take_back(
        self,
        done: Sequence[GpuWrite],
        failed: GpuWrite,
        held: dict[str, LockAndCap],
        error: WattmeshError,
    ) -> None:
        """Undo the acts of a group that were done, and the failed one as far as it went.

        What cannot be undone stays recorded as ours, until a later heartbeat restores it.
        """
        lost: set[str] = set()
        if not self._unwritten(failed, error):
            lost.add(failed.gpu_uuid)
            watch = self.watch(failed.gpu_uuid)
            self.watches[failed.gpu_uuid] = replace(watch, unsure=watch.unsure or failed.clock)
        for act in reversed(done):
            try:
                self._write(_inverse(act, held[act.gpu_uuid], self._baseline_lock_mhz))
            except WattmeshError as worse:
                lost.add(act.gpu_uuid)
                log.warning("%s could not be taken back: %s", act.gpu_uuid, worse)
        try:
            self._journal.hold(*(each for uuid, each in held.items() if uuid not in lost))
        except JournalUnavailable as worse:
            log.warning("%s", worse)

    def _unwritten(self, act: GpuWrite, error: WattmeshError) -> bool:
        """Make sure that a failed write left nothing behind; False when that is not known."""
        if act.clock:
            return isinstance(error, NvmlFailed)  # an answer, so it was not done
        try:
            if act.seen_w is None or same(self._device.requested_w(act.gpu_uuid), act.seen_w):
                return True
            self._device.set_limit(act.gpu_uuid, act.seen_w)
            return same(self._device.requested_w(act.gpu_uuid), act.seen_w)
        except WattmeshError:
            return False


def sentence(act: GpuWrite) -> str:
    """Describe an act for the log."""
    what = []
    if act.clock:
        clock = f"SM clock locked to {act.clock_mhz} MHz" if act.clock_mhz else "SM clock unlocked"
        what.append(clock)
    if act.cap:
        what.append(f"power limit {act.cap_w:g} W")
    whose = f" for {act.group}" if act.group else ""
    return f"{act.gpu_uuid}: {', '.join(what)} ({act.cause}{whose})"


def _inverse(act: GpuWrite, held: LockAndCap, baseline_lock_mhz: int | None) -> GpuWrite:
    lock = baseline_lock_mhz if held.lock_mhz is None else held.lock_mhz
    return replace(
        act, cause=Cause.RESTORE, clock_mhz=lock if act.clock else None, cap_w=act.seen_w
    )
