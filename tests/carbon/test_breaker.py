"""When a provider that keeps failing is left alone, and when it is asked again."""

from hypothesis import given
from hypothesis import strategies as st

from wattmesh.integrations.carbon.reading.breaker import Breaker, BreakerState

FAILURES, REST_S, MOST_S = 3, 10.0, 35.0
Events = list[tuple[float, bool]]


def fresh() -> Breaker:
    """Give a closed breaker with short rests."""
    return Breaker(failures=FAILURES, rest_s=REST_S, most_rest_s=MOST_S)


def outcomes(events: Events) -> list[bool]:
    """Say of each poll whether it went out; `events`: pause before it, and whether it succeeds."""
    breaker, now_s, went = fresh(), 0.0, []
    for pause_s, works in events:
        now_s += pause_s
        asked = breaker.begin_poll(now_s)
        went.append(asked is not None)
        if asked is not None:
            breaker = asked.succeeded() if works else asked.failed_at(now_s)
    return went


def by_history(events: Events) -> list[bool]:
    """Say the same from the whole history each time: no state, only the polls that went out."""
    polls: list[tuple[float, bool]] = []
    now_s, went = 0.0, []
    for pause_s, works in events:
        now_s += pause_s
        row = 0
        for _, worked in reversed(polls):
            if worked:
                break
            row += 1
        rest_s = min(REST_S * 2 ** (row - FAILURES), MOST_S) if row >= FAILURES else 0.0
        may = not polls or now_s >= polls[-1][0] + rest_s
        went.append(may)
        if may:
            polls.append((now_s, works))
    return went


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1.0, 5.0, 9.5, 10.0, 20.0, 34.0, 35.0]), st.booleans())
    )
)
def test_which_polls_go_out_follows_from_the_history_alone(events: Events) -> None:
    """The machine lets through exactly the polls that a look at all earlier ones allows."""
    assert outcomes(events) == by_history(events)


def test_the_oracle_sees_a_breaker_that_never_opens() -> None:
    """Sabotaged twin: letting everything through is not what the history allows."""
    assert not all(by_history([(0.0, False)] * 5))


def test_it_opens_after_failures_in_a_row_only() -> None:
    """A success between failures begins the count again."""
    breaker = fresh()
    for _ in range(10):
        breaker = breaker.failed_at(0.0).failed_at(1.0).succeeded()
        assert breaker.state(1.0) is BreakerState.CLOSED
    assert breaker.failed_at(2.0).failed_at(2.0).failed_at(2.0).state(2.0) is BreakerState.OPEN


def test_half_open_lets_one_probe_through() -> None:
    """While the probe is under way nobody else asks; its outcome decides."""
    opened = fresh().failed_at(0.0).failed_at(0.0).failed_at(0.0)
    assert opened.begin_poll(9.9) is None
    assert opened.wait_s(4.0) == 6.0
    assert opened.state(10.0) is BreakerState.HALF_OPEN
    probing = opened.begin_poll(10.0)
    assert probing is not None
    assert probing.begin_poll(10.0) is None
    assert probing.succeeded() == fresh()
    again = probing.failed_at(11.0)
    assert (again.state(30.9), again.state(31.0)) == (BreakerState.OPEN, BreakerState.HALF_OPEN)


def test_rests_double_up_to_the_longest_however_long_it_fails() -> None:
    """10, 20, then 35 s for ever; a year of failures overflows nothing."""
    breaker, now_s, rests = fresh().failed_at(0.0).failed_at(0.0), 0.0, []
    for _ in range(3000):
        breaker = breaker.failed_at(now_s)
        rests.append(breaker.wait_s(now_s))
        now_s += rests[-1]
    assert rests[:4] == [10.0, 20.0, 35.0, 35.0]
    assert set(rests[2:]) == {35.0}
