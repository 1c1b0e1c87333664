"""What lies in a run's checkpoint folder, and under which names.

    run.json                      the run's identity, never changed
    attempts/0001 ...             one file per launch, claimed with O_EXCL
    attempt.lock                  held by global rank 0 while it lives
    step-00000120/                a published checkpoint
    .step-00000120.attempt-2.staging/   a checkpoint being written
    registered.json               the last launch that the daemon accepted
    next.json                     what the next launch must run (restart switch)
    switch.json                   the switch in progress, in case this launch dies in it
    orders.json                   highest epoch seen, ids of switches done
    outbox/                       reports that the daemon has not acknowledged
    reached                       the last step that any launch reported
    stop                          asks the run to checkpoint and end at the next boundary
    hold.json                     asks the launcher to hold the next launch: for a sleep, or larger
                                  or smaller than this one
    held.json                     the launcher's answer
    asleep.json                   where a run that sleeps trains on
    launches.json                 the launches that a scheduler was asked to hold
    hosts.json                    where the supervisors of several hosts find the one that leads
    host-1.joined                 which leader host 1 follows, in case it is started anew
    routing.json                  what tokens chose of the experts, if the job records it
    failures/                     one sentence per rank that was ended

Invariant: only the job and its launcher write here, under the job's uid.
"""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattmesh import durable
from wattmesh.reconfig.layout import Layout

OUTCOME_VARIABLE = "WATTMESH_OUTCOME_FILE"
"""Environment variable: the file in which a supervisor wants to read its launch's outcome."""

HOLDS_VARIABLE = "WATTMESH_HOLDS_LAUNCHES"
"""Environment variable, set where the launcher can hold a run's next launch while it sleeps."""

RESIZES_VARIABLE = "WATTMESH_RESIZES_LAUNCHES"
"""Environment variable, set where the launcher can hold a next launch of another size."""

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
        """What the next launch must run."""
        return self.path / "next.json"

    @property
    def switch_file(self) -> Path:
        """The switch in progress."""
        return self.path / "switch.json"

    def ask_next(
        self,
        *,
        checkpoint: str,
        layout: Layout,
        ranks: Sequence[int],
        probe: float,
        switch: Mapping[str, Any],
        placement: Sequence[Sequence[int]] | None = None,
        resized_from: int = 0,
        left_s: float = 0.0,
    ) -> None:
        """Write what the next launch must run: from where, in which layout, by which switch.

        Args:
            checkpoint: folder name of the one to begin from.
            layout: to train in.
            ranks: that take part.
            probe: loss of the fixed batch there.
            switch: the record of the switch.
            placement: of experts, if it is another than the checkpoint's.
            resized_from: how many ranks were launched before, where only a launch of exactly the
                ordered ranks may take this; 0: any launch that is large enough may.
            left_s: seconds of that switch so far. Its time goes on when the next launch begins: how
                long nodes are waited for is no part of it.

        Raises:
            OSError: the file system refuses.
        """
        asked: dict[str, Any] = {
            "checkpoint": checkpoint,
            "layout": layout.to_dict(),
            "ranks": list(ranks),
        }
        if placement is not None:
            asked["placement"] = [list(rows) for rows in placement]
        if resized_from:
            asked |= {"resized_from": resized_from, "left_s": left_s}
        write_json(self.next_file, {**asked, "probe": probe, "switch": switch, "tries": 0})

    @property
    def orders_file(self) -> Path:
        """Highest epoch seen and ids of switches done."""
        return self.path / "orders.json"

    @property
    def outbox(self) -> Path:
        """Reports that the daemon has not acknowledged."""
        return self.path / "outbox"

    @property
    def registered_file(self) -> Path:
        """The last launch that the daemon accepted."""
        return self.path / "registered.json"

    @property
    def reached_file(self) -> Path:
        """The last step that any launch reported."""
        return self.path / "reached"

    @property
    def stop_file(self) -> Path:
        """A file that asks the run to checkpoint and end at its next boundary."""
        return self.path / "stop"

    @property
    def hold_file(self) -> Path:
        """What the launcher is asked to hold while the run sleeps."""
        return self.path / "hold.json"

    @property
    def held_file(self) -> Path:
        """The launcher's answer."""
        return self.path / "held.json"

    @property
    def asleep_file(self) -> Path:
        """Where a run that sleeps trains on."""
        return self.path / "asleep.json"

    @property
    def launches_file(self) -> Path:
        """The launches that a scheduler was asked to hold, and what became of them."""
        return self.path / "launches.json"

    @property
    def hosts_file(self) -> Path:
        """Where the supervisors of several hosts find the one that leads."""
        return self.path / "hosts.json"

    @property
    def routing_file(self) -> Path:
        """What tokens chose of the experts."""
        return self.path / "routing.json"

    @property
    def failures(self) -> Path:
        """Sentences of ranks that were ended."""
        return self.path / "failures"

    def failure_sentences(self) -> list[str]:
        """Return why ranks of the last launch ended; the first that was kept comes first.

        What ended the launch comes before what its end broke on other ranks.
        """
        told = [read_json(each) or {} for each in sorted(self.failures.glob("*.json"))]
        told = [each for each in told if isinstance(each.get("at_s"), float)]
        told.sort(key=lambda each: float(each["at_s"]))
        return [str(each["sentence"]) for each in told if each.get("sentence")]

    def checkpoint(self, step: int) -> Path:
        """Return where the checkpoint of `step` is published."""
        return self.path / f"step-{step:08d}"

    def staging(self, step: int, attempt: int) -> Path:
        """Return where attempt `attempt` writes the checkpoint of `step`."""
        return self.path / f".step-{step:08d}.attempt-{attempt}.staging"

    def checkpoints(self) -> list[Path]:
        """Return the published checkpoints, newest first."""
        found = [each for each in self.path.iterdir() if _CHECKPOINT.fullmatch(each.name)]
        return sorted(found, key=step_of, reverse=True)

    def drop_stagings(self) -> None:
        """Remove checkpoints that earlier launches left half written; the caller holds the lock."""
        for each in self.path.iterdir():
            if is_staging(each):
                shutil.rmtree(each, ignore_errors=True)


def is_staging(folder: Path) -> bool:
    """Tell whether a folder's name is that of a checkpoint which is not published yet."""
    return _STAGING.fullmatch(folder.name) is not None


def step_of(checkpoint: Path) -> int:
    """Return the training step in a published checkpoint's name."""
    return int(checkpoint.name.removeprefix("step-"))


def attempt_of(staging: str) -> int:
    """Return the attempt number in a staging folder's name."""
    return int(staging.rpartition(".attempt-")[2].removesuffix(".staging"))


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a small JSON object; None if the file cannot be read or holds no object."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def write_json(path: Path, data: Mapping[str, Any], *, sync: bool = True) -> None:
    """Write a small JSON object durably; without `sync`, without fsync."""
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write_text(path, json.dumps(data, sort_keys=True) + "\n", sync=sync)
