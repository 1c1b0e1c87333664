"""What a ledger slot is priced with: the ladder from what was measured down to what is assumed.

    measured or estimated by the accounting signal
    a declared fallback signal of the same kind, times a factor the user gave, once the accounting
        signal is later than usual
    a provisional value: the provider's own, or what the newest forecast said of the slot
    after 48 h, for good: an estimate by the profile of the days before

Invariant: a price is replaced only by one of a higher rung, or by a newer value on the rungs that
are observed; after 48 h no price is provisional; a slot of which nothing is known has no price.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import IntEnum

from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.signals.history import PROFILE_DAYS, history_of, profile_slots
from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.ladder import DAY_S
from wattmesh.telemetry.carbon import CarbonPoint, Series, Signal
from wattmesh.telemetry.readings import Quality

SETTLED_AFTER = timedelta(hours=48)
"""How long a slot may have a provisional price."""

LONGEST_INTERVAL = timedelta(days=1)
SETTLED = "settled: "
FALLBACK = "fallback"
STAND_IN = "forecast of "


class Rank(IntEnum):
    """How good a price is."""

    PROVISIONAL = 1
    SETTLED = 2
    FALLBACK = 3
    ESTIMATED = 4
    MEASURED = 5


_OWN = {
    Quality.MEASURED: Rank.MEASURED,
    Quality.ESTIMATED: Rank.ESTIMATED,
    Quality.STATIC: Rank.ESTIMATED,
    Quality.PROVISIONAL: Rank.PROVISIONAL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The intensity of a slot. `signal`: the series it is from; `model`: "" when observed."""

    signal: str
    g_milli_per_kwh: int
    quality: str
    rank: Rank
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A signal used in place of ours; `scale`: the user's factor from its values to ours."""

    signal: Signal
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """How slots are priced.

    Attributes:
        signal: the accounting signal. `fallbacks`: in the order in which they are tried.
        late_s: how long after a slot's end a fallback is used.
        series: the intervals of the accounting signal.
    """

    signal: Signal
    series: Series
    fallbacks: tuple[Fallback, ...] = ()
    late_s: float = 0.0

    @property
    def settled_after(self) -> timedelta:
        """Age at which no price may be provisional; shorter in a recording played compressed."""
        return SETTLED_AFTER * (self.series.day_s / DAY_S)


class SlotPrices:
    """Prices of slots from the journal; one instance per cycle, which reads as far as needed."""

    def __init__(
        self, journal: Journal, tariff: Tariff, now: datetime, *, settling: bool = True
    ) -> None:
        """Keep the journal, how slots are priced, and the moment.

        Args:
            journal: the intensities.
            tariff: how slots are priced.
            now: the moment.
            settling: whether `now` is trusted; if not, no slot gets its final estimate by it.
        """
        self._settling = settling
        self._journal = journal
        self._tariff = tariff
        self._now = now
        self._points: dict[str, tuple[datetime, tuple[CarbonPoint, ...]]] = {}
        self._found: dict[tuple[str, datetime, datetime, Rank | None], Price | None] = {}
        self._profiles: dict[tuple[str, datetime], Sequence[IntensitySlot]] = {}

    def best(
        self, signal: str, start: datetime, end: datetime, above: Rank | None = None
    ) -> Price | None:
        """Give the best price of a slot in the signal it is accounted in; None when there is none.

        Args:
            signal: what the slot is accounted in.
            start: when the slot begins.
            end: when it ends.
            above: rank of the price it has; lower ranks are not searched.
        """
        key = (signal, start, end, above)
        if key not in self._found:  # a slot has a row for each GPU
            self._found[key] = self._look(signal, start, end, above)
        return self._found[key]

    def _look(
        self, signal: str, start: datetime, end: datetime, above: Rank | None
    ) -> Price | None:
        """Try the rungs of the ladder from the top down."""
        told = cover(self._observed(signal, start), start, end)
        own = _own_price(signal, told) if told else None
        if own is not None and own.rank > Rank.PROVISIONAL:
            return own
        late = self._now - end
        if (above or 0) <= Rank.FALLBACK and late >= timedelta(seconds=self._tariff.late_s):
            found = self._fallback(start, end) if signal == str(self._tariff.signal) else None
            if found is not None:
                return found
        if (above or 0) > Rank.PROVISIONAL:
            return None
        standing = own or self._expected(signal, start)
        if late < self._tariff.settled_after or not self._settling:
            return standing
        return self._settled(signal, start, end, standing)

    def _observed(self, signal: str, since: datetime) -> tuple[CarbonPoint, ...]:
        """Give the observed points of a signal from the interval that may hold `since` on."""
        held = self._points.get(signal)
        if held is None or since < held[0]:
            start = since - LONGEST_INTERVAL
            points = self._journal.carbon.observed(Signal.parse(signal), start, self._now)
            held = (since, tuple(sorted(points, key=lambda each: each.start)))
            self._points[signal] = held
        return held[1]

    def _fallback(self, start: datetime, end: datetime) -> Price | None:
        """Give the price by the first fallback that covers the whole slot."""
        for each in self._tariff.fallbacks:
            told = cover(self._observed(str(each.signal), start), start, end)
            if told is not None and told.quality is not Quality.PROVISIONAL:
                static = told.quality is Quality.STATIC
                return Price(
                    signal=str(each.signal),
                    g_milli_per_kwh=round(told.g_milli_per_kwh * each.scale),
                    quality=str(Quality.STATIC if static else Quality.ESTIMATED),
                    rank=Rank.FALLBACK,
                    model=f"{FALLBACK} x{each.scale:g}",
                )
        return None

    def _expected(self, signal: str, start: datetime) -> Price | None:
        """Give what the newest forecast that covers the slot's start says of it."""
        found = self._journal.forecasts.expected(Signal.parse(signal), start)
        if found is None:
            return None
        slot, issue = found
        return Price(
            signal=signal,
            g_milli_per_kwh=round(slot.g_per_kwh * 1000),
            quality=str(Quality.PROVISIONAL),
            rank=Rank.PROVISIONAL,
            model=f"{STAND_IN}{issue.source}"[:64],
        )

    def _settled(
        self, signal: str, start: datetime, end: datetime, standing: Price | None
    ) -> Price | None:
        """Give an unmeasured slot its final estimate: by the profile, else by the stand-in."""
        slot = self._profile(signal, start, end)
        if slot is not None:
            return Price(
                signal=signal,
                g_milli_per_kwh=round(slot.g_per_kwh * 1000),
                quality=str(Quality.ESTIMATED),
                rank=Rank.SETTLED,
                model=f"{SETTLED}anchored profile",
            )
        if standing is None:
            return None
        why = standing.model or "the provider's stand-in"
        return replace(
            standing,
            quality=str(Quality.ESTIMATED),
            rank=Rank.SETTLED,
            model=f"{SETTLED}{why}"[:64],
        )

    def _profile(self, signal: str, start: datetime, end: datetime) -> IntensitySlot | None:
        """Give the profile's value of a slot, from the history of the days before it."""
        series = self._tariff.series
        if signal != str(self._tariff.signal):
            return None
        days = PROFILE_DAYS * (series.day_s / DAY_S)
        before = self._journal.carbon.observed(Signal.parse(signal), start - days, start)
        history = history_of([each for each in before if each.end <= start], series)
        if history is None:
            return None
        key = (signal, history.end)
        held = self._profiles.get(key, ())
        if not held or held[-1].end < end:
            held = profile_slots(history, series, history.end, end + days - history.end)
            self._profiles[key] = held
        return next((each for each in held if each.start <= start and end <= each.end), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotIntensity:
    """The mean intensity over a slot, and the weakest quality of its parts."""

    g_milli_per_kwh: int
    quality: Quality
    model: str


def cover(points: Sequence[CarbonPoint], start: datetime, end: datetime) -> SlotIntensity | None:
    """Average the points over [start, end) by time; None unless they cover all of it.

    Args:
        points: sorted by their start; intervals may be finer or coarser than the slot.
        start: when the slot begins.
        end: when it ends, later.
    """
    first = max(0, bisect_right(points, start, key=lambda each: each.start) - 1)
    at, weighted, parts = start, 0.0, list[CarbonPoint]()
    for point in points[first:]:
        if point.start > at:
            break
        if point.end <= at:
            continue
        until = min(point.end, end)
        weighted += round(point.g_per_kwh * 1000) * (until - at).total_seconds()
        parts.append(point)
        at = until
        if at >= end:
            mean = weighted / (end - start).total_seconds()
            weakest = min(parts, key=lambda each: _OWN.get(each.quality, Rank.PROVISIONAL))
            return SlotIntensity(
                g_milli_per_kwh=round(mean), quality=weakest.quality, model=weakest.model[:64]
            )
    return None


def _own_price(signal: str, told: SlotIntensity) -> Price:
    return Price(
        signal=signal,
        g_milli_per_kwh=told.g_milli_per_kwh,
        quality=str(told.quality),
        rank=_OWN.get(told.quality, Rank.PROVISIONAL),
        model=told.model,
    )


def rank_of(quality: str, model: str) -> Rank:
    """Give the rank of the price of a row."""
    if model.startswith(FALLBACK):
        return Rank.FALLBACK
    if model.startswith(SETTLED):
        return Rank.SETTLED
    if quality == Quality.PROVISIONAL:
        return Rank.PROVISIONAL
    if quality in (Quality.ESTIMATED, Quality.STATIC):
        return Rank.ESTIMATED
    return Rank.MEASURED
