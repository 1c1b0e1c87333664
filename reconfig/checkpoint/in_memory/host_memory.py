"""Which rank's area, on which host, each data file of a staged copy lies in.

`memory.json` in the staging folder says it, beside the index; a data file that it does not name
lies in the folder. Ranks of one host map each other's areas. What another host holds comes over the
network (`across_hosts.py`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wattmesh import durable
from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.checkpoint.in_memory.shared_memory import (
    AreaName,
    Bytes,
    PeerAreas,
    StagingArea,
)
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.folder import is_staging
from wattmesh.reconfig.launch.peers import host_here

MEMORY = "memory.json"
"""In a staging folder: which area holds which data file. A published folder has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """Where a data file lies in memory: from byte `at` of an area on, on `host`."""

    host: str
    area: AreaName
    at: int
    nbytes: int


class HostMemory:
    """What one rank has to do with shared memory: its own area, and those of its host's peers.

    Attributes:
        here: this rank's host, as `host_here` tells it.
        hosts: those of all ranks that staged or loaded last, in group order.
        spans_hosts: whether what is staged next will be read on several hosts.
        refused: why the last reservation failed on some rank; "" when it did not.
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.area = StagingArea()
        self.peers = PeerAreas()
        self.here = host_here()
        self.hosts: tuple[str, ...] = ()
        self.spans_hosts = False
        self.refused = ""

    def lowest_here(self, ranks: Sequence[int]) -> int | None:
        """Return the lowest of a group's global `ranks` that is on this host; None without one."""
        beside = (rank for rank, host in zip(ranks, self.hosts, strict=True) if host == self.here)
        return min(beside, default=None)

    def share_of_host(self, rank: int) -> tuple[int, int]:
        """Return which share of this host's files `rank` of the group looks at, of how many."""
        beside = [each for each, host in enumerate(self.hosts) if host == self.here]
        return beside.index(rank), len(beside)

    def files(self, folder: Path) -> "MappedFiles | None":
        """Return the data files of a staged copy; None where they lie in the folder.

        Raises:
            CheckpointDamaged: an area of this host cannot be mapped.
        """
        where = where_of(folder)
        if where is None:
            return None
        mapped = {name: self._bytes_of(each) for name, each in where if each.host == self.here}
        away = {name: each.host for name, each in where if each.host != self.here}
        return MappedFiles(folder, mapped, away)

    def reserve(self, nbytes: int) -> bool:
        """Reserve this rank's area and map those of its host; a collective call.

        Returns:
            Whether every rank could; where one could not, every rank's `refused` says why, and none
            keeps its area.
        """
        problem, mine = "", {}
        try:
            self.area.reserve(nbytes)
            mine = asdict(self.area.name)
        except (OSError, ValueError) as error:
            problem = f"{nbytes / 1e6:.0f} MB of shared memory cannot be had ({error})"
        told = group.gather([problem, mine, self.here])
        self.hosts = tuple(host for _, _, host in told)
        problem = next((each for each, _, _ in told if each), "")
        if not problem:
            near = [AreaName(**area) for _, area, host in told if host == self.here]
            problem = group.agree_on_problem(self._mapped(near))
        self.refused = problem
        if problem:
            self.release()
        return not problem

    def release(self) -> None:
        """Give all memory back; only while no staged copy is needed."""
        self.area.release()
        self.peers.keep_only([])

    def _bytes_of(self, file: StagedFile) -> Bytes:
        own = self.area.nbytes and self.area.name == file.area
        area = self.area.reserve(self.area.nbytes) if own else self.peers.map(file.area)
        return area[file.at : file.at + file.nbytes]

    def _mapped(self, areas: Sequence[AreaName]) -> str:
        """Map every area; say what went wrong."""
        try:
            others = [each for each in areas if each != self.area.name]
            self.peers.keep_only(others)
            for each in others:
                self.peers.map(each)
        except CheckpointDamaged as error:
            return str(error)
        return ""


class MappedFiles:
    """The data files of a staged copy: those of this host as bytes in memory.

    Attributes:
        away: the host of each file that is in the memory of another one.
    """

    def __init__(
        self, folder: Path, files: Mapping[str, Bytes], away: Mapping[str, str] | None = None
    ) -> None:
        """Take the files by name; `folder`: of the checkpoint that they belong to."""
        self.folder = folder
        self.away = away or {}
        self._files = files

    def __contains__(self, name: object) -> bool:
        """Whether a file is in the memory of this host."""
        return name in self._files

    def part(self, name: str, offset: int, nbytes: int) -> Bytes:
        """Return bytes of one file, uncopied.

        Raises:
            CheckpointDamaged: the file is missing, or ends before that.
        """
        found = self._files.get(name, _NO_BYTES)
        if offset < 0 or offset + nbytes > len(found):
            raise CheckpointDamaged(
                f"{self.folder.name}/{name} has {len(found)} bytes in shared memory; bytes "
                f"{offset} to {offset + nbytes} were expected."
            )
        return found[offset : offset + nbytes]

    def items(self) -> Iterator[tuple[str, Bytes]]:
        """Every file in the memory of this host, by name."""
        yield from sorted(self._files.items())


def note(staging: Path, every: Sequence[Mapping[str, Any]], *, sync: bool) -> None:
    """Write `memory.json`, where every rank's data files lie, if they lie in memory."""
    if not any("memory" in told for told in every):
        return
    where = {name: each for told in every for name, each in told["memory"].items()}
    durable.write_new(staging / MEMORY, json.dumps(where).encode(), mode=0o600, sync=sync)


def where_of(folder: Path) -> list[tuple[str, StagedFile]] | None:
    """Read `memory.json` of a staging folder; None where there is none.

    Raises:
        CheckpointDamaged: it is malformed.
    """
    if not is_staging(folder):
        return None  # a folder with a name has its files, whatever else lies in it
    try:
        told = json.loads((folder / MEMORY).read_bytes())
        return [
            (name, StagedFile(**{**each, "area": AreaName(**each["area"])}))
            for name, each in told.items()
        ]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamaged(f"checkpoint {folder.name}: {MEMORY}: {error!s:.300}.") from error


NO_MEMORY = HostMemory()
"""For callers outside of a switch. Nobody reserves its area."""

_NO_BYTES: Bytes = np.empty(0, dtype=np.uint8)
