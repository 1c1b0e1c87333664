"""One rank's part in the checkpoints of a run: digest, write or index them, and report failures.

Invariant: a checkpoint has one digest that all ranks agreed on. A save that fails gives one
sentence, the same on every rank, and does not stop training.
"""

import logging
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from wattmesh.errors import Fenced, InputInvalid
from wattmesh.reconfig.checkpoint import checkpoint
from wattmesh.reconfig.checkpoint.checkpoint import prune
from wattmesh.reconfig.checkpoint.digest import combine, pieces_of, pieces_of_values
from wattmesh.reconfig.checkpoint.header import header_of
from wattmesh.reconfig.checkpoint.own_saves import OwnSaves
from wattmesh.reconfig.hook.background_fsync import SavedCheckpoint
from wattmesh.reconfig.hook.job import AttachedJob, SwitchReporter
from wattmesh.reconfig.hook.rank_runner import RankRunner
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.attempt import highest_attempt
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.launch.in_step import CheckpointNotSaved, Disk
from wattmesh.reconfig.probe import rebuild_check
from wattmesh.reconfig.state import carried
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all

log = logging.getLogger(__name__)

TROUBLE_LENGTH = 500
"""Longest sentence that is sent to the daemon, in characters."""

DISK_CALLS = 5
"""Where a save must not end the training, each of its disk calls may take 1/5 of the save
deadline, so that all of them together end before the watchdog ends the rank."""


class Saves:
    """The checkpoints of one rank's run."""

    def __init__(self, job: AttachedJob, runner: RankRunner) -> None:
        """Save the state of `runner`."""
        self._job = job
        self._runner = runner
        self._own = OwnSaves(job.save, job.folder, job.keep) if job.save is not None else None
        self._disk = Disk(None)
        self._trouble, self._cause = "", ""
        self.newest: SavedCheckpoint | None = None

    @property
    def writing(self) -> bool:
        """Whether the job's own checkpointer has begun a save that is not indexed yet."""
        return self._own is not None and self._own.begun

    @property
    def in_flight(self) -> bool:
        """Whether the job's own checkpointer is still writing on this rank."""
        return self._own is not None and self._own.in_flight

    @property
    def trouble(self) -> str:
        """Why the newest save step left no checkpoint, or none ever will; "" when all is well."""
        settling = self._runner.fsync.problem
        late = f"the newest checkpoint could not be made durable ({settling})" if settling else ""
        job = self._job
        found = (job.uncarried, self._trouble, late, job.unprobed, job.misreported)
        return next(filter(None, found), "")[:TROUBLE_LENGTH]

    def say(self, trouble: str, *, cause: str = "") -> None:
        """Keep a sentence for the daemon; log it unless it has the same `cause` as the last one."""
        cause = cause or trouble
        if trouble and cause != self._cause:
            log.error("%s", trouble)
        self._trouble, self._cause = trouble, cause

    def forget(self) -> None:
        """Give up a save that some rank could not finish, and delete its staging folder."""
        if self._own is not None:
            self._own.forget()
        generation, step = self._generation, self._state.position.step
        if self._job.leads(generation):
            with suppress(Exception):
                staging = self._job.folder.staging(step, self._job.attempt(generation))
                self._disk.do(partial(shutil.rmtree, staging, ignore_errors=True))

    @property
    def _state(self) -> State:
        assert self._runner.state is not None
        return self._runner.state

    @property
    def _generation(self) -> Generation:
        assert self._runner.generation is not None
        return self._runner.generation

    def write(
        self,
        reporter: SwitchReporter | None,
        began: float,
        *,
        following: Sequence[int] = (),
        wait: bool,
    ) -> SavedCheckpoint | None:
        """Save a checkpoint; None if the job's own checkpointer still writes it in the background.

        `reporter`: reporter of the in-place switch that follows, if one does, to the ranks
        `following`. `wait`: for the job's own checkpointer.

        Raises:
            CheckpointNotSaved: on every rank, if any could not write.
        """
        state, generation, job = self._state, self._generation, self._job
        problem = ""
        try:
            carried.check_buffers(state, self._runner.built)
            named = name_all(state)
            at_s = time.monotonic()
            values, facts = named.values, checkpoint.facts_of(state)
            pieces = {**pieces_of(named.boxes), **pieces_of_values(values)}
            if reporter is not None:
                reporter.note.evidence["digest_before_s"] = round(time.monotonic() - at_s, 4)
        except InputInvalid as error:
            problem = str(error)
        told = group.agree_on_problem(problem)
        if told:
            # Refused at `attach` where the run may be switched; else found out as it goes.
            job.uncarried = job.uncarried if job.acted_on else told
            raise CheckpointNotSaved(told)
        rebuild_check.require_one(facts, generation.ranks)
        digest = combine(pieces, facts, values)
        header = header_of(
            run=generation.run,
            attempt=job.attempt(generation),
            position=state.position,
            layout=generation.layout,
            ranks=generation.ranks,
            digest=digest,
            placement=generation.placement,
        )
        if self._own is not None:
            self._own.begin(state, named, header)
            ready = all(group.gather(not self._own.in_flight))
            return self._indexed(self._own, began, prove=wait) if wait or ready else None
        fsync = self._runner.fsync
        staged = reporter is not None and fsync.may_stage(reporter, named.tensors, following)
        self._disk.patience_s = None if job.acted_on else job.deadlines.save_s / DISK_CALLS
        at_s = time.monotonic()
        path = checkpoint.save(
            job.folder,
            named,
            state,
            header,
            self._check_fence,
            staged=staged,
            memory=self._runner.memory if staged else None,
            disk=self._disk,
        )
        if staged and reporter is not None:
            reporter.note.evidence["stage_s"] = round(time.monotonic() - at_s, 4)
            fsync.tell_where(reporter)
        elif reporter is None:
            fsync.release_memory_if_short()
        name = job.folder.checkpoint(header.step).name
        if job.leads(generation) and not staged:
            fsync.problem = ""
            protected = {job.resumed_from, name}
            with suppress(OSError):
                self._disk.do(partial(prune, job.folder, keep=job.keep, protected=protected))
        return SavedCheckpoint(
            name=name,
            step=header.step,
            digest=digest,
            save_s=round(time.monotonic() - began, 4),
            staged=path.name if staged else "",
        )

    def finish_write(self, began: float) -> None:
        """Index what the job's own checkpointer has written, or report why that failed."""
        assert self._own is not None
        try:
            self.newest = self._indexed(self._own, began)
        except CheckpointNotSaved as error:
            self.say(f"no checkpoint of an earlier step: {error}")

    def _indexed(self, own: OwnSaves, began: float, *, prove: bool = False) -> SavedCheckpoint:
        leads = self._job.leads(self._generation)
        protected = {self._job.resumed_from}
        fence = self._check_fence
        header = own.finish(leads=leads, protected=protected, fence=fence, prove=prove)
        return SavedCheckpoint(
            name=self._job.folder.checkpoint(header.step).name,
            step=header.step,
            digest=header.digest,
            save_s=round(time.monotonic() - began, 4),
        )

    def _check_fence(self) -> None:
        """Refuse to publish after a newer launch has begun.

        Raises:
            Fenced: a higher attempt number than ours was claimed.
        """
        newest = highest_attempt(self._job.folder)
        # Read after the folder, because our own claims are published before they are made.
        ours = self._job.attempt(self._generation)
        if newest > ours:
            raise Fenced(
                f"attempt {newest} of this run exists, this is attempt {ours}: the checkpoint of "
                f"step {self._state.position.step} was not published and this launch must end."
            )
