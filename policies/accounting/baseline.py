"""The baseline: what a run would have drawn at a point it was not moved from. Pure.

Where the run was at that point itself, the baseline *is* the run: its tokens and its joules. In
other slots it is modelled, at the speed and the watts that were measured at that point, carried on
by the drift measured where the run is since. So a run that was never touched has saved exactly 0,
whatever its catalogue says (docs/carbon-accounting.md).

Its clock starts with the run and stops only for outages that we did not cause; never for switches,
rollbacks, checkpoints or waits of ours.

Invariant: tokens are whole and energy is whole millijoules; a slot's row follows from the facts of
that slot alone, so computing it again changes nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median

RECENT_SLOTS = 24
"""Speed and watts are measured over so many slots at most, the newest."""

EDGE_SLOTS = 12
"""What a point was like at first is told from so many slots at most: up to five may be odd."""

FEWEST_SLOTS = 6
"""Fewer slots of a stay are no evidence of drift."""

MOST_DRIFT = 2.0
"""Speed and watts of a point are believed to have changed by this factor at most, either way."""

ODD = 1.1
"""A slot with so many times the usual joules per token is no training at the usual pace."""

STEADY = 0.75
"""Where fewer of `EDGE_SLOTS` slots or more keep near the usual speed, pauses are usual there."""

Span = tuple[datetime, datetime]
"""Half-open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Time that a run spent at one point, speed steady. `start`, `end`: half-open."""

    point: str
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSlot:
    """A whole slot at one point.

    Attributes:
        tokens: trained over `tokens_s` seconds (from look to look, not from border to border).
        power_w: of all the run's devices. `upper_w`: the most, where part of it was not read.
        quality: of its joules.
    """

    tokens: int
    tokens_s: float
    power_w: float
    upper_w: float
    quality: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointPace:
    """How fast a point trains and what it draws.

    Attributes:
        upper_w: the most it may draw; above `power_w` where part of the measurement was dark, or
            doubtful.
        assumed: from the catalogue: nothing was measured at this point yet.
        quality: of the joules it was measured by.
    """

    tokens_per_s: float
    power_w: float
    upper_w: float
    assumed: bool = False
    quality: str = ""

    def scaled(self, speed: float, power: float) -> "PointPace":
        """Give the pace of a point so many times as fast, with so many times the watts."""
        return replace(
            self,
            tokens_per_s=self.tokens_per_s * speed,
            power_w=self.power_w * power,
            upper_w=self.upper_w * power,
        )

    def drifted(self, speed: float, power: float) -> "PointPace":
        """Give the pace after a drift that was seen at another point.

        Whether it holds here too is not known: joules per token of the lower end never grow by it,
        and those of the upper end never shrink.
        """
        return replace(
            self,
            tokens_per_s=self.tokens_per_s * speed,
            power_w=self.power_w * min(power, speed),
            upper_w=self.upper_w * max(power, speed),
        )


def measured_pace(slots: Sequence[MeasuredSlot]) -> PointPace | None:
    """Give the pace of whole slots in time order; None of none, or where nothing was trained.

    Speed and watts are of the same slots with the same weights, so that one behaviour at two points
    gives the same joules per token at both. Slots out of the usual (an evaluation, a stall, one
    that a stepped clock made too full) are in neither; the upper end has them in both.
    """
    newest = [each for each in slots[-RECENT_SLOTS:] if each.tokens_s > 0]
    chosen = _usual(newest)
    if not chosen:
        return None
    seconds = sum(each.tokens_s for each in chosen)
    tokens = sum(each.tokens for each in chosen)
    upper_w = sum(each.upper_w * each.tokens_s for each in chosen) / seconds
    if len(chosen) < len(newest):
        with_pauses_j = sum(each.upper_w * each.tokens_s for each in newest)
        trained = sum(each.tokens for each in newest)
        upper_w = max(upper_w, with_pauses_j / max(1, trained) * tokens / seconds)
    return PointPace(
        tokens_per_s=tokens / seconds,
        power_w=sum(each.power_w * each.tokens_s for each in chosen) / seconds,
        upper_w=upper_w,
        quality="+".join(sorted({each.quality for each in chosen if each.quality})),
    )


def _usual(slots: Sequence[MeasuredSlot]) -> Sequence[MeasuredSlot]:
    """Give the slots of training at the usual pace; all of them where pauses are usual.

    Steps may be longer than slots, and evaluations may come every few: then no single slot has
    the pace, and many together have.
    """
    trained = [each for each in slots if each.tokens > 0]
    if not trained:
        return ()
    if len(slots) >= EDGE_SLOTS:
        usual = median(each.tokens / each.tokens_s for each in slots)
        near = [each for each in slots if usual / ODD <= each.tokens / each.tokens_s <= usual * ODD]
        if len(near) < STEADY * len(slots):
            return slots
    most = ODD * median(each.power_w * each.tokens_s / each.tokens for each in trained)
    return [each for each in trained if each.power_w * each.tokens_s / each.tokens <= most]


def drift(
    stretches: Iterable[Stretch], slots: Callable[[Stretch], Sequence[MeasuredSlot]]
) -> PointPace:
    """Give how speed and watts changed since the first of these stretches, as ratios.

    Each point is compared with itself when it was first visited, so noise does not add up over
    many visits; a point visited anew goes on from where the ones before had come to. The watts are
    medians over many slots, and no ratio is beyond `MOST_DRIFT`.

    Args:
        stretches: in time order, since the point in question was left.
        slots: the whole slots of a stretch in time order: its first and its newest.
    """
    speed = power = 1.0
    first: dict[str, tuple[PointPace, float, float]] = {}
    for stretch in stretches:
        # What is seen anew is no drift: only slots of which everything was read, and of which
        # nothing was nobody's, are compared.
        known = [each for each in slots(stretch) if each.upper_w <= each.power_w]
        begin, now = _typical(known[:EDGE_SLOTS]), _typical(known[-RECENT_SLOTS:])
        if len(known) < FEWEST_SLOTS or begin is None or now is None:
            continue
        before, speed_then, power_then = first.setdefault(stretch.point, (begin, speed, power))
        speed = _within_most_drift(speed_then * now.tokens_per_s / before.tokens_per_s)
        power = _within_most_drift(
            power_then * (now.power_w / before.power_w if before.power_w else 1.0)
        )
    return PointPace(tokens_per_s=speed, power_w=power, upper_w=power)


def _typical(slots: Sequence[MeasuredSlot]) -> PointPace | None:
    """Give a pace with the median of the watts, which a few odd slots do not move."""
    pace = measured_pace(slots)
    if pace is None:
        return None
    return replace(pace, power_w=median(each.power_w for each in _usual(slots)))


def _within_most_drift(ratio: float) -> float:
    return min(MOST_DRIFT, max(1 / MOST_DRIFT, ratio))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """One slot of a run's life.

    Attributes:
        active_s: seconds in it in which the baseline's clock runs.
        tokens: that the run itself trained in it; below 0 where it went back to a checkpoint.
        here: the point at which the run was, untouched, as long as it lived in this slot; "" when
            it was switched in it, or not alone at one point.
    """

    start: datetime
    end: datetime
    active_s: float
    tokens: int = 0
    here: str = ""


class SlotKind:
    """What a slot of a scenario is."""

    AS_RUN = "as_run"
    MODELLED = "modelled"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSlot:
    """One slot of a scenario. `energy_mj`: None where the run's own joules stand for it.

    `quality`: of the joules that it was modelled by.
    """

    start: datetime
    end: datetime
    kind: str
    tokens: int
    energy_mj: int | None = None
    upper_mj: int = 0
    quality: str = ""


def reference(
    point: str, slots: Iterable[SlotFacts], pace: PointPace, left: int, *, alone: bool = False
) -> list[ReferenceSlot]:
    """Give the slots of the scenario in which the run always is at `point`.

    Args:
        point: its point.
        slots: in time order.
        pace: of that point, for slots in which the run was elsewhere.
        left: tokens of the work that are still to be trained; what the run itself trains in its
            own slots is not held back by it.
        alone: the run has ended: nothing is left to tell once the work is done.
    """
    rows: list[ReferenceSlot] = []
    for slot in slots:
        if alone and left <= 0:
            break
        if slot.here == point:
            row = ReferenceSlot(
                start=slot.start, end=slot.end, kind=SlotKind.AS_RUN, tokens=slot.tokens
            )
        else:
            due = round(pace.tokens_per_s * slot.active_s)
            tokens = max(0, min(left, due))
            seconds = slot.active_s if tokens == due else tokens / pace.tokens_per_s
            row = ReferenceSlot(
                start=slot.start,
                end=slot.end,
                kind=SlotKind.ASSUMED if pace.assumed else SlotKind.MODELLED,
                tokens=tokens,
                energy_mj=round(pace.power_w * seconds * 1000),
                upper_mj=max(0, round((pace.upper_w - pace.power_w) * seconds * 1000)),
                quality=pace.quality,
            )
        left -= row.tokens
        rows.append(row)
    return rows


def active(span: Span, pauses: Iterable[Span]) -> float:
    """Give the seconds of a span that lie in no pause; pauses do not overlap each other.

    A pause that ends before it begins (the wall clock was stepped back in it) took no time.
    """
    start, end = span
    seconds = max(0.0, (end - start).total_seconds())
    for begin, stop in pauses:
        seconds -= max(0.0, (min(end, stop) - max(start, begin)).total_seconds())
    return max(0.0, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One slot of a scenario, priced, beside what the run itself emitted in it.

    Attributes:
        tokens: of the scenario.
        carbon_ug: of the scenario's own joules; None: no price yet. 0 where it is `as_run`.
        upper_ug: the most they may be more than that; None: not known.
        own_ug: what the run emitted; None: some of its joules have no price yet.
        own_upper_ug: the most it emitted unobserved; None: not known.
        as_run: the run's own grams are the scenario's.
        settled: not assumed.
    """

    tokens: int
    carbon_ug: int | None
    upper_ug: int | None
    own_ug: int | None
    own_upper_ug: int | None
    as_run: bool
    settled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Grams of a scenario at as many tokens, less those of the run.

    Attributes:
        low_ug, high_ug: the band; both None while it cannot be told.
        why: why it cannot; "" when it can.
        reference_ug: the scenario's grams then, of what was read; None likewise. `dark`: some of
            them were not.
    """

    low_ug: int | None = None
    high_ug: int | None = None
    reference_ug: int | None = None
    dark: bool = False
    why: str = ""


BEHIND = "the baseline has not trained as many tokens yet"
UNCALIBRATED = "its submitted point has not been measured here for a whole slot yet"
NO_PRICE = "some of its joules have no intensity yet"
OTHER_SCOPE = (
    "the catalogue's watts and the meters' do not contain the same, and that point was not "
    "measured here; set power_scope and host_power_w in the catalogue"
)


def difference(slots: Sequence[Slot], tokens: int) -> Difference:
    """Compare a run with a scenario of it when that had trained `tokens`.

    Slots in which the scenario is the run itself cancel exactly, dark or without a price as they
    may be. Of the slot in which the number is reached a share counts, rounded down.

    Args:
        slots: all there are, in time order; those of the run alone have no tokens.
        tokens: trained by the run.
    """
    passed, part, whole = _crossing(slots, tokens)
    if passed is None:
        return Difference(why=BEHIND)
    low = high = 0
    dark = False
    reference_ug: int | None = 0
    for index, slot in enumerate(slots):
        taken, of = (1, 1) if index < passed else (part, whole) if index == passed else (0, 1)
        if taken and not slot.as_run:
            if not slot.settled:
                return Difference(why=UNCALIBRATED)
            if slot.carbon_ug is None or slot.upper_ug is None:
                return Difference(why=NO_PRICE)
            low += slot.carbon_ug * taken // of
            high += slot.carbon_ug * taken // of - (-slot.upper_ug * taken // of)
        grams_ug = slot.own_ug if slot.as_run else slot.carbon_ug
        if taken:
            dark = dark or (slot.own_upper_ug if slot.as_run else slot.upper_ug) != 0
            known = reference_ug is not None and grams_ug is not None
            reference_ug = (reference_ug or 0) + (grams_ug or 0) * taken // of if known else None
        left, over = (of - taken, of) if slot.as_run else (1, 1)
        if left:
            if slot.own_ug is None or slot.own_upper_ug is None:
                return Difference(why=NO_PRICE)
            own_ug = -(-slot.own_ug * left // over)
            low -= own_ug - (-slot.own_upper_ug * left // over)
            high -= own_ug
    return Difference(low_ug=low, high_ug=high, reference_ug=reference_ug, dark=dark)


def _crossing(slots: Sequence[Slot], tokens: int) -> tuple[int | None, int, int]:
    """Give (slots that count whole, tokens of the next one that count, tokens of it).

    The last moment at which so many were trained: a run that goes back to a checkpoint passes a
    number twice, and what it drew in between belongs to its work. None: not reached yet.
    """
    sums = [0]
    for slot in slots:
        sums.append(sums[-1] + slot.tokens)
    if sums[-1] < tokens:
        return None, 0, 1
    last = max((index for index, trained in enumerate(sums) if trained <= tokens), default=None)
    if last is None:
        return 0, 0, 1  # the run went back to before it was known here: no work is in either side
    if last == len(slots):
        return last, 0, 1
    return last, tokens - sums[last], slots[last].tokens


def price_ug(energy_mj: int, g_milli_per_kwh: int, pue_milli: int = 1000) -> int:
    """Give whole micrograms, half up: mJ x mg/kWh x PUE / 3.6e6."""
    return (energy_mj * g_milli_per_kwh * pue_milli + 1_800_000_000) // 3_600_000_000


def total(parts: Iterable[int | None]) -> int:
    """Sum what is known."""
    return sum(part for part in parts if part is not None)
