"""What is free when: the sweep against a search by hand, and what Slurm prints, read."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattmesh.integrations.slurm import __main__ as slurm
from wattmesh.integrations.slurm import free, node_answers
from wattmesh.integrations.slurm.answers import SEPARATOR
from wattmesh.reconfig.launcher.nodes_ahead import (
    EVER,
    FOREVER,
    UNLIMITED,
    NodeAhead,
    NodesAhead,
    TakenSpan,
)

T0 = datetime(2026, 11, 24, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
S = SEPARATOR


def at(hours: float) -> datetime:
    """Give a moment."""
    return T0 + hours * HOUR


def span(begin: float, end: float, why: str = "in reservation maint") -> TakenSpan:
    """Give a span in which others have a node."""
    return TakenSpan(begins_at=at(begin), ends_at=at(end), why=why)


def ahead(*nodes: NodeAhead, lasts: float = 1.0) -> NodesAhead:
    """Give what is known of some nodes."""
    return NodesAhead(now=T0, lasts=lasts * HOUR, nodes=nodes)


spans = st.lists(
    st.builds(
        lambda begin, for_h: span(begin, begin + for_h), st.integers(-3, 9), st.integers(1, 6)
    ),
    max_size=3,
).map(tuple)
nodes = st.builds(
    NodeAhead,
    name=st.just("n"),
    closed=spans,
    busy_until=st.sampled_from([None, at(2), at(5), FOREVER]),
)


@given(st.lists(nodes, max_size=5), st.integers(0, 4), st.integers(1, 5), st.integers(0, 8))
@settings(max_examples=150, deadline=None)
def test_the_first_moment_is_the_first_at_which_enough_nodes_are_open(
    found: list[NodeAhead], lasts: int, count: int, after: int
) -> None:
    """Every half hour is tried by hand, for the bound and for what is expected."""
    known = ahead(*found, lasts=lasts)

    def by_hand(*, busy: bool) -> datetime | None:
        for half in range(2 * after, 120):
            begin = at(half / 2)
            open_now = sum(
                all(
                    each.ends_at <= begin or begin + known.lasts <= each.begins_at
                    for each in node.closed
                )
                and not (busy and node.busy_until is not None and begin < node.busy_until)
                for node in found
            )
            if open_now >= count:
                return begin
        return None

    assert known.soonest(count, at(after)) == by_hand(busy=False)
    assert known.expected(count, at(after)) == by_hand(busy=True)


def test_a_launch_that_would_run_into_a_reservation_waits_for_its_end() -> None:
    """One that ends before it begins at once; without a limit none does; the reason is named."""
    down = NodeAhead(name="n2", closed=(TakenSpan(begins_at=EVER, ends_at=FOREVER, why="drained"),))
    two = (NodeAhead(name="n1", closed=(span(2, 4),)), down)
    assert ahead(*two, lasts=2).soonest(1) == T0
    assert ahead(*two, lasts=3).soonest(1) == at(4)
    assert NodesAhead(now=T0, lasts=UNLIMITED, nodes=two).soonest(1) == at(4)
    assert ahead(*two, lasts=1).soonest(2) is None
    assert ahead(*two, lasts=3).why_later(at(0.1)) == "1 drained, 1 in reservation maint"


NODES = "\n".join(
    S.join(each)
    for each in (
        ("n1", "allocated", "2", "4", "down"),
        ("n1", "allocated", "2", "4", "up"),
        ("n1", "allocated", "2", "4", "inact"),
        ("n2", "mixed-", "2", "4", "up"),
        ("n3", "idle~", "2", "4", "up"),
        ("n4", "drained*", "2", "4", "up"),
        ("n5", "down*", "2", "4", "up"),
        ("n6", "planned", "2", "4", "up"),
        ("n7", "ALLOCATED$", "odd", "", "up"),
        ("n8", "idle", "2", "4", "inact"),
        ("", "idle", "1", "1", "up"),
        ("half",),
    )
)


def test_nodes_are_read_once_whatever_stands_behind_their_state() -> None:
    """Out of service are those that are down or drained, not those that Slurm can wake."""
    busy = "\n".join(
        S.join(each)
        for each in (
            ("7", str(int(at(2).timestamp())), "n[1-2]"),
            ("8", str(int(at(5).timestamp())), "n2"),
            ("9", "N/A", "n7"),
            ("10", str(int(at(9).timestamp())), "n4,gone"),
        )
    )
    read = node_answers.nodes_ahead(T0, HOUR, NODES, "", busy)
    named = {each.name: each for each in read.nodes}
    assert sorted(named) == ["n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"]
    assert [name for name, each in named.items() if each.closed] == ["n4", "n5", "n8"]
    assert [named[f"n{number}"].busy_until for number in (1, 2, 3, 6, 7)] == [
        at(2),
        at(5),
        None,
        None,
        FOREVER,
    ]
    # The nodes of the job that ends are there, but where another one is on them too.
    after = node_answers.nodes_ahead(T0, HOUR, NODES, "", busy, mine=7)
    assert [each.busy_until for each in after.nodes[:2]] == [None, at(5)]
    assert read.soonest(5) == T0
    assert read.expected(3) == at(2)
    assert read.expected(4) == at(5)
    assert read.expected(5) is None
    assert free.sentences(read) == [
        "1 to 2 of 8 nodes: now",
        "3 of 8 nodes: at 2026-11-24 14:00 UTC if jobs run until their limits",
        "4 of 8 nodes: at 2026-11-24 17:00 UTC if jobs run until their limits",
        "5 of 8 nodes: not known when",
        "6 to 8 of 8 nodes: never, as things are",
    ]


RESERVED = (
    "ReservationName=maint StartTime={begin} EndTime={end} Duration=02:00:00 Nodes=n[1-3,6] "
    "NodeCnt=4 CoreCnt={cores} Features=(null) PartitionName=(null) Flags={flags} TRES=cpu=32 "
    "Users=root Groups=(null) Accounts=(null) State=INACTIVE MaxStartDelay={delay}"
)


@pytest.mark.parametrize(
    ("changes", "closed"),
    [
        ({}, 4),
        ({"flags": "MAINT,IGNORE_JOBS,SPEC_NODES,ALL_NODES"}, 4),
        ({"cores": "8"}, 0),  # some cores of each node
        ({"flags": "TIME_FLOAT,SPEC_NODES"}, 0),
        ({"flags": "MAGNETIC"}, 0),
        ({"delay": "00:10:00"}, 0),
        ({"begin": "2026-11-24T14:00:00"}, 0),  # a version that heeds no format of times
        ({"end": "0"}, 0),
        ({"delay": "(null) Comment=all day Nodes=n9 EndTime=0"}, 4),  # as from 23.02 on
    ],
)
def test_only_reservations_of_whole_nodes_for_a_known_time_take_nodes_away(
    changes: dict[str, str], closed: int
) -> None:
    """What might let our job in all the same never makes the bound later."""
    usual = {
        "begin": str(int(at(2).timestamp())),
        "end": str(int(at(4).timestamp())),
        "cores": "32",
        "flags": "SPEC_NODES",
        "delay": "(null)",
    }
    line = RESERVED.format(**{**usual, **changes})
    read = node_answers.nodes_ahead(T0, HOUR, NODES, f"No reservations\n{line}\n", "")
    assert sum(any("maint" in each.why for each in node.closed) for node in read.nodes) == closed


@pytest.mark.parametrize(
    ("hostlist", "names"),
    [
        ("n1", "n1"),
        ("n[1-3,07],login", "n1 n2 n3 n07 login"),
        ("gpu[008-011]", "gpu008 gpu009 gpu010 gpu011"),
        ("r[1-2]n[1-2]-ib", "r1n1-ib r1n2-ib r2n1-ib r2n2-ib"),
        ("(null)", ""),
        ("", ""),
        ("n[1-99999999]", ""),
        ("n[1-9999]m[1-9999]", ""),
        ("n[a-b]", ""),
        ("n[3-1]", ""),
        (f"n[1-{'9' * 5000}]", ""),
    ],
)
def test_a_list_of_nodes_is_read(hostlist: str, names: str) -> None:
    """One that stands for too many, or for none, is empty."""
    assert node_answers.names(hostlist) == set(names.split())


@given(st.text(max_size=200), st.text(max_size=200), st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_answer_of_nodes_is_read_without_an_error(first: str, second: str, third: str) -> None:
    """By every reader."""
    reserved = f"ReservationName=x StartTime=1 EndTime={third} Nodes={second}"
    read = node_answers.nodes_ahead(T0, HOUR, first, f"{second}\n{reserved}", third)
    assert read.soonest(1) in (None, T0)
    node_answers.seconds(first)


def test_numbers_of_any_length_are_read_without_an_error() -> None:
    """Cores that nobody has are not known, so a reservation takes whole nodes, as before."""
    many = "9" * 5000
    for cores, part, taken in ((many, many, True), ("4", many, True), ("4", "2", False)):
        read = node_answers.nodes_ahead(
            T0,
            HOUR,
            S.join(("n1", "idle", "2", cores, "up")),
            f"ReservationName=x StartTime=1 EndTime=99999999999 Nodes=n1 CoreCnt={part}",
            "",
        )
        assert (read.soonest(1) != T0) is taken


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("10", 600),
        ("10:00", 600),
        ("1:02:03", 3723),
        ("1-02", 93600),
        ("2-00:30:00", 174600),
        ("UNLIMITED", UNLIMITED.total_seconds()),
        ("infinite", UNLIMITED.total_seconds()),
        ("99999999999999", UNLIMITED.total_seconds()),
        ("999999999:00:00", UNLIMITED.total_seconds()),
        ("-1", None),
        ("24h", None),
        ("999999999-00", UNLIMITED.total_seconds()),
        ("9999999999-00:00", UNLIMITED.total_seconds()),
        ("INVALID", None),
        ("1-", None),
        ("1:2:3:4", None),
        ("٣", None),
    ],
)
def test_a_time_limit_is_read_as_slurm_writes_it(limit: str, seconds: float | None) -> None:
    """One that is not understood is none."""
    read = node_answers.seconds(limit)
    assert (read.total_seconds() if read is not None else None) == seconds


@pytest.mark.parametrize("limit", ["24h", "1d", "-1", "1:2:3:4"])
def test_a_limit_that_is_none_is_refused_and_not_taken_for_no_time(
    limit: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted as no time, every reservation ahead was passed over. Twin: a limit gets to Slurm."""
    monkeypatch.setenv("PATH", "/nowhere")
    asked = ["free", "--partition=main"]
    assert slurm.main([*asked, f"--time={limit}"]) == 1
    assert "is no limit as sbatch takes it" in capsys.readouterr().err
    assert slurm.main([*asked, "--time=24:00:00"]) == 1
    assert "sinfo cannot be run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "least", "hours"),
    [
        (["--time=2:00:00"], None, 2),
        (["--time=2:00:00", "--time=1:00:00"], None, 1),
        (["--time=2:00:00", "-t", "30"], None, 0),
        (["--time=2:00:00", "--time", "30"], None, 0),
        (["--time=2:00:00"], HOUR, 1),
        (["--time=odd"], None, 0),
        ([], None, UNLIMITED / HOUR),
    ],
)
def test_how_long_a_job_takes_at_least(
    words: list[str], least: timedelta | None, hours: float
) -> None:
    """What cannot be told counts as nothing, so that no job is refused for it."""
    assert node_answers.least_limit(words, least) == hours * HOUR
