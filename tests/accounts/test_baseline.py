"""The arithmetic of the baseline, and of the difference to it: against brute force and twins."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.accounts import T0, after
from wattmesh.policies.accounting.baseline import (
    BEHIND,
    FEWEST_SLOTS,
    MOST_DRIFT,
    NO_PRICE,
    UNCALIBRATED,
    Difference,
    MeasuredSlot,
    PointPace,
    Slot,
    SlotFacts,
    SlotKind,
    Stretch,
    active,
    difference,
    drift,
    measured_pace,
    price_ug,
    reference,
)

PACE = PointPace(tokens_per_s=1000.0, power_w=1600.0, upper_w=1600.0)


def facts(*slots: tuple[int, str]) -> list[SlotFacts]:
    """Make slots of half a minute in which the run trained so much, at such a point."""
    return [
        SlotFacts(
            start=after(30 * number),
            end=after(30 * number + 30),
            active_s=30.0,
            tokens=tokens,
            here=here,
        )
        for number, (tokens, here) in enumerate(slots)
    ]


def test_where_the_run_was_at_the_point_the_scenario_is_the_run() -> None:
    """Its tokens, whatever the pace says, and no joules of its own; elsewhere the pace."""
    rows = reference("A", facts((7, "A"), (9, "B"), (-3, "A")), PACE, 10**9)
    assert [(row.kind, row.tokens, row.energy_mj) for row in rows] == [
        (SlotKind.AS_RUN, 7, None),
        (SlotKind.MODELLED, 30_000, 48_000_000),
        (SlotKind.AS_RUN, -3, None),
    ]


def test_the_baseline_stops_when_its_work_is_done() -> None:
    """The last slot counts only until the last token, and draws no longer."""
    rows = reference("A", facts((1, "B"), (1, "B"), (1, "B")), PACE, 45_000)
    assert [(row.tokens, row.energy_mj) for row in rows] == [
        (30_000, 48_000_000),
        (15_000, 24_000_000),
        (0, 0),
    ]


def test_an_assumed_pace_says_so() -> None:
    """Nothing measured: no saving is told from such rows."""
    assumed = PointPace(tokens_per_s=1.0, power_w=1.0, upper_w=1.0, assumed=True)
    assert [row.kind for row in reference("A", facts((1, "B")), assumed, 9)] == [SlotKind.ASSUMED]


def test_a_dark_measurement_bounds_the_baseline_on_both_sides() -> None:
    """What was read of it, and beside it the most that the rest drew."""
    pace = PointPace(tokens_per_s=1000.0, power_w=1200.0, upper_w=1600.0)
    (row,) = reference("A", facts((1, "B")), pace, 10**9)
    assert (row.energy_mj, row.upper_mj) == (36_000_000, 12_000_000)


moments = st.integers(0, 12)


@given(moments, moments, st.lists(st.tuples(moments, moments), max_size=1))
def test_the_clock_runs_whenever_there_is_no_outage(
    start: int, end: int, outages: list[tuple[int, int]]
) -> None:
    """Second by second; an outage that ends before it begins took no time."""
    found = active((after(start), after(end)), [(after(a), after(b)) for a, b in outages])
    gone = {at for outage in outages for at in range(*outage)}
    assert found == len([at for at in range(start, end) if at not in gone])


def whole(power_w: float, rate: float = 1000.0, quality: str = "measured") -> MeasuredSlot:
    """Make a whole slot."""
    return MeasuredSlot(
        tokens=round(rate * 30), tokens_s=30.0, power_w=power_w, upper_w=power_w, quality=quality
    )


def test_a_pace_is_that_of_the_newest_slots() -> None:
    """Tokens and joules of the same slots; one odd slot moves nothing but the upper end."""
    slots = [whole(1.0, 1.0), *[whole(1700.0)] * 12, whole(9000.0), *[whole(1700.0)] * 11]
    pace = measured_pace(slots)
    assert pace is not None
    assert pace.upper_w == pytest.approx((23 * 1700 + 9000) / 24)
    assert replace(pace, upper_w=1700.0) == PointPace(
        tokens_per_s=1000.0, power_w=1700.0, upper_w=1700.0, quality="measured"
    )
    assert measured_pace([]) is None
    assert measured_pace([whole(1700.0, rate=0.0)]) is None


def stretches(points: str) -> list[Stretch]:
    """Make a stay of an hour at each point."""
    hour = timedelta(hours=1)
    return [
        Stretch(point=point, start=T0 + number * hour, end=T0 + (number + 1) * hour)
        for number, point in enumerate(points)
    ]


@given(st.text("BCD", min_size=1, max_size=8), st.floats(0.99, 1.01), st.floats(0.99, 1.01))
def test_drift_is_what_every_point_shares(points: str, power: float, speed: float) -> None:
    """All points draw and train by as much more as time goes by, whatever the catalogue says.

    Each has a level of its own, and the order of visits does not matter.
    """
    level = {"B": 400.0, "C": 900.0, "D": 1300.0}

    def slots(stretch: Stretch) -> list[MeasuredSlot]:
        age = (stretch.start - T0) / timedelta(hours=1)
        return [whole(level[stretch.point] * power**age, 1000 * speed**age)] * FEWEST_SLOTS

    found = drift(stretches(points), slots)
    first = {point: points.index(point) for point in points}
    # What passes while a point is visited for the first time nobody sees at another.
    assert found.power_w == pytest.approx(power ** sum(_seen(points, first)), rel=0.02)
    assert found.tokens_per_s == pytest.approx(speed ** sum(_seen(points, first)), rel=0.02)


def _seen(points: str, first: dict[str, int]) -> list[int]:
    """Give the hours of drift that revisits have shown, in order."""
    shown, known = 0, dict[str, int]()
    steps = []
    for number, point in enumerate(points):
        if number == first[point]:
            known[point] = shown
            continue
        steps.append(known[point] + number - first[point] - shown)
        shown += steps[-1]
    return steps


def test_drift_needs_more_than_a_slot_or_two() -> None:
    """Noise of one slot is no drift."""
    visits = iter([[whole(100.0)] * 5, [whole(200.0)] * 5])
    found = drift(stretches("BB"), lambda _: next(visits))
    assert (found.tokens_per_s, found.power_w) == (1.0, 1.0)


def test_pauses_are_in_joules_and_tokens_or_in_neither() -> None:
    """An evaluation in every third slot is usual; one in three slots may never come again.

    One watt a token either way; the mean of speed beside the median of watts gave 1.5.
    """
    usual = measured_pace([whole(1000.0), whole(1000.0), whole(100.0, 0.0)] * 8)
    assert usual is not None
    assert usual.power_w / usual.tokens_per_s == pytest.approx(1.05)
    once = measured_pace([whole(1000.0), whole(1000.0), whole(100.0, 0.0)])
    assert once is not None
    assert once.power_w / once.tokens_per_s == 1.0
    assert once.upper_w / once.tokens_per_s == pytest.approx(1.05)


def test_steps_longer_than_a_slot_have_the_pace_of_many() -> None:
    """Two steps are told in every second slot: half the slots show no token."""
    pace = measured_pace([whole(1000.0, 0.0), whole(1000.0, 2000.0)] * 12)
    assert pace == PointPace(
        tokens_per_s=1000.0, power_w=1000.0, upper_w=1000.0, quality="measured"
    )


@given(st.lists(st.sampled_from((40.0, 500.0, 20_000.0)), max_size=5), st.integers(7, 40))
def test_few_odd_slots_at_a_new_point_are_no_drift(odd: list[float], usual: int) -> None:
    """Whatever the first ones drew; and no ratio is beyond what is believed."""
    slots = [*map(whole, odd), *[whole(400.0)] * usual]
    found = drift(stretches("B"), lambda _: slots)
    assert (found.tokens_per_s, found.power_w) == (1.0, 1.0)
    visits = iter([[whole(100.0)] * FEWEST_SLOTS, [whole(2300.0)] * FEWEST_SLOTS])
    assert drift(stretches("BB"), lambda _: next(visits)).power_w == MOST_DRIFT


@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_a_drift_never_raises_the_headline(speed: float, power: float) -> None:
    """Whether it holds at the other point is not known: joules per token never grow by it."""
    pace = PointPace(tokens_per_s=1000.0, power_w=1000.0, upper_w=1000.0)
    found = pace.drifted(speed, power)
    true = power / speed
    assert found.power_w / found.tokens_per_s <= min(1.0, true) + 1e-9
    assert found.upper_w / found.tokens_per_s >= max(1.0, true) - 1e-9


@given(st.integers(0, 10**13), st.integers(1, 2_000_000))
def test_micrograms_are_rounded_half_up(energy_mj: int, g_milli: int) -> None:
    """Against exact fractions."""
    exact = Fraction(energy_mj * g_milli, 3_600_000)
    assert price_ug(energy_mj, g_milli) == (exact + Fraction(1, 2)).__floor__()
    assert price_ug(1_800_000, 1) == 1
    assert price_ug(1_799_999, 1) == 0


Compare = Callable[[Sequence[Slot], int], Difference]

grams = st.integers(0, 1000)
own_slots = st.builds(
    Slot,
    tokens=st.integers(-3, 9),
    carbon_ug=st.just(0),
    upper_ug=st.just(0),
    own_ug=grams,
    own_upper_ug=grams,
    as_run=st.just(True),
)
other_slots = st.builds(
    Slot,
    tokens=st.integers(0, 9),
    carbon_ug=grams,
    upper_ug=grams,
    own_ug=grams,
    own_upper_ug=grams,
    as_run=st.just(False),
)
slots = st.lists(own_slots | other_slots, max_size=6)


def brute_force(rows: Sequence[Slot], tokens: int) -> tuple[Fraction, Fraction] | None:
    """Every assignment of darkness is between these: each slot by its exact share."""
    sums = [sum(each.tokens for each in rows[:number]) for number in range(len(rows) + 1)]
    if sums[-1] < tokens:
        return None
    last = max(number for number, reached in enumerate(sums) if reached <= tokens)
    low = high = Fraction(0)
    for number, each in enumerate(rows):
        share = Fraction(int(number < last))
        if number == last:
            share = Fraction(tokens - sums[last], each.tokens)
        own = 1 - share if each.as_run else Fraction(1)
        if not each.as_run:
            low += share * (each.carbon_ug or 0)
            high += share * ((each.carbon_ug or 0) + (each.upper_ug or 0))
        low -= own * ((each.own_ug or 0) + (each.own_upper_ug or 0))
        high -= own * (each.own_ug or 0)
    return low, high


def wrong(compare: Compare, rows: Sequence[Slot], tokens: int) -> bool:
    """Whether an implementation disagrees with brute force by more than its rounding."""
    found, exact = compare(rows, tokens), brute_force(rows, tokens)
    if exact is None:
        return found.why != BEHIND
    if found.low_ug is None or found.high_ug is None:
        return True
    whole_shares = exact[0].denominator == exact[1].denominator == 1
    room = 0 if whole_shares else 3
    below, above = exact[0] - found.low_ug, found.high_ug - exact[1]
    return not (0 <= below <= room and -room <= above <= room)


@given(slots, st.integers(0, 40))
def test_a_difference_is_that_of_brute_force(rows: list[Slot], tokens: int) -> None:
    """Whole slots whole, the last one by its share, always rounded against the saving."""
    assert not wrong(difference, rows, tokens)


def ignores_the_dark(rows: Sequence[Slot], tokens: int) -> Difference:
    """Sabotaged: what nobody measured is nothing."""
    found = difference(rows, tokens)
    return Difference(low_ug=found.high_ug, high_ug=found.high_ug, why=found.why)


def first_crossing(rows: Sequence[Slot], tokens: int) -> Difference:
    """Sabotaged: the first moment at which so much was trained, not the last."""
    passed = 0
    for number, each in enumerate(rows):
        passed += each.tokens
        if passed >= tokens:
            return difference([*rows[: number + 1], *_never(rows[number + 1 :])], tokens)
    return difference(rows, tokens)


def _never(rows: Sequence[Slot]) -> list[Slot]:
    """Make slots of the run alone."""
    return [
        Slot(
            tokens=0,
            carbon_ug=0,
            upper_ug=0,
            own_ug=each.own_ug,
            own_upper_ug=each.own_upper_ug,
            as_run=False,
        )
        for each in rows
    ]


@pytest.mark.parametrize("sabotaged", [ignores_the_dark, first_crossing])
def test_brute_force_catches_a_wrong_difference(sabotaged: Compare) -> None:
    """The oracle is worth something."""
    lived = Slot(tokens=10, carbon_ug=0, upper_ug=0, own_ug=7, own_upper_ug=5, as_run=True)
    back = Slot(tokens=-4, carbon_ug=0, upper_ug=0, own_ug=3, own_upper_ug=0, as_run=True)
    away = Slot(tokens=10, carbon_ug=9, upper_ug=1, own_ug=6, own_upper_ug=2, as_run=False)
    rows = [lived, back, lived, away, lived]
    assert any(wrong(sabotaged, rows, tokens) for tokens in range(36))


@given(st.lists(own_slots, max_size=8))
def test_a_run_that_is_its_own_baseline_differs_by_nothing(rows: list[Slot]) -> None:
    """Dark as it may be, and having gone back to checkpoints as often as it likes."""
    tokens = sum(each.tokens for each in rows)
    if tokens >= 0:
        found = difference(rows, tokens)
        assert (found.low_ug, found.high_ug) == (0, 0)


def test_what_is_not_known_matters_only_where_it_is_needed() -> None:
    """Unknown is never zero; and a slot that cancels need not be known."""
    lived = Slot(tokens=10, carbon_ug=0, upper_ug=0, own_ug=None, own_upper_ug=None, as_run=True)
    bare = Slot(tokens=10, carbon_ug=None, upper_ug=None, own_ug=1, own_upper_ug=0, as_run=False)
    known = Slot(tokens=10, carbon_ug=4, upper_ug=0, own_ug=1, own_upper_ug=0, as_run=False)
    assumed = Slot(
        tokens=10, carbon_ug=4, upper_ug=0, own_ug=1, own_upper_ug=0, as_run=False, settled=False
    )
    assert difference([lived], 10).low_ug == 0
    assert difference([lived], 9).why == NO_PRICE
    assert difference([known, bare], 10).low_ug == 2
    assert difference([known, bare], 11).why == NO_PRICE
    assert difference([known, assumed], 10).low_ug == 2
    assert difference([known, assumed], 11).why == UNCALIBRATED
