"""Names, ids, crowds and ends of runs: what one user does is nobody else's trouble."""

import grp
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import event, update

from tests.agent.test_api import DESIRED, look
from tests.api.conftest import Served
from tests.api.stranger import GROUP, STRANGER, as_stranger, needs_root
from tests.builders import messages
from tests.builders.cycles import acting, live
from tests.daemon.process import Answer
from tests.daemon.waiting import wait_for
from wattmesh.controller.api.transport import peers
from wattmesh.controller.cycle.cycle import Cycle
from wattmesh.controller.cycle.journal_snapshot import JournalObservation
from wattmesh.controller.journal.database.tables import RUNS
from wattmesh.controller.journal.runs.liveness import LIVE_S
from wattmesh.controller.journal.runs.seen_processes import SeenProcesses

RUN = f"/v1/runs/{messages.RUN}"
LOST_S = 7 * 86_400.0


def run_id(number: int) -> str:
    """Give one of many ids."""
    return f"6d1c9d0e-0000-4000-8000-{number + 100:012d}"


def body(number: int, name: str, **changes: Any) -> dict[str, Any]:
    """Introduce one of many runs."""
    run = run_id(number)
    return messages.register(run=run, incarnation=f"i{number}", name=name, **changes)


def register(served: Served, number: int, name: str, *, stranger: bool = False) -> Answer:
    """Register one of many runs."""
    target, said = f"/v1/runs/{run_id(number)}/register", body(number, name)
    if stranger:
        return as_stranger(served.socket, "POST", target, said)
    return served.post(target, said)


def state(served: Served, run: str) -> tuple[str, str]:
    """Give how a run stands, and why it ended."""
    row = served.journal.runs.find(run, served.clock.wall)
    assert row is not None
    return row.state, row.finish_reason


def cycle(served: Served) -> Cycle[JournalObservation]:
    """Make the control cycle of a served interface."""
    settings = acting(lost_s=LOST_S)
    return live(served.journal, settings, served.loop_facts.lead.epoch)


@needs_root
def test_a_name_of_the_settings_belongs_to_who_had_it_first(served: Served) -> None:
    """A stranger inherits neither catalogue nor freeze; under another name it may register."""
    assert served.register().status == 200
    refused = register(served, 5, "llama-8b", stranger=True)
    assert (refused.status, refused.body["kind"]) == (403, "refused")
    assert "belongs to uid 0" in refused.body["error"]
    assert register(served, 5, "other", stranger=True).status == 200
    renamed = body(5, "llama-8b", attempt=2) | {"incarnation": "i5b", "supersedes": "i5"}
    target = f"/v1/runs/{run_id(5)}/register"
    assert as_stranger(served.socket, "POST", target, renamed).status == 403
    assert register(served, 6, "llama-8b").status == 200


@needs_root
def test_a_word_that_means_several_runs_is_refused(served: Served) -> None:
    """For an operator; a job's owner means the own run, and an id is never ambiguous."""
    for number, stranger in ((5, False), (6, True)):
        assert register(served, number, "test", stranger=stranger).status == 200
    said = served.post("/v1/freeze", {"run": "test", "reason": "x"})
    assert said.status == 409
    assert {run_id(5), run_id(6)} <= set(said.body["error"].replace(",", " ").split())
    assert served.get("/v1/runs/test/why").status == 409
    own = as_stranger(served.socket, "POST", "/v1/freeze", {"run": "test", "reason": "mine"})
    assert own.body["changed"] == [run_id(6)]
    done = served.post("/v1/freeze", {"run": run_id(5), "reason": "x\x1b[31m\n! forged"})
    assert done.body["changed"] == [run_id(5)]
    assert "\x1b" not in done.body["done"]
    assert "\n" not in served.get(f"/v1/runs/{run_id(5)}").body["run"]["frozen"]
    # An older version let a run have another one's id for a name.
    with served.journal.database.writing() as connection:
        connection.execute(update(RUNS).where(RUNS.c.run == run_id(6)).values(name=run_id(5)))
    assert served.post("/v1/freeze", {"run": run_id(5)}).status == 409
    assert served.get(f"/v1/runs/{run_id(5)}/order").status == 200


@needs_root
def test_a_retired_run_ends_and_its_rows_stay(served: Served) -> None:
    """By its owner or an operator; what it still says is refused until it is launched again."""
    served.register()
    served.post(f"{RUN}/progress", messages.progress())
    assert as_stranger(served.socket, "POST", f"{RUN}/retire", {}).status == 403
    assert state(served, messages.RUN)[0] == "live"
    served.journal.runs.order_point(messages.RUN, "B", reason="x", by="root")
    done = served.post("/v1/runs/llama-8b/retire", {"reason": "over"})
    assert (done.status, done.body["changed"]) == (200, [messages.RUN])
    assert "its job still runs" in done.body["done"]
    assert "has ended already" in served.post(f"{RUN}/retire", {}).body["done"]
    how, why = state(served, messages.RUN)
    assert (how, "over" in why) == ("finished", True)
    for kind, said in (
        ("progress", messages.progress(seq=9, step=99)),
        ("heartbeat", messages.heartbeat()),
        ("finish", messages.finish()),
    ):
        found = served.post(f"{RUN}/{kind}", said)
        assert (found.status, found.body["kind"]) == (409, "fenced"), kind
        assert "wattmesh retire" in found.body["error"]
    assert served.get(RUN).body["run"]["step"] == 10
    assert "not measured any more (retired: " in served.get(f"{RUN}/spent").body["why_unknown"]
    assert served.register(incarnation="incarnation-2", attempt=2).status == 200
    assert served.get(RUN).body["run"]["ordered_point"] == ""
    assert "any more" not in served.get(f"{RUN}/spent").body["why_unknown"]
    assert state(served, messages.RUN)[0] == "live"


def test_a_run_lost_for_long_ends_and_goes_on_when_it_is_heard(served: Served) -> None:
    """Not a moment before; told to register again, the same launch does, and is counted."""
    turn = cycle(served)
    served.register()
    served.post(f"{RUN}/progress", messages.progress())
    served.clock.pass_s(LOST_S - 60.0)
    turn.run(served.clock.wall)
    assert state(served, messages.RUN)[0] == "lost"
    served.clock.pass_s(120.0)
    turn.run(served.clock.wall)
    how, why = state(served, messages.RUN)
    assert (how, why.startswith("expired: not heard for 7")) == ("finished", True)
    assert not [each for each in served.get("/v1/status").body["trouble"] if "llama" in each]
    for kind, said in (("progress", messages.progress(seq=2)), ("heartbeat", messages.heartbeat())):
        assert served.post(f"{RUN}/{kind}", said).status == 404
    assert served.register().status == 200
    assert served.post(f"{RUN}/progress", messages.progress(seq=2, step=20)).status == 200
    assert state(served, messages.RUN) == ("live", "")
    turn.run(served.clock.wall)
    assert state(served, messages.RUN)[0] == "live"


def silent(served: Served, seconds: float, **changes: Any) -> tuple[str, str]:
    """Register a run, let it be silent for so long, and give how it stands then."""
    assert served.register(**changes).status == 200
    served.clock.pass_s(seconds)
    cycle(served).run(served.clock.wall)
    return state(served, messages.RUN)


def ended_process() -> int:
    """Give the id of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        return process.pid


OBSERVED: dict[str, Any] = {"capabilities": ("observed",), "host": socket.gethostname()}


@contextmanager
def observed_process(served: Served, **changes: Any) -> Iterator[tuple[int, Callable[[], None]]]:
    """Let a process register itself as the run; give its pid, and what lets it send a heartbeat."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        # Nothing of the parent's may run here: no fixtures, no handlers.
        try:
            ours.close()
            answer = served.register(**OBSERVED | {"pid": os.getpid()} | changes)
            theirs.sendall(b"+" if answer.status == 200 else b"-")
            while theirs.recv(1):
                answer = served.post(f"{RUN}/heartbeat", messages.heartbeat())
                theirs.sendall(b"+" if answer.status == 200 else b"-")
        finally:
            os._exit(1)
    theirs.close()

    def beat() -> None:
        ours.sendall(b"?")
        assert ours.recv(1) == b"+"

    try:
        assert ours.recv(1) == b"+"
        yield child, beat
    finally:
        ours.close()
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


def kill(pid: int, *, reap: bool) -> None:
    """Kill a child, and wait until it has ended; without `reap` it stays as a zombie."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | (0 if reap else os.WNOWAIT))


@pytest.mark.parametrize("reap", [True, False], ids=["reaped", "zombie"])
def test_an_observed_run_whose_process_ended_without_a_word_is_ended_not_lost(
    served: Served, reap: bool
) -> None:
    """As SIGTERM by a scheduler ends it; should it speak after all, it goes on."""
    with observed_process(served) as (pid, _):
        kill(pid, reap=reap)
        served.clock.pass_s(LIVE_S - 1)
        cycle(served).run(served.clock.wall)
        assert state(served, messages.RUN) == ("live", "")
        ended = f"expired: its process {pid} has ended and did not say how"
        served.clock.pass_s(2.0)
        cycle(served).run(served.clock.wall)
        assert state(served, messages.RUN) == ("finished", ended)
    (launch,) = served.journal.stays.launches(messages.RUN)
    assert (served.clock.wall - launch.end).total_seconds() == LIVE_S + 1
    assert not [each for each in served.get("/v1/status").body["trouble"] if "llama" in each]
    assert served.register(**OBSERVED, pid=pid).status == 200
    assert state(served, messages.RUN) == ("live", "")


@pytest.mark.parametrize(
    ("heard", "how"), [(True, "finished"), (False, "lost")], ids=["heard again", "not heard"]
)
def test_a_new_daemon_sees_the_process_of_a_run_with_its_next_heartbeat(
    served: Served, heard: bool, how: str
) -> None:
    """Of a run that it never heard, it does not know whether the process has ended."""
    with observed_process(served) as (pid, beat):
        served.journal.runs.processes = SeenProcesses()
        if heard:
            beat()
        kill(pid, reap=True)
        served.clock.pass_s(LIVE_S + 1)
        cycle(served).run(served.clock.wall)
        assert state(served, messages.RUN)[0] == how


def test_a_process_that_lives_is_not_ended_because_nothing_has_its_pid_here(
    served: Served,
) -> None:
    """In another pid namespace under the same host name: who speaks is not who was named."""
    told = ended_process()
    with observed_process(served, pid=told) as (pid, _):
        assert pid != told
        served.clock.pass_s(600.0)
        cycle(served).run(served.clock.wall)
        assert state(served, messages.RUN) == ("lost", "")


def test_a_process_that_ended_before_its_last_word_was_read_has_ended() -> None:
    """What was seen of it before counts; of another process nothing does."""
    seen = SeenProcesses()
    with subprocess.Popen(["sleep", "600"]) as process:
        seen.see("r", process.pid)
        process.kill()
        process.wait()
        seen.see("r", process.pid)
    assert seen.has_ended("r", process.pid)
    seen.see("r", 0)
    assert not seen.has_ended("r", process.pid)


def test_a_pid_that_was_given_to_another_process_has_ended() -> None:
    """Its start time tells them apart; a pid that never spoke here proves nothing."""
    seen = SeenProcesses()
    seen.see("r", os.getpid())
    assert not seen.has_ended("r", os.getpid())
    assert not seen.has_ended("r", os.getpid() + 1)
    assert not seen.has_ended("other", ended_process())
    seen._seen["r"] = (os.getpid(), 1)
    assert seen.has_ended("r", os.getpid())


@pytest.mark.parametrize(
    "changes",
    [{"pid": 1}, {"host": "node-1"}, {"capabilities": ("in_place",)}],
    ids=["no process of a job", "on another host", "an attached run"],
)
def test_a_silent_run_whose_end_is_not_known_stays_lost(
    served: Served, changes: dict[str, Any]
) -> None:
    """Nobody here can see that process, or another launch may follow."""
    with observed_process(served, **changes) as (pid, _):
        kill(pid, reap=True)
        served.clock.pass_s(600.0)
        cycle(served).run(served.clock.wall)
        assert state(served, messages.RUN) == ("lost", "")


def test_a_silent_run_whose_process_lives_stays_lost(served: Served) -> None:
    """It may speak again at any time."""
    assert silent(served, 600.0, **OBSERVED, pid=os.getpid()) == ("lost", "")


def test_while_the_clock_is_not_trusted_no_silent_run_is_ended(served: Served) -> None:
    """The daemon then takes every silence for short, and dates nothing."""
    with observed_process(served) as (pid, _):
        kill(pid, reap=True)
    served.clock.pass_s(600.0)
    live(served.journal, acting(lost_s=inf), served.loop_facts.lead.epoch).run(served.clock.wall)
    assert state(served, messages.RUN) == ("lost", "")


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("failed: KeyError('x')", "failed: KeyError('x')"),
        ("stopped: asked to", "stopped: asked to"),
        ("restart", "expired: not heard for"),
    ],
)
def test_a_run_that_expires_keeps_why_its_launch_ended(
    served: Served, said: str, kept: str
) -> None:
    """But one that was to go on after a restart says that it did not."""
    served.register()
    assert served.post(f"{RUN}/finish", messages.finish(reason=said)).status == 200
    served.clock.pass_s(LOST_S + 60.0)
    cycle(served).run(served.clock.wall)
    how, why = state(served, messages.RUN)
    assert (how, why.startswith(kept)) == ("finished", True)
    (launch,) = served.journal.stays.launches(messages.RUN)
    assert launch.end < served.clock.wall - timedelta(seconds=LOST_S)
    assert served.register(incarnation="incarnation-2", attempt=2).status == 200
    assert state(served, messages.RUN) == ("live", "")


def crowd(served: Served, size: int, uid: int = STRANGER) -> None:
    """Put many runs of one user into the journal."""
    served.register()
    with served.journal.database.writing() as connection:
        (row,) = connection.execute(RUNS.select()).mappings().all()
        connection.execute(
            RUNS.insert(),
            [
                {**row, "run": run_id(n), "incarnation": f"i{n}", "name": f"n{n}", "owner_uid": uid}
                for n in range(1000, 1000 + size)
            ],
        )


def test_a_crowd_of_lost_runs_is_one_line_and_costs_no_cycle(served: Served) -> None:
    """800 lost runs of one user: one sentence, a handful of lines, queries by what lives."""
    crowd(served, 800)
    served.clock.pass_s(7200.0)
    served.register()
    turn, asked = cycle(served), 0

    def count(*_: object) -> None:
        nonlocal asked
        asked += 1

    event.listen(served.journal.database.engine, "before_cursor_execute", count)
    report = turn.run(served.clock.wall)
    assert [each.run for each in report.decisions] == [messages.RUN]
    in_turn, asked = asked, 0
    view = served.get("/v1/status").body
    in_status = asked
    assert in_turn < 60, in_turn
    assert in_status < 60, in_status
    theirs = [line for line in view["trouble"] if f"uid {STRANGER}" in line]
    assert len(theirs) == 1
    assert theirs[0].startswith(f"800 runs of uid {STRANGER} have not been heard")
    assert len(view["runs"]) == 4
    assert view["lost_more"] == {str(STRANGER): 797}
    assert len(served.get("/v1/runs").body["runs"]) == 801


@needs_root
def test_a_user_has_so_many_runs_and_no_more(served: Served) -> None:
    """One more ends the longest silent of the same user; where all report it is refused."""
    few = served.loop_facts.settings.api.model_copy(update={"runs_per_user": 3})
    served.loop_facts.settings = served.loop_facts.settings.model_copy(update={"api": few})
    served.register()
    for number in (1, 2, 3):
        assert register(served, number, f"n{number}", stranger=True).status == 200
        served.clock.pass_s(1.0)
    refused = register(served, 4, "n4", stranger=True)
    assert (refused.status, refused.body["kind"]) == (403, "refused")
    assert "wattmesh retire" in refused.body["error"]
    assert register(served, 1, "n1", stranger=True).status == 200
    served.clock.pass_s(600.0)
    assert register(served, 4, "n4", stranger=True).status == 200
    assert state(served, run_id(2))[1].startswith("expired: made room")
    assert state(served, messages.RUN)[0] == "lost"
    served.clock.pass_s(600.0)
    for number in (5, 6):
        assert register(served, number, f"n{number}", stranger=True).status == 200
        served.clock.pass_s(60.0)
    begun = register(served, 7, "n7", stranger=True)
    assert "within an hour" in begun.body["error"]
    assert register(served, 8, "mine").status == 200


def test_long_polls_of_one_user_are_bounded(served: Served) -> None:
    """The surplus is told so at once; whoever waits is served, and a place is free again after."""
    few = served.loop_facts.settings.api.model_copy(update={"waits_per_user": 4})
    served.loop_facts.settings = served.loop_facts.settings.model_copy(update={"api": few})
    served.register()
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda _: served.get(f"{RUN}/order?wait=1"), range(12)))
    statuses = sorted(each.status for each in found)
    assert statuses == [200] * 4 + [503] * 8
    assert "api.waits_per_user" in next(each for each in found if each.status == 503).body["error"]
    assert served.get(f"{RUN}/order?wait=0").status == 200


POLLS = 260


@contextmanager
def poll(path: Path, target: str) -> Iterator[socket.socket]:
    """Ask on a connection of its own, and wait for no answer."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(f"GET {target} HTTP/1.1\r\nhost: w\r\n\r\n".encode())
        client.setblocking(False)
        yield client


def surplus(polls: Sequence[socket.socket], count: int) -> list[bytes]:
    """Give the answers of those that are not waited for, once there are so many."""
    heard = dict.fromkeys(polls, b"")

    def told() -> list[bytes]:
        for each in polls:
            with suppress(BlockingIOError):
                heard[each] += each.recv(65_536)
        return [said for said in heard.values() if said.endswith(b"}")]

    wait_for(lambda: len(told()) >= count, "the surplus to be told")
    return told()


@needs_root
def test_260_long_polls_of_one_user_starve_nobody(served: Served) -> None:
    """For orders, and as an agent, at one door: the surplus is told so, a stranger is served."""
    served.register()
    assert register(served, 5, "theirs", stranger=True).status == 200
    look(served)
    known = served.get(DESIRED).body["serial"]
    most = served.loop_facts.settings.api.waits_per_user
    # Who waits for orders has taken all places when the same user asks as an agent.
    for door, places in ((f"{RUN}/order?wait=60", most), (f"{DESIRED}?wait=60&serial={known}", 0)):
        with ExitStack() as held:
            polls = [held.enter_context(poll(served.socket, door)) for _ in range(POLLS)]
            answers = surplus(polls, POLLS - places)
            assert len(answers) == POLLS - places
            assert all(b" 503 " in each and b"api.waits_per_user" in each for each in answers)
            for target in (f"/v1/runs/{run_id(5)}/order?wait=0.1", "/v1/status"):
                assert as_stranger(served.socket, "GET", target).status == 200


@needs_root
def test_a_user_holds_so_many_connections_and_no_more(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more is told so at once; root, the daemon's own user, has no limit."""
    monkeypatch.setattr(peers, "CONNECTIONS_PER_USER", 5)
    with ExitStack() as held:
        for _ in range(20):
            held.enter_context(poll(served.socket, "/v1/status"))
        assert as_stranger(served.socket, "GET", "/v1/status").status == 200
        assert served.get("/v1/status").status == 200
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        greedy(served.socket, write)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    assert told.startswith("HTTP/1.1 503 "), told
    assert f"uid {STRANGER} holds 5 connections already" in told


def greedy(path: Path, write: int) -> None:
    """In a child: become the stranger, hold seven connections, tell what the last is told, end."""
    os.setgroups([])
    os.setgid(grp.getgrnam(GROUP).gr_gid)
    os.setuid(STRANGER)
    with ExitStack() as held:
        polls = [held.enter_context(poll(path, "/healthz")) for _ in range(6)]
        polls[-1].settimeout(20.0)
        os.write(write, polls[-1].recv(65_536))
    os._exit(0)


@pytest.mark.parametrize("month", ["0001-01", "9999-12", "9999-11", "1969-12", "0000-00", "-1-1"])
def test_a_month_out_of_all_time_is_a_sentence(served: Served, month: str) -> None:
    """No report has one, and none is a bug."""
    found = served.get(f"/v1/report?month={month}")
    assert (found.status, found.body["kind"]) == (422, "invalid")


ODD_TIMES = (
    "0001-01-01T00:00:00+14:00",
    "0001-01-01T00:00:00-14:00",
    "9999-12-31T23:59:59.999999-14:00",
    "1969-12-31T23:59:59Z",
    "2026-11-20",
    "2026-11-20T12:00:00",
    "24:00",
    "-1",
    "1e400",
    "nan",
)


def test_no_time_in_an_address_or_a_body_is_a_bug(served_on_each: Served) -> None:
    """Each is taken, or refused in one sentence to its sender."""
    served = served_on_each
    for each in ODD_TIMES:
        word = quote(each)
        for target in (
            f"/v1/events?since={word}",
            f"/v1/decisions?since={word}",
            f"/v1/report?month={word}",
            f"/v1/carbon/history?hours={word}",
            f"/v1/carbon/forecast?signal={word}",
        ):
            found = served.get(target)
            assert found.status in (200, 404, 422), (target, found.body)
        for target, body in (
            ("/v1/powercap", {"cap_w": 1000.0, "until": each, "reason": "x"}),
            (f"/v1/report/{word}/reopen", {"reason": "x"}),
        ):
            found = served.post(target, body)
            assert found.status in (409, 422, 503), (target, found.body)
    assert served.get("/v1/status").status == 200


def test_one_lost_run_has_a_line_of_its_own(served: Served) -> None:
    """The twin of the crowd: it names the run and where it was."""
    served.register()
    served.clock.pass_s(timedelta(hours=2).total_seconds())
    told = served.get("/v1/status").body["trouble"]
    (line,) = [each for each in told if "llama-8b" in each]
    assert line.startswith("llama-8b has not been heard for")
    assert os.getuid() == served.get(RUN).body["run"]["owner_uid"]


def test_a_run_that_was_stopped_is_not_lost_and_nobody_is_woken(served: Served) -> None:
    """SIGTERM: at once, and as long as no other launch goes on; a crash is told as before."""
    served.register()
    served.post(f"{RUN}/progress", messages.progress())
    said = messages.finish(reason="stopped: SIGTERM to rank 0", step=10, tokens=1000)
    assert served.post(f"{RUN}/finish", said).status == 200
    for _ in range(2):
        view = served.get("/v1/status").body
        assert view["runs"][0]["activity"] == "stopped"
        assert view["runs"][0]["tokens_per_s"] is None
        assert not [each for each in view["trouble"] if "llama-8b" in each]
        assert view["lost_more"] == {}
        served.clock.pass_s(timedelta(hours=2).total_seconds())
    assert served.register(incarnation="incarnation-2", attempt=2).status == 200
    assert served.get("/v1/status").body["runs"][0]["activity"] == "holding"
    served.clock.pass_s(timedelta(hours=2).total_seconds())
    view = served.get("/v1/status").body
    assert view["runs"][0]["activity"] == "lost"
    assert [each for each in view["trouble"] if each.startswith("llama-8b has not been heard")]


def test_a_run_that_stopped_is_retired_without_a_job_that_still_runs(served: Served) -> None:
    """It said that it leaves, although that was a moment ago."""
    served.register()
    said = messages.finish(reason="stopped: SIGTERM to rank 0")
    assert served.post(f"{RUN}/finish", said).status == 200
    assert "still runs" not in served.post(f"{RUN}/retire", {}).body["done"]


def test_a_lost_run_is_not_mixed_up_with_the_live_one_of_its_name(served: Served) -> None:
    """A plain script is a new run at each start: the red line's command ends the lost one."""
    live, lost = "a0000000-0000-4000-8000-000000000001", run_id(5)
    assert register(served, 5, "llama-8b").status == 200
    served.clock.pass_s(timedelta(hours=1).total_seconds())
    again = messages.register(run=live, incarnation="again")
    assert served.post(f"/v1/runs/{live}/register", again).status == 200
    refused = served.post("/v1/runs/llama-8b/retire", {})
    assert refused.status == 409, refused.body
    assert f"{lost} (uid 0, lost)" in refused.body["error"]
    red = " ".join(served.get("/v1/status").body["trouble"])
    word = red.partition("`wattmesh retire ")[2].partition("`")[0]
    assert served.post(f"/v1/runs/{word}/retire", {}).body["changed"] == [lost], word
    assert "has not been heard" not in " ".join(served.get("/v1/status").body["trouble"])
    assert served.post("/v1/runs/llama-8b/retire", {}).body["changed"] == [live]


@pytest.mark.parametrize(
    ("reason", "state", "activity"),
    [
        ("failed: KeyError('x')", "lost", "failed"),
        ("retired: uid 1000: by hand", "finished", "retired"),
        ("expired: silent for 7 d", "finished", "expired"),
        ("done", "finished", "finished"),
    ],
)
def test_how_a_run_ended_is_told_and_nobody_is_sent_to_look(
    served: Served, reason: str, state: str, activity: str
) -> None:
    """It said why it ended: it is not called lost, and a freeze does not hide it."""
    served.register()
    if state == "finished" and reason != "done":
        epoch = served.loop_facts.lead.epoch or 0
        served.journal.runs.end(messages.RUN, reason, now=served.clock.wall, epoch=epoch)
    else:
        assert served.post(f"{RUN}/finish", messages.finish(reason=reason)).status == 200
    assert served.post("/v1/freeze", {"run": messages.RUN, "reason": "look"}).status == 200
    served.clock.pass_s(timedelta(minutes=20).total_seconds())
    view = served.get("/v1/status").body
    (line,) = view["runs"]
    assert (line["state"], line["activity"], line["ended"]) == (state, activity, reason)
    assert not [each for each in view["trouble"] if "llama-8b" in each]
    assert view["lost_more"] == {}
