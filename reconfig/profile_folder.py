"""The folder of one profiled or validated launch: what the run is asked to do, and what it writes.

    asked.json        steps between two checkpoints
    run/              replaces the run's own checkpoint folder
    steps.jsonl       one line per optimizer step, by the hook
    own-steps.jsonl   the same by the job itself, where its command takes `{losses}`
    memory-RANK.jsonl peak memory of a rank's device, whenever it grew

Invariant: a run under this folder saves nowhere else. An incomplete last line is not read.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.launch.folder import RunFolder

PROFILE_VARIABLE = "WATTMESH_PROFILE"
"""Environment variable: the folder of the launch that a script is part of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The most memory that one rank's device had reserved since its layout began."""

    rank: int
    step: int
    layout: str
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class ProfileFolder:
    """The folder of one launch."""

    path: Path

    @classmethod
    def from_environment(cls) -> Self | None:
        """Find the folder that this process runs under; None if it runs under none."""
        name = os.environ.get(PROFILE_VARIABLE, "")
        return cls(Path(name)) if name else None

    @property
    def run(self) -> Path:
        """Where the run keeps its checkpoints."""
        return self.path / "run"

    @property
    def steps(self) -> Path:
        """The step log that the hook writes."""
        return self.path / "steps.jsonl"

    @property
    def own_steps(self) -> Path:
        """The step log that the job itself may write."""
        return self.path / "own-steps.jsonl"

    def memory(self, rank: int) -> Path:
        """Return where a rank writes its device's peak memory."""
        return self.path / f"memory-{rank}.jsonl"

    def ask(self, every: int) -> None:
        """Make the folder and write the request; with 0 the script's own interval holds."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "asked.json").write_text(json.dumps({"every": every}), encoding="utf-8")

    def every(self) -> int:
        """Read how many steps lie between two checkpoints; 0: as many as the script says.

        Raises:
            InputInvalid: this is not such a folder.
        """
        try:
            return int(json.loads((self.path / "asked.json").read_bytes())["every"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputInvalid(
                f"{PROFILE_VARIABLE} = {str(self.path)!r} is no folder that `wattmesh configs "
                "profile` has made, so where this run may save is not known; unset the variable."
            ) from error

    def stop(self) -> None:
        """Ask the run to end at its next boundary."""
        self.run.mkdir(parents=True, exist_ok=True)
        RunFolder(self.run).stop_file.touch()

    def device_memory(self) -> tuple[DeviceMemory, ...]:
        """Read what all ranks wrote of their devices' memory."""
        found = []
        for path in sorted(self.path.glob("memory-*.jsonl")):
            for line in path.read_bytes().splitlines():
                try:
                    found.append(DeviceMemory(**json.loads(line)))
                except (ValueError, TypeError):
                    continue
        return tuple(found)


def memory_line(row: DeviceMemory) -> bytes:
    """Encode one line of a rank's file."""
    return f"{json.dumps(asdict(row))}\n".encode()
