"""How a batch job begins: it asks the launch book whether it may train, and clears what is held.

Invariant: no rank starts before the book says that this job may train. A job that may not leaves
with status 0: nothing is wrong with it, another one trains the run or it is not wanted any more. A
job that was submitted for a launch of a run begins no other run where that one is not found.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from wattmesh.errors import SourceUnavailable, WattmeshError
from wattmesh.integrations.slurm.answers import SlurmJob
from wattmesh.integrations.slurm.client import SlurmClient
from wattmesh.integrations.slurm.own_job import OwnJob, name_of
from wattmesh.integrations.slurm.slurm_queue import SlurmQueue
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher import launch_book
from wattmesh.reconfig.launcher.launch_book import (
    Beginning,
    BookedState,
    LaunchBook,
    LaunchRecord,
    Records,
)

PATIENCE_S = 600.0
"""How long a job waits for a launch book that cannot be written, or for Slurm's word on a rival."""

RIVAL_S = 60.0
"""How long a job waits for one that may be ending: the one it follows, or by hand any."""

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0


def is_inherited(record: LaunchRecord | None, own: SlurmJob, by: SlurmJob | None) -> bool:
    """Return whether a key came to a job by its environment alone, from one that had it. Pure.

    A script that submits itself again hands on the environment of its job, the key with it. Such a
    job carries no mark of the launch, and was submitted when that had begun; one that was submitted
    for the launch twice was so before.

    Args:
        record: of the key's launch; None: the book knows none.
        own: the job that has the key, as Slurm tells it.
        by: the one by which the launch has begun; None: Slurm does not know it any more.
    """
    begun = record is not None and record.begun_by != ""
    if record is None or not begun or own.mark == record.mark:
        return False
    if by is None or by.begins_at is None or own.submitted_at is None:
        return True
    return own.submitted_at >= by.begins_at


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedJob:
    """A batch job that was started, and asks whether it may train.

    Attributes:
        key: that its environment names, of the launch that it was submitted for; "" for one that
            was started by hand.
        ranks: how many it starts.
    """

    own: OwnJob
    folder: RunFolder
    key: str
    ranks: int
    client: SlurmClient
    book: LaunchBook
    queue: SlurmQueue

    def claim(self, stop: threading.Event, say: Callable[[str], None]) -> str:
        """Let this job train, and no held one any more; returns why it may not, or "".

        `stop` is set when this job is to end; `say` is called with sentences for people.

        Raises:
            SourceUnavailable: whether it may train cannot be found out, or not be written down.
        """
        began_s, pause_s = time.monotonic(), FIRST_PAUSE_S
        while True:
            problem: WattmeshError | None = None
            begun, key = None, self.key
            try:
                begun, key = self._try()
            except WattmeshError as error:
                problem = error
            except OSError as error:
                problem = SourceUnavailable(f"the run folder cannot be read ({error})")
            if begun is not None and not begun.problem:
                # Those that were withdrawn before may have been left in the queue by a crash.
                gone = [each for each in begun.records if each.state is BookedState.WITHDRAWN]
                self.queue.cancel(gone)
                return ""
            waited_s = time.monotonic() - began_s
            patient = not key and not self.own.requeues and waited_s <= RIVAL_S
            patient = patient or (begun is not None and begun.waits and waited_s <= RIVAL_S)
            if begun is not None and (not patient or stop.is_set()):
                return begun.problem
            if problem is not None and (waited_s > PATIENCE_S or stop.is_set()):
                raise problem
            say(f"not begun yet: {problem or (begun.problem if begun else '')}; asking again.")
            stop.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _try(self) -> tuple[Beginning, str]:
        """Ask the book once; returns its answer, and the key that counts.

        Slurm is asked only where another job may train the run, or this one has a key.
        """
        own, known = self.own, self.book.read()
        begun_by = frozenset(each.begun_by for each in known)
        others = begun_by - {own.name, ""}
        known_jobs = self.client.jobs() if others or self.key else ()
        named = {name_of(own.cluster, each.number): each for each in known_jobs}
        live = {each for each in others & named.keys() if named[each].is_live}
        running = {each for each in live if named[each].is_running}
        waited_s = None
        with suppress(WattmeshError):
            waited_s = self.client.waited_s(own.number)
        mine = LaunchRecord(
            key=self._key(known, named),
            ranks=self.ranks,
            state=BookedState.BEGUN,
            begun_by=own.name,
            waited_s=waited_s,
        )
        return self.book.begin(mine, begun_by, live, running), mine.key

    def _key(self, known: Records, named: Mapping[str, SlurmJob]) -> str:
        """Return the key of the launch that this job was submitted for; "" by hand.

        Raises:
            SourceUnavailable: it was for one of a run that is not in the folder.
        """
        own, record = named.get(self.own.name), launch_book.find(known, self.key)
        if own is None:
            return self.key
        by = named.get(record.begun_by) if record is not None else None
        if record is not None and record.begun_by != self.own.name:
            return "" if is_inherited(record, own, by) else self.key
        marked = self.key != "" and own.mark.endswith(f".{self.key}")
        if record is None and marked and not self.folder.run_file.exists():
            raise SourceUnavailable(
                f"{self.folder.path} holds no run, and this job is to go on with one: see whether "
                "its file system is there on this node"
            )
        return self.key
