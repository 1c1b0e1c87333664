"""Polls one provider of exogenous series, and fetches its past bit by bit.

Each poll asks for what is forecast from now on, and then for one more stretch of the past, until
there is enough to learn from. Everything is stored in the journal, so that a restart needs no
network.

A provider whose operators are late still names the hour at which they had to publish: what was not
there at the last good poll counts as known from that poll at the earliest.

Invariant: a poll that fails removes nothing that was stored, and says why; what a provider refuses
or does not have is not asked for again and again.
"""

import logging
from datetime import datetime, timedelta

from wattmesh.controller.journal.carbon.exogenous import series_of
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.process.loops import without_numbers
from wattmesh.controller.signals.poller import Polled
from wattmesh.errors import NoData, SourceRefused, SourceUnavailable
from wattmesh.telemetry.exogenous import ExogenousProvider

log = logging.getLogger(__name__)

HISTORY = timedelta(days=400)
"""How much of the past is asked for: a year holds each season, and features look back further."""
CHUNK = timedelta(days=28)
KEPT = HISTORY + timedelta(days=30)
REFUSED_PAST = timedelta(days=1)
"""A past that was refused is asked for again after so long, or by the next daemon."""


class ExogenousPoller:
    """Polls one provider."""

    def __init__(self, name: str, zone: str, provider: ExogenousProvider, journal: Journal) -> None:
        """Keep the provider and its name, and where its answers are stored."""
        self.series = series_of(name, zone)
        self._provider, self._journal = provider, journal
        self._said: set[str] = set()
        self._past_from: datetime | None = None

    @property
    def cadence_s(self) -> float:
        """Seconds between two polls."""
        return self._provider.cadence.total_seconds()

    @property
    def provider(self) -> ExogenousProvider:
        """Whom it asks."""
        return self._provider

    def poll(self, now: datetime) -> Polled:
        """Ask for what is new, store it, and record how it went.

        Raises:
            JournalUnavailable: nothing could be stored; the next poll asks again.
        """
        store = self._journal.exogenous
        try:
            batch = self._provider.forecast(now=now)
        except (SourceUnavailable, SourceRefused) as error:
            refused = isinstance(error, SourceRefused)
            store.fetched(self.series, now, ok=False, detail=str(error), refused=refused)
            return Polled(new=0, failure=error)
        before = store.last_fetch(self.series)
        asked_at = None if before is None else before.ok_at
        new = store.store(self.series, batch.points, not_before=asked_at)
        store.fetched(self.series, now, ok=True, detail=next(iter(batch.refused), ""))
        new += self._fill(now)
        told = {without_numbers(each): each for each in batch.refused}
        fresh = tuple(each for same, each in told.items() if same not in self._said)
        self._said = self._said | told.keys() if told else set()
        return Polled(new=new, refused=fresh)

    def _fill(self, now: datetime) -> int:
        """Fetch one more stretch of the past; count what was new."""
        store = self._journal.exogenous
        fetch, goal = store.last_fetch(self.series), now - HISTORY
        filled = fetch.filled_from if fetch and fetch.filled_from else now
        if filled <= goal or (self._past_from is not None and now < self._past_from):
            return 0
        start = max(goal, filled - CHUNK)
        new = 0
        try:
            batch = self._provider.past_forecasts(start, filled, now=now)
            new = store.store(self.series, batch.points)
        except NoData:
            pass  # a stretch without data, as days are missing; older ones may be there
        except SourceRefused as error:
            # For now: keys are suspended for a while, and a proxy may answer for another zone.
            log.warning("%s: the past is not told, and asked for later: %s", self.series, error)
            self._past_from = now + REFUSED_PAST
            return 0
        except SourceUnavailable:
            return 0
        store.filled(self.series, at=now, since=start)
        return new
