"""Demand response in the cycle: what its triggers make of their signals, and the rows that follow.

Invariant: a cap is a row under the leader's epoch before any board is held for it, in the table of
the operators' caps. Nothing is triggered outside mode `act`, under a freeze of everything, on doubt
about a signal or the wall clock, or where no board would obey; a cap in force ends at its own end.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from wattmesh.controller.cycle.cap_held import trigger_sentence
from wattmesh.controller.cycle.capping import boards, highest_w
from wattmesh.controller.cycle.journal_snapshot import CycleSettings, JournalSnapshot
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.nodes.caps import DEMAND_RESPONSE, CapRow
from wattmesh.controller.process.loops import without_numbers
from wattmesh.policies.decision import Mode
from wattmesh.policies.isolation import cause
from wattmesh.policies.powercap.demand_response import holding, respond, resting, taken_back
from wattmesh.policies.powercap.triggers import (
    TRIGGERED,
    CapOrigin,
    CapWindow,
    DemandSource,
    Response,
    SignalSeries,
    TriggeredCap,
)
from wattmesh.policies.reason_text import moment
from wattmesh.quantities import watts

log = logging.getLogger(__name__)


def responses(snapshot: JournalSnapshot, settings: CycleSettings) -> tuple[Response, ...]:
    """Say what each trigger makes of its signal; one that fails holds, and fails alone."""
    return tuple(_responses(snapshot, settings))


def _responses(snapshot: JournalSnapshot, settings: CycleSettings) -> Iterator[Response]:
    followed = {
        source.trigger.origin: (source, series)
        for source, series in zip(settings.demand, snapshot.demand, strict=True)
    }
    for origin in TRIGGERED:
        caps = [_cap(each) for each in snapshot.triggered if each.origin is origin]
        if origin in followed:
            try:
                yield _response(snapshot, settings, *followed[origin], caps)
            except Exception as error:
                yield holding(origin, f"it could not be worked out ({cause(error)})")
        elif gone := taken_back(caps, snapshot.now, "it was turned off"):
            yield resting(origin, "it was turned off", gone)


def _response(
    snapshot: JournalSnapshot,
    settings: CycleSettings,
    source: DemandSource,
    series: SignalSeries,
    caps: Sequence[TriggeredCap],
) -> Response:
    origin, now = source.trigger.origin, snapshot.now
    if settings.clock_doubt:
        return holding(origin, f"the wall clock is in doubt: {settings.clock_doubt}")
    off = "everything is frozen" if snapshot.frozen else ""
    off = off or ("the daemon's mode is observe" if settings.mode is Mode.OBSERVE else "")
    if off:
        return resting(origin, off, taken_back(caps, now, off))
    known = boards(snapshot.fleet.nodes, now)
    if not any(each.obeys for each in known):
        return holding(origin, "no board obeys an actuator, so no cap would have an effect")
    found = respond(source.trigger, series, caps, now, highest_w=highest_w(known))
    if settings.mode is Mode.ACT:
        return found
    only_said = f"Mode {settings.mode}, so only said: {found.sentence}"
    back = taken_back(caps, now, f"the daemon's mode is {settings.mode}")
    return replace(found, sentence=only_said, announce=(), withdraw=back)


def _cap(row: CapRow) -> TriggeredCap:
    return TriggeredCap(
        id=row.id,
        start=row.start,
        until=row.until,
        cap_w=row.cap_w,
        ended_at=row.ended_at,
        by_operator=row.ended_by_operator,
    )


class DemandResponder:
    """Writes what triggers announce and take back, and says once why one holds."""

    def __init__(self, journal: Journal) -> None:
        """Keep the journal."""
        self._journal = journal
        self._said: dict[CapOrigin, str] = {}

    def carry_out(self, found: Sequence[Response], *, now: datetime, epoch: int) -> bool:
        """Write everything in one transaction; return whether there was anything to write.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
            JournalUnavailable: the database does not answer.
        """
        for each in found:
            self._say(each)
        rows = [_row(each.origin, window, now) for each in found for window in each.announce]
        back = {gone.id: gone.why for each in found for gone in each.withdraw}
        if not rows and not back:
            return False
        gone = self._journal.caps.respond(rows, back, now=now, epoch=epoch)
        for row in rows:
            self._remember("announced:", row, row.reason, now)
        for row in gone:
            self._remember("took back, before it began:", row, back[row.id], now)
        return True

    def _remember(self, done: str, row: CapRow, why: str, now: datetime) -> None:
        span = f"from {moment(row.start, now)} until {moment(row.until, now)}"
        said = f"Demand response {done} {watts(row.cap_w)} {span}: {why}."
        log.info("%s", said)
        self._journal.events.add("power_cap", said, now)

    def _say(self, found: Response) -> None:
        """Log that a trigger holds, or goes on, when that changes."""
        said = without_numbers(found.sentence) if found.held else ""
        before = self._said.get(found.origin, "")
        if said and said != before:
            log.warning("%s", found.sentence)
        elif before and not said:
            log.info("%s", found.sentence)
        self._said[found.origin] = said


def _row(origin: CapOrigin, window: CapWindow, now: datetime) -> CapRow:
    return CapRow(
        id=0,
        cap_w=window.cap_w,
        start=window.start,
        until=window.until,
        by=DEMAND_RESPONSE,
        reason=f"{origin}: {trigger_sentence(window.trigger, now)}",
        origin=origin,
        trigger=window.trigger,
    )
