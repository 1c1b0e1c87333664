"""What lies in a run's checkpoint folder, and under which names.

    run.json                      the run's identity, for ever
    attempts/0001 ...             one file per launch, claimed with O_EXCL
    attempt.lock                  held by global rank 0 while it lives
    step-00000120/                a published checkpoint
    .step-00000120.attempt-2.staging/   one being written
    registered.json               the last launch that the daemon let in
    next.json                     what the next launch shall run (restart switch)
    switch.json                   the switch in progress, should this launch die in it
    orders.json                   highest epoch seen, plans done
    outbox/                       reports that the daemon has not acknowledged
    reached                       the last step that any launch reported
    stop                          asks for a checkpoint and an end at the next boundary
    failures/                     one sentence per rank that was ended

Invariant: only the job itself writes here, under its own uid.
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattmesh import durable

OUTCOME_VARIABLE = "WATTMESH_OUTCOME_FILE"
"""Environment variable: where a supervisor wants to read how its launch goes."""

_CHECKPOINT = re.compile(r"step-(\d{8,})")
_STAGING = re.compile(r"\.step-\d{8,}\.attempt-\d+\.staging")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The checkpoint folder of one run."""

    path: Path

    @property
    def run_file(self) -> Path:
        """The run's identity."""
        return self.path / "run.json"

    @property
    def attempts(self) -> Path:
        """Folder of claimed attempt numbers."""
        return self.path / "attempts"

    @property
    def lock(self) -> Path:
        """File whose lock the live incarnation holds."""
        return self.path / "attempt.lock"

    @property
    def next_file(self) -> Path:
        """What the next launch shall run."""
        return self.path / "next.json"

    @property
    def switch_file(self) -> Path:
        """The switch in progress."""
        return self.path / "switch.json"

    @property
    def orders_file(self) -> Path:
        """Highest epoch seen and plans done."""
        return self.path / "orders.json"

    @property
    def outbox(self) -> Path:
        """Reports that were not acknowledged."""
        return self.path / "outbox"

    @property
    def registered_file(self) -> Path:
        """The last launch that the daemon let in."""
        return self.path / "registered.json"

    @property
    def reached_file(self) -> Path:
        """The last step that any launch reported."""
        return self.path / "reached"

    @property
    def stop_file(self) -> Path:
        """Asks the run to checkpoint and leave at its next boundary."""
        return self.path / "stop"

    @property
    def failures(self) -> Path:
        """Sentences of ranks that were ended."""
        return self.path / "failures"

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of `step` is published."""
        return self.path / f"step-{step:08d}"

    def staging(self, step: int, attempt: int) -> Path:
        """Where attempt `attempt` writes the checkpoint of `step`."""
        return self.path / f".step-{step:08d}.attempt-{attempt}.staging"

    def checkpoints(self) -> list[Path]:
        """Published checkpoints, newest first."""
        found = [each for each in self.path.iterdir() if _CHECKPOINT.fullmatch(each.name)]
        return sorted(found, key=step_of, reverse=True)

    def drop_stagings(self) -> None:
        """Remove what earlier launches left half written; the caller holds the lock."""
        for each in self.path.iterdir():
            if _STAGING.fullmatch(each.name):
                shutil.rmtree(each, ignore_errors=True)


def step_of(checkpoint: Path) -> int:
    """The training step that a published checkpoint's name carries."""
    return int(checkpoint.name.removeprefix("step-"))


def attempt_of(staging: str) -> int:
    """The attempt number that a staging folder's name carries."""
    return int(staging.rpartition(".attempt-")[2].removesuffix(".staging"))


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a small JSON object; None when it is missing or not one."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def write_json(path: Path, data: Mapping[str, Any], *, sync: bool = True) -> None:
    """Write a small JSON object durably; without `sync`, without waiting for a disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write_text(path, json.dumps(data, sort_keys=True) + "\n", sync=sync)
