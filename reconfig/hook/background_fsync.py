"""Makes the checkpoint of a switch durable while training goes on in the new layout.

One thread, in the rank that leads the generation which was loaded from it: sync every file, sync
the folder, give it its name. Until then the checkpoint before is the one to restart from, and
nothing is pruned.

Invariant: what has its name is on the disk whole; a crash at any moment leaves the checkpoint
before, or this one, never half of one.
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

from wattmesh.errors import Fenced, SwitchFailed
from wattmesh.reconfig.checkpoint import checkpoint
from wattmesh.reconfig.checkpoint.early_rebuild import Footing, free_memory, refusal
from wattmesh.reconfig.hook.job import Job, SwitchReporter
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.attempt import highest_attempt
from wattmesh.reconfig.launch.folder import RunFolder, attempt_of
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.universal.folder import COMMIT

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint; published, or `staged` under this name until it is durable."""

    name: str
    step: int
    digest: str
    save_s: float
    staged: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A checkpoint that is whole but not durable.

    Attributes:
        name: of its folder, in staging. `step`: it is of.
        attempt: that wrote it; a newer one forbids to publish.
    """

    name: str
    step: int
    attempt: int


def settle(folder: RunFolder, staged: Staged, fence: Callable[[], None]) -> None:
    """Sync a staged checkpoint and give it its name.

    Raises:
        OSError: the disk is full, or broken; it has not got its name.
        Fenced: a newer attempt exists; it has not got its name.
    """
    checkpoint.settle(
        folder, folder.path / staged.name, step=staged.step, attempt=staged.attempt, fence=fence
    )


class BackgroundFsync:
    """Settles one staged checkpoint at a time; of one rank."""

    def __init__(self, job: Job) -> None:
        """Have nothing to do yet."""
        self._job = job
        self._folder = job.folder
        self._thread: threading.Thread | None = None
        self.problem = ""

    def may_stage(self, story: SwitchReporter, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Whether a switch may go on before its checkpoint is durable; collective.

        The story's evidence says which, and why.
        """
        leads = self._job.leads(story.generation)
        why = refusal(_footings(self._job.launch_store, self._folder, self.problem, tensors, leads))
        story.note.evidence["checkpoint"] = (
            f"on disk before the switch: {why}"
            if why
            else "in the page cache, made durable after the switch; until then a restart begins "
            f"from {durable_name(self._folder)}"
        )
        return not why

    def begin(self, generation: Generation) -> None:
        """Settle in the background what a generation was loaded from; the one before has ended."""
        self.wait()
        self._thread = threading.Thread(
            target=self._run, args=(_staged(generation),), name="wattmesh-settle", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being settled; the caller is inside a phase with a deadline."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def settle_for_restart(self, generation: Generation, name: str) -> None:
        """Settle what was staged at the end of a generation, before its launch ends; collective.

        Raises:
            SwitchFailed: it cannot be; the next launch begins from the checkpoint before.
        """
        problem = ""
        if self._job.leads(generation):
            staged = _staged(replace(generation, staged=name))
            try:
                settle(self._folder, staged, lambda: self._fence(staged))
            except (OSError, Fenced) as error:
                problem = f"{name} could not be made durable ({error}); make room on the disk."
        told = group.agree_on_problem(problem)
        if told:
            raise SwitchFailed(told)

    def _run(self, staged: Staged) -> None:
        began = time.monotonic()
        name = self._folder.checkpoint(staged.step).name
        try:
            settle(self._folder, staged, lambda: self._fence(staged))
        except (OSError, Fenced) as error:
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

    def _fence(self, staged: Staged) -> None:
        newest = highest_attempt(self._folder)
        if newest > staged.attempt:
            raise Fenced(
                f"attempt {newest} of this run exists, this is attempt {staged.attempt}; it was "
                "not published"
            )


def durable_name(folder: RunFolder) -> str:
    """The newest checkpoint that has its name and its seal; "" when there is none."""
    found = (each for each in folder.checkpoints() if (each / COMMIT).is_file())
    return next((each.name for each in found), "")


def _staged(generation: Generation) -> Staged:
    """What a generation was loaded from, not durable yet."""
    return Staged(
        name=generation.staged, step=generation.step, attempt=attempt_of(generation.staged)
    )


def _footings(
    launch_store: LaunchStore,
    folder: RunFolder,
    failed: str,
    tensors: Mapping[str, torch.Tensor],
    leads: bool,
) -> list[Footing]:
    """What every rank stands on; a collective call. The leader looks up who else was launched."""
    peers = launch_store.peers().values() if leads else ()
    footing = Footing(
        state_bytes=sum(_nbytes(each) for each in tensors.values()),
        free_bytes=free_memory(),
        disk_bytes=shutil.disk_usage(folder.path).free,
        hosts=tuple(sorted({f"{peer.host} {peer.pids}" for peer in peers})),
        durable=durable_name(folder),
        failed=failed,
    )
    told = group.gather(asdict(footing))
    return [Footing(**{**each, "hosts": tuple(each["hosts"])}) for each in told]


def _nbytes(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return int(local.numel() * local.element_size())
