"""A month of the daemon's own parts under a virtual clock: what its memory and its journal grow by.

Runs of five days train one after the other on every pair of GPUs, at their submitted points;
readings every half hour, slots of an hour, both ledgers priced, a second signal in the reports.
Detail is kept for `RETENTION_DAYS`, so that the journal grows by two rates: by detail until then,
and by what stays for good after. Runs and GPUs have names as long as real ones.

Invariant: what the invented world keeps of its own past is let go of each day, so that memory that
grows is the daemon's.
"""

import gc
import re
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

from benchmarks.year.daemon import Simulated, Site
from benchmarks.year.run import HOUR, TOKENS_PER_S, A, Job, Run
from benchmarks.year.world import Cluster, Time, at
from wattmesh.integrations.carbon.grid_server import GridServer

START = at("2026-02-01 00:00:00")
DAY = timedelta(days=1)
STEP, RUN = timedelta(minutes=30), 5 * DAY
RETENTION_DAYS, KEPT_DAYS = 14, 90
"""Of detail: in this month, and by default in a journal."""

WARM_DAYS = 5
ISSUES_DAYS = 8
"""Until then issues of forecasts are kept and none is let go."""

FULL_DAYS = RETENTION_DAYS + 2 * RUN.days
"""From this day on detail goes as it comes; the next size to compare is a run's time later."""

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """What one month added.

    Attributes:
        rss_growth_mib: resident memory of the last day over that of day `WARM_DAYS`.
        detail_kb, lasting_kb: of the journal, per GPU and day: while detail is kept, and for good.
            None: there were too few days to see it.
        cluster_kb: what does not grow with days: tables, and the forecasts that are kept.
    """

    days: int
    gpus: int
    rss_mib: float
    rss_growth_mib: float | None
    detail_kb: float | None
    lasting_kb: float | None
    cluster_kb: float | None

    @property
    def mb_per_gpu_year(self) -> float | None:
        """Give the journal's size after a year, per GPU, with detail kept as by default.

        A run keeps its detail until all of it is old, so it is there for a run's time longer.
        """
        if self.detail_kb is None or self.lasting_kb is None or self.cluster_kb is None:
            return None
        kept_kb = (KEPT_DAYS + RUN.days) * self.detail_kb
        return (kept_kb + 365 * self.lasting_kb + self.cluster_kb / self.gpus) / 1000


def month(days: int, lanes: int) -> Grown:
    """Live through a month."""
    sizes, resident = [], []
    with tempfile.TemporaryDirectory(prefix="wattmesh-month-") as name:
        folder = Path(name)
        with _simulated(folder, days, lanes) as simulated:
            for day in range(1, days + 1):
                simulated.live(START + day * DAY, STEP)
                simulated.cluster.stretches.clear()
                simulated.server.asked.clear()
                gc.collect()
                sizes.append(_journal_bytes(folder))
                resident.append(_rss_mib())
    gpus = 2 * lanes
    lasting = _a_day(sizes[FULL_DAYS - 1 :: RUN.days], RUN.days)
    detail = _a_day(sizes[ISSUES_DAYS - 1 : RETENTION_DAYS], 1)
    few = None if detail is None else sizes[ISSUES_DAYS - 1] - ISSUES_DAYS * detail
    return Grown(
        days=days,
        gpus=gpus,
        rss_mib=resident[-1],
        rss_growth_mib=None if days <= WARM_DAYS else resident[-1] - resident[WARM_DAYS],
        detail_kb=None if detail is None else detail / gpus / 1000,
        lasting_kb=None if lasting is None else lasting / gpus / 1000,
        cluster_kb=None if few is None else few / 1000,
    )


def _a_day(sizes: Sequence[int], days: int) -> float | None:
    """Give the bytes by which a journal grows a day, of its sizes each so many days; None: of one.

    Bytes that stay for good are few beside those of detail, which comes by the day and goes by the
    run: sizes are compared where the runs under way have all begun as long ago.
    """
    return (sizes[-1] - sizes[0]) / ((len(sizes) - 1) * days) if len(sizes) > 1 else None


@contextmanager
def _simulated(folder: Path, days: int, lanes: int) -> Iterator[Simulated]:
    jobs = _jobs(days, lanes)
    time = Time(START)
    cluster = Cluster(
        time=time,
        runs=[Run(job) for job in jobs],
        gpus=sorted({gpu for job in jobs for gpu in job.gpus}),
    )
    server = GridServer(clock=lambda: time.now)
    with server.serving():
        site = Site(retention_days=RETENTION_DAYS, forecast=24 * HOUR)
        simulated = Simulated(folder, cluster, server, site)
        try:
            yield simulated
        finally:
            simulated.close()


def _jobs(days: int, lanes: int) -> Sequence[Job]:
    """Make runs of five days, one after the other on each pair of GPUs, that need not be moved."""
    return [
        Job(
            name=f"run-{uuid5(NAMESPACE_OID, f'run {lane} {number}').hex}",
            gpus=(_gpu(2 * lane), _gpu(2 * lane + 1)),
            start=START + number * RUN + timedelta(minutes=30),
            deadline=START + (number + 2) * RUN,
            tokens_total=round((RUN - HOUR).total_seconds()) * TOKENS_PER_S[A],
            layout=A,
        )
        for lane in range(lanes)
        for number in range(days // RUN.days + 1)
    ]


def _gpu(number: int) -> str:
    """Name a GPU as its driver does: 40 letters, each of which a journal may keep in many rows."""
    return f"GPU-{uuid5(NAMESPACE_OID, f'GPU {number}')}"


def _journal_bytes(folder: Path) -> int:
    """Return the bytes of the pages in use; free ones are used again before the file grows."""
    with closing(sqlite3.connect(folder / "journal.db")) as connection:
        size, pages, free = (
            int(connection.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_size", "page_count", "freelist_count")
        )
    return size * (pages - free)


def _rss_mib() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024 / MIB
