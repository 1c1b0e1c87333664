"""What a run leaves in its folder while it sleeps, and how it asks for its next launch.

    hold.json     the job: hold my next launch until then, or of that size, and one to go back
    held.json     the launcher: I hold it, or why not
    asleep.json   the job: where the next launch trains on

Invariant: a launch that begins removes all three, and a launcher lets go of a launch that is no
longer asked for.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from wattmesh.errors import InputInvalid
from wattmesh.reconfig import ranges
from wattmesh.reconfig.launch.folder import RunFolder, read_json, write_json
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.messages import Message, RankList

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRequest(Message):
    """Asks the launcher to hold the next launch.

    Attributes:
        key: id of the order to sleep, or to go on in another size.
        ranks: how many ranks the next launch starts.
        wakes_at: when it begins at the latest; None: as soon as this one has ended.
        back_ranks: how many ranks the launch has that takes its place, should it not have begun at
            `back_at`; None: there is none.
    """

    key: ranges.Token
    run: ranges.RunId
    ranks: ranges.WorldSize
    wakes_at: ranges.At | None = None
    back_ranks: ranges.WorldSize | None = None
    back_at: ranges.At | None = None

    @property
    def begins_at(self) -> datetime | None:
        """When the next launch begins at the latest; None: as soon as this one has ended."""
        return datetime.fromisoformat(self.wakes_at) if self.wakes_at else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldAnswer(Message):
    """The launcher's answer. `held_as`: how people find it; `problem`: why it holds none."""

    key: ranges.Token
    held_as: ranges.Label = ""
    problem: ranges.Said = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsleepNote(Message):
    """Where a run that sleeps trains on.

    Attributes:
        key: id of the order to sleep. `attempt`, `launched`: of the launch that fell asleep.
        checkpoint: folder name of its newest checkpoint. `probe`: loss of the fixed batch there.
    """

    key: ranges.Token
    run: ranges.RunId
    attempt: ranges.Attempt
    launched: ranges.WorldSize
    step: ranges.Steps
    checkpoint: str
    layout: Layout
    ranks: RankList
    probe: float
    seekable: bool = True


def write(path: Path, message: Message) -> None:
    """Write one of the three files, durably.

    Raises:
        OSError: the file system refuses.
    """
    write_json(path, message.to_json())


def read(path: Path, kind: type[M]) -> M | None:
    """Read one of the three files; None if it is not there, or is damaged."""
    found = read_json(path)
    with suppress(InputInvalid):
        return kind.from_json(found) if found is not None else None
    return None


def awake(folder: RunFolder) -> None:
    """Remove what a run leaves while it sleeps."""
    for path in (folder.hold_file, folder.held_file, folder.asleep_file):
        with suppress(OSError):
            path.unlink(missing_ok=True)
