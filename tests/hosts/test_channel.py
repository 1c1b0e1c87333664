"""What supervisors tell each other: proven on both sides, bounded, and never believed blindly."""

import json
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.waiting import wait_for
from wattmesh.errors import InputInvalid, Refused
from wattmesh.reconfig.launch.folder import RunFolder, write_json
from wattmesh.reconfig.launcher.contract import HeldState, NextLaunch
from wattmesh.reconfig.launcher.hosts import meeting
from wattmesh.reconfig.launcher.hosts.channel import LONGEST, Channel, Gone, admit, introduce
from wattmesh.reconfig.launcher.hosts.follower import Follower
from wattmesh.reconfig.launcher.hosts.followers import Followers
from wattmesh.reconfig.launcher.hosts.launcher import LaunchSize, size_of
from wattmesh.reconfig.launcher.hosts.meeting import Meeting
from wattmesh.reconfig.launcher.own_clock import OwnClock
from wattmesh.reconfig.launcher.sized_clock import SizedClock
from wattmesh.reconfig.launcher.supervisor import EXIT_STOPPED, TOKEN_VARIABLE
from wattmesh.reconfig.launcher.torch_agent import Torchrun

RUN = "3a7c1a52-3d0f-4b6c-8d5e-0a3f7f6a9c11"


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    """Two ends of one TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    ends = Channel(one), Channel(other)
    yield ends
    for each in ends:
        each.close()


def greeted(act: Callable[[], object], other: Callable[[], object]) -> list[object]:
    """What became of both sides of a greeting."""
    found: list[object] = [None, None]

    def run(place: int, side: Callable[[], object]) -> None:
        try:
            found[place] = side()
        except Gone as error:
            found[place] = error

    thread = threading.Thread(target=run, args=(0, act))
    thread.start()
    run(1, other)
    thread.join()
    return found


def test_both_sides_prove_that_they_know_the_secret(pair: tuple[Channel, Channel]) -> None:
    """The leader learns which host it is; the follower, that it is the leader."""
    one, other = pair
    assert greeted(lambda: admit(one, "secret"), lambda: introduce(other, "secret", 3)) == [3, None]


def test_a_side_that_does_not_know_the_secret_is_not_believed(
    pair: tuple[Channel, Channel],
) -> None:
    """Sabotaged twin: another secret on one side, and neither goes on."""

    def admitted() -> int:
        try:
            return admit(pair[0], "secret")
        finally:
            pair[0].close()

    leader, follower = greeted(admitted, lambda: introduce(pair[1], "another", 3))
    assert "does not know the run's secret" in str(leader)
    assert isinstance(follower, Gone)


HALF = b'{"nonce": "a", "host": 1, "proof": "\\ud800"}\n'
"""A proof that is half a character: JSON, but no text."""


@pytest.mark.parametrize("greet", [admit, lambda channel, secret: introduce(channel, secret, 1)])
def test_a_proof_that_is_no_text_proves_nothing(
    pair: tuple[Channel, Channel], greet: Callable[[Channel, str], object]
) -> None:
    """Whoever reaches the port may send it: it ended a follower. Twin: it cannot be encoded."""
    with pytest.raises(UnicodeEncodeError):
        str(json.loads(HALF)["proof"]).encode()
    pair[1].send({"nonce": "a"} | json.loads(HALF))
    pair[1].send(json.loads(HALF))
    with pytest.raises(Gone, match="does not know the run's secret"):
        greet(pair[0], "secret")


@pytest.mark.parametrize(
    "line",
    [b"\xff\xfe\n", b"[1]\n", b"[" * 60_000 + b"\n", b"x" * (LONGEST + 2), b'{"a": 1'],
    ids=["bytes", "list", "deep", "long", "cut off"],
)
def test_what_is_no_sentence_ends_the_connection(line: bytes) -> None:
    """Hostile or broken input costs one connection, and nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        channel = Channel(server.accept()[0])
    with one:
        one.sendall(line)
        one.shutdown(socket.SHUT_WR)
        with pytest.raises(Gone):
            channel.receive(10.0)
    channel.close()


def test_a_leader_is_alone_and_strangers_are_not_let_in(tmp_path: Path) -> None:
    """A second leader is refused with a sentence; who does not know the secret is told to people.

    The file that names the secret is the user's alone.
    """
    said: list[str] = []
    folder = RunFolder(tmp_path)
    first = Followers(folder, "127.0.0.1", 2, say=said.append)
    first.let_in(lambda: None)
    assert folder.hosts_file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(Refused, match=r"leads the run in .* already"):
        Followers(folder, "127.0.0.1", 2, say=said.append)
    found = meeting.read(folder)
    assert found is not None
    for host, secret in ((1, "wrong"), (7, found.secret)):
        channel = Channel(socket.create_connection((found.address, found.port)))
        with pytest.raises(Gone):
            come_in(channel, secret, host)
        channel.close()
    wait_for(lambda: len(said) == 2, "that both were refused")
    assert "does not know the run's secret" in said[0]
    assert "it says that it is host 7 of 2" in said[1]
    assert first.here() == {}
    first.close(0)
    Followers(folder, "127.0.0.1", 2, say=said.append).close(0)


@pytest.mark.parametrize(("job", "joins"), [("job-1", True), ("job-2", False)])
def test_a_host_joins_the_leader_of_its_own_job_alone(
    tmp_path: Path, job: str, joins: bool
) -> None:
    """While one job is followed by another, hosts of both look into one folder."""
    folder, said = RunFolder(tmp_path), list[str]()
    leader = Followers(folder, "127.0.0.1", 2, say=said.append, job="job-1")
    leader.let_in(lambda: None)
    follower = Follower(folder, 1, Torchrun(1, ["x"]), said.append, job=job)
    serving = threading.Thread(target=follower.run)
    serving.start()
    wait_for(lambda: said, "that it looks for its leader")
    wait_for(lambda: bool(leader.here()) is joins, "that it joins, or not")
    leader.close(0)
    follower.ask_to_stop()
    serving.join(30.0)
    assert not serving.is_alive()
    assert ("no leader" in said[0]) is not joins


def test_a_second_supervisor_of_a_host_waits_for_the_end_of_the_first(tmp_path: Path) -> None:
    """It neither takes the first one's place, nor ends its ranks; when that is gone it joins."""
    folder, led, said = RunFolder(tmp_path), list[str](), list[str]()
    leader = Followers(folder, "127.0.0.1", 2, say=led.append)
    leader.let_in(lambda: None)
    first = Follower(folder, 1, Torchrun(1, ["x"]), led.append)
    second = Follower(folder, 1, Torchrun(1, ["x"]), said.append)
    serving = [threading.Thread(target=each.run) for each in (first, second)]
    serving[0].start()
    wait_for(leader.here, "that the first is here")
    here, rank = leader.here()[1], subprocess.Popen(["sleep", "60"], env={TOKEN_VARIABLE: "t.1"})
    leader.note_launch("t")
    serving[1].start()
    wait_for(lambda: said, "that the second waits")
    assert "is host 1 of the run already" in said[0]
    assert leader.here() == {1: here}
    assert rank.poll() is None
    here.send({"do": "over", "status": 0})
    serving[0].join(30.0)
    wait_for(lambda: leader.here().get(1) not in (None, here), "that the second is here")
    assert rank.wait(30.0) != 0  # what the first may have left is ended
    leader.close(0)
    serving[1].join(30.0)
    assert not any(each.is_alive() for each in serving)


@pytest.mark.parametrize("led_before", [True, False])
def test_a_host_ends_with_a_leader_that_came_and_went_unseen(
    tmp_path: Path, led_before: bool
) -> None:
    """As where it was cut off meanwhile; one that had ended before it was started is none of it."""
    folder, said = RunFolder(tmp_path), list[str]()
    old = Meeting(session="old", address="127.0.0.1", port=1, secret="s", over=0)
    meeting.write(folder, old)
    follower = Follower(folder, 1, Torchrun(1, ["x"]), said.append)
    statuses = list[int]()
    serving = threading.Thread(target=lambda: statuses.append(follower.run()))
    serving.start()
    wait_for(lambda: said, "that it waits for a leader")
    assert "no leader" in said[0]
    if led_before:
        meeting.write(folder, replace(old, session="new", over=3))
    else:
        follower.ask_to_stop()
    serving.join(30.0)
    assert statuses == [3 if led_before else EXIT_STOPPED]


def come_in(channel: Channel, secret: str, host: int) -> None:
    """Greet, and wait to be spoken to."""
    introduce(channel, secret, host)
    channel.receive(10.0)


def asks(folder: RunFolder, plan: str, tries: int = 0) -> None:
    """Ask of the next launch what an order says."""
    write_json(folder.next_file, {"switch": {"plan": plan}, "tries": tries})


def checkpoint(folder: RunFolder, ranks: int) -> None:
    """Leave a checkpoint of a number of ranks."""
    trainer = {"header": {"ranks": list(range(ranks))}}
    write_json(folder.checkpoint(10) / "trainer.json", trainer)


def test_a_supervisor_started_anew_goes_on_in_the_size_that_began(tmp_path: Path) -> None:
    """Held and asked for: the new size; begun: it stays; tried and failed: the old one again."""
    folder = RunFolder(tmp_path)
    shrink = NextLaunch(key="plan-1", run=RUN, ranks=2)

    def anew(hosts: int = 2) -> SizedClock:
        return SizedClock(folder, hosts, 2)

    checkpoint(folder, 4)
    assert anew().begin() == LaunchSize(hosts=2, ranks=2)
    anew().hold(shrink)
    asks(folder, "plan-1")
    assert anew().begin() == LaunchSize(hosts=1, ranks=2)
    asks(folder, "plan-1", tries=1)
    assert anew().begin() == LaunchSize(hosts=2, ranks=2)
    folder.next_file.unlink()
    checkpoint(folder, 2)
    assert anew().begin() == LaunchSize(hosts=1, ranks=2)
    # With another number of hosts what the book says of size is somebody else's.
    assert anew(hosts=3).begin() == LaunchSize(hosts=3, ranks=2)


def test_a_size_that_was_withdrawn_never_begins(tmp_path: Path) -> None:
    """Whatever still lies in the run folder."""
    folder = RunFolder(tmp_path)
    clock = SizedClock(folder, 2, 2)
    clock.hold(NextLaunch(key="plan-1", run=RUN, ranks=2))
    assert clock.withdraw("plan-1")
    asks(folder, "plan-1")
    assert clock.begin() == LaunchSize(hosts=2, ranks=2)


def test_an_act_that_comes_again_too_late_is_told_what_became_of_its_launch(
    tmp_path: Path,
) -> None:
    """A run that was told "held" left for a size that never begins. A new key is held."""
    folder = RunFolder(tmp_path)
    clock, other = SizedClock(folder, 2, 2), NextLaunch(key="plan-2", run=RUN, ranks=2)
    first = NextLaunch(key="plan-1", run=RUN, ranks=2)
    clock.hold(first)
    clock.withdraw("plan-1")
    for anew in (clock, SizedClock(folder, 2, 2)):
        assert anew.hold(first).state is HeldState.WITHDRAWN
        assert anew.find("plan-1") is None
    assert clock.hold(other).state is clock.hold(other).state is HeldState.HELD
    asks(folder, "plan-2")
    assert clock.begin() == LaunchSize(hosts=1, ranks=2)
    assert clock.hold(other).state is HeldState.STARTED
    assert not clock.withdraw("plan-2")
    assert clock.hold(first).state is HeldState.WITHDRAWN
    # The sabotaged twin asks its memory alone.
    assert OwnClock.hold(clock, first).state is HeldState.HELD


def test_sizes_fill_as_few_hosts_as_hold_them() -> None:
    """What leaves a host half full beside full ones, or needs more hosts, is refused."""
    assert size_of(4, 2, 2) == LaunchSize(hosts=2, ranks=2)
    assert size_of(1, 2, 2) == LaunchSize(hosts=1, ranks=1)
    for ranks in (0, 3, 5, 6):
        with pytest.raises(InputInvalid, match="do not divide among"):
            size_of(ranks, 2, 2)


def test_what_a_meeting_says_is_checked(tmp_path: Path) -> None:
    """A damaged or hostile file is no meeting."""
    folder = RunFolder(tmp_path)
    good = {"session": "a", "address": "h", "port": 1, "secret": "s"}
    wrong: list[object] = [
        {**good, "port": 0},
        {**good, "over": 9999},
        {**good, "secret": 1},
        [],
        {},
    ]
    for bad in wrong:
        folder.hosts_file.write_text(json.dumps(bad))
        assert meeting.read(folder) is None
    folder.hosts_file.write_text(json.dumps(good))
    assert meeting.read(folder) is not None
