"""Makes the checkpoint of a switch durable while training goes on in the new layout.

The leader of the generation that was loaded from the staged checkpoint does this in one thread: it
writes the data from shared memory to the disk, reads it back and compares it with its digests,
syncs every file and the folder, and renames the folder to its final name. Until then a restart
begins from the previous checkpoint, and nothing is pruned.

Invariant: a checkpoint folder with its final name is complete on disk. A crash at any moment leaves
the previous checkpoint or this one, never half of one.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

import torch
from torch.distributed.tensor import DTensor

from wattmesh.errors import CheckpointDamaged, Fenced, SwitchFailed
from wattmesh.reconfig.checkpoint import checkpoint
from wattmesh.reconfig.checkpoint.early_rebuild import (
    HEADROOM,
    RankResources,
    free_memory,
    refusal,
)
from wattmesh.reconfig.checkpoint.staged import NO_MEMORY, HostMemory
from wattmesh.reconfig.hook.job import AttachedJob, SwitchReporter
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.attempt import highest_attempt
from wattmesh.reconfig.launch.folder import RunFolder, attempt_of
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.universal.folder import COMMIT

log = logging.getLogger(__name__)


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
) -> None:
    """Write or sync a staged checkpoint and rename it to its final name.

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

    def may_stage(self, reporter: SwitchReporter, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Return whether a switch may go on before its checkpoint is durable; collective.

        The answer and its reason are added to the evidence of `reporter`.
        """
        leads = self._job.leads(reporter.generation)
        found = _footings(
            self._job.launch_store,
            self._folder,
            self.problem,
            tensors,
            leads=leads,
            area_bytes=self._memory.area.nbytes,
        )
        why = refusal(found)
        if why:
            reporter.note.evidence["checkpoint"] = f"on disk before the switch: {why}"
        return not why

    def tell_where(self, reporter: SwitchReporter) -> None:
        """Add to the evidence of `reporter` where its staged checkpoint is."""
        refused = self._memory.refused
        where = f"in the page cache ({refused})" if refused else "in shared memory"
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

        Waits first for the thread before, if one still runs.
        """
        self.wait()
        self._thread = threading.Thread(
            target=self._run, args=(_staged(generation),), name="wattmesh-settle", daemon=True
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
        problem = ""
        if self._job.leads(generation):
            staged = _staged(replace(generation, staged=name))
            try:
                settle(self._folder, staged, lambda: self._fence(staged), self._memory)
            except (OSError, Fenced, CheckpointDamaged) as error:
                problem = f"{name} could not be made durable ({error}); make room on the disk."
        told = group.agree_on_problem(problem)
        if told:
            raise SwitchFailed(told)

    def _run(self, staged: StagedCheckpoint) -> None:
        began = time.monotonic()
        name = self._folder.checkpoint(staged.step).name
        try:
            settle(self._folder, staged, lambda: self._fence(staged), self._memory)
        except (OSError, Fenced, CheckpointDamaged) as error:
            self.problem = f"{type(error).__name__}: {error}"
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


def _footings(
    launch_store: LaunchStore,
    folder: RunFolder,
    failed: str,
    tensors: Mapping[str, torch.Tensor],
    *,
    leads: bool,
    area_bytes: int,
) -> list[RankResources]:
    """Gather every rank's footing; collective. The leader alone fills in the hosts."""
    peers = launch_store.peers().values() if leads else ()
    footing = RankResources(
        state_bytes=sum(_nbytes(each) for each in tensors.values()),
        free_bytes=free_memory(),
        disk_bytes=shutil.disk_usage(folder.path).free,
        hosts=tuple(sorted({f"{peer.host} {peer.pids}" for peer in peers})),
        durable=durable_name(folder),
        failed=failed,
        area_bytes=area_bytes,
    )
    told = group.gather(asdict(footing))
    return [RankResources(**{**each, "hosts": tuple(each["hosts"])}) for each in told]


def _nbytes(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return int(local.numel() * local.element_size())
