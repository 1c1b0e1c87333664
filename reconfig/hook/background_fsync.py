"""Makes the checkpoint of a switch durable while training goes on in the new layout.

In the generation that was loaded from the staged checkpoint one rank of each host does this in one
thread: it writes the data from shared memory to the disk, reads it back and compares it with its
digests. The leader does that too, waits until the other hosts say that they have, syncs every file
and the folder, and renames the folder to its final name. Until then a restart begins from the
previous checkpoint, and nothing is pruned.

Invariant: a checkpoint folder with its final name is complete on disk. A crash at any moment leaves
the previous checkpoint or this one, never half of one.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from wattmesh.errors import CheckpointDamaged, Fenced, SwitchFailed
from wattmesh.reconfig.checkpoint import checkpoint
from wattmesh.reconfig.checkpoint.in_memory.early_rebuild import (
    HEADROOM,
    RankResources,
    free_memory,
    refusal,
)
from wattmesh.reconfig.checkpoint.in_memory.host_memory import NO_MEMORY, HostMemory
from wattmesh.reconfig.hook.job import AttachedJob, SwitchReporter
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.attempt import highest_attempt
from wattmesh.reconfig.launch.folder import RunFolder, attempt_of
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.universal.folder import COMMIT

log = logging.getLogger(__name__)

TOLD_POLL_S = 0.1
"""Pause before the leader looks again whether another host has written its part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint: published, or in the folder `staged` until it is durable."""

    name: str
    step: int
    digest: str
    save_s: float
    staged: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedCheckpoint:
    """A checkpoint that is complete but not durable.

    Attributes:
        name: name of its staging folder.
        step: the step at which it was taken.
        attempt: number of the attempt that wrote it; a newer attempt forbids publishing it.
    """

    name: str
    step: int
    attempt: int


def settle(
    folder: RunFolder,
    staged: StagedCheckpoint,
    fence: Callable[[], None],
    memory: HostMemory = NO_MEMORY,
    await_hosts: Callable[[], None] = lambda: None,
) -> None:
    """Write or sync a staged checkpoint and rename it to its final name.

    `await_hosts`: see `checkpoint.settle`.

    Raises:
        OSError: the disk is full or broken; the checkpoint was not renamed.
        CheckpointDamaged: the disk gave back other bytes; the checkpoint was not renamed.
        Fenced: a newer attempt exists; the checkpoint was not renamed.
    """
    checkpoint.settle(
        folder,
        folder.path / staged.name,
        memory,
        step=staged.step,
        attempt=staged.attempt,
        fence=fence,
        await_hosts=await_hosts,
    )


class BackgroundFsync:
    """Makes the staged checkpoints that one rank leads durable, one at a time."""

    def __init__(self, job: AttachedJob, memory: HostMemory) -> None:
        """Start idle; `memory`: of this rank."""
        self._job = job
        self._memory = memory
        self._folder = job.folder
        self._thread: threading.Thread | None = None
        self.problem = ""

    def may_stage(
        self,
        reporter: SwitchReporter,
        tensors: Mapping[str, torch.Tensor],
        following: Iterable[int],
    ) -> bool:
        """Return whether a switch may go on before its checkpoint is durable; collective.

        The answer and its reason are added to the evidence of `reporter`. `following`: the ranks
        that train next.
        """
        leads = self._job.leads(reporter.generation)
        peers = self._job.launch_store.peers() if leads else {}
        footing = RankResources(
            state_bytes=sum(_nbytes(each) for each in tensors.values()),
            free_bytes=free_memory(),
            disk_bytes=shutil.disk_usage(self._folder.path).free,
            host=self._memory.here,
            next_hosts=tuple({peers[each].where for each in following if each in peers}),
            durable=durable_name(self._folder),
            failed=self.problem,
            area_bytes=self._memory.area.nbytes,
        )
        told = group.gather(asdict(footing))
        found = [
            RankResources(**{**each, "next_hosts": tuple(each["next_hosts"])}) for each in told
        ]
        hosts = {host for each in found for host in (each.host, *each.next_hosts)}
        self._memory.spans_hosts = len(hosts) > 1
        why = refusal(found)
        if why:
            reporter.note.evidence["checkpoint"] = f"on disk before the switch: {why}"
        return not why

    def tell_where(self, reporter: SwitchReporter) -> None:
        """Add to the evidence of `reporter` where its staged checkpoint is."""
        refused, hosts = self._memory.refused, len(set(self._memory.hosts))
        where = f"in the memory of {hosts} hosts" if hosts > 1 else "in shared memory"
        if refused:
            where = f"{'in files' if self._memory.spans_hosts else 'in the page cache'} ({refused})"
        reporter.note.evidence["checkpoint"] = (
            f"{where}, made durable after the switch; until then a restart begins from "
            f"{durable_name(self._folder)}"
        )

    def release_memory_if_short(self) -> None:
        """Give the staging area back where less than as much again is free.

        Only while no staged checkpoint is needed. Else it is kept, because new pages would cost
        the next switch more than all its copies.
        """
        area = self._memory.area.nbytes
        if area and free_memory() < HEADROOM * area * len(self._job.launch_store.peers()):
            self._memory.release()

    def begin(self, generation: Generation) -> None:
        """Make the checkpoint that a generation was loaded from durable, in a thread.

        On the leader; and on the lowest rank of each other host, for what that host holds. Waits
        first for the thread before, if one still runs.
        """
        leads = self._job.leads(generation)
        if not leads and not self._writes_for_host(generation):
            return
        self.wait()
        self._thread = threading.Thread(
            target=self._run if leads else self._write_of_host,
            args=(_staged(generation),),
            name="wattmesh-settle",
            daemon=True,
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait for the thread to end; the caller is inside a watchdog phase with a deadline."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def settle_for_restart(self, generation: Generation, name: str) -> None:
        """Make the last staged checkpoint durable before the launch ends; collective.

        Raises:
            SwitchFailed: that failed; the next launch begins from the previous checkpoint.
        """
        problem, staged = "", _staged(replace(generation, staged=name))
        try:
            if self._job.leads(generation):
                self._settle(staged)
            elif self._writes_for_host(generation):
                self._write_of_host(staged)
        except (OSError, Fenced, CheckpointDamaged) as error:
            problem = f"{name} could not be made durable ({error}); make room on the disk."
        told = group.agree_on_problem(problem)
        if told:
            raise SwitchFailed(told)

    def _run(self, staged: StagedCheckpoint) -> None:
        began = time.monotonic()
        name = self._folder.checkpoint(staged.step).name
        try:
            self._settle(staged)
        except Exception as error:
            # Whatever it is: without a `problem` the next switch would count on what is not there.
            self.problem = f"{type(error).__name__}: {error}"
            with suppress(OSError):
                self._await_hosts(staged)  # they write into the folder until then
            log.error(
                "the switch stands, but %s could not be made durable (%s): the checkpoint before "
                "stays the one to restart from, and the next save waits for the disk.",
                name,
                self.problem,
            )
            shutil.rmtree(self._folder.path / staged.name, ignore_errors=True)
            return
        self.problem = ""
        log.debug("%s is durable, %.2f s after the switch", name, time.monotonic() - began)
        with suppress(OSError):
            protected = {self._job.resumed_from, name}
            checkpoint.prune(self._folder, keep=self._job.keep, protected=protected)

    def _settle(self, staged: StagedCheckpoint) -> None:
        """Make a staged checkpoint durable and publish it; see `settle`."""
        fence, hosts = partial(self._fence, staged), partial(self._await_hosts, staged)
        settle(self._folder, staged, fence, self._memory, hosts)

    def _writes_for_host(self, generation: Generation) -> bool:
        """Return whether this rank writes what its host holds; the leader does so for its own."""
        return self._memory.lowest_here(generation.ranks) == self._job.rank

    def _write_of_host(self, staged: StagedCheckpoint) -> None:
        """Write what this host holds, and tell the leader how that went."""
        problem = ""
        try:
            checkpoint.settle_of_host(self._folder.path / staged.name, self._memory)
        except Exception as error:
            # Whatever it is, the leader waits to be told.
            problem = f"{type(error).__name__}: {error}"
        with suppress(dist.DistError):  # without a store the launch ends, and the leader with it
            store = self._job.launch_store.separate(self._job.deadlines.longest_s)
            store.put(_key(staged, self._memory.here), problem)

    def _await_hosts(self, staged: StagedCheckpoint) -> None:
        """Wait until every other host of the group has told how its part went.

        A host that is lost never tells: then the launch ends, and this thread with it.

        Raises:
            OSError: one could not write its part.
        """
        waiting = sorted(set(self._memory.hosts) - {self._memory.here})
        if not waiting:
            return
        problems = []
        try:
            store = self._job.launch_store.separate(self._job.deadlines.longest_s)
            for host in waiting:
                while (problem := store.peek(_key(staged, host))) is None:
                    time.sleep(TOLD_POLL_S)
                if problem:
                    problems.append(f"{host.partition(' ')[0]} could not write its part: {problem}")
        except dist.DistError as error:
            raise OSError(f"other hosts could not tell how their part went ({error})") from error
        if problems:
            raise OSError(problems[0])

    def _fence(self, staged: StagedCheckpoint) -> None:
        newest = highest_attempt(self._folder)
        if newest > staged.attempt:
            raise Fenced(
                f"attempt {newest} of this run exists, this is attempt {staged.attempt}; it was "
                "not published"
            )


def durable_name(folder: RunFolder) -> str:
    """Return the name of the newest published checkpoint with its commit file; "" for none."""
    found = (each for each in folder.checkpoints() if (each / COMMIT).is_file())
    return next((each.name for each in found), "")


def _staged(generation: Generation) -> StagedCheckpoint:
    """Describe the checkpoint that a generation was loaded from, which is not durable yet."""
    return StagedCheckpoint(
        name=generation.staged, step=generation.step, attempt=attempt_of(generation.staged)
    )


def _key(staged: StagedCheckpoint, host: str) -> str:
    """Return the key of the launch's store under which a host tells that it wrote its part."""
    return f"written/{staged.name}/{host}"


def _nbytes(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return int(local.numel() * local.element_size())
