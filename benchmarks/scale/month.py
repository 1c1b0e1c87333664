"""A month of the daemon's own parts under a virtual clock: what its memory and its journal grow by.

Runs of five days train one after the other on every pair of GPUs, at their submitted points;
readings every half hour, slots of an hour, both ledgers priced, a second signal in the reports.
Detail is kept for `RETENTION_DAYS`, so that the journal grows by two rates: by detail until then,
and by what stays for good after.

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

from benchmarks.year.daemon import Simulated, Site
from benchmarks.year.run import HOUR, TOKENS_PER_S, A, Job, Run
from benchmarks.year.world import Cluster, Time, at
from wattmesh.integrations.carbon.grid_server import GridServer

START = at("2026-02-01 00:00:00")
DAY = timedelta(days=1)
STEP, RUN = timedelta(minutes=30), 5 * DAY
RETENTION_DAYS, KEPT_DAYS = 10, 90
"""Of detail: in this month, and by default in a journal."""

WARM_DAYS = 5
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """What one month added.

    Attributes:
        rss_growth_mib: resident memory of the last day over that of day `WARM_DAYS`.
        detail_kb, lasting_kb: of the journal, per GPU and day: while detail is kept, and for good.
    """

    days: int
    gpus: int
    rss_mib: float
    rss_growth_mib: float
    detail_kb: float
    lasting_kb: float

    @property
    def mb_per_gpu_year(self) -> float:
        """Give the journal's size after a year, per GPU, with detail kept as by default."""
        return (KEPT_DAYS * self.detail_kb + 365 * self.lasting_kb) / 1000


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
    gpus, full = 2 * lanes, RETENTION_DAYS + 3
    lasting = (sizes[-1] - sizes[full]) / (days - 1 - full)
    detail = (sizes[RETENTION_DAYS - 1] - sizes[0]) / (RETENTION_DAYS - 1)
    return Grown(
        days=days,
        gpus=gpus,
        rss_mib=resident[-1],
        rss_growth_mib=resident[-1] - resident[WARM_DAYS],
        detail_kb=detail / gpus / 1000,
        lasting_kb=lasting / gpus / 1000,
    )


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
            name=f"run-{lane}-{number}",
            gpus=(f"GPU-{2 * lane}", f"GPU-{2 * lane + 1}"),
            start=START + number * RUN + timedelta(minutes=30),
            deadline=START + (number + 2) * RUN,
            tokens_total=round((RUN - HOUR).total_seconds()) * TOKENS_PER_S[A],
            layout=A,
        )
        for lane in range(lanes)
        for number in range(days // RUN.days + 1)
    ]


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
