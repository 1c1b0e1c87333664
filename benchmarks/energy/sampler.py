"""Our sampler as a process of its own, over a real journal; `benchmarks.energy` kills it.

    python -m benchmarks.energy.sampler LIBRARY JOURNAL_FILE [FLUSH_S]

Prints one JSON line when it has read every device once, {"first": {uuid: monotonic seconds}}, and
one when it was asked to end (SIGTERM) and has booked everything, {"last": {...}}.
"""

import json
import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from wattmesh.controller.journal.database.schema import bring_up_to_date
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.process.life import boot_id
from wattmesh.telemetry.energy.ledger import SlotGrid
from wattmesh.telemetry.energy.sampler import Sample, Sampler
from wattmesh.telemetry.sources.nvml_source import NvmlSource

PERIOD_S = 1.0
GRID = SlotGrid(origin=datetime(2020, 1, 1, tzinfo=UTC), interval_s=1800.0)


def said(word: str, sample: Sample) -> None:
    """Tell when each device was read."""
    times = {each.gpu_uuid: each.monotonic_s for each in sample.readings}
    print(json.dumps({word: times}), flush=True)


def main(library: Path, database: Path, flush_s: float) -> int:
    """Sample until told to end."""
    over, parent = threading.Event(), os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    url = f"sqlite:///{database}"
    bring_up_to_date(url)
    journal = Journal.open(url)
    sampler = Sampler(NvmlSource(library), journal.ledger, GRID, boot_id=boot_id())

    def step() -> Sample:
        return sampler.step(datetime.now(UTC), time.monotonic(), {})

    said("first", step())
    due_s = flushed_s = time.monotonic()
    while not over.is_set():
        due_s += PERIOD_S
        if over.wait(max(0.0, due_s - time.monotonic())):
            break
        if os.getppid() != parent:  # the benchmark was killed
            return 1
        step()
        if time.monotonic() - flushed_s >= flush_s:
            flushed_s = time.monotonic()
            sampler.flush()
    last = step()
    sampler.flush()
    said("last", last)
    sampler.close()
    journal.close()
    return 0


if __name__ == "__main__":
    flush = float(sys.argv[3]) if len(sys.argv) > 3 else 10.0
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), flush))
