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
from dataclasses import asdict, dataclass

import torch
from torch.distributed.tensor import DTensor

from wattmesh.errors import Fenced
from wattmesh.reconfig import checkpoint, group
from wattmesh.reconfig.attempt import highest_attempt
from wattmesh.reconfig.board import Board
from wattmesh.reconfig.fast import Footing, free_memory, refusal
from wattmesh.reconfig.folder import RunFolder

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A checkpoint that is whole but not durable.

    Attributes:
        name: of its folder, in staging. `step`: it is of; `digest`: of the state in it.
        attempt: that wrote it; a newer one forbids to publish.
    """

    name: str
    step: int
    digest: str
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


class Settler:
    """Settles one staged checkpoint at a time; of one rank."""

    def __init__(self, folder: RunFolder, *, keep: int) -> None:
        """Have nothing to do yet; `keep` checkpoints stay."""
        self._folder = folder
        self._keep = keep
        self._thread: threading.Thread | None = None
        self._durable: Staged | None = None
        self.problem = ""

    def begin(self, staged: Staged, *, protected: set[str]) -> None:
        """Settle `staged` in the background; the one before has ended (`wait`)."""
        self.wait()
        self._thread = threading.Thread(
            target=self._run, args=(staged, protected), name="wattmesh-settle", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being settled; the caller is inside a phase with a deadline."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    @property
    def durable(self) -> Staged | None:
        """What was settled last."""
        return self._durable

    def settle_now(self, staged: Staged) -> None:
        """Settle `staged` in the caller's thread.

        Raises:
            OSError, Fenced: see `settle`.
        """
        settle(self._folder, staged, lambda: self._fence(staged))

    def _run(self, staged: Staged, protected: set[str]) -> None:
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
        self._durable = staged
        log.info("%s is durable, %.2f s after the switch", name, time.monotonic() - began)
        with suppress(OSError):
            checkpoint.prune(self._folder, keep=self._keep, protected={*protected, name})

    def _fence(self, staged: Staged) -> None:
        newest = highest_attempt(self._folder)
        if newest > staged.attempt:
            raise Fenced(
                f"attempt {newest} of this run exists, this is attempt {staged.attempt}; it was "
                "not published"
            )


def durable_name(folder: RunFolder) -> str:
    """The newest checkpoint that has its name and its seal; "" when there is none."""
    found = (each for each in folder.checkpoints() if (each / checkpoint.COMMIT).is_file())
    return next((each.name for each in found), "")


def why_durable_first(
    board: Board,
    folder: RunFolder,
    settler: Settler,
    tensors: Mapping[str, torch.Tensor],
    *,
    leads: bool,
) -> str:
    """Say why this switch's checkpoint must be on disk before the old layout goes; collective.

    Args:
        board: this rank's.
        folder: the run's.
        settler: this rank's.
        tensors: what this rank holds.
        leads: whether this rank looks up who else was launched.
    """
    peers = board.peers().values() if leads else ()
    footing = Footing(
        state_bytes=sum(_nbytes(each) for each in tensors.values()),
        free_bytes=free_memory(),
        disk_bytes=shutil.disk_usage(folder.path).free,
        hosts=tuple(sorted({f"{peer.host} {peer.pids}" for peer in peers})),
        durable=durable_name(folder),
        failed=settler.problem,
    )
    told = group.gather(asdict(footing))
    return refusal([Footing(**{**each, "hosts": tuple(each["hosts"])}) for each in told])


def _nbytes(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return int(local.numel() * local.element_size())
