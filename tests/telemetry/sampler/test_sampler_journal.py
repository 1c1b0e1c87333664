"""The sampler on real journals and on NVML: no stand-ins at either end."""

import shutil
import time
from pathlib import Path

import pytest

from tests.builders.journals import fresh_file
from tests.telemetry.sampler.test_sampler import GRID, RUN
from tests.telemetry.world import World
from wattmesh.controller.journal.journal import Journal
from wattmesh.errors import JournalUnavailable
from wattmesh.telemetry.energy.ledger import SlotGrid
from wattmesh.telemetry.energy.sampler import Sampler
from wattmesh.telemetry.fake_nvml import FakeNvml
from wattmesh.telemetry.readings import utc_now
from wattmesh.telemetry.sources.nvml_source import NvmlSource


def test_a_killed_sampler_goes_on_in_the_journal(journal: Journal) -> None:
    """Two lives of a sampler on one journal book what the counters moved, in absolute rows."""
    world = World("G0", "G1")
    start_mj = 0
    for _ in range(2):
        sampler = Sampler(world, journal.ledger, GRID, boot_id="boot-1")
        for _ in range(5):
            world.pass_time(400)
            sampler.step(world.now, world.monotonic_s, {"G0": RUN})
            start_mj = start_mj or 2 * world.gpu.counter_mj
            sampler.flush()
        world.pass_time(500)
    rows = journal.ledger.energy()
    last = journal.ledger.baselines()["G0"].energy_mj
    assert sum(row.energy_mj or 0 for row in rows) == 2 * last - start_mj
    assert {row.run for row in rows} == {"run-1", ""}
    assert {row.quality for row in rows} == {"measured"}


def test_a_journal_that_is_gone_loses_nothing(tmp_path: Path) -> None:
    """A SQLite file moved away and back: flushes fail meanwhile, and the sum is right after."""
    opened = fresh_file(tmp_path / "journal.db")
    world = World()
    sampler = Sampler(world, opened.ledger, GRID, boot_id="boot-1")
    sampler.step(world.now, world.monotonic_s, {})
    sampler.flush()
    (tmp_path / "away").mkdir()
    opened.close()
    for file in tmp_path.glob("journal.db*"):
        shutil.move(file, tmp_path / "away" / file.name)
    (tmp_path / "journal.db").mkdir()  # nothing can be opened there
    for _ in range(10):
        world.pass_time(60)
        sampler.step(world.now, world.monotonic_s, {})
        with pytest.raises(JournalUnavailable):
            sampler.flush()
    (tmp_path / "journal.db").rmdir()
    for file in (tmp_path / "away").iterdir():
        shutil.move(file, tmp_path / file.name)
    sampler.flush()
    assert sum(row.energy_mj or 0 for row in opened.ledger.energy()) == 60_000_000
    opened.close()


def test_gpus_are_booked_as_their_counters_say(tmp_path: Path) -> None:
    """In real time: rows sum to what the counters moved, and rows of fake GPUs say simulated."""
    opened = fresh_file(tmp_path / "journal.db")
    source = NvmlSource(FakeNvml.create(tmp_path / "gpus", 2, update_ms=0).library)
    grid = SlotGrid(origin=utc_now(), interval_s=0.05)
    sampler = Sampler(source, opened.ledger, grid, boot_id="boot-1")
    first = sampler.step(utc_now(), time.monotonic(), {})
    for _ in range(20):
        last = sampler.step(utc_now(), time.monotonic(), {})
        sampler.flush()
    moved_mj = [
        (after.energy_mj or 0) - (before.energy_mj or 0)
        for before, after in zip(first.readings, last.readings, strict=True)
    ]
    rows = opened.ledger.energy()
    assert sum(row.energy_mj or 0 for row in rows) == sum(moved_mj)
    assert {(row.source, row.quality) for row in rows} == {("nvml", "simulated")}
    source.close()
    opened.close()
