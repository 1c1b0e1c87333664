"""How the hosts of a run find each other: `hosts.json` of the run folder, which they share.

The leader writes it when it begins, before each launch, and when it ends. It holds the secret by
which hosts know each other, so only the run's user may read it.

Invariant: one leader at a time, by a lock that the kernel lets go of with its process.
"""

import json
from dataclasses import dataclass
from typing import Annotated

from wattmesh import durable
from wattmesh.errors import InputInvalid, Refused
from wattmesh.reconfig import ranges
from wattmesh.reconfig.launch.folder import RunFolder, read_json
from wattmesh.reconfig.wire.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting(Message):
    """Where the leader is, and what it does.

    Attributes:
        session: id of the leader's process. `job`: the scheduler's job whose hosts it leads; "".
        address, port: where it listens. `secret`: what both sides prove to know.
        launch: token of the newest launch, which its processes carry in their environment; "".
        over: exit status of the leader, once it has ended as it should; None before.
    """

    session: ranges.Token
    address: ranges.Label
    port: Annotated[int, ranges.Whole(1, 65535, "as a port")]
    secret: ranges.Token
    job: ranges.Label = ""
    launch: ranges.Label = ""
    over: Annotated[int, ranges.Whole(-255, 255, "as an exit status")] | None = None


def read(folder: RunFolder) -> Meeting | None:
    """Return what the leader wrote; None if there is none, or it cannot be read."""
    found = read_json(folder.hosts_file)
    try:
        return Meeting.from_json(found) if found is not None else None
    except InputInvalid:
        return None


def write(folder: RunFolder, meeting: Meeting) -> None:
    """Write it, for the run's user alone.

    Raises:
        OSError: the file system refuses.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    text = json.dumps(meeting.to_json(), sort_keys=True) + "\n"
    durable.write_text(folder.hosts_file, text, mode=0o600)


def lead(folder: RunFolder) -> durable.Lock:
    """Become the only leader of a run, until the lock is closed or this process ends.

    Raises:
        Refused: another process leads it.
        OSError: the file system refuses.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    try:
        return durable.hold(folder.hosts_file)
    except durable.Held as held:
        found = read(folder)
        where = f" at {found.address}" if found else ""
        raise Refused(
            f"process {held.holder}{where} leads the run in {folder.path} already: end that one "
            "first, or give this host another --host."
        ) from held
