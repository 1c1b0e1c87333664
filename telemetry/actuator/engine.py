"""The actuator without its socket: takes wishes, reads the GPUs, decides, writes.

Level-triggered: every heartbeat reads everything and decides anew (`rules`), so the GPUs end in the
same state after a lost heartbeat, a crash or a repeated wish.

Invariant: one lock guards everything; only `Writer` writes a GPU, after a record of it is on disk.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from wattmesh.errors import Fenced, InputInvalid, JournalUnavailable, Refused, WattmeshError
from wattmesh.telemetry.actuator.device import Device
from wattmesh.telemetry.actuator.journal import ActuatorJournal
from wattmesh.telemetry.actuator.recovery import recovered
from wattmesh.telemetry.actuator.rules import fence, own_locks, rules
from wattmesh.telemetry.actuator.rules.clock import moment
from wattmesh.telemetry.actuator.rules.facts import Cause, GpuFacts, GpuWrite, LockAndCap
from wattmesh.telemetry.actuator.rules.fence import Anchor, handed
from wattmesh.telemetry.actuator.rules.leases import BootTime, ControllerWishes
from wattmesh.telemetry.actuator.rules.own_locks import OwnLocks
from wattmesh.telemetry.actuator.rules.refusals import Gpu, floor_w
from wattmesh.telemetry.actuator.rules.rules import ActuatorDecision
from wattmesh.telemetry.actuator.rules.watching import look
from wattmesh.telemetry.actuator.settings import DAY_S, ActuatorMode, ActuatorSettings
from wattmesh.telemetry.actuator.wire import ProcessClaim
from wattmesh.telemetry.actuator.writing import Writer, sentence
from wattmesh.telemetry.desired import Applied, Desired, GpuControl, Wish

log = logging.getLogger(__name__)

_IDLE = ActuatorDecision(acts=(), troubles={}, settable=frozenset())
_NO_HAND = {
    ActuatorMode.OBSERVE: "this node's actuator only observes: nothing is set (actuator.mode)",
    ActuatorMode.DRY_RUN: "this node's actuator only says what it would do (actuator.mode)",
}
_PAUSED = (
    "everything was given back by `wattmesh restore-all`; nothing is set until "
    "`wattmesh restore-all --resume` or the actuator's next start"
)


class Paused(StrEnum):
    """Which leases are ignored until `resume`."""

    NOTHING = "nothing"
    ECONOMY = "economy"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredGpu:
    """One GPU before and after it was restored.

    Attributes:
        limit_w: the requested limit now; None: not readable.
        trouble: why our lock or cap could not be removed; "" when it was.
        obligation: holder and end of the operator's cap that stays; "" for none.
    """

    gpu_uuid: str
    before: LockAndCap
    after: LockAndCap
    limit_w: float | None
    trouble: str = ""
    obligation: str = ""


class Engine:
    """Everything the actuator does. Thread safe."""

    def __init__(
        self,
        *,
        journal: ActuatorJournal,
        device: Device,
        settings: ActuatorSettings,
        clock: Callable[[], BootTime] = moment,
    ) -> None:
        """Prepare; call `start` before anything else."""
        self._journal = journal
        self._device = device
        self._settings = settings
        self._clock = clock
        self._lock = threading.RLock()
        self._heard = ControllerWishes()
        self._anchor = Anchor()
        self._claims: Mapping[str, ProcessClaim] = {}
        self._own: OwnLocks = {}
        self._facts: Mapping[str, GpuFacts | None] = {}
        self._decision = _IDLE
        self._paused = Paused.NOTHING
        self._said: set[str] = set()
        self._ranges: dict[str, tuple[float, float]] = {}
        self._writer = Writer(
            journal=journal,
            device=device,
            baseline_lock_mhz=settings.baseline_lock_mhz,
            boot_s=lambda: clock().boot_s,
        )

    def start(self, *, obligations: bool = True) -> tuple[RestoredGpu, ...]:
        """Restore what an earlier process left, except obligations that have not ended.

        Args:
            obligations: whether they are kept; only mode `enforce` ever does.
        """
        with self._lock:
            now = self._clock()
            memory = self._journal.memory
            longest_s = self._settings.obligation_days * DAY_S
            memory = replace(memory, heard=memory.heard.within(longest_s, now))
            keep = obligations and self._settings.mode is ActuatorMode.ENFORCE
            known = {*memory.held, *(uuid for uuid, _ in memory.heard.leases)}
            facts = self._device.facts(known)
            found = recovered(memory, facts, now, obligations=keep)
            for note in found.notes:
                log.warning("%s", note)
            try:
                self._journal.rewrite(found.memory)
            except JournalUnavailable as error:
                # Restoring needs no record on disk: a crash would only repeat it.
                log.warning("%s", error)
                self._journal.assume(found.memory)
            self._heard = found.memory.heard
            before = dict(found.memory.held)
            self._beat(now, facts, at_once=True)
            return self._returned({**memory.held, **before}, facts)

    def insist(self) -> tuple[RestoredGpu, ...]:
        """Try again at once what `start` or `restore` could not restore."""
        with self._lock:
            before = dict(self._journal.memory.held)
            self._writer.forget_failures()
            facts = self._device.facts(self._known())
            self._beat(self._clock(), facts, at_once=True)
            return self._returned(before, facts)

    def restore(self, *, obligations: bool = False) -> tuple[RestoredGpu, ...]:
        """Restore every GPU at once and ignore wishes until `resume`.

        Args:
            obligations: end those as well (the operator's own decision).
        """
        with self._lock:
            self._paused = Paused.ALL if obligations else Paused.ECONOMY
            now = self._clock()
            before = dict(self._journal.memory.held)
            if obligations:
                self._heard = replace(self._heard, leases={})
                self._remember(self._heard)
            facts = self._device.facts(self._known())
            self._beat(now, facts, at_once=True)
            return self._returned(before, facts)

    def resume(self) -> None:
        """Obey wishes again, and forget that foreign writers were found."""
        with self._lock:
            self._paused = Paused.NOTHING
            self._writer.watches.clear()
            self.beat()

    def hear(self, desired: Desired, claims: Mapping[str, ProcessClaim]) -> Applied:
        """Replace all wishes for this node; an identical wish only renews its lease.

        Raises:
            Fenced: another journal's, or an epoch out of range (`fence`). InputInvalid: an
                obligation would last too long. JournalUnavailable: the disk refuses the record.
        """
        with self._lock:
            if self._settings.mode is ActuatorMode.OBSERVE:
                return self.state()
            now = self._clock()
            known = self._heard.live(now)
            self._anchor = self._anchor.now(now.boot_s, known.epoch)
            if why := fence.refusal(desired, known, self._anchor):
                raise Fenced(why)
            heard = known.hear(desired, now)
            self._check_terms(heard, known)
            if heard.journal != known.journal:
                log.info("this node obeys journal %s from now on", heard.journal)
            if self._settings.mode is ActuatorMode.ENFORCE:
                self._journal.hear(heard)
            same = _wishes(known) == _wishes(heard) and dict(claims) == dict(self._claims)
            self._heard, self._claims = heard, dict(claims)
            if not same:
                self.beat()
            return self.state()

    def lock(self, uid: int, wishes: Sequence[Wish]) -> Applied:
        """Replace the locks of a user on GPUs of that user's own; the next heartbeat sets them.

        Nothing of it is on disk: after our restart nobody holds them until they are asked for anew.

        Raises:
            Refused: they may not be locked (`own_locks`).
        """
        with self._lock:
            if self._settings.mode is ActuatorMode.OBSERVE:
                return self.state()
            now = self._clock()
            known, self._own = self._heard.live(now), own_locks.live(self._own, now)
            if why := own_locks.refusal(uid, wishes, known, self._own, self._facts):
                raise Refused(why)
            self._own = own_locks.taken(self._own, uid, wishes, now)
            return self.state()

    def obey(self, journal: str, epoch: int) -> None:
        """Assign this node to a journal: only its controller is obeyed, from `epoch` on.

        What is in force stays: economy leases until they end or the new controller's first wish,
        obligations until their own end.

        Raises:
            InputInvalid: no journal is named. JournalUnavailable: the disk refuses the record.
        """
        with self._lock:
            now = self._clock()
            heard = handed(self._heard.live(now), journal, epoch)
            self._journal.hear(heard)
            self._heard = heard
            self._anchor = Anchor(since_s=now.boot_s, epoch=epoch)
            self.beat()

    def _check_terms(self, heard: ControllerWishes, known: ControllerWishes) -> None:
        """Refuse new obligations that would last longer than `actuator.obligation_days`.

        Raises:
            InputInvalid: one of them would.
        """
        days = self._settings.obligation_days
        for key, lease in heard.obligations().leases.items():
            before = known.leases.get(key)
            begun = before is not None and before.wish == lease.wish
            if not begun and lease.left_s > days * DAY_S:
                raise InputInvalid(
                    f"the obligation of {lease.wish.holder} on {lease.wish.gpu_uuid} would last "
                    f"{lease.left_s / DAY_S:.0f} days, more than the {days:g} of "
                    "actuator.obligation_days: nothing of this wish is obeyed; order a shorter one"
                )

    def beat(self) -> None:
        """Read, decide and write once."""
        with self._lock:
            now = self._clock()
            self._heard = self._heard.live(now)
            self._own = own_locks.live(self._own, now)
            self._beat(now, self._device.facts(self._known()))

    def state(self) -> Applied:
        """Report what is in force on every GPU."""
        with self._lock:
            uuids = {**dict.fromkeys(self._writer.watches), **dict.fromkeys(self._known())}
            trouble = _NO_HAND.get(
                self._settings.mode, _PAUSED if self._paused is not Paused.NOTHING else ""
            )
            return Applied(
                mode=self._settings.mode.value,
                journal=self._heard.journal,
                epoch=max(0, self._heard.epoch),
                gpus=tuple(self._control(uuid, able=not trouble) for uuid in sorted(uuids)),
                trouble=trouble,
            )

    def _control(self, uuid: str, *, able: bool) -> GpuControl:
        held = self._journal.held(uuid)
        lowest_w, limit_w = self._ranges.get(uuid, (None, None))
        return GpuControl(
            gpu_uuid=uuid,
            clock_mhz=held.lock_mhz,
            cap_w=held.set_w,
            trouble=self._decision.troubles.get(uuid, ""),
            settable=able and uuid in self._decision.settable,
            limit_w=limit_w,
            floor_w=lowest_w,
            fault=self._writer.fault(uuid),
        )

    def _known(self) -> set[str]:
        """GPUs that somebody wishes for, or that carry a lock or cap of ours."""
        wished = own_locks.beside(self._heard, self._own).leases
        return {*self._journal.memory.held, *(uuid for uuid, _ in wished)}

    def _beat(
        self, now: BootTime, facts: Mapping[str, GpuFacts | None], *, at_once: bool = False
    ) -> None:
        self._facts = facts
        self._writer.carry_out(self._allowed(self._look(facts, now)))
        gpus = {
            uuid: Gpu(
                gpu_uuid=uuid,
                facts=seen,
                held=self._journal.held(uuid),
                watch=self._writer.watch(uuid),
                failed=self._writer.failed(uuid),
            )
            for uuid, seen in facts.items()
        }
        for uuid, gpu in gpus.items():
            if gpu.facts is not None:
                found_w = gpu.held.found_w
                self._ranges[uuid] = (
                    floor_w(gpu.facts, self._settings),
                    gpu.facts.requested_w if found_w is None else found_w,
                )
        self._decision = rules.decide(
            gpus,
            self._obeyed(),
            {**self._claims, **own_locks.claims_of(self._own)},
            self._settings,
            now.boot_s,
            at_once=at_once,
        )
        self._writer.carry_out(self._allowed(self._decision.acts))

    def _obeyed(self) -> ControllerWishes:
        """Leave out the leases that the pause suppresses."""
        if self._paused is Paused.ALL:
            return replace(self._heard, leases={})
        if self._paused is Paused.ECONOMY:
            return self._heard.obligations()
        return own_locks.beside(self._heard, self._own)

    def _remember(self, heard: ControllerWishes) -> None:
        """Write the obligations to disk. Ending one takes effect even if the disk refuses."""
        try:
            self._journal.hear(heard)
        except JournalUnavailable as error:
            log.warning("%s", error)

    def _look(self, facts: Mapping[str, GpuFacts | None], now: BootTime) -> list[GpuWrite]:
        """Check whether our writes are still in force; return the locks to repeat or reset."""
        repeats: list[GpuWrite] = []
        for uuid, seen in facts.items():
            if seen is None:
                continue
            held = self._journal.held(uuid)
            seen_now = look(held, self._writer.watch(uuid), seen, now.boot_s)
            self._writer.watches[uuid] = seen_now.watch
            if seen_now.note:
                log.warning("%s", seen_now.note)
            try:
                self._journal.hold(seen_now.held)
            except JournalUnavailable as error:
                log.warning("%s", error)
            if seen_now.repeat and held.lock_mhz is not None:
                repeats.append(
                    GpuWrite(gpu_uuid=uuid, cause=Cause.REPEAT, clock=True, clock_mhz=held.lock_mhz)
                )
            if seen_now.reset:
                base_mhz = self._settings.baseline_lock_mhz
                repeats.append(
                    GpuWrite(gpu_uuid=uuid, cause=Cause.RESTORE, clock=True, clock_mhz=base_mhz)
                )
        return repeats

    def _allowed(self, acts: Sequence[GpuWrite]) -> list[GpuWrite]:
        """Keep what the mode allows: always a restore; any other act is only logged, once."""
        if self._settings.mode is ActuatorMode.ENFORCE:
            return list(acts)
        for act in acts:
            text = sentence(act)
            if act.cause is not Cause.RESTORE and text not in self._said:
                self._said.add(text)
                log.info("dry-run, would do: %s", text)
        return [act for act in acts if act.cause is Cause.RESTORE]

    def _returned(
        self, before: Mapping[str, LockAndCap], facts: Mapping[str, GpuFacts | None]
    ) -> tuple[RestoredGpu, ...]:
        """Compare every GPU of the machine with `before`."""
        duties = {
            uuid: lease.wish for (uuid, _), lease in self._obeyed().obligations().leases.items()
        }
        told = []
        for uuid in sorted({*before, *facts}):
            after, duty = self._journal.held(uuid), duties.get(uuid)
            trouble = self._writer.failed(uuid)
            if facts.get(uuid) is None and not after.nothing:
                trouble = f"{uuid} does not answer: what is set there stays; run this again"
            told.append(
                RestoredGpu(
                    gpu_uuid=uuid,
                    before=before.get(uuid) or LockAndCap(gpu_uuid=uuid),
                    after=after,
                    limit_w=self._limit_w(uuid),
                    trouble=trouble,
                    obligation=f"{duty.holder} until {duty.until:%Y-%m-%dT%H:%M:%SZ}"
                    if duty
                    else "",
                )
            )
        return tuple(told)

    def _limit_w(self, uuid: str) -> float | None:
        """Read the requested limit; None when the GPU does not answer."""
        with suppress(WattmeshError):
            return self._device.requested_w(uuid)
        return None


def _wishes(heard: ControllerWishes) -> dict[object, object]:
    """The wishes without their ends, to tell a change from a renewal."""
    return {key: lease.wish for key, lease in heard.leases.items()}
