"""What is free when: a launcher's nodes, with what is known ahead of jobs and reservations. Pure.

Two answers are told apart. `soonest` is a bound: no launch begins before it, even if every job that
runs now ended at once. `expected` counts on jobs to run until their limits; they may end sooner,
and others may come first.

Invariant: what is not known of a node never makes `soonest` later.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

EVER = datetime(1970, 1, 1, tzinfo=UTC)
"""Begin of what has begun."""

FOREVER = datetime(9999, 1, 1, tzinfo=UTC)
"""End of what has no known end."""

UNLIMITED = timedelta(days=365 * 100)
"""How long a launch without a limit may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenSpan:
    """A span in which others have a node. `why`: for people, as "reservation maint"."""

    begins_at: datetime
    ends_at: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAhead:
    """One node.

    Attributes:
        closed: spans in which no launch of ours may have it, whatever jobs do.
        busy_until: when the jobs on it end at the latest; None: none is on it; `FOREVER`: not
            known.
    """

    name: str
    closed: tuple[TakenSpan, ...] = ()
    busy_until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesAhead:
    """The nodes that a launch may get.

    Attributes:
        now: when they were looked at.
        lasts: how long a launch may take at least, by its limit, before it is ended.
    """

    now: datetime
    lasts: timedelta
    nodes: tuple[NodeAhead, ...]

    def soonest(self, count: int, after: datetime | None = None) -> datetime | None:
        """Return when a launch of `count` nodes can begin at the earliest; None: never, as known.

        `after`: it begins no sooner, as after a sleep.
        """
        return self._first(count, after, [each.closed for each in self.nodes])

    def expected(self, count: int, after: datetime | None = None) -> datetime | None:
        """Return when it can begin if jobs run until their limits; None: not known."""
        spans = [
            each.closed if each.busy_until is None else (*each.closed, _busy(each.busy_until))
            for each in self.nodes
        ]
        return self._first(count, after, spans)

    def why_later(self, begins_by: datetime) -> str:
        """Name what keeps nodes from a launch that begins at a moment, most nodes first."""
        counts: dict[str, int] = {}
        for each in self.nodes:
            taken = next((span for span in each.closed if self._forbids(span, begins_by)), None)
            if taken is not None:
                counts[taken.why] = counts.get(taken.why, 0) + 1
        most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:3]
        return ", ".join(f"{number} {why}" for why, number in most)

    def _forbids(self, span: TakenSpan, begins_at: datetime) -> bool:
        """Return whether a launch that begins at a moment would meet a span."""
        return self._least(span) < begins_at < span.ends_at

    def _least(self, span: TakenSpan) -> datetime:
        """Return the moment after which a launch would still run when a span begins."""
        start = span.begins_at.astimezone(UTC)
        return start - self.lasts if start - EVER > self.lasts else EVER

    def _first(
        self, count: int, after: datetime | None, taken: Sequence[Iterable[TakenSpan]]
    ) -> datetime | None:
        """Sweep over the moments at which nodes become available or not."""
        begin = max(self.now, after) if after else self.now
        changes: list[tuple[datetime, int, int]] = []
        available = 0
        for spans in taken:
            forbidden = _joined((self._least(each), each.ends_at) for each in spans)
            open_now = not any(start < begin < end for start, end in forbidden)
            available += open_now
            for start, end in forbidden:
                # A launch may begin at either edge: what opens counts before what closes.
                if end > begin:
                    changes.append((end, 0, +1))
                    if start >= begin:
                        changes.append((start, 1, -1))
        if available >= count:
            return begin
        for at, _, change in sorted(changes):
            available += change
            if available >= count and at < FOREVER:
                return at
        return None


def _busy(until: datetime) -> TakenSpan:
    return TakenSpan(begins_at=EVER, ends_at=until, why="busy")


def _joined(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Join open spans that overlap, so that each node counts once."""
    joined: list[tuple[datetime, datetime]] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined
