"""Which runs are live: the newest sign of life of every launch, kept in the leader's memory.

Heartbeats of every run every few seconds are too many for a transaction each. The newest is kept
here; the journal gets those of runs that report nothing else about once a minute, in one
transaction, and at a clean stop. A daemon that begins to lead has heard nobody yet: runs that were
live when the last leader was there count as live for one more limit, and no longer.

Invariant: a launch that is not heard is lost after its limit, and a daemon that lost the lead
remembers nothing.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Self

from sqlalchemy import Row

from wattmesh.controller.journal.database.values import from_us
from wattmesh.reconfig.wire.messages import Heartbeat, Progress, Register, Transition

LIVE_S = 30.0
"""Seconds without a heartbeat after which a launch is lost, where its hook sends heartbeats. Long
enough for a pause in which Python's lock (the GIL) is held.
"""

BEATS = 6
"""Heartbeats per limit that hooks are asked for."""

REPORTING_S = 900.0
"""The limit for hooks older than heartbeats, which only send reports."""

HEARTBEATS = 2
"""The first protocol version whose hooks send heartbeats."""

BEHIND_S = 60.0
"""The most that the journal may be behind the newest heartbeat."""

WAKING_S = 900.0
"""How long after its alarm a run that sleeps may need until its next launch registers: time in a
queue, and of the start. After that it is lost. One that waits for another size has it on top.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchStatus:
    """What the journal knows of a run's newest launch.

    Attributes:
        ended: the launch said that it leaves.
        wakes_at: it left to sleep, and the next one begins then at the latest; None: it did not.
        queued_until: it left for another size, and waits for nodes; from then on one of the old
            size may begin as well; None: it did not.
    """

    run: str
    incarnation: str
    seen_at: datetime
    phase: str
    protocol: int
    ended: bool
    finished: bool
    wakes_at: datetime | None = None
    queued_until: datetime | None = None

    @classmethod
    def of(cls, row: Row[Any]) -> Self:
        """Read it from a row of `runs`."""
        queued = row.asleep_at is None and row.held_as != "" and row.wakes_at is not None
        return cls(
            run=row.run,
            incarnation=row.incarnation,
            seen_at=from_us(row.last_seen_at),
            phase=row.phase,
            protocol=row.protocol,
            ended=row.finish_reason != "",
            finished=row.finished_at is not None,
            wakes_at=from_us(row.wakes_at) if row.asleep_at is not None else None,
            queued_until=from_us(row.wakes_at) if queued else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """The newest sign of life of a run. `kept_at`: time of the one that the journal has."""

    incarnation: str
    attempt: int
    owner_uid: int
    at: datetime
    phase: str
    kept_at: datetime

    @classmethod
    def of(
        cls,
        message: Register | Progress | Heartbeat | Transition,
        owner_uid: int,
        now: datetime,
        phase: str,
        kept_at: datetime | None = None,
    ) -> Self:
        """Make the sign of life of a message; by default the journal has it as well."""
        return cls(
            incarnation=message.incarnation,
            attempt=message.attempt,
            owner_uid=owner_uid,
            at=now,
            phase=phase,
            kept_at=kept_at or now,
        )


class Liveness:
    """Keeps signs of life and decides from them whether runs are live; for any thread."""

    def __init__(self) -> None:
        """Begin as a daemon that does not lead."""
        self._live_s, self._waking_s = LIVE_S, WAKING_S
        self._signs: dict[str, Sign] = {}
        self._since: datetime | None = None
        self._before: datetime | None = None
        self._kept_at: datetime | None = None
        self._lock = threading.Lock()

    @property
    def heartbeat_s(self) -> float:
        """Seconds between the heartbeats that hooks are asked for."""
        return self._live_s / BEATS

    @property
    def leads_since(self) -> datetime | None:
        """When this daemon began to lead; None: it does not."""
        return self._since

    def pace(self, live_s: float, waking_s: float = WAKING_S) -> None:
        """Set when a run is lost.

        Args:
            live_s: seconds without a heartbeat.
            waking_s: seconds after the alarm of a run that sleeps.
        """
        self._live_s, self._waking_s = live_s, waking_s

    def lead(self, now: datetime, before: datetime | None) -> None:
        """Begin to hear every run.

        Args:
            now: when.
            before: when the last leader was last there; None: there was none.
        """
        with self._lock:
            self._signs.clear()
            self._since, self._before = now, before

    def stand_by(self) -> None:
        """Stop hearing runs: another daemon hears them."""
        with self._lock:
            self._signs.clear()
            self._since = self._before = None

    def shift(self, step_s: float) -> None:
        """Move all times by a step of the wall clock, so that no silence gets longer or shorter."""
        step = timedelta(seconds=step_s)
        with self._lock:
            for run, sign in self._signs.items():
                self._signs[run] = replace(sign, at=sign.at + step)
            self._since = self._since + step if self._since else None

    def hear(self, run: str, sign: Sign) -> None:
        """Store a sign of life of a launch that the journal knows as the newest."""
        with self._lock:
            known = self._signs.get(run)
            # A sign of an older launch may arrive late: it was checked before the newer one
            # registered.
            if known is None or known.attempt <= sign.attempt:
                self._signs[run] = sign

    def hear_again(
        self, run: str, incarnation: str, attempt: int, *, owner_uid: int, phase: str, now: datetime
    ) -> bool:
        """Store a sign of life of the launch that was heard last, without asking the journal.

        Returns:
            Whether it was the same launch of the same owner; otherwise the journal must be asked.
        """
        with self._lock:
            known = self._signs.get(run)
            if known is None or known.owner_uid != owner_uid:
                return False
            if (known.incarnation, known.attempt) != (incarnation, attempt):
                return False
            self._signs[run] = replace(known, at=now, phase=phase)
            return True

    def forget(self, run: str) -> None:
        """Forget a run's sign of life."""
        with self._lock:
            self._signs.pop(run, None)

    def last_heard(self, known: LaunchStatus) -> tuple[datetime, str]:
        """Give when a run was last heard, and what it was doing."""
        sign = self._sign(known)
        return (sign.at, sign.phase) if sign else (known.seen_at, known.phase)

    def state(self, known: LaunchStatus, now: datetime) -> str:
        """Say whether a run is live, asleep, queued, lost or finished."""
        if known.finished:
            return "finished"
        if known.wakes_at is not None:
            late_s = (now - known.wakes_at).total_seconds()
            return "lost" if late_s > self._waking_s else "asleep"
        if known.queued_until is not None:
            # The launch of the old size may wait as long as the one of the new size might.
            waits_s = max(0.0, (known.queued_until - known.seen_at).total_seconds())
            late_s = (now - known.queued_until).total_seconds()
            return "lost" if late_s > waits_s + self._waking_s else "queued"
        sign = self._sign(known)
        limit_s = self._live_s
        if known.protocol < HEARTBEATS and not known.ended:
            limit_s = max(limit_s, REPORTING_S)
        heard_at = sign.at if sign else self._counted_from(known, limit_s, now)
        return "lost" if (now - heard_at).total_seconds() > limit_s else "live"

    def unkept(self, now: datetime, *, everything: bool = False) -> tuple[tuple[str, Sign], ...]:
        """Give the signs of life to be written to the journal now; mostly none.

        Args:
            now: the wall clock.
            everything: the daemon stops, so all that differ are written.
        """
        half = timedelta(seconds=BEHIND_S / 2)
        with self._lock:
            if not everything and self._kept_at and abs(now - self._kept_at) < half:
                return ()
            self._kept_at = now
            return tuple(
                (run, sign)
                for run, sign in self._signs.items()
                if abs(sign.at - sign.kept_at) >= half
                or (sign.at != sign.kept_at and (everything or self._silent(sign, now)))
            )

    def mark_kept(self, signs: Iterable[tuple[str, Sign]]) -> None:
        """Note that the journal has these signs."""
        with self._lock:
            for run, sign in signs:
                newest = self._signs.get(run)
                if newest is not None and newest.incarnation == sign.incarnation:
                    self._signs[run] = replace(newest, kept_at=sign.at)

    def _silent(self, sign: Sign, now: datetime) -> bool:
        return (now - sign.at).total_seconds() > self._live_s

    def _sign(self, known: LaunchStatus) -> Sign | None:
        """Give what was heard of the launch that the journal knows as the newest."""
        with self._lock:
            sign = self._signs.get(known.run)
        return sign if sign is not None and sign.incarnation == known.incarnation else None

    def _counted_from(self, known: LaunchStatus, limit_s: float, now: datetime) -> datetime:
        """Give since when a launch that this process has not heard counts as silent."""
        if known.ended:
            return known.seen_at
        if known.seen_at > now:
            # The wall clock was stepped back meanwhile, so how long ago that was is not known.
            return self._since or now
        behind = timedelta(seconds=BEHIND_S)
        if self._since is None:
            # Another daemon hears the heartbeats and writes them at intervals.
            return known.seen_at + behind
        lived = self._before is not None and (
            known.seen_at >= self._before - behind - timedelta(seconds=limit_s)
        )
        return max(known.seen_at, self._since) if lived else known.seen_at
