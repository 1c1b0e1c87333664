"""The disk under the journal for Prometheus, where the journal is a file.

Invariant: the room of another machine, as of a PostgreSQL server, is not known and has no sample.
"""

import os
from collections.abc import Iterator
from contextlib import suppress

from prometheus_client.core import GaugeMetricFamily, Metric

from wattmesh.controller.journal.database.sqlite_url import sqlite_path


def storage_metrics(url: str) -> Iterator[Metric]:
    """How large the journal is, and how much room its disk has left."""
    size = GaugeMetricFamily(
        "wattmesh_journal_bytes",
        "Size of the journal's SQLite file with its -wal; absent for PostgreSQL.",
    )
    room = GaugeMetricFamily(
        "wattmesh_journal_disk_bytes",
        "Disk of the journal's SQLite file: what the daemon may still write (free), and all "
        "(size); absent for PostgreSQL.",
        labels=["kind"],
    )
    path = sqlite_path(url)
    if path is not None:
        with suppress(OSError):
            held = [os.stat(path).st_size]
            with suppress(OSError):
                held.append(os.stat(f"{path}-wal").st_size)
            size.add_metric([], float(sum(held)))
            disk = os.statvfs(path.parent)
            room.add_metric(["free"], float(disk.f_bavail * disk.f_frsize))
            room.add_metric(["size"], float(disk.f_blocks * disk.f_frsize))
    yield from (size, room)
