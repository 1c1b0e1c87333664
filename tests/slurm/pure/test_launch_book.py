"""The launch book: whichever job asks first, one trains; a damaged book keeps nobody asleep."""

import itertools
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.errors import SourceUnavailable
from wattmesh.integrations.slurm.__main__ import main
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher import launch_book
from wattmesh.reconfig.launcher.launch_book import (
    BookedState,
    LaunchBook,
    LaunchRecord,
    Records,
)


def asked(key: str, by: str = "c/1") -> LaunchRecord:
    """Give a launch that was asked for."""
    return LaunchRecord(key=key, ranks=2, state=BookedState.ASKED, asked_by=by)


def begins(records: Records, key: str, job: str, *live: str) -> launch_book.Beginning:
    """Let a job begin."""
    mine = LaunchRecord(key=key, ranks=2, state=BookedState.BEGUN, begun_by=job, waited_s=1.5)
    return launch_book.begin(records, mine, live, live)


def test_a_launch_that_begins_takes_the_place_of_all_that_are_held() -> None:
    """And the job that asked for it gives way to it, should it come back."""
    first = begins((), "", "c/1").records
    held = launch_book.submitted(launch_book.ask(first, asked("a")), "a", ["c/2"])
    held = launch_book.ask(held, asked("b"))
    early = begins(held, "a", "c/2", "c/1")
    assert (early.problem, early.waits) == ("job c/1, which it follows, still runs", True)
    assert early.records == held
    second = begins(held, "a", "c/2")
    assert not second.problem
    assert begins(second.records, "b", "c/3").problem == "launch b was withdrawn"
    assert begins(second.records, "a", "c/4").problem == "launch a has begun as job c/2"
    assert begins(second.records, "", "c/1", "c/2").problem == "job c/2 trains this run now"
    assert launch_book.waits_s(second.records) == [1.5, 1.5]


def test_a_job_that_is_requeued_goes_on_unless_another_one_trains() -> None:
    """Its wait is measured once."""
    first = begins((), "", "c/1").records
    held = launch_book.ask(first, asked("a"))
    again = begins(held, "", "c/1")
    assert begins(again.records, "a", "c/2").problem == "launch a was withdrawn"
    assert launch_book.waits_s(again.records) == [1.5]
    other = begins(again.records, "", "c/9").records
    assert begins(other, "", "c/1", "c/9").problem
    assert not begins(other, "", "c/1").problem


def test_a_launch_by_hand_touches_nothing_while_another_one_lives() -> None:
    """What that one holds stays held."""
    first = begins((), "", "c/1").records
    held = launch_book.ask(first, asked("a"))
    second = begins(held, "", "c/5", "c/1")
    assert second.problem == "job c/1 trains this run now"
    assert second.records == held


def test_what_has_begun_is_not_withdrawn() -> None:
    """The caller learns that it came too late."""
    begun = begins(launch_book.ask((), asked("a")), "a", "c/2").records
    assert launch_book.withdraw(begun, "a") == (begun, False)
    held = launch_book.ask((), asked("a"))
    withdrawn, done = launch_book.withdraw(held, "a")
    assert done
    assert withdrawn == (replace(held[0], state=BookedState.WITHDRAWN),)


JOBS = {f"c/{n}": key for n, key in enumerate(itertools.islice(itertools.cycle(("", "a", "b")), 7))}
EVENTS = st.tuples(
    st.sampled_from(sorted(JOBS)), st.sampled_from(("begin", "end", "ask", "withdraw"))
)


def most_at_once(events: list[tuple[str, str]], *, heeds: bool = True) -> int:
    """Let jobs start, end and come back, and launches be asked for; give how many trained at most.

    `heeds`: whether who begins asks which others live.
    """
    records: Records = ()
    training: set[str] = set()
    most = 0
    for job, event in events:
        if event == "begin" and job not in training:
            begun = begins(records, JOBS[job], job, *(training if heeds else ()))
            if not begun.problem:
                records = begun.records
                training.add(job)
        elif event == "end":
            training.discard(job)
        elif event == "ask" and JOBS[job]:
            records = launch_book.ask(records, asked(JOBS[job]))
        elif event == "withdraw":
            records, _ = launch_book.withdraw(records, JOBS[job])
        most = max(most, len(training))
    return most


@given(st.lists(EVENTS, max_size=25))
def test_in_any_order_of_events_no_two_live_jobs_were_let_begin(
    events: list[tuple[str, str]],
) -> None:
    """Also where jobs are requeued, and two were submitted for one launch."""
    assert most_at_once(events) <= 1


def test_jobs_that_do_not_ask_who_lives_would_train_at_once() -> None:
    """Sabotaged twin."""
    events = [("c/0", "begin"), ("c/1", "ask"), ("c/1", "begin")]
    assert most_at_once(events) == 1
    assert most_at_once(events, heeds=False) == 2


def test_a_book_is_changed_alone(tmp_path: Path) -> None:
    """Who waits too long for another process is told; what was there stays."""
    book = LaunchBook(RunFolder(tmp_path), patience_s=0.2)
    book.change(lambda records: (launch_book.ask(records, asked("a")), None))
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:

        def wait(records: Records) -> tuple[Records, None]:
            os.write(told, b"!")
            signal.pause()
            return records, None

        try:
            LaunchBook(RunFolder(tmp_path)).change(wait)
        finally:
            os._exit(0)
    os.read(ready, 1)
    with pytest.raises(SourceUnavailable, match="has been locked"):
        book.change(lambda records: ((), None))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    book.change(lambda records: (launch_book.submitted(records, "a", ["c/2"]), None))
    (found,) = book.read()
    assert (found.state, found.jobs) == (BookedState.HELD, ("c/2",))


@pytest.mark.parametrize("content", [b"", b"[]", b'{"launches": 7}', b'{"launches": [{"key": 7}]}'])
def test_a_damaged_book_holds_nothing(tmp_path: Path, content: bytes) -> None:
    """A job begins with it as without one; the run folder's lock keeps two from training."""
    folder = RunFolder(tmp_path)
    folder.launches_file.write_bytes(content)
    assert LaunchBook(folder).read() == ()


@pytest.mark.parametrize("content", [b"", b'{"launches": [{"key": 7}]}', b"[" * 100_000])
def test_people_are_told_of_a_damaged_book_and_of_a_wrong_folder(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is held is then not known, which is not the same as nothing."""
    folder = RunFolder(tmp_path)
    held = ["held", "--checkpoint-dir", str(tmp_path)]
    folder.launches_file.write_bytes(content)
    assert main(held) == 1
    assert "is damaged, so it is not known which launches are held" in capsys.readouterr().err
    assert main([*held[:2], str(tmp_path / "absent")]) == 1
    assert "absent cannot be read (No such file" in capsys.readouterr().err
    # The twins: a book with nothing in it, and a run that nobody has started yet.
    folder.launches_file.write_bytes(b'{"launches": []}')
    assert main(held) == 0
    folder.launches_file.unlink()
    assert main(held) == 0


def test_a_book_that_cannot_be_read_is_not_written_anew(tmp_path: Path) -> None:
    """It may be readable again in a moment, and says who may train."""
    folder = RunFolder(tmp_path)
    folder.launches_file.symlink_to(folder.launches_file)  # a name that no read gets through
    with pytest.raises(SourceUnavailable, match="symbolic links"):
        LaunchBook(folder).change(lambda records: ((*records, asked("a")), None))
    assert folder.launches_file.is_symlink()
