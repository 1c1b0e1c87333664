"""The demo's daemon for an hour at real speed, while everything around it breaks.

    python -m benchmarks.soak [--minutes 60] [--out FOLDER] [--json]

A real training job runs under a real daemon on a recorded grid day at 1x time. Meanwhile the daemon
is killed (-9), its clock stepped by an hour both ways, its disk filled, its database taken away and
upgraded, and a rank of the job killed. After every blow `wattmesh status` is asked, as a person at
3 a.m. would; at the end every device's booked joules are held against its own counter.

Needs root (for a small file system to fill) and a C compiler (for a clock that can be stepped for
the daemon alone, wall_clock.c). Invariant: it undoes what it did, and ends every process that it
started, by pid.
"""

import argparse
import json
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from examples.demo import job as jobs
from examples.demo.daemon import RunPaths, settings_text
from examples.demo.plan import DemoPlan
from examples.pretrain.pace import TOKENS_PER_S_PER_GPU
from wattmesh import durable, migrations
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.process.children import Child, Children
from wattmesh.controller.profile.job import read_job
from wattmesh.controller.profile.profile import profile
from wattmesh.controller.profile.proof import prove
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Catalogue
from wattmesh.telemetry.fake_nvml import DEMO_BOARD, FakeNvml

DISK_MIB = 24
SETTLE_S = 12.0
"""Between a blow and the question: a person looks after some seconds, not at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What `wattmesh status` said after something happened."""

    minute: float
    event: str
    code: int
    text: str


@dataclass(slots=True)
class Stage:
    """Everything that runs, and the means to break it."""

    plan: DemoPlan
    places: RunPaths
    children: Children
    disk: Path
    clock: Path
    library: Path
    began_s: float = field(default_factory=time.monotonic)
    daemon: Child | None = None
    job: jobs.DemoJob | None = None
    answers: list[Answer] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)

    @property
    def database(self) -> Path:
        """The journal's file, on the small disk."""
        return self.disk / "journal.db"

    @property
    def config(self) -> Path:
        """The daemon's settings file."""
        return self.places.config

    def start_daemon(self) -> None:
        """Start the daemon under a clock that can be stepped, and wait until it answers or ends."""
        self.daemon = self.children.start(
            "daemon",
            [sys.executable, "-m", "wattmesh.controller.daemon", "--config", str(self.config)],
            log=self.plan.logs / "daemon.log",
            environment={
                "LD_PRELOAD": str(self.library),
                "WALL_CLOCK_FILE": str(self.clock),
            },
        )
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s and self.daemon.ended() is None:
            if self.status()[0] == 0:
                return
            time.sleep(0.2)

    def kill_daemon(self) -> None:
        """Kill it as the kernel's out-of-memory killer does."""
        assert self.daemon is not None
        os.kill(self.daemon.pid, signal.SIGKILL)
        while self.daemon.ended() is None:
            time.sleep(0.05)

    def status(self) -> tuple[int, str]:
        """Ask `wattmesh status`; give its exit status and all it said."""
        asked = subprocess.run(
            [
                *(sys.executable, "-m", "wattmesh.controller.cli.main", "status"),
                *("--socket", str(self.places.socket), "--config", str(self.config)),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "COLUMNS": "118"},
        )
        return asked.returncode, (asked.stdout + asked.stderr).rstrip()

    def ask(self, event: str) -> None:
        """Write down what status says now."""
        code, text = self.status()
        minute = (time.monotonic() - self.began_s) / 60
        self.answers.append(Answer(minute=minute, event=event, code=code, text=text))
        print(f"\n--- minute {minute:.1f}: {event} (exit {code})\n{text}", flush=True)

    def step_clock(self, seconds: int) -> None:
        """Set the daemon's wall clock this far from the machine's."""
        if not self.clock.exists():
            self.clock.write_bytes(bytes(8))
        with self.clock.open("r+b") as file:
            file.write(struct.pack("=q", seconds))

    def fill_disk(self) -> None:
        """Leave no byte on the journal's disk."""
        with (self.disk / "filler").open("wb") as file:
            try:
                while True:
                    file.write(bytes(65536))
                    file.flush()
            except OSError:
                return

    def free_disk(self) -> None:
        """Give the space back."""
        (self.disk / "filler").unlink()

    def take_database(self) -> None:
        """Move the database away, with its log."""
        (self.disk / "taken").mkdir()
        for file in self.disk.glob("journal.db*"):
            file.rename(self.disk / "taken" / file.name)

    def put_database_back(self) -> None:
        """Move it back."""
        for file in (self.disk / "taken").iterdir():
            file.rename(self.disk / file.name)
        (self.disk / "taken").rmdir()

    def stamp(self, revision: str) -> None:
        """Change the revision, as an upgrade by another version would."""
        connection = sqlite3.connect(self.database, timeout=30)
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        connection.execute("UPDATE schema_floor SET oldest = ?", (revision,))
        connection.commit()
        connection.close()

    def kill_rank(self) -> None:
        """Kill one training process."""
        pids = _ranks(self.places.folder)
        os.kill(pids[-1], signal.SIGKILL)


def _ranks(folder: Path) -> list[int]:
    """Find the training processes of this soak by their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        mine = any(str(folder).encode() in word for word in words)
        launcher = {b"torch.distributed.run", b"wattmesh.integrations.torchrun"} & set(words)
        if mine and b"examples.pretrain" in words and not launcher:
            found.append(int(entry.name))
    return sorted(found)


Blow = tuple[str, Callable[[Stage], None], str, Callable[[Stage], None]]


def _restart(stage: Stage) -> None:
    """Stop a daemon that still runs, start it again."""
    if stage.daemon is not None and stage.daemon.ended() is None:
        stage.daemon.stop()
    stage.start_daemon()


def _newer(stage: Stage) -> None:
    """Let a newer version upgrade the database, then start this one again."""
    stage.stamp("9999")
    _restart(stage)


def _older(stage: Stage) -> None:
    """Put the revision back, as a restored backup would, and start again."""
    stage.stamp(migrations.HEAD)
    _restart(stage)


BLOWS: tuple[Blow, ...] = (
    ("the daemon was killed (-9)", Stage.kill_daemon, "it was started again", Stage.start_daemon),
    (
        "its clock was stepped an hour ahead",
        lambda stage: stage.step_clock(3600),
        "the clock was stepped back",
        lambda stage: stage.step_clock(0),
    ),
    (
        "its clock was stepped an hour behind",
        lambda stage: stage.step_clock(-3600),
        "the clock was put right",
        lambda stage: stage.step_clock(0),
    ),
    ("its disk was filled", Stage.fill_disk, "the disk was freed", Stage.free_disk),
    (
        "its database was taken away",
        Stage.take_database,
        "the database was put back",
        Stage.put_database_back,
    ),
    (
        "its database was upgraded by a newer version under it",
        lambda stage: stage.stamp("9999"),
        "the daemon was restarted on it",
        _newer,
    ),
    (
        "the database is at this version again and the daemon was restarted",
        _older,
        "a while later",
        lambda _: None,
    ),
    ("a training process was killed (-9)", Stage.kill_rank, "a while later", lambda _: None),
)


def soak(minutes: float, folder: Path) -> dict[str, Any]:
    """Run the whole soak; give its record."""
    plan = _plan(minutes, folder)
    short = Path(f"/run/wattmesh-soak-{os.getpid()}")
    short.mkdir(parents=True)
    with Children() as children, _small_disk(folder / "disk") as disk:
        places = RunPaths(
            folder=folder / "main", socket=short / "s", gpus=folder / "gpus", logs=plan.logs
        )
        stage = Stage(
            plan=plan,
            places=places,
            children=children,
            disk=disk,
            clock=folder / "clock",
            library=_clock_library(folder),
        )
        stage.step_clock(0)
        _profile(plan)
        # A paced step is over before the counter of a real board would change.
        fake = FakeNvml.create(places.gpus, plan.processes, DEMO_BOARD, update_ms=0)
        devices = tuple(each.uuid for each in fake.gpus)
        _write_settings(stage)
        stage.job = jobs.start(children, plan, places)
        stage.job.wait_until_ready()
        before = _counters(places.gpus)
        stage.start_daemon()
        first_read = (before, _counters(places.gpus))
        stage.job.release(time.monotonic())
        _breaking(stage, minutes)
        assert stage.daemon is not None
        stage.daemon.stop()
        record = _record(stage, devices, first_read)
    shutil.rmtree(short, ignore_errors=True)
    return record


def _breaking(stage: Stage, minutes: float) -> None:
    """Deal one blow after another, evenly over the time."""
    end_s = stage.began_s + minutes * 60
    time.sleep(min(60.0, minutes * 6))
    stage.ask("nothing happened yet")
    share_s = max(2 * SETTLE_S, (end_s - time.monotonic()) / len(BLOWS))
    for hurt, strike, mended, undo in BLOWS:
        began_s = time.monotonic()
        strike(stage)
        time.sleep(SETTLE_S)
        stage.ask(hurt)
        time.sleep(max(0.0, share_s * 0.4 - (time.monotonic() - began_s)))
        undo(stage)
        time.sleep(SETTLE_S)
        stage.ask(mended)
        time.sleep(max(0.0, share_s - (time.monotonic() - began_s)))


def _counters(folder: Path) -> dict[str, int]:
    """Read every device's own counter."""
    return {each.uuid: each.truth().counter_mj for each in FakeNvml.open(folder).gpus}


def _record(
    stage: Stage, devices: tuple[str, ...], first_read: tuple[dict[str, int], dict[str, int]]
) -> dict[str, Any]:
    """Hold the ledger against the devices' own counters, and write everything down."""
    journal = Journal.open(f"sqlite:///{stage.database}")
    rows = journal.ledger.energy()
    counters = journal.ledger.baselines()
    events = [f"{each.at:%H:%M:%S} {each.kind}: {each.detail}" for each in journal.events.list(500)]
    journal.close()
    booked = {gpu: sum(r.energy_mj or 0 for r in rows if r.gpu_uuid == gpu) for gpu in devices}
    return {
        "minutes": (time.monotonic() - stage.began_s) / 60,
        "answers": [vars_of(each) for each in stage.answers],
        "booked_mj": booked,
        "counter_when_booked_mj": {gpu: counters[gpu].energy_mj for gpu in devices},
        "counter_before_first_reading_mj": first_read[0],
        "counter_after_first_reading_mj": first_read[1],
        "unobserved_s": sum(row.unobserved_ms for row in rows) / 1000,
        "steps": stage.job.rows()[-1].step if stage.job and stage.job.rows() else 0,
        "events": events,
    }


def vars_of(answer: Answer) -> dict[str, Any]:
    """Give an answer as JSON."""
    return {
        "minute": round(answer.minute, 2),
        "event": answer.event,
        "exit": answer.code,
        "text": answer.text,
    }


def _plan(minutes: float, folder: Path) -> DemoPlan:
    """Plan a demo whose day lasts a day."""
    usual = DemoPlan(folder=folder)
    return replace(
        usual,
        day_s=86_400.0,
        steps=int(minutes * 60 * 20),
        device_tokens_per_s=TOKENS_PER_S_PER_GPU,
        boundary_every=64,
        deadline_after_s=minutes * 60 * 20,
        cycle_s=1.0,
        sample_s=1.0,
    )


def _profile(plan: DemoPlan) -> None:
    """Write the catalogue."""
    described = read_job(jobs.TRAINER_PROFILE)
    asked = replace(
        described, name=plan.run_name, tokens_total=plan.steps * described.tokens_per_step
    )
    found: Catalogue = prove(asked, profile(asked, plan.folder / "profile")).catalogue
    catalogue_file.save(found, plan.catalogue)


def _write_settings(stage: Stage) -> None:
    """Write the settings, with the journal on the small disk."""
    stage.places.folder.mkdir(parents=True)
    text = settings_text(stage.plan, stage.places, mode="act", plays_at=datetime.now(UTC))
    text = text.replace(str(stage.places.journal), str(stage.database))
    durable.write_text(stage.config, text)


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of a few MiB."""
    folder.mkdir(parents=True)
    size = f"size={DISK_MIB}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def _clock_library(folder: Path) -> Path:
    """Compile the wall clock that can be stepped for one process."""
    library = folder / "wall_clock.so"
    source = Path(__file__).with_name("wall_clock.c")
    words = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"]
    subprocess.run(words, check=True)
    return library


def _verdicts(record: dict[str, Any]) -> Iterator[str]:
    """Say for every device whether what was booked is what its counter moved.

    The counter at the first reading itself is only known to lie between two readings of ours.
    """
    for gpu, booked_mj in record["booked_mj"].items():
        first_mj = record["counter_when_booked_mj"][gpu] - booked_mj
        low_mj = record["counter_before_first_reading_mj"][gpu]
        high_mj = record["counter_after_first_reading_mj"][gpu]
        verdict = "exact" if low_mj <= first_mj <= high_mj else "WRONG"
        yield (
            f"{gpu}: booked {booked_mj} mJ up to counter {first_mj + booked_mj} mJ, so first "
            f"read at {first_mj} mJ, which lies in [{low_mj}, {high_mj}]: {verdict}"
        )


def main() -> int:
    """Run it, print the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=Path("wattmesh-soak"))
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("soak: run it as root; it needs a file system of its own to fill")
    if chosen.out.exists():
        raise SystemExit(f"soak: {chosen.out} exists; remove it or name another with --out")
    folder = chosen.out.resolve()
    folder.mkdir(parents=True)
    record = soak(chosen.minutes, folder)
    (folder / "record.json").write_text(json.dumps(record, indent=2))
    if chosen.json:
        print(json.dumps(record))
    for line in _verdicts(record):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
