"""What a run knows of the launches that a scheduler was asked to hold, and which of them may train.

The scheduler is an alarm clock, and may ring twice or late: a submission that was thought lost
takes effect, a job is requeued by its administrator. Who may train is decided here, in
`launches.json` of the run folder, under a lock, whoever asks first.

Invariant: a launch begins only where no other one was let begin after it and lives, and from then
on none that is held, or was only asked for, ever begins. Functions are pure; `LaunchBook` reads and
writes.
"""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

from wattmesh import durable
from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.reconfig import ranges
from wattmesh.reconfig.launch.folder import RunFolder, read_json, write_json
from wattmesh.reconfig.wire.messages import Message

KEPT = 100
"""How many launches the book keeps: the newest."""

LOCK_PATIENCE_S = 30.0
LOCK_POLL_S = 0.05

T = TypeVar("T")


class BookedState(StrEnum):
    """What became of a launch that a scheduler was asked to hold.

    ASKED: it may or may not be at the scheduler. HELD: it is. BEGUN: its job may train.
    WITHDRAWN: no job of it may train any more.
    """

    ASKED = "asked"
    HELD = "held"
    BEGUN = "begun"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord(Message):
    """One launch.

    Attributes:
        key: that it was asked for by; "" for one that somebody started by hand. `run`: whose it is.
        begins_at: when it may begin; None: as soon as the launch that asked has ended.
        asked_by: job of the launch that asked for it.
        jobs: those that were submitted for it. `begun_by`: the one that may train.
        waited_s: how long that one waited for nodes.
    """

    key: ranges.Token
    ranks: ranges.WorldSize
    state: BookedState
    run: ranges.Token = ""
    begins_at: ranges.At | None = None
    asked_by: ranges.Label = ""
    jobs: Annotated[tuple[ranges.Label, ...], ranges.Many(KEPT)] = ()
    begun_by: ranges.Label = ""
    waited_s: ranges.Seconds | None = None

    @property
    def mark(self) -> str:
        """What its jobs carry, so that they are found again: unlike that of any other run's."""
        return f"{self.run}.{self.key}"


Records = tuple[LaunchRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Whether a job may train.

    Attributes:
        problem: why not; "" if it may.
        waits: whether that passes: the job that it follows is ending.
    """

    records: Records
    problem: str = ""
    waits: bool = False


def find(records: Records, key: str) -> LaunchRecord | None:
    """Return the launch of a key; None if there is none."""
    return next((each for each in records if each.key == key), None) if key else None


def ask(records: Records, asked: LaunchRecord) -> Records:
    """Add a launch that is about to be submitted; one with its key stays as it is."""
    return records if find(records, asked.key) else (*records, asked)


def submitted(records: Records, key: str, jobs: Collection[str]) -> Records:
    """Note jobs that were submitted for a launch."""

    def noted(each: LaunchRecord) -> LaunchRecord:
        state = BookedState.HELD if each.state is BookedState.ASKED else each.state
        return replace(each, state=state, jobs=tuple(dict.fromkeys((*each.jobs, *jobs))))

    return tuple(noted(each) if each.key == key else each for each in records)


def note(records: Records, key: str, jobs: Collection[str]) -> tuple[Records, LaunchRecord | None]:
    """Note jobs that were submitted for a launch; returns the book, and the launch in it.

    Another job may have begun meanwhile, which withdrew it, or another launch's have filled the
    book, so that it is not there (None).
    """
    after = submitted(records, key, jobs)
    return after, find(after, key)


def withdraw(records: Records, key: str) -> tuple[Records, bool]:
    """Let a launch never begin; False if it has begun already."""
    found = find(records, key)
    if found is not None and found.state is BookedState.BEGUN:
        return records, False
    return tuple(_withdrawn(each) if each.key == key else each for each in records), True


def withdraw_all(records: Records) -> tuple[Records, Records]:
    """Let none begin that has not; returns the book, and those that were still awaited."""
    awaited = tuple(each for each in records if _awaited(each))
    return tuple(_withdrawn(each) if _awaited(each) else each for each in records), awaited


def begin(
    records: Records, mine: LaunchRecord, live: Collection[str], running: Collection[str]
) -> Beginning:
    """Let a job train, or say why it may not.

    Args:
        records: the book.
        mine: this launch: its key ("" by hand), job (`begun_by`) and ranks, how long it waited.
        live: jobs of this user that have not ended, by the scheduler's word.
        running: those of them that have nodes.
    """
    job = mine.begun_by
    again = next((each for each in reversed(records) if each.begun_by == job), None)
    known = again or find(records, mine.key)
    if known is not None and known.state is BookedState.WITHDRAWN:
        return Beginning(records=records, problem=f"launch {known.key} was withdrawn")
    if known is not None and known.begun_by not in ("", job):
        by = known.begun_by
        return Beginning(records=records, problem=f"launch {known.key} has begun as job {by}")
    # A job that comes back (requeued) gives way to those that were let begin after it.
    place = records.index(known) if known is not None else 0
    later = records[place + 1 :] if known is not None else records
    rival = next((each.begun_by for each in reversed(later) if each.begun_by in live), "")
    if rival and rival != job:
        return Beginning(records=records, problem=f"job {rival} trains this run now")
    before = next((each.begun_by for each in records[:place] if each.begun_by in running), "")
    if before and before != job:
        problem = f"job {before}, which it follows, still runs"
        return Beginning(records=records, problem=problem, waits=True)
    others = tuple(each for each in records if each is not known)
    others, _ = withdraw_all(others)
    begun = replace(known or mine, state=BookedState.BEGUN, begun_by=job)
    if again is None:
        begun = replace(begun, waited_s=mine.waited_s)
    return Beginning(records=(*others, begun)[-KEPT:])


def waits_s(records: Records) -> list[float]:
    """Return how long launches waited for nodes, in the order in which they began."""
    return [each.waited_s for each in records if each.waited_s is not None]


def _awaited(record: LaunchRecord) -> bool:
    return record.state in (BookedState.ASKED, BookedState.HELD)


def _withdrawn(record: LaunchRecord) -> LaunchRecord:
    return replace(record, state=BookedState.WITHDRAWN)


class LaunchBook:
    """The book of one run."""

    def __init__(self, folder: RunFolder, *, patience_s: float = LOCK_PATIENCE_S) -> None:
        """Keep it in `folder`; wait up to `patience_s` for whoever writes in it."""
        self._path: Path = folder.launches_file
        self._patience_s = patience_s

    def read(self) -> Records:
        """Return what it holds; a book that is damaged holds nothing."""
        listed = (read_json(self._path) or {}).get("launches")
        try:
            rows: Sequence[object] = listed if isinstance(listed, list) else ()
            return tuple(LaunchRecord.from_json(each) for each in rows[-KEPT:])
        except InputInvalid:
            return ()

    def told(self) -> Records:
        """Return what it holds, for people, who must not take a wrong folder for an empty book.

        Raises:
            InputInvalid: the folder or the book cannot be read, or is damaged.
        """
        try:
            found = self._path.name in {each.name for each in self._path.parent.iterdir()}
            if found:
                self._path.read_bytes()
        except OSError as error:
            raise InputInvalid(
                f"{error.filename} cannot be read ({error.strerror}), so nothing is known of this "
                "run's launches"
            ) from error
        records = self.read()
        if found and not records and not _says_none(self._path):
            raise InputInvalid(
                f"{self._path} is damaged, so it is not known which launches are held: ask "
                "the scheduler (`squeue --me`); the run's next launch writes the file anew"
            )
        return records

    def change(self, change: Callable[[Records], tuple[Records, T]]) -> T:
        """Change it, alone: `change` returns what it is to hold, and what the caller gets.

        Raises:
            SourceUnavailable: another process has it for longer than is waited, or the file system
                refuses; nothing was changed.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                with suppress(FileNotFoundError):
                    # One that is there and cannot be read now must not be written anew.
                    self._path.read_bytes()
                before = self.read()
                after, answer = change(before)
                if after != before:
                    rows = [each.to_json() for each in after[-KEPT:]]
                    write_json(self._path, {"launches": rows})
        except OSError as error:
            raise SourceUnavailable(f"the launch book cannot be written ({error})") from error
        return answer

    def begin(
        self,
        mine: LaunchRecord,
        known: Collection[str],
        live: Collection[str],
        running: Collection[str],
    ) -> Beginning:
        """Let a job train, as `begin` says, and write it down.

        `known`: the jobs that the book had begun by when the scheduler was asked.

        Raises:
            SourceUnavailable: another job has begun meanwhile, or as `change` raises.
        """

        def begun(records: Records) -> tuple[Records, Beginning]:
            if not {each.begun_by for each in records} <= set(known):
                raise SourceUnavailable("another job has begun this run meanwhile")
            found = begin(records, mine, live, running)
            return (records if found.problem else found.records), found

        return self.change(begun)

    def _locked(self) -> durable.Lock:
        until = time.monotonic() + self._patience_s
        while True:
            try:
                return durable.hold(self._path)
            except durable.Held as held:
                if time.monotonic() >= until:
                    raise SourceUnavailable(
                        f"{self._path} has been locked for {self._patience_s:g} s by process "
                        f"{held.holder}, of this host or another"
                    ) from held
                time.sleep(LOCK_POLL_S)


def _says_none(path: Path) -> bool:
    """Whether a book is whole and lists nothing."""
    return (read_json(path) or {}).get("launches") == []
