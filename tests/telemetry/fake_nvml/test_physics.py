"""What a fake GPU draws, and what its sensor makes of it, against exact sums."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.telemetry.fake_nvml.probe import (
    NS_PER_MS,
    PJ_PER_MJ,
    Answer,
    Event,
    Kind,
    Sensor,
    probe,
)
from wattmesh.telemetry.fake_nvml.boards import BOARDS, Board, BoardModel

H100 = BOARDS[Board.H100]
IDLE, SW_POWER_CAP = 0x1, 0x4
S = 1000 * NS_PER_MS

MOMENT_MS = st.integers(0, 4000)
THINGS = st.one_of(
    st.tuples(st.just(Kind.LOOK), st.just(0)),
    st.tuples(st.just(Kind.LOAD), st.integers(0, 1000)),
    st.tuples(st.just(Kind.DRAW), st.integers(-1, 900_000)),
    st.tuples(st.just(Kind.LIMIT), st.integers(200_000, 700_000)),
    st.tuples(st.just(Kind.LOCK), st.integers(210, 1980)),
)
SENSORS = st.sampled_from(
    [
        *(Sensor(each) for each in (0, 1, 20, 100, 333)),
        *(Sensor(100, *each) for each in ((100, 25), (20, 10), (7, 3), (90, 89))),
    ]
)


@st.composite
def scripts(draw: st.DrawFn, things: st.SearchStrategy[tuple[Kind, int]] = THINGS) -> list[Event]:
    """Give events on whole milliseconds, in order, the last one a look."""
    moments = sorted(draw(st.lists(MOMENT_MS, min_size=1, max_size=30)))
    events = [Event(each * NS_PER_MS, *draw(things)) for each in moments]
    return [*events, Event((moments[-1] + draw(MOMENT_MS)) * NS_PER_MS)]


def power_at(events: Sequence[Event], answers: Sequence[Answer], at_ns: int) -> int:
    """Give the milliwatts from `at_ns` on, as the answers say."""
    power_mw = round(1000 * H100.idle_w)
    for event, answer in zip(events, answers, strict=True):
        if event.at_ns > at_ns:
            break
        power_mw = answer.power_mw
    return power_mw


def drawn(events: Sequence[Event], answers: Sequence[Answer], until_ns: int) -> int:
    """Sum power over time up to `until_ns`, in picojoules: the truth, the slow way."""
    return sum(
        power_at(events, answers, ms * NS_PER_MS) * NS_PER_MS for ms in range(until_ns // NS_PER_MS)
    )


@given(scripts())
def test_energy_is_power_times_time_to_the_picojoule(events: list[Event]) -> None:
    """At the end of any script nothing is lost and nothing is added."""
    answers = probe(events, H100)
    assert answers[-1].drawn_pj == drawn(events, answers, events[-1].at_ns)


@given(scripts(), st.lists(MOMENT_MS, max_size=20))
def test_looking_changes_nothing(events: list[Event], looks_ms: list[int]) -> None:
    """However often somebody looks in between, truth and counter end up the same."""
    looks = [Event(min(each * NS_PER_MS, events[-1].at_ns)) for each in looks_ms]
    more = sorted([*events, *looks], key=lambda each: (each.at_ns, each.kind != Kind.LOOK))
    end = Event(events[-1].at_ns)
    sensor = Sensor(100, 100, 25)
    plain, watched = probe([*events, end], H100, sensor), probe([*more, end], H100, sensor)
    assert plain[-1] == watched[-1]


@given(scripts(st.one_of(THINGS, st.just((Kind.ZERO, 0)))))
def test_the_counter_is_the_energy_since_its_reset(events: list[Event]) -> None:
    """Without quirks of a sensor it is the truth in whole millijoules."""
    base_pj = 0
    for event, answer in zip(events, probe(events, H100), strict=True):
        base_pj = answer.drawn_pj if event.kind == Kind.ZERO else base_pj
        assert answer.counter_mj == (answer.drawn_pj - base_pj) // PJ_PER_MJ


@given(scripts(), SENSORS)
def test_a_counter_never_goes_back(events: list[Event], sensor: Sensor) -> None:
    """Whatever the sensor misses, its counter grows until somebody resets it."""
    counters = [each.counter_mj for each in probe(events, H100, sensor)]
    assert counters == sorted(counters)


@given(scripts(), st.sampled_from([1, 20, 100, 333]))
def test_a_slow_counter_says_what_was_true_at_its_last_update(
    events: list[Event], update_ms: int
) -> None:
    """Between two updates the counter stands still at the truth of the last one."""
    answers = probe(events, H100, Sensor(update_ms))
    tick_ns = events[-1].at_ns // (update_ms * NS_PER_MS) * update_ms * NS_PER_MS
    assert answers[-1].counter_mj == drawn(events, answers, tick_ns) // PJ_PER_MJ


@given(scripts(), st.sampled_from([(100, 25), (20, 10), (7, 3), (90, 89)]))
def test_a_part_time_sensor_takes_each_window_for_the_whole_period(
    events: list[Event], times_ms: tuple[int, int]
) -> None:
    """Its counter is what the windows saw, stretched; its power is the last window's mean."""
    period_ms, window_ms = times_ms
    answers = probe(events, H100, Sensor(100, period_ms, window_ms))
    last = (events[-1].at_ns // NS_PER_MS - window_ms) // period_ms
    end_ms = last * period_ms + window_ms
    if last < 0:
        return
    seen = [
        power_at(events, answers, ms * NS_PER_MS)
        for ms in range(end_ms)
        if ms % period_ms < window_ms
    ]
    stretched_pj = Fraction(sum(seen) * NS_PER_MS * period_ms, window_ms)
    assert answers[-1].counter_mj == stretched_pj // PJ_PER_MJ
    if end_ms > window_ms:
        assert answers[-1].shown_mw == pytest.approx(sum(seen[-window_ms:]) / window_ms, abs=1)


def test_a_part_time_sensor_is_wrong_about_a_load_in_step_with_it() -> None:
    """The known trap: 25 ms of work at the start of each 100 ms read as work all the time."""
    events = []
    for period in range(20):
        start_ns = period * 100 * NS_PER_MS
        events += [Event(start_ns, Kind.DRAW, 700_000)]
        events += [Event(start_ns + 25 * NS_PER_MS, Kind.DRAW, 100_000)]
    end = probe([*events, Event(2 * S)], H100, Sensor(100, 100, 25))[-1]
    assert end.drawn_pj == 2 * 250 * 10**12
    assert end.counter_mj == (20 * 700 * 1000) // 10
    assert end.shown_mw == 700_000


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
@pytest.mark.parametrize("load", [0.1, 0.5, 1.0])
def test_power_follows_the_clock_as_the_board_says(board: BoardModel, load: float) -> None:
    """At every clock it can be locked to, a board draws what its formula gives."""
    steps = range(board.clock_min_mhz, board.clock_max_mhz + 1, board.clock_step_mhz)
    events = [Event(0, Kind.LOAD, round(1000 * load))]
    events += [Event(1 + i, Kind.LOCK, mhz) for i, mhz in enumerate(steps)]
    generous = replace(board, default_w=board.max_w)
    for answer in probe(events, generous)[1:]:
        assert answer.power_mw == pytest.approx(1000 * board.power_w(answer.clock_mhz, load), abs=1)
        assert not answer.capped


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_full_load_stays_just_below_the_default_limit(board: BoardModel) -> None:
    """A board as it comes is not capped, and has little to spare."""
    full = probe([Event(0, Kind.LOAD, 1000)], board)[0]
    assert not full.capped
    assert 0.97 * board.default_w < full.power_mw / 1000 <= board.default_w


@given(
    load=st.integers(1, 1000),
    limit_mw=st.integers(200_000, 700_000),
    lock_mhz=st.integers(210, 1980),
)
def test_a_limit_takes_the_highest_clock_that_fits(load: int, limit_mw: int, lock_mhz: int) -> None:
    """Found by trying every clock; the reason bit says so only when the limit is the reason."""
    events = [
        Event(0, Kind.LOCK, lock_mhz),
        Event(0, Kind.LIMIT, limit_mw),
        Event(0, Kind.LOAD, load),
    ]
    answer = probe(events, H100)[-1]
    clocks = [each for each in range(1980, 209, -15) if each <= lock_mhz] or [210]
    tries = [Event(0, Kind.LOAD, load), *(Event(0, Kind.LOCK, each) for each in clocks)]
    fitting = [each.clock_mhz for each in probe(tries, H100)[1:] if each.power_mw <= limit_mw]
    assert answer.clock_mhz == (fitting[0] if fitting else clocks[-1])
    assert answer.power_mw <= limit_mw
    assert answer.capped == (answer.clock_mhz < clocks[0] or not fitting)
    assert bool(answer.reasons & SW_POWER_CAP) == answer.capped
    assert not answer.reasons & IDLE


def test_a_capped_second_counts_as_capped_time() -> None:
    """Time below the clock because of the limit adds up, other time does not."""
    events = [
        Event(0, Kind.LOAD, 1000),
        Event(S, Kind.LIMIT, 300_000),
        Event(3 * S, Kind.LOAD, 0),
        Event(9 * S),
    ]
    assert probe(events, H100)[-1].capped_ns == 2 * S


def test_an_outright_power_is_cut_at_the_limit_too() -> None:
    """The counter counts the power that is drawn, not the one that was wished."""
    events = [Event(0, Kind.DRAW, 500_000), Event(0, Kind.LIMIT, 300_000), Event(10 * S)]
    end = probe(events, H100)[-1]
    assert (end.power_mw, end.capped, end.counter_mj) == (300_000, True, 3_000_000)


def test_power_shown_is_the_mean_of_the_last_update_and_of_the_last_second() -> None:
    """After a step both come up with their own delay."""
    step = [Event(10 * S, Kind.DRAW, 195_000)]
    looks = [Event(10 * S + each * NS_PER_MS) for each in (50, 100, 500, 1000)]
    answers = probe([*step, *looks], H100, Sensor(100))
    assert [each.shown_mw for each in answers] == [95_000, 95_000, 195_000, 195_000, 195_000]
    assert [each.average_mw for each in answers] == [95_000, 95_000, 105_000, 145_000, 195_000]


def test_an_idle_gpu_runs_slow_and_says_so() -> None:
    """A lock does not show in the clock of an idle GPU: it shows only under load."""
    events = [Event(0, Kind.LOCK, 990), Event(1, Kind.LOAD, 500), Event(2, Kind.LOAD, 0)]
    idle, loaded, again = probe(events, H100)
    assert (idle.clock_mhz, idle.reasons) == (345, IDLE)
    assert (loaded.clock_mhz, loaded.reasons) == (990, 0)
    assert again.clock_mhz == 345


def test_a_driver_reload_forgets_lock_limit_and_counter() -> None:
    """And the truth goes on."""
    events = [
        Event(0, Kind.LOAD, 1000),
        Event(0, Kind.LOCK, 990),
        Event(0, Kind.LIMIT, 250_000),
        Event(S, Kind.RELOAD),
        Event(2 * S),
    ]
    answers = probe(events, H100)
    assert answers[-1].clock_mhz == 1980
    assert answers[-1].counter_mj == 690_000
    assert answers[-1].drawn_pj - answers[-2].drawn_pj == 690_000 * PJ_PER_MJ


def test_a_century_of_power_overflows_nothing() -> None:
    """Millijoules of a kilowatt for a hundred years fit the counter."""
    seconds = 100 * 366 * 86400
    events = [Event(0, Kind.DRAW, 1_000_000), Event(seconds * S)]
    end = probe(events, BOARDS[Board.B200], Sensor(100, 100, 25))[-1]
    assert end.drawn_pj == seconds * 10**15
    assert end.counter_mj == pytest.approx(seconds * 10**6, rel=1e-9)
