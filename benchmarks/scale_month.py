"""A month of the daemon's own parts under a virtual clock: what its memory and its journal grow by.

Runs train the whole month on all GPUs, each at its submitted point; readings every half hour, slots
of an hour, both ledgers priced. Detail is kept for `RETENTION_DAYS`, so that the journal grows by
two rates: by detail until then, and by what stays for good after.

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

from benchmarks.year_daemon import Simulated, Site
from benchmarks.year_run import HOUR, TOKENS_PER_S, A, Job, Run
from benchmarks.year_world import Cluster, Time, at
from wattmesh.integrations.carbon.grid_server import GridServer

START = at("2026-02-01 00:00:00")
DAY = timedelta(days=1)
STEP = timedelta(minutes=30)
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


def month(days: int, runs: int) -> Grown:
    """Live through a month."""
    sizes, resident = [], []
    with tempfile.TemporaryDirectory(prefix="wattmesh-month-") as name:
        folder = Path(name)
        with _simulated(folder, days, runs) as simulated:
            for day in range(1, days + 1):
                simulated.live(START + day * DAY, STEP)
                simulated.cluster.stretches.clear()
                simulated.server.asked.clear()
                gc.collect()
                sizes.append(_journal_bytes(folder))
                resident.append(_rss_mib())
    gpus, full = 2 * runs, RETENTION_DAYS + 3
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
def _simulated(folder: Path, days: int, runs: int) -> Iterator[Simulated]:
    jobs = _jobs(days, runs)
    time = Time(START)
    cluster = Cluster(
        time=time,
        runs=[Run(job) for job in jobs],
        gpus=[gpu for job in jobs for gpu in job.gpus],
    )
    server = GridServer(clock=lambda: time.now)
    with server.serving():
        site = Site(retention_days=RETENTION_DAYS, forecast=24 * HOUR)
        simulated = Simulated(folder, cluster, server, site)
        try:
            yield simulated
        finally:
            simulated.close()


def _jobs(days: int, runs: int) -> Sequence[Job]:
    """Make runs that train longer than the month, and need not be moved."""
    tokens = round((days + 2) * DAY.total_seconds()) * TOKENS_PER_S[A]
    return [
        Job(
            name=f"run-{number}",
            gpus=(f"GPU-{2 * number}", f"GPU-{2 * number + 1}"),
            start=START + timedelta(minutes=30),
            deadline=START + 2 * days * DAY,
            tokens_total=tokens,
            layout=A,
        )
        for number in range(runs)
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
