"""The daemon's process, which kills itself at one durable write of one act, once.

    ARMED=FILE python -m tests.daemon.dying --config FILE

While the file stands, it names the write: `before:3` dies before the third one is committed,
`after:3` when it is and nobody was told. What counts is a transaction that changes what the journal
has of orders and launches; the daemon's other writes (its lease, joules) are no steps of an act.
"""

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event

from wattmesh.controller.daemon.__main__ import main
from wattmesh.controller.journal.database.engine import Database

COUNTED = re.compile(
    r"\s*(INSERT INTO|UPDATE|DELETE FROM) (switches|transitions|incarnations)\b"
    r"|\s*UPDATE runs SET .*\b(ordered_point|layout)\b",
    re.DOTALL,
)


class Death:
    """Counts the durable writes of an act."""

    def __init__(self, armed: Path) -> None:
        """Die as the file says, once it stands."""
        self._armed = armed
        self._count = 0
        self._here = threading.local()

    def executes(self, _connection: object, _cursor: object, statement: str, *_: object) -> None:
        """Note whether a statement belongs to an act."""
        if COUNTED.match(statement):
            self._here.counts = True

    @contextmanager
    def transaction(self, inner: Any, database: Database) -> Iterator[Connection]:
        """Do one transaction, and die before or after its commit if it is the one."""
        self._here.counts = False
        with inner(database) as connection:
            yield connection
            self._arrive("before")
        self._arrive("after")

    def _arrive(self, when: str) -> None:
        if not self._here.counts or not self._armed.exists():
            return
        self._count += when == "before"
        if self._armed.read_text() == f"{when}:{self._count}":
            self._armed.rename(self._armed.with_suffix(".died"))
            os.kill(os.getpid(), signal.SIGKILL)


def arm() -> None:
    """Prepare to die."""
    death, inner = Death(Path(os.environ["ARMED"])), Database.writing
    event.listen(Engine, "before_cursor_execute", death.executes)
    Database.writing = lambda self: death.transaction(inner, self)  # type: ignore[method-assign]


if __name__ == "__main__":
    arm()
    sys.exit(main())
