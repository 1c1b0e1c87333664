"""Slurm as what holds a run's next launch: a batch job that waits for the present one to end.

The held launch is the same batch script, submitted again with `--dependency=afterany` of the job it
follows and, for a sleep, with a time at which it begins. Slurm starts it by itself.

Invariant: the launch book says that a job is asked for before Slurm is, so whatever Slurm did is
found again by the mark in the job's comment; and it says who may train, so a job that Slurm starts
once too often ends at once. What is held looks as it was asked for, or is withdrawn.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from wattmesh.errors import InputInvalid, SourceUnavailable, WattmeshError
from wattmesh.integrations.slurm import answers
from wattmesh.integrations.slurm.answers import SlurmJob
from wattmesh.integrations.slurm.client import SlurmClient
from wattmesh.integrations.slurm.own_job import LaunchShape, name_of, number_of, shape_of
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher import launch_book
from wattmesh.reconfig.launcher.contract import HeldLaunch, HeldState, NextLaunch
from wattmesh.reconfig.launcher.launch_book import (
    BookedState,
    LaunchBook,
    LaunchRecord,
)

log = logging.getLogger(__name__)

ACT_S = 60.0
"""How long one act may take, whatever it has to ask of Slurm."""

CLOCK_S = 2.0
"""By how much the controller's clock may be behind ours unheeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The job that a held launch is submitted like.

    Attributes:
        number: its id. `most_per_node`: how many ranks a node takes.
        after: the job that must have ended before; this one, or the one that fell asleep.
        arguments: those of its batch script; None: they are not known.
        more: further words for `sbatch`.
    """

    cluster: str
    number: int
    after: int
    most_per_node: int
    arguments: Sequence[str] | None
    more: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Its name in the launch book."""
        return name_of(self.cluster, self.number)


def state_of(record: LaunchRecord, found: Sequence[SlurmJob], cluster: str) -> HeldState | None:
    """Return what has become of a launch; None: as far as is known nothing was submitted. Pure.

    `found`: the jobs of this launch that Slurm still knows.
    """
    if record.state is BookedState.WITHDRAWN:
        return HeldState.WITHDRAWN
    if record.state is BookedState.BEGUN:
        begun = number_of(record.begun_by, cluster)
        live = any(each.number == begun and each.is_live for each in found)
        return HeldState.STARTED if live else HeldState.ENDED
    # One that people hold back begins only when they let it, which may be never.
    if any(each.is_live and each.reason not in answers.HELD_BY_PEOPLE for each in found):
        return HeldState.HELD
    return HeldState.WITHDRAWN if found or record.jobs else None


def not_as_asked(
    held: SlurmJob, shape: LaunchShape, followed: SlurmJob | None, gpus_in_all: str = ""
) -> str:
    """Say in what a submitted job differs from what was asked for; "" if in nothing. Pure.

    Args:
        held: the submitted job.
        shape: what was asked for.
        followed: the job that it is submitted like, where Slurm still knows it.
        gpus_in_all: those that this one asked for as a whole; "": it did not.
    """
    if held.reason in answers.HELD_BY_PEOPLE:
        return f"it is held ({held.reason}): take `--hold` out of the script"
    if held.nodes != shape.nodes:
        return f"it asks for {held.nodes} nodes, not {shape.nodes}"
    if gpus_in_all and followed and followed.nodes != held.nodes:
        return (
            f"it asks for {gpus_in_all} in all, however many nodes it has: ask for GPUs per node, "
            "in an #SBATCH line of the script"
        )
    for what in ("gpus", "memory", "features"):
        asked, had = getattr(held, what), getattr(followed, what) if followed else None
        if had is not None and asked != had:
            return (
                f"its {what} on each node are {asked or 'none'}, and this job's {had or 'none'}: "
                "ask for them per node, in an #SBATCH line of the script"
            )
    return ""


def begin_word(begins_at: datetime | None) -> str:
    """Say in `sbatch`'s words when a job may begin; in seconds since 1970 no time zone counts."""
    return f"uts{int(begins_at.timestamp())}" if begins_at else "now"


def earlier(begins_at: datetime, asked_at: datetime, submitted_at: datetime | None) -> datetime:
    """Return when a job must begin by the controller's clock so as not to begin late by ours. Pure.

    `asked_at`: when it was submitted by our clock; `submitted_at`: by the controller's.
    """
    behind = asked_at - submitted_at if submitted_at else timedelta()
    return begins_at - behind if behind > timedelta(seconds=CLOCK_S) else begins_at


class SlurmQueue:
    """Holds the launches of one run."""

    def __init__(
        self,
        client: SlurmClient,
        folder: RunFolder,
        followed: Followed,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Submit successors of `followed`; `now` gives the wall clock."""
        self._client = client
        self._book = LaunchBook(folder)
        self._script = folder.path / "launches.sh"
        self._followed = followed
        self._now = now

    def find(self, key: str) -> HeldLaunch | None:
        """Return the launch that was submitted under a key; None if there never was one."""
        with self._client.within(ACT_S):
            record = launch_book.find(self._book.read(), key)
            return self._look(record) if record else None

    def hold(self, following: NextLaunch) -> HeldLaunch:
        """Submit a launch; an earlier one with the same key is returned as it is."""
        with self._client.within(ACT_S):
            record = launch_book.find(self._book.read(), following.key)
            if record is not None and record.state is not BookedState.ASKED:
                found = self._look(record)
                if found is not None:
                    return found
            try:
                return self._submit(following)
            except InputInvalid:
                self.withdraw(following.key)
                raise

    def withdraw(self, key: str) -> bool:
        """Let a launch never begin; False if it has begun already.

        Once the book says so no job of it trains, whether Slurm answers or not; a job that is left
        ends when it gets its nodes. Where the book cannot be written, Slurm must say that none is
        left.
        """
        record = launch_book.find(self._book.read(), key)
        if record is None:
            return True
        with self._client.within(ACT_S):
            try:
                if not self._book.change(lambda records: launch_book.withdraw(records, key)):
                    return False
            except SourceUnavailable:
                self.cancel([record])
                if any(each.is_live for each in self._jobs_of(record, self._client.jobs())):
                    raise
            else:
                self.cancel([record])
            return True

    def begin_now(self, key: str) -> HeldLaunch:
        """Let a held launch begin as soon as the one before has ended and there are nodes."""
        with self._client.within(ACT_S):
            record = launch_book.find(self._book.read(), key)
            held = self._look(record) if record else None
            if record is None or held is None:
                raise InputInvalid(f"no launch {key} was submitted for this run")
            if held.state is HeldState.HELD:
                for each in self._jobs_of(record, self._client.jobs()):
                    if each.state == "PENDING":
                        self._client.begin_at(each.number, "now")
            return replace(held, begins_at=None)

    def cancel(self, withdrawn: Sequence[LaunchRecord]) -> None:
        """Cancel what Slurm still has of launches that the book withdrew; failing that, say so."""
        if not withdrawn:
            return
        try:
            known = self._client.jobs()
            for record in withdrawn:
                for each in self._jobs_of(record, known):
                    if each.is_live and each.number != self._followed.number:
                        self._client.cancel(each.number)
        except WattmeshError as error:
            keys = ", ".join(each.key for each in withdrawn)
            log.warning("withdrawn launches (%s) are still in Slurm's queue: %s", keys, error)

    def _look(self, record: LaunchRecord) -> HeldLaunch | None:
        found = self._jobs_of(record, self._client.jobs())
        state = state_of(record, found, self._followed.cluster)
        return self._as_held(record, found, state) if state is not None else None

    def _submit(self, following: NextLaunch) -> HeldLaunch:
        """Submit a launch, unless an earlier call did, and look at what Slurm has made of it."""
        shape = shape_of(following.ranks, self._followed.most_per_node)
        begins_at = following.begins_at
        record = LaunchRecord(
            key=following.key,
            run=following.run,
            ranks=following.ranks,
            state=BookedState.ASKED,
            begins_at=begins_at.isoformat() if begins_at else None,
            asked_by=self._followed.name,
        )
        arguments, options, gpus_in_all = self._prepared(shape)
        if late := self._too_late(following, shape, options):
            raise InputInvalid(late)
        self._book.change(lambda records: (launch_book.ask(records, record), None))
        asked_at = self._now()
        problem: WattmeshError | None = None
        known = self._client.jobs()
        found = self._waiting(record, known)
        if not found:
            words = (
                *options,
                f"--dependency=afterany:{self._followed.after}",
                f"--begin={begin_word(begins_at)}",
            )
            try:
                number = self._client.submit(
                    words, self._script, arguments, record.key, record.mark
                )
                # A site may have written another comment over ours.
                record = replace(record, jobs=(name_of(self._followed.cluster, number),))
            except SourceUnavailable as error:
                problem = error
            known = self._client.jobs()
            found = self._waiting(record, known)
        if not found:
            raise problem or InputInvalid("the submitted job ended at once")
        held = found[0]
        followed = next((each for each in known if each.number == self._followed.number), None)
        if wrong := not_as_asked(held, shape, followed, gpus_in_all):
            raise InputInvalid(f"Slurm job {held.number} is not as it was asked for: {wrong}")
        if begins_at is not None:
            sooner = earlier(begins_at, asked_at, held.submitted_at)
            if sooner != begins_at:
                self._client.begin_at(held.number, begin_word(sooner))
        jobs = [name_of(self._followed.cluster, each.number) for each in found]
        noted = self._book.change(lambda records: launch_book.note(records, record.key, jobs))
        if noted is None or noted.state is BookedState.WITHDRAWN:
            # Another launch began meanwhile: no job of this one may train any more.
            self.cancel([record])
            return self._as_held(record, found, HeldState.WITHDRAWN)
        return self._as_held(record, found, HeldState.HELD)

    def _prepared(self, shape: LaunchShape) -> tuple[Sequence[str], list[str], str]:
        """Fetch the script, once Slurm says that it can run.

        Returns:
            Its arguments, the options, and the GPUs that its job asked for as a whole.
        """
        followed, client = self._followed, self._client
        arguments = followed.arguments
        if arguments is None:
            if len(client.command(followed.number).split()) > 1:
                raise InputInvalid(
                    "the batch script was given arguments that are not known here, because it "
                    "replaced itself by this command: leave out `exec`"
                )
            arguments = ()
        gpus_in_all = client.gpus_in_all(followed.number)
        client.write_script(followed.number, self._script)
        options = [*client.options(followed.number), *followed.more, *shape.options]
        client.could_start(options, self._script)
        return arguments, options, gpus_in_all

    def _too_late(self, following: NextLaunch, shape: LaunchShape, options: Sequence[str]) -> str:
        """Say why Slurm cannot start a launch by the time that it is wanted; "" as far as is known.

        Jobs that run may end at any time, so they are no reason; nodes that are down, drained or
        reserved are.
        """
        begins_by = following.begins_by
        if begins_by is None:
            return ""
        try:
            ahead = self._client.nodes_ahead(options, mine=self._followed.after, jobs=False)
        except InputInvalid as error:
            log.info("what is free when cannot be told: %s", error)
            return ""
        # Fewer nodes than Slurm would give: a cloud's are not shown while they are powered down.
        if ahead is None or len(ahead.nodes) < shape.nodes:
            return ""
        soonest = ahead.soonest(shape.nodes, following.begins_at)
        if soonest is not None and soonest <= max(begins_by, ahead.now):
            return ""
        when = f"before {soonest:%Y-%m-%d %H:%M} UTC" if soonest else "as things are"
        nodes = "1 node" if shape.nodes == 1 else f"{shape.nodes} nodes"
        return (
            f"Slurm cannot start {nodes} {when}, and {begins_by:%Y-%m-%d %H:%M} UTC is the latest; "
            f"of {len(ahead.nodes)} nodes: {ahead.why_later(begins_by)}"
        )

    def _waiting(self, record: LaunchRecord, known: Sequence[SlurmJob]) -> list[SlurmJob]:
        """Return the live jobs that were submitted for a launch."""
        found = self._jobs_of(record, known)
        return [each for each in found if each.is_live and each.number != self._followed.number]

    def _jobs_of(self, record: LaunchRecord, known: Sequence[SlurmJob]) -> list[SlurmJob]:
        numbers = [number_of(each, self._followed.cluster) for each in record.jobs]
        return answers.any_of(known, record.mark, numbers)

    def _as_held(
        self, record: LaunchRecord, found: Sequence[SlurmJob], state: HeldState
    ) -> HeldLaunch:
        numbers = [each.number for each in found if each.is_live] or [
            number_of(each, self._followed.cluster) for each in record.jobs
        ]
        shown = "/".join(str(each) for each in numbers) or "not known"
        return HeldLaunch(
            key=record.key,
            name=f"Slurm job {shown} of {self._followed.cluster}",
            state=state,
            begins_at=datetime.fromisoformat(record.begins_at) if record.begins_at else None,
        )
