"""Reports that must arrive: an ordered queue on disk, until the daemon has acknowledged them.

Invariant: an entry leaves the disk only after a final answer. Entries that a dead launch left are
sent first by the next launch.
"""

import json
import logging
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattmesh import durable
from wattmesh.reconfig.launch.folder import read_json

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """One message: the API call, its JSON body, and its file (None: in memory only)."""

    kind: str
    body: dict[str, Any]
    path: Path | None


class JobOutbox:
    """A durable queue of messages in one folder; used by one thread."""

    def __init__(self, folder: Path | None) -> None:
        """Open the queue with the entries left in `folder`; None keeps it in memory."""
        self._folder = folder
        self._queue: deque[QueuedMessage] = deque()
        self._number = 0
        if folder is not None and folder.is_dir():
            for path in sorted(folder.glob("*.json")):
                self._take_up(path)

    def __len__(self) -> int:
        """Return how many messages wait."""
        return len(self._queue)

    def head(self) -> QueuedMessage | None:
        """Return the message to send next; None if there is none."""
        return self._queue[0] if self._queue else None

    def add(self, kind: str, body: dict[str, Any]) -> None:
        """Queue a message on disk, in memory if that fails: a full disk must not stop reports."""
        path = None if self._folder is None else self._written(self._folder, kind, body)
        self._queue.append(QueuedMessage(kind, body, path))

    def done(self) -> None:
        """Drop the head: it was acknowledged, or will never be accepted."""
        entry = self._queue.popleft()
        if entry.path is not None:
            entry.path.unlink(missing_ok=True)

    def _written(self, folder: Path, kind: str, body: dict[str, Any]) -> Path | None:
        """Write a message to disk durably; None if that fails."""
        self._number += 1
        path = folder / f"{self._number:08d}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            durable.write_text(path, _text(kind, body))
        except OSError as error:
            log.warning("a %s report is kept in memory only: %s", kind, error)
            return None
        return path

    def _take_up(self, path: Path) -> None:
        """Read an entry that an earlier launch left; an unreadable one is logged and deleted."""
        self._number = max(self._number, int(path.stem) if path.stem.isdigit() else 0)
        data = read_json(path)
        if data is None or not isinstance(data.get("body"), dict) or "kind" not in data:
            log.warning("%s is no report that this version wrote; it is dropped.", path)
            path.unlink(missing_ok=True)
            return
        self._queue.append(QueuedMessage(str(data["kind"]), data["body"], path))


def _text(kind: str, body: dict[str, Any]) -> str:
    return json.dumps({"kind": kind, "body": body}, sort_keys=True) + "\n"
