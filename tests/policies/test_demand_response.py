"""Which hours demand response caps, beside every choice of windows and a life of restated days."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise, product
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattmesh.policies.powercap.cap_windows import choose_windows
from wattmesh.policies.powercap.demand_response import (
    MOST_AHEAD,
    hours_of_day,
    known_hours,
    respond,
    taken_back,
)
from wattmesh.policies.powercap.triggers import (
    CapOrigin,
    Response,
    SignalSeries,
    SignalSlot,
    Trigger,
    TriggeredCap,
)

HOUR = timedelta(hours=1)
DAY = datetime(2026, 11, 20, tzinfo=UTC)
Responder = Callable[..., Response]
Spans = Sequence[tuple[datetime, datetime]]


def trigger(**changes: Any) -> Trigger:
    """The three worst hours of each day of UTC, with an hour's notice, at 100 kW."""
    facts: dict[str, Any] = {"worst_hours": 3, "cap_w": 1e5, "ahead_hours": 48, "timezone": UTC}
    return Trigger(origin=CapOrigin.CARBON, **facts | changes)


def series(values: Sequence[float | None], start: datetime = DAY, **changes: Any) -> SignalSeries:
    """Hours from `start` on; None is not known."""
    slots = tuple(
        SignalSlot(start=start + n * HOUR, end=start + (n + 1) * HOUR, value=value)
        for n, value in enumerate(values)
        if value is not None
    )
    facts: dict[str, Any] = {"name": "s", "unit": "g/kWh", "slots": slots, "issued_at": start}
    return SignalSeries(**facts | changes)


def day(**worse: float) -> list[float | None]:
    """A day at 100 with some hours otherwise, as `h17=300`."""
    return [worse.get(f"h{hour}", 100.0 + hour / 100) for hour in range(24)]


def spans(found: Response) -> list[tuple[int, int]]:
    """What is announced, as hours of the first day."""
    return [((e.start - DAY) // HOUR, (e.until - DAY) // HOUR) for e in found.announce]


def ask(values: Sequence[float | None], *caps: TriggeredCap, **changes: Any) -> Response:
    """Respond at the first day's start, or `now`."""
    now = changes.pop("now", DAY)
    return respond(trigger(**changes), series(values), caps, now, highest_w=None)


def standing(first: int, last: int, **changes: Any) -> TriggeredCap:
    """A window of the first day, announced before."""
    start, until = DAY + first * HOUR, DAY + last * HOUR
    facts: dict[str, Any] = {"id": 1, "start": start, "until": until}
    return TriggeredCap(**facts | changes)


# ---- the choice of windows


def brute(worth: Mapping[int, int], longest: int, pause: int, most: int) -> tuple[int, int]:
    """The best total and the fewest windows, by trying every set of hours."""
    best = (0, 0)
    hours = sorted(worth)
    for taken in product((False, True), repeat=len(hours)):
        chosen = [hour for hour, each in zip(hours, taken, strict=True) if each]
        runs: list[list[int]] = []
        for hour in chosen:
            if runs and runs[-1][-1] + 1 == hour:
                runs[-1].append(hour)
            else:
                runs.append([hour])
        # Without a pause a run may be several windows, one after the other.
        windows = sum(-(-len(run) // longest) for run in runs)
        apart = all(two[0] - one[-1] - 1 >= pause for one, two in pairwise(runs))
        short = pause == 0 or all(len(run) <= longest for run in runs)
        if apart and short and windows <= most:
            best = max(best, (sum(worth[hour] for hour in chosen), -windows))
    return best


def greedy(worth: Mapping[datetime, int], **limits: int) -> tuple[tuple[datetime, datetime], ...]:
    """A choice that looks right and is not the best: the worst hours first, each by itself."""
    found: list[datetime] = []
    for hour in sorted(worth, key=lambda each: -worth[each]):
        away = all(abs(hour - each) > limits["pause_hours"] * HOUR for each in found)
        if away and len(found) < limits["most"]:
            found.append(hour)
    return tuple((hour, hour + HOUR) for hour in sorted(found))


def as_good_as_any(choose: Callable[..., Spans]) -> None:
    """Compare a choice with every other."""

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(
        worth=st.dictionaries(st.integers(0, 11), st.integers(1, 6), max_size=7),
        longest=st.integers(1, 4),
        pause=st.integers(0, 3),
        most=st.integers(0, 4),
    )
    def held(worth: dict[int, int], longest: int, pause: int, most: int) -> None:
        by_time = {DAY + hour * HOUR: value for hour, value in worth.items()}
        found = choose(by_time, longest_hours=longest, pause_hours=pause, most=most)
        covered = [DAY + n * HOUR for n in range(12)]
        covered = [at for at in covered if any(start <= at < until for start, until in found)]
        assert all(until - start <= longest * HOUR for start, until in found)
        assert all(two[0] - one[1] >= pause * HOUR for one, two in pairwise(found))
        total = sum(by_time[at] for at in covered)
        assert (total, -len(found)) == brute(worth, longest, pause, most)

    held()


def test_windows_are_worth_as_much_as_any_that_keep_to_the_limits() -> None:
    """With no more windows than needed."""
    as_good_as_any(choose_windows)


def test_a_greedy_choice_is_seen_to_be_worse() -> None:
    """The sabotaged twin."""
    with pytest.raises(AssertionError):
        as_good_as_any(greedy)


# ---- one answer


def test_the_worst_hours_of_a_day_are_capped_and_say_why() -> None:
    """The mean of the window, the least of its hours, the signal and when it was issued."""
    found = ask(day(h17=310, h18=300, h19=290, h6=200))
    assert spans(found) == [(17, 20)]
    (told,) = [each.trigger for each in found.announce]
    assert (told.value, told.threshold, told.signal) == (300.0, 290.0, "s")
    assert (told.issued_at, found.announce[0].cap_w, found.held) == (DAY, 1e5, False)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"above": 295.0}, [(17, 19)]),  # both must hold
        ({"above": 1000.0}, []),
        ({"above": 200.0, "worst_hours": None}, [(6, 7), (17, 20)]),
        ({"longest_hours": 2}, [(17, 19)]),  # the third is too near
        ({"longest_hours": 2, "pause_hours": 0}, [(17, 19), (19, 20)]),
        ({"now": DAY + 17 * HOUR}, [(18, 20)]),  # an hour's notice
        ({"now": DAY + 17.5 * HOUR}, [(19, 20)]),
        ({"now": DAY + 18 * HOUR, "notice_s": 0.0}, [(19, 20)]),  # never the running hour
        ({"now": DAY + 20 * HOUR}, []),  # what is left of the day is not its worst
        ({"ahead_hours": 12}, []),
    ],
)
def test_the_limits_of_a_window(changes: dict[str, Any], expected: list[tuple[int, int]]) -> None:
    """Threshold, length, pause, notice, and how far ahead."""
    assert spans(ask(day(h17=310, h18=300, h19=290, h6=200), **changes)) == expected


ABOVE = {"worst_hours": None, "above": 250.0}


@pytest.mark.parametrize(
    ("changes", "known_h"),
    [
        ({}, lambda _: 72),
        ({}, lambda now: now + 24),
        ({}, lambda now: 48 if now < 13 else 72),  # as day-ahead prices are told
        (ABOVE, lambda now: now + 24),
        (ABOVE, lambda now: now + 6),
    ],
)
def test_hours_that_come_into_view_one_by_one_are_one_window(
    changes: dict[str, Any], known_h: Callable[[int], int]
) -> None:
    """A window that is never lengthened must not be announced by its first hour alone."""
    values, caps = day(h17=310, h18=300, h19=290) * 3, list[TriggeredCap]()
    for now in range(48):
        told = values[: known_h(now)]
        found = ask(told, *caps, now=DAY + now * HOUR, ahead_hours=24, **changes)
        assert not found.withdraw
        caps += [standing(*each, id=len(caps) + n) for n, each in enumerate(spans(found))]
    hours = [((each.start - DAY) // HOUR, (each.until - DAY) // HOUR) for each in caps]
    assert hours[:2] == [(17, 20), (41, 44)]


@pytest.mark.parametrize(
    ("was_w", "now_s", "stands"),
    [(700.0, 0.0, False), (6500.0, 0.0, True), (None, 0.0, True), (700.0, 16.5 * 3600, True)],
)
def test_a_share_of_fewer_boards_than_there_are_is_taken_back_with_notice(
    was_w: float | None, now_s: float, stands: bool
) -> None:
    """Announced when one node of ten had reported, it would stop the other nine."""
    cap = standing(17, 20, cap_w=was_w)
    asked, told = trigger(cap_w=None, cap_share=0.7), series(day(h17=310, h18=300, h19=290))
    now = DAY + timedelta(seconds=now_s)
    found = respond(asked, told, [cap], now, highest_w=10_000.0)
    assert [each.id for each in found.withdraw] == ([] if stands else [1])
    assert found.announce == ()
    gone = replace(cap, ended_at=now)
    again = respond(asked, told, [gone], DAY, highest_w=10_000.0).announce
    assert [each.cap_w for each in again] == [7000.0]
    assert respond(replace(asked, cap_w=7000.0), told, [cap], now, highest_w=1.0).withdraw == ()


def test_what_cannot_wait_for_its_notice_does_not() -> None:
    """The series ends within the stretch: its hours are announced as far as they are known."""
    known = day(h17=300)[:18]
    assert spans(ask(known, now=DAY + 15 * HOUR, **ABOVE)) == []
    assert spans(ask(known, now=DAY + 15.5 * HOUR, **ABOVE)) == [(17, 18)]


def test_one_that_has_begun_is_never_taken_back_and_four_are_announced_at_most() -> None:
    """Not even when nothing is known of its hours; those that stand count among the four."""
    begun = standing(2, 4)
    found = ask([None] * 24, begun, now=DAY + 3 * HOUR, notice_s=0.0)
    assert found.withdraw == ()
    spiky: dict[str, Any] = {"worst_hours": None, "above": 200.0}
    values = day(h2=300, h5=300, h8=300, h11=300, h14=300, h17=300)
    assert len(spans(ask(values, **spiky))) == 4
    assert spans(ask(values, standing(2, 3), standing(5, 6, id=2), **spiky)) == [(8, 9), (11, 12)]


def test_hysteresis_of_a_price_below_zero_lies_below_it() -> None:
    """A tenth of 20 below -20 is -22."""
    dear: dict[str, Any] = {"worst_hours": None, "above": -20.0}
    for value, gone in ((-21.0, False), (-23.0, True)):
        found = ask([-50.0] * 12 + [value] + [-50.0] * 11, standing(12, 13), **dear)
        assert bool(found.withdraw) is gone


def test_what_is_left_beside_a_cap_that_an_operator_took_back_takes_no_place_of_it() -> None:
    """A stretch of dear hours is capped as it would have been, without what was taken back."""
    dear: dict[str, Any] = {"worst_hours": None, "above": 200.0, "longest_hours": 2}
    values = day(h10=300, h11=290, h12=280, h13=270, h14=260)
    (window,) = spans(ask(values, now=DAY + 8 * HOUR, ahead_hours=4, **dear))
    assert window == (10, 12)
    veto = standing(10, 12, ended_at=DAY + 8 * HOUR, by_operator=True)
    assert spans(ask(values, veto, now=DAY + 8 * HOUR, **dear)) == [(14, 15)]


def test_a_day_of_equal_hours_has_no_worst() -> None:
    """Nothing is gained there."""
    assert spans(ask([100.0] * 24)) == []


def test_a_share_of_the_highest_power_needs_to_know_it() -> None:
    """Else nothing is announced, and it says so; what stands is left."""
    asked = trigger(cap_w=None, cap_share=0.7)
    values = series(day(h17=300))
    found = respond(asked, values, (), DAY, highest_w=1000.0)
    assert {each.cap_w for each in found.announce} == {700.0}
    unknown = respond(asked, values, [standing(17, 18)], DAY, highest_w=None)
    assert (unknown.announce, unknown.withdraw, unknown.held) == ((), (), True)
    assert "no GPU's power limit is known" in unknown.sentence


def test_negative_and_hostile_values() -> None:
    """A price below zero is a price; what is no number is not known."""
    negative = [-50.0] * 12 + [-10.0] + [-50.0] * 11
    assert spans(ask(negative, worst_hours=1)) == [(12, 13)]
    assert spans(ask(negative, worst_hours=None, above=-20.0)) == [(12, 13)]
    odd = [float("nan"), float("inf"), -float("inf"), *day(h17=300)[3:]]
    assert spans(ask(odd)) == []  # three that are not known are the three worst
    assert spans(ask(odd, now=DAY + 3 * HOUR)) == []
    assert spans(ask(odd, worst_hours=4)) == []  # and while they are ahead, others may join it
    assert spans(ask(odd, worst_hours=4, now=DAY + 2 * HOUR)) == [(17, 18)]


# ---- doubt


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    values=st.lists(st.integers(0, 9), min_size=24, max_size=24),
    gone=st.sets(st.integers(0, 23), max_size=6),
    most=st.integers(1, 5),
)
def test_what_is_not_known_only_takes_hours_away(
    values: list[int], gone: set[int], most: int
) -> None:
    """With windows of any length and no pause, what is capped is what is bad."""
    free = {"worst_hours": most, "longest_hours": 24, "pause_hours": 0, "notice_s": 0.0}
    whole: list[float | None] = [float(each) for each in values]
    holed = [None if n in gone else each for n, each in enumerate(whole)]

    def capped(told: list[float | None]) -> set[int]:
        found = respond(trigger(**free), series(told), (), DAY - HOUR, highest_w=None)
        return {hour for first, last in spans(found) for hour in range(first, last)}

    # More than four stretches of bad hours do not fit; then which are left is no matter of doubt.
    if (
        len(
            choose_windows(
                {DAY + h * HOUR: 1 for h in capped(whole)}, longest_hours=24, pause_hours=0, most=24
            )
        )
        < MOST_AHEAD
    ):
        assert capped(holed) <= capped(whole)
    assert len(capped(whole)) <= most


def test_a_signal_in_doubt_takes_back_what_has_not_begun_and_nothing_else() -> None:
    """A cap in force ends at its announced end."""
    caps = [standing(10, 12), standing(13, 15, id=2), standing(2, 4, id=3)]
    doubtful = series(day(), doubt="neso was last heard 3 h ago.")
    found = respond(trigger(), doubtful, caps, DAY + 11 * HOUR, highest_w=None)
    assert ([each.id for each in found.withdraw], found.announce, found.held) == ([2], (), True)
    assert found.sentence.endswith("triggers no cap: neso was last heard 3 h ago.")
    assert [each.id for each in taken_back(caps, DAY, "off")] == [1, 2, 3]


def test_a_series_that_ends_takes_back_the_windows_behind_its_end() -> None:
    """As a recording that is over: nothing is known of their hours."""
    values = day(h17=300)
    assert spans(ask(values[:17])) == []
    found = ask(values[:17], standing(17, 18), now=DAY + 16.5 * HOUR)
    assert [each.why for each in found.withdraw] == ["not all of its hours are known any more"]


# ---- what was announced


def test_an_announced_window_stands_while_it_is_bad_enough_and_is_not_moved() -> None:
    """The day's worst hours moved by one: three hours are taken, and no further hour is capped."""
    moved = day(h16=320, h17=310, h18=300, h19=250)
    found = ask(moved, standing(17, 20))
    assert (found.announce, found.withdraw) == ((), ())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "100 on average is not among the 3 worst hours of a day by now"),
        ({"above": 150.0}, "100 on average is below 150 by now"),
        ({"now": DAY + 16.5 * HOUR}, ""),  # half an hour's notice is too little
        ({"now": DAY + 18 * HOUR}, ""),  # it has begun
    ],
)
def test_a_window_is_taken_back_with_notice_or_not_at_all(
    changes: dict[str, Any], why: str
) -> None:
    """The grid became clean there, and dirty elsewhere."""
    clean = day(h5=300, h6=300, h7=300, h17=100, h18=100, h19=100)
    found = ask(clean, standing(17, 20), **changes)
    assert [each.why for each in found.withdraw] == ([why] if why else [])


@pytest.mark.parametrize(("value", "stays"), [(279.0, True), (271.0, True), (269.0, False)])
def test_hysteresis_of_a_threshold(value: float, stays: bool) -> None:
    """Announced at 300 and above; taken back below 270, a tenth less."""
    found = ask(day(h17=value), standing(17, 18), worst_hours=None, above=300.0)
    assert (not found.withdraw) is stays


def test_what_an_operator_took_back_does_not_come_back_and_no_other_hours_instead() -> None:
    """Before its start or in the middle; what we took back ourselves may come back."""
    values = day(h17=310, h18=300, h19=290, h6=200, h7=200, h8=200)
    for ended in (DAY, DAY + 18 * HOUR):
        vetoed = standing(17, 20, ended_at=ended, by_operator=True)
        assert spans(ask(values, vetoed, notice_s=0.0)) == []
    assert spans(ask(values, standing(17, 20, ended_at=DAY))) == [(17, 20)]
    vetoed = standing(17, 20, ended_at=DAY, by_operator=True)
    assert spans(ask(values, vetoed, worst_hours=6)) == [(6, 9)]


# ---- days of the local zone


@pytest.mark.parametrize(
    ("when", "zone", "count"),
    [
        (date(2026, 3, 29), "Europe/Berlin", 23),
        (date(2026, 10, 25), "Europe/Berlin", 25),
        (date(2026, 11, 20), "Asia/Kolkata", 24),
        (date(2026, 9, 6), "America/Santiago", 23),  # its midnight does not exist
    ],
)
def test_each_hour_belongs_to_one_local_day(when: date, zone: str, count: int) -> None:
    """Days of 23 and 25 hours, and those that begin at half an hour of UTC."""
    hours = list(hours_of_day(when, ZoneInfo(zone)))
    after = list(hours_of_day(when + timedelta(days=1), ZoneInfo(zone)))
    assert len(hours) == count
    assert [two - one for one, two in pairwise(hours)] == [HOUR] * (count - 1)
    assert after[0] == hours[-1] + HOUR


@pytest.mark.parametrize("when", [date(2026, 3, 29), date(2026, 10, 25)])
def test_the_worst_hours_of_a_day_on_which_clocks_change(when: date) -> None:
    """Three hours of each of two local days, on their own dates."""
    zone = ZoneInfo("Europe/Berlin")
    hours = [*hours_of_day(when, zone), *hours_of_day(when + timedelta(days=1), zone)]
    values: list[float | None] = [float((7 * n) % 23) for n in range(len(hours))]
    asked = trigger(timezone=zone, pause_hours=0, notice_s=0.0, worst_hours=1, longest_hours=24)
    found = respond(asked, series(values, hours[0]), (), hours[0] - HOUR, highest_w=None)
    dates = [each.start.astimezone(zone).date() for each in found.announce]
    assert sorted(dates) == [when, when + timedelta(days=1)]
    for each in found.announce:
        same = [
            v
            for h, v in zip(hours, values, strict=True)
            if h.astimezone(zone).date() == each.start.astimezone(zone).date()
        ]
        assert each.trigger.value == max(e for e in same if e is not None)


def test_hours_are_means_of_what_covers_them_whole() -> None:
    """Quarters and half hours, a gap, an overlap, a slot of two hours, another offset."""
    quarter, west = HOUR / 4, DAY.astimezone(ZoneInfo("America/New_York"))
    slots = [
        *(
            SignalSlot(start=west + n * quarter, end=west + (n + 1) * quarter, value=float(n))
            for n in range(4)
        ),
        SignalSlot(start=DAY + HOUR, end=DAY + 1.5 * HOUR, value=7.0),
        SignalSlot(start=DAY + 2 * HOUR, end=DAY + 4 * HOUR, value=5.0),
        SignalSlot(start=DAY + 3 * HOUR, end=DAY + 4 * HOUR, value=6.0),
    ]
    assert known_hours(slots) == {DAY: 1.5, DAY + 2 * HOUR: 5.0}


# ---- a life of restated forecasts


@dataclass(slots=True)
class Life:
    """Caps as the journal would keep them, asked every half hour, and what was wrong on the way."""

    trigger: Trigger
    responder: Responder
    caps: list[TriggeredCap] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def step(self, told: SignalSeries, now: datetime) -> None:
        """Ask once, write what is answered, and check it."""
        found = self.responder(self.trigger, told, tuple(self.caps), now, highest_w=None)
        notice = timedelta(seconds=self.trigger.notice_s)
        known = known_hours(told.slots)
        for gone in found.withdraw:
            (place,) = [n for n, each in enumerate(self.caps) if each.id == gone.id]
            was = self.caps[place]
            lost = any(
                was.start + n * HOUR not in known
                for n in range(24)
                if was.start + n * HOUR < was.until
            ) or bool(told.doubt)
            if was.start <= now or not was.stands:
                self.wrong.append("took back a cap that had begun or was gone")
            if was.start - now < notice and not lost:
                self.wrong.append("took back without notice")
            self.caps[place] = replace(was, ended_at=now)
        for window in found.announce:
            if window.start - now < notice or window.start <= now:
                self.wrong.append("announced without notice")
            cap = TriggeredCap(id=len(self.caps), start=window.start, until=window.until)
            self.caps.append(cap)
        self._check()

    def _check(self) -> None:
        stand = sorted((e.start, e.until) for e in self.caps if e.stands)
        pause = self.trigger.pause_hours * HOUR
        if any(two[0] - one[1] < pause for one, two in pairwise(stand)):
            self.wrong.append("two caps without a pause")
        if any(until - start > self.trigger.longest_hours * HOUR for start, until in stand):
            self.wrong.append("too long a cap")
        hours: dict[date, int] = {}
        for start, until in stand:
            for n in range((until - start) // HOUR):
                at = (start + n * HOUR).date()
                hours[at] = hours.get(at, 0) + 1
        if max(hours.values(), default=0) > (self.trigger.worst_hours or 24):
            self.wrong.append("more hours of a day than the worst ones")


def lived(responder: Responder) -> set[str]:
    """Live three days in which forecasts are restated and vanish, many times; name what broke."""
    wrong: set[str] = set()

    @settings(max_examples=10, deadline=None, derandomize=True)
    @given(st.data())
    def live(data: st.DataObject) -> None:
        asked = trigger(
            worst_hours=data.draw(st.integers(1, 4)),
            longest_hours=data.draw(st.integers(1, 3)),
            pause_hours=data.draw(st.integers(0, 3)),
            notice_s=data.draw(st.sampled_from([0.0, 3600.0, 9000.0])),
        )
        life = Life(trigger=asked, responder=responder)
        values = data.draw(st.lists(st.integers(0, 9), min_size=72, max_size=72))
        for half in range(0, 96, 3):
            if half % 9 == 0:  # restated, here and there
                for place in data.draw(st.lists(st.integers(0, 71), max_size=12)):
                    values[place] = data.draw(st.integers(0, 9))
            gone = data.draw(st.sets(st.integers(0, 71), max_size=2)) if half % 15 == 6 else set()
            told: list[float | None] = [
                None if n in gone else float(each) for n, each in enumerate(values)
            ]
            doubt = "no answer" if half % 36 == 33 else ""
            life.step(series(told, doubt=doubt), DAY + half * HOUR / 2)
        wrong.update(life.wrong)

    live()
    return wrong


def test_over_days_of_restated_forecasts_every_promise_is_kept() -> None:
    """Notice, pause, length, hours of a day; caps that begun are left."""
    assert lived(respond) == set()


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"notice_s": 0.0}, "announced without notice"),
        ({"pause_hours": 0}, "two caps without a pause"),
        ({"longest_hours": 24}, "too long a cap"),
        ({"worst_hours": 9}, "more hours of a day than the worst ones"),
    ],
)
def test_a_responder_that_forgets_a_limit_is_seen(changes: dict[str, Any], broken: str) -> None:
    """The sabotaged twins."""

    def forgetful(asked: Trigger, *rest: Any, **named: Any) -> Response:
        return respond(replace(asked, **changes), *rest, **named)

    assert broken in lived(forgetful)
