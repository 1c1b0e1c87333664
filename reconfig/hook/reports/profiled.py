"""What a run does differently while it is profiled or validated (`WATTMESH_PROFILE`).

It saves into that folder only, as often as it is asked to, ends when it is asked to however many
steps its script counts on, and logs every step. Invariant: without the variable nothing here runs
beyond one comparison per step.
"""

import math
import time
from typing import TYPE_CHECKING

import torch

from wattmesh.reconfig.equivalence.asked import ValidationFiles
from wattmesh.reconfig.hook.job import AttachedJob
from wattmesh.reconfig.hook.reports import own_code
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.profile_folder import DeviceMemory, ProfileFolder, memory_line
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.step_log import StepLog, StepRow

if TYPE_CHECKING:
    from wattmesh.reconfig.equivalence.witness import Witness


def folder_of(folder: RunFolder) -> RunFolder:
    """Return the run's folder, which is the profile's while the run is profiled.

    Raises:
        InputInvalid: the environment names a folder that is not one of a profile.
    """
    place = ProfileFolder.from_environment()
    if place is None:
        return folder
    place.every()
    return RunFolder(place.run)


def prepare(job: AttachedJob) -> None:
    """Let a profiled run be ended from outside, and save for itself; leave any other alone."""
    place = ProfileFolder.from_environment()
    if place is None:
        return
    job.boundary_every = place.every() or job.boundary_every
    # The job's own checkpointer would write beside the checkpoints of the real run.
    job.tokens_total, job.save = 0, None


class ProfileNotes:
    """Logs a profiled run's steps (on the leader) and its devices' memory (on every rank)."""

    def __init__(self, job: AttachedJob) -> None:
        """Open nothing yet: the leader's first step opens the log."""
        self._job = job
        self._place = ProfileFolder.from_environment()
        self._log: StepLog | None = None
        self._from_s = 0.0
        self._generation = 0
        self._peak_bytes = 0
        self._witness = _witness(job, self._place)

    def resume(self, now_s: float) -> None:
        """Begin the next step at `now_s` (monotonic), so that a boundary is no part of it."""
        self._from_s = now_s

    def leave(self, state: State, *, due: bool) -> None:
        """Keep the state before a save step, for a validated run; a collective call then."""
        if self._witness is not None and due:
            self._witness.leave(state)

    def begin(self, generation: Generation, state: State) -> None:
        """Count a layout's memory from its beginning; repeated calls change nothing."""
        if self._place is None or generation.number == self._generation:
            return
        self._generation, self._peak_bytes = generation.number, 0
        self._from_s = time.monotonic()
        if self._job.device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        if self._witness is not None:
            self._witness.begin(state, generation)
            self._from_s = time.monotonic()

    def step(
        self, generation: Generation, state: State, loss: float | None, ended_s: float
    ) -> None:
        """Note the step that ended at `ended_s`; its position is the state's."""
        if self._place is None:
            return
        position = state.position
        if self._witness is not None:
            self._witness.step(state)
        layout = str(generation.layout)
        if self._job.device != "cpu":
            self._note_memory(self._place, layout, position.step)
        if self._job.leads(generation):
            if self._log is None:
                self._log = StepLog(self._place.steps)
            self._log.append(
                StepRow(
                    step=position.step,
                    tokens=position.tokens,
                    loss=math.nan if loss is None else loss,
                    layout=layout,
                    gpus=generation.layout.world_size,
                    monotonic_s=ended_s,
                    elapsed_s=ended_s - self._from_s,
                )
            )
        self._from_s = ended_s

    def _note_memory(self, place: ProfileFolder, layout: str, step: int) -> None:
        """Write the device's peak where it grew."""
        peak_bytes = torch.cuda.max_memory_reserved()
        if peak_bytes <= self._peak_bytes:
            return
        self._peak_bytes = peak_bytes
        row = DeviceMemory(rank=self._job.rank, step=step, layout=layout, peak_bytes=peak_bytes)
        with place.memory(self._job.rank).open("ab") as file:
            file.write(memory_line(row))


def _witness(job: AttachedJob, place: ProfileFolder | None) -> "Witness | None":
    """Return what watches this launch from inside, where it is validated."""
    asked = ValidationFiles(place.path).asked() if place is not None else None
    if place is None or asked is None:
        return None
    # Only a launch that is validated needs numpy and the gather.
    from wattmesh.reconfig.equivalence.witness import Witness  # noqa: PLC0415

    return Witness(place.path, asked, own_code.fingerprint(job.launch_store.launched))
