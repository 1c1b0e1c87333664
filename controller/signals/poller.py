"""One provider's series made into polls: what is asked for when, and what of the answers is stored.

Each poll asks for new values and the trailing hours, once a day for the trailing days, and for the
forecast where there is one and it is wanted. Older history is fetched one week per poll, so that a
profile has its history and the start is not delayed. Everything is stored in the journal, so that a
restart needs no network.

Invariant: a good answer about one part is stored even if another part fails; a poll that fails
removes nothing that was stored.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from wattmesh.controller.journal.carbon.points import FetchRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.process.loops import without_numbers
from wattmesh.errors import NoData, SourceRefused, SourceUnavailable
from wattmesh.telemetry.carbon import CarbonBatch, CarbonPoint, Provider

HISTORY = timedelta(days=60)
"""How much of the past forecasts can use; older gaps are not filled."""

CHUNK = timedelta(days=7)
DAY = timedelta(days=1)

Failure = SourceUnavailable | SourceRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """The result of one poll.

    Attributes:
        new: rows and issues that were not known before.
        refused: values of the provider that were not trusted, or parts that failed.
        failure: why the signal got no new values; None when it did.
    """

    new: int
    refused: tuple[str, ...] = ()
    failure: Failure | None = None


class Poller:
    """Polls one series for every run and role that reads it."""

    def __init__(
        self,
        provider: Provider,
        journal: Journal,
        *,
        ahead: bool = True,
        history: timedelta = HISTORY,
    ) -> None:
        """Keep the provider and where its answers are stored.

        Args:
            provider: whom to ask.
            journal: where all answers go.
            ahead: its forecast is wanted; a series with forecasts only is asked for them anyway.
            history: how much of the past is wanted.
        """
        self._provider = provider
        self._journal = journal
        self._wants_ahead = ahead or not provider.series.observed
        self._history = history
        self._scale = provider.series.day_s / DAY.total_seconds()
        self._said: set[str] = set()

    @property
    def provider(self) -> Provider:
        """The provider that it polls."""
        return self._provider

    def poll(self, now: datetime) -> Polled:
        """Ask for what is new, store it, and record how it went.

        Raises:
            JournalUnavailable: nothing could be stored; the next poll asks again.
        """
        store, signal = self._journal.carbon, self._provider.signal
        fetch = store.last_fetch(signal)
        new, said = 0, dict[str, str]()  # keyed by the sentence without its numbers
        failures = list[Failure]()
        if self._provider.series.observed:
            observed, failure = self._observed(fetch, now)
            new += store.store(observed.points)
            said |= {each: each for each in observed.refused}
            failures += [failure] if failure else []
        if self._wants_ahead and self._provider.series.forecast_s > 0:
            ahead, failure = self._ahead(now)
            new += store.store(ahead.points)
            said |= {each: each for each in ahead.refused}
            if failure is not None and not self._provider.series.observed:
                failures.append(failure)
            elif failure is not None:
                sentence = f"The forecast did not come: {failure}."
                said[without_numbers(sentence)] = sentence
        if failures:
            why, refused = str(failures[0]), isinstance(failures[0], SourceRefused)
            store.fetched(signal, now, ok=False, detail=why, refused=refused)
            return Polled(new=new, refused=self._new_sentences(said), failure=failures[0])
        store.fetched(signal, now, ok=True, detail=next(iter(said.values()), ""))
        if self._provider.series.observed:
            new += self._fill(now)
        return Polled(new=new, refused=self._new_sentences(said))

    def _observed(
        self, fetch: FetchRow | None, now: datetime
    ) -> tuple[CarbonBatch, Failure | None]:
        """Ask for the trailing time, and for the running interval if that is missing from it."""
        series, store = self._provider.series, self._journal.carbon
        deep = self._deep_is_due(fetch, now)
        known_until = store.known_until(self._provider.signal)
        start = now - (series.deep_trailing if deep else series.trailing)
        if known_until is not None:  # after a long pause, start where the stored values end
            start = max(min(start, known_until), now - self._history * self._scale)
        end = now + timedelta(seconds=series.interval_s)
        try:
            batch = self._provider.history(start, end, now=now)
        except (SourceUnavailable, SourceRefused) as error:
            return CarbonBatch(points=()), error
        if deep:
            known = fetch.filled_from if fetch and fetch.filled_from else start
            store.filled(self._provider.signal, deep_at=now, since=min(start, known))
        if any(point.start <= now < point.end for point in batch.points):
            return batch, None
        try:
            newest = self._provider.latest(now)
        except (SourceUnavailable, SourceRefused) as error:
            return batch, error
        return _joined(batch, newest), None

    def _ahead(self, now: datetime) -> tuple[CarbonBatch, Failure | None]:
        try:
            hours = self._provider.series.forecast_s / 3600
            return self._provider.forecast(hours, now=now), None
        except (SourceUnavailable, SourceRefused) as error:
            return CarbonBatch(points=()), error

    def _deep_is_due(self, fetch: FetchRow | None, now: datetime) -> bool:
        """Whether the trailing days were last asked for more than a day ago."""
        return (
            fetch is None
            or fetch.deep_at is None
            or not timedelta(0) <= now - fetch.deep_at < DAY * self._scale
        )

    def _fill(self, now: datetime) -> int:
        """Fetch one more week of the past, if it is wanted; count what was new.

        A provider that has no older data, or refuses it to this key, is not asked for it again.
        """
        store, signal = self._journal.carbon, self._provider.signal
        fetch, goal = store.last_fetch(signal), now - self._history * self._scale
        if fetch is None or fetch.deep_at is None or fetch.filled_from is None:
            return 0
        if fetch.filled_from <= goal:
            return 0
        start = max(goal, fetch.filled_from - CHUNK * self._scale)
        points: tuple[CarbonPoint, ...] = ()
        try:
            points = self._provider.history(start, fetch.filled_from, now=now).points
        except (NoData, SourceRefused):
            start = goal
        except SourceUnavailable:
            return 0
        new = store.store(points)
        store.filled(signal, deep_at=fetch.deep_at, since=start)
        return new

    def _new_sentences(self, said: dict[str, str]) -> tuple[str, ...]:
        """Give the sentences that are new since the last poll without any."""
        fresh = tuple(each for same, each in said.items() if same not in self._said)
        self._said = self._said | said.keys() if said else set()
        return fresh


def _joined(one: CarbonBatch, other: CarbonBatch) -> CarbonBatch:
    """Merge two answers; for an interval in both, the later answer counts."""
    told = {(each.start, each.quality): each for each in (*one.points, *other.points)}
    return CarbonBatch(
        points=tuple(sorted(told.values(), key=lambda each: each.start)),
        refused=tuple(dict.fromkeys((*one.refused, *other.refused))),
    )
