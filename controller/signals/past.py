"""What is known of a signal's past: read once, and then only what was stored since.

Sixty days of a signal with five-minute values are seventeen thousand rows, and a poll brings a few.
Invariant: `until` gives what reading all rows would give. All rows are still read again once a day,
since another process may store rows out of order.
"""

from datetime import UTC, datetime, timedelta

from wattmesh.controller.journal.carbon.points import rank
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.signals.history import SeriesHistory, history_of
from wattmesh.telemetry.carbon import CarbonPoint, Series, Signal

WHOLE_AGAIN = timedelta(days=1)


class KnownPast:
    """The observed intervals of one signal."""

    def __init__(self, journal: Journal, signal: Signal, series: Series, length: timedelta) -> None:
        """Keep the journal, the signal, its intervals, and how far back to read."""
        self._journal = journal
        self._signal = signal
        self._series = series
        self._length = length
        self._best: dict[datetime, CarbonPoint] = {}
        self._newest_id = 0
        self._read_at = self._looked_at = datetime.min.replace(tzinfo=UTC)

    def until(self, now: datetime) -> SeriesHistory | None:
        """Give what is known of the time up to `now`; None if nothing is.

        Raises:
            JournalUnavailable: what was read before is kept.
        """
        # After the clock was set back, values that were dropped are needed again.
        if self._looked_at <= now < self._read_at + WHOLE_AGAIN:
            self._read_new_rows()
        else:
            self._read_whole(now)
        self._looked_at = now
        since = now - self._length
        self._best = {at: each for at, each in self._best.items() if at >= since}
        told = [each for at, each in self._best.items() if at <= now]
        return history_of(told, self._series)

    def _read_whole(self, now: datetime) -> None:
        carbon = self._journal.carbon
        # The id is read first: a row stored in between is then read twice, which changes nothing.
        # After the clock was set back, there are rows of the future.
        newest_id = carbon.newest_id()
        points = carbon.observed(self._signal, now - self._length, now + WHOLE_AGAIN)
        self._best = {each.start: each for each in points}
        self._newest_id, self._read_at = newest_id, now

    def _read_new_rows(self) -> None:
        points, self._newest_id = self._journal.carbon.stored_since(self._signal, self._newest_id)
        for each in points:
            held = self._best.get(each.start)
            if held is None or rank(each.quality) >= rank(held.quality):
                self._best[each.start] = each
