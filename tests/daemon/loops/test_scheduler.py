"""Wall-clock jobs: every end of a job is counted, and none stops the others."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.daemon.waiting import wait_for
from wattmesh.controller.process.scheduler import Jobs
from wattmesh.errors import SourceUnavailable


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    """A running scheduler."""
    jobs = Jobs()
    jobs.start()
    yield jobs
    jobs.stop()


def count(jobs: Jobs, name: str, outcome: str) -> int:
    """Give how often a job ended so."""
    return sum(t.count for t in jobs.totals() if (t.job, t.outcome) == (name, outcome))


def test_a_job_runs_at_once_and_again(jobs: Jobs) -> None:
    """A poll begins at the start and comes back at its rhythm, below a second if need be."""
    jobs.every("carbon x", 0.05, lambda: None)
    wait_for(lambda: count(jobs, "carbon x", "done") >= 3, "three runs")


@pytest.mark.parametrize("days", [400, 73 * 365, -400])
def test_a_stepped_clock_holds_no_job_up(jobs: Jobs, days: int) -> None:
    """A poll that is due since 400 days, or since 2099, is no work of millions of missed ones."""
    jobs.every("carbon x", 0.05, lambda: None)
    wait_for(lambda: count(jobs, "carbon x", "done") >= 1, "a run")
    due = datetime.now(UTC) - timedelta(days=days)
    jobs._scheduler.modify_job("carbon x", next_run_time=due)
    if days < 0:  # the daemon plans its jobs anew after a step
        jobs.every("carbon x", 0.05, lambda: None)
    before = count(jobs, "carbon x", "done")
    wait_for(lambda: count(jobs, "carbon x", "done") >= before + 2, "further runs")
    jobs.forget("carbon ")


def test_a_failing_job_is_counted_and_keeps_its_rhythm(jobs: Jobs) -> None:
    """Failures and bugs are counted, and the job comes back."""

    def fail() -> None:
        raise SourceUnavailable("no answer")

    def stumble() -> None:
        raise ZeroDivisionError

    jobs.every("carbon x", 0.05, fail)
    jobs.every("retention", 0.05, stumble)
    wait_for(lambda: count(jobs, "carbon x", "failed") >= 2, "two failures")
    wait_for(lambda: count(jobs, "retention", "failed") >= 2, "two bugs")


def test_a_slow_job_is_skipped_not_piled_up(jobs: Jobs) -> None:
    """While a poll hangs its next ones are skipped and counted; one instance runs."""
    release, running = threading.Event(), []

    def hang() -> None:
        running.append(1)
        assert release.wait(20.0)

    jobs.every("carbon x", 0.05, hang)
    wait_for(lambda: count(jobs, "carbon x", "skipped") >= 2, "two skips")
    assert len(running) == 1
    release.set()
    wait_for(lambda: count(jobs, "carbon x", "done") >= 1, "its end")


def test_jobs_are_forgotten_by_their_prefix(jobs: Jobs) -> None:
    """A reload takes the old signals' polls away and leaves the rest."""
    jobs.every("carbon old", 0.05, lambda: None)
    jobs.every("retention", 0.05, lambda: None)
    wait_for(lambda: count(jobs, "carbon old", "done") >= 1, "a run")
    jobs.forget("carbon ")
    before = count(jobs, "retention", "done")
    wait_for(lambda: count(jobs, "retention", "done") >= before + 2, "the other job")
    settled = count(jobs, "carbon old", "done")
    wait_for(lambda: count(jobs, "retention", "done") >= before + 5, "the other job")
    assert count(jobs, "carbon old", "done") == settled
