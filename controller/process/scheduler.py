"""Jobs by the wall clock: carbon polls, retention, period rolls (APScheduler 3.11).

Polls may follow the wall clock, because each asks for whatever is new: a missed one costs
freshness, never data. Invariant: every job that ran, failed, was skipped or missed is counted (the
library would only log it), and no step of the wall clock delays the scheduler.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from apscheduler.events import (
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
    EVENT_JOB_MAX_INSTANCES,
    EVENT_JOB_MISSED,
    JobEvent,
)
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from wattmesh.errors import WattmeshError

log = logging.getLogger(__name__)

OUTCOMES = {
    EVENT_JOB_EXECUTED: "done",
    EVENT_JOB_ERROR: "failed",
    EVENT_JOB_MISSED: "missed",
    EVENT_JOB_MAX_INSTANCES: "skipped",
}
WORKERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTotals:
    """How often one job ended with one outcome since the daemon started."""

    job: str
    outcome: str
    count: int


class Rhythm(IntervalTrigger):  # type: ignore[misc]
    """An interval trigger that skips all missed times in one step.

    The library's own trigger counts through every missed time, under the scheduler's lock: after a
    step of 400 days, a job of every half second has missed 69 million, and every call waits.
    """

    def get_next_fire_time(
        self, previous_fire_time: datetime | None, now: datetime
    ) -> datetime | None:
        """Give the next time of the grid, or the newest one that has passed."""
        found: datetime | None
        if previous_fire_time is not None:
            missed = (now - previous_fire_time) // self.interval - 1
            previous_fire_time += max(0, missed) * self.interval
        found = super().get_next_fire_time(previous_fire_time, now)
        return found


class Jobs:
    """The background scheduler, with explicit time zone, threads, coalescing and misfire grace."""

    def __init__(self) -> None:
        """Prepare; no job runs before `start`."""
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            executors={"default": ThreadPoolExecutor(WORKERS)},
            job_defaults={"coalesce": True, "max_instances": 1},
        )
        self._scheduler.add_listener(
            self._count,
            EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES,
        )

    def every(self, name: str, seconds: float, work: Callable[[], None]) -> None:
        """Call `work` now and every `seconds`; replaces the job of this name.

        A run that comes late by less than one period (at least 30 s) is still run.
        """
        self._scheduler.add_job(
            _guarded,
            Rhythm(seconds=seconds, timezone=UTC),
            args=(name, work),
            id=name,
            name=name,
            replace_existing=True,
            misfire_grace_time=max(30, int(seconds)),
            next_run_time=datetime.now(UTC),
        )

    def daily(self, name: str, hour: int, work: Callable[[], None]) -> None:
        """Call `work` daily, 7 minutes past `hour` (UTC), or up to 12 hours later."""
        self._scheduler.add_job(
            _guarded,
            CronTrigger(hour=hour, minute=7, timezone="UTC"),
            args=(name, work),
            id=name,
            name=name,
            replace_existing=True,
            misfire_grace_time=12 * 3600,
        )

    def forget(self, prefix: str) -> None:
        """Remove every job whose name begins with `prefix` (a reload changed the signals)."""
        for job in self._scheduler.get_jobs():
            if job.id.startswith(prefix):
                job.remove()

    def start(self) -> None:
        """Begin to run jobs."""
        self._scheduler.start()

    def stop(self) -> None:
        """Run no more jobs; one that runs now is not waited for (it only fetches)."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def totals(self) -> tuple[JobTotals, ...]:
        """Count every job's ends, by outcome."""
        with self._lock:
            counts = dict(self._counts)
        return tuple(
            JobTotals(job=job, outcome=outcome, count=count)
            for (job, outcome), count in sorted(counts.items())
        )

    def _count(self, event: JobEvent) -> None:
        with self._lock:
            self._counts[event.job_id, OUTCOMES[event.code]] += 1


def _guarded(name: str, work: Callable[[], None]) -> None:
    """Run a job; an outside failure is one line in the log, a bug a traceback; both count."""
    try:
        work()
    except WattmeshError as error:
        log.warning("%s: %s", name, error)
        raise
    except Exception:
        log.exception("%s: unexpected error; this is a bug in wattmesh, please report it", name)
        raise
