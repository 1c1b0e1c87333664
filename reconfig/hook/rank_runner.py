"""Takes one rank through the generations: build, load, prove and vote, or wait while parked.

Invariant: a generation trains only after its leader has seen a good vote of every rank in it.
Otherwise all ranks go back to the previous layout, from the same checkpoint, or the launch ends.
"""

import logging
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from wattmesh.errors import (
    CallHuman,
    CheckpointDamaged,
    FixInput,
    InputInvalid,
    Refused,
    SwitchFailed,
    WattmeshError,
)
from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.checkpoint import checkpoint
from wattmesh.reconfig.checkpoint.in_memory.host_memory import HostMemory
from wattmesh.reconfig.hook import placed
from wattmesh.reconfig.hook.background_fsync import BackgroundFsync
from wattmesh.reconfig.hook.job import AttachedJob, Evidence, SwitchReporter
from wattmesh.reconfig.hook.proof import Proof
from wattmesh.reconfig.hook.reports import switch_line
from wattmesh.reconfig.launch import group, usage
from wattmesh.reconfig.launch.failures.deadlines import Phase
from wattmesh.reconfig.launch.failures.script_line import script_line
from wattmesh.reconfig.launch.generation import Generation, Purpose
from wattmesh.reconfig.launch.in_step import words
from wattmesh.reconfig.launch.launch_store import POLL_S, pauses
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state import carried
from wattmesh.reconfig.state.caches import MeshCaches
from wattmesh.reconfig.state.held import LIVE_SHARE, HeldTensors
from wattmesh.reconfig.state.optimizer.slots import begin_slots
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import (
    Named,
    name_to_fill,
)
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.switch_spend import GROUPS, LEAVE, STATE_BYTES

log = logging.getLogger(__name__)

T = TypeVar("T")


class RankRunner:
    """This rank's part in whatever generation is running."""

    def __init__(self, job: AttachedJob) -> None:
        """Start before the first generation."""
        self.job = job
        self.state: State | None = None
        self.generation: Generation | None = None
        self.budget = usage.Budget()
        self._caches = MeshCaches(gc_freeze=job.gc_freeze)
        self.memory = HostMemory()
        self.fsync = BackgroundFsync(job, self.memory)
        self.built: dict[str, str] = {}
        self._left: list[dist.ProcessGroup] = []
        self._state_bytes = 0
        self._leave_s: float | None = None
        self._stays = False

    def follow(self, number: int) -> Generation:
        """Follow the generations from `number` on, until this rank trains or the launch is over."""
        phase = Phase.WAKE
        while True:
            generation = self._await(number, phase)
            if generation.purpose is Purpose.OVER or self._join(generation):
                self.generation = generation
                return generation
            parked = not self.job.ranks(generation).taking_part
            phase = Phase.PARKED if parked else Phase.WAKE
            number += 1

    def leave_group(self) -> None:
        """End the process group, but keep its object until `tear_down`: a state may hold it."""
        self._left += group.leave()

    def ask_to_keep(self, layout: Layout, ranks: Sequence[int]) -> bool:
        """Return whether the groups stay for a switch to `layout`; a collective call.

        They do on the same ranks and mesh, where all were made for reuse. Compiled code stays with
        them: it names groups, and would send to those of another mesh.
        """
        here = self.generation
        assert here is not None
        same = (tuple(ranks), layout.degrees) == (here.ranks, here.layout.degrees)
        self._stays = same and group.may_stay()
        return self._stays

    def end_group(self) -> None:
        """End the process group after the state is gone, unless it stays; note what that takes."""
        began = time.monotonic()
        if not self._stays:
            group.end()
        self._leave_s = round(time.monotonic() - began, 4)

    def tear_down(self, *, switching: bool = True) -> tuple[float, str]:
        """Empty the state; return the share of its bytes that is still alive, and a name for it.

        `switching`: whether another one is built after it.
        """
        try:
            return self._empty_state(switching=switching)
        finally:
            group.drop(self._left)

    def close(self) -> None:
        """Empty the state at the end of the session, and undo what switches left in the process."""
        self.tear_down(switching=False)
        self._caches.thaw()
        self.memory.release()

    def _empty_state(self, *, switching: bool) -> tuple[float, str]:
        state, self.state = self.state, None
        if state is None:
            return 0.0, ""
        held = HeldTensors.of(state)
        state.parts = SimpleNamespace()
        keeps = self._stays and switching
        if not keeps:
            torch_compat.forget_compiled()
        state.close()
        del state
        self._free(switching=switching)
        found = held.share(self.job.device)
        if keeps and found[0] > LIVE_SHARE:
            # Compiled code may hold what it was compiled for: without it once more.
            torch_compat.forget_compiled()
            self._free(switching=switching)
            found = held.share(self.job.device)
        return found

    def _free(self, *, switching: bool) -> None:
        self._caches.collect(self.job.device, switching=switching)
        if self.job.device != "cpu":
            torch_compat.free_workspaces()
            torch.cuda.empty_cache()

    def _await(self, number: int, phase: Phase) -> Generation:
        """Wait for the record of generation `number`; a parked rank forwards messages meanwhile."""
        pause_s = pauses()
        with self.job.watchdog.phase(phase, generation=number, step=0):
            while (found := self.job.launch_store.generation(number)) is None:
                if phase is Phase.PARKED:
                    self._idle(number)
                time.sleep(next(pause_s))
            return found

    def _idle(self, number: int) -> None:
        """Do what a parked rank must do: forward messages, pass a stop request to the leader.

        Raises:
            SwitchFailed: the leader of the generation before has left without publishing a next
                one.
        """
        if self.job.pump is not None:
            self.job.pump.run()
        if self.job.stop_reason and not self.job.launch_store.peek("stop"):
            log.info("parked, asked to stop (%s): the leader is told", self.job.stop_reason)
            self.job.launch_store.put("stop", self.job.stop_reason)
        launch_store = self.job.launch_store
        before = launch_store.generation(number - 1)
        gone = before is not None and launch_store.has_left(before.leader)
        # A leader publishes the next record before it leaves, so look for the record after that.
        if before is not None and gone and launch_store.generation(number) is None:
            raise SwitchFailed(
                f"rank {before.leader}, which led, has left without ending the run; "
                f"rank {self.job.rank}, parked, leaves too."
            )

    def _join(self, generation: Generation) -> bool:
        """Take part in `generation`; False if this rank is parked in it or it was given up."""
        ranks = self.job.ranks(generation)
        if not ranks.taking_part:
            log.debug("rank %d is parked in generation %d", self.job.rank, generation.number)
            return False
        reporter = (
            SwitchReporter(self.job, generation, generation.switch) if generation.switch else None
        )
        cause: BaseException | None = None
        problem = ""
        try:
            self._bring_up(generation, reporter)
        except (Exception, CheckpointException) as error:
            cause, problem = error, words(error)
            self._log_traceback(generation, error)
            self.job.launch_store.spoil(generation.number, problem)
            self._set_peers_free(generation, error)
        self.job.launch_store.vote(generation.number, problem)
        verdict = self._verdict(generation, reporter, cause)
        if verdict:
            self._give_up(generation)
            return False
        self._confirmed(generation, reporter)
        return True

    def _bring_up(self, generation: Generation, reporter: SwitchReporter | None) -> None:
        """Build, load and prove this generation; raises on any problem."""
        watch, step = self.job.watchdog, generation.step
        began = time.monotonic()
        with watch.phase(Phase.REBUILD, generation=generation.number, step=step):
            ranks = self.job.ranks(generation)
            self._begin_group(generation, ranks)
            grouped = time.monotonic()
            self.state = self.job.build(generation.layout, ranks)
            if not isinstance(self.state, State):
                raise InputInvalid(f"build gave a {type(self.state).__name__}, not a State.")
            placed.check(self.state, generation)
            self.state.position = generation.position
            self.state.batches.begin()
            self._ask_whether_carried(generation)
        built = time.monotonic()
        with watch.phase(Phase.LOAD, generation=generation.number, step=step):
            named = self._loaded(generation) if generation.checkpoint else None
        loaded = time.monotonic()
        told = reporter if generation.purpose is not Purpose.ROLLBACK else None
        if told:
            seconds: Evidence = {
                GROUPS: round(grouped - began, 4),
                "build_s": round(built - began, 4),
                "load_s": round(loaded - built, 4),
            }
            if self._state_bytes:
                seconds[STATE_BYTES] = self._state_bytes
            if self._leave_s is not None:  # None: this rank was parked
                seconds[LEAVE], self._leave_s = self._leave_s, None
            told.tell(SwitchState.LOADED, evidence=seconds)
        if self.job.uncarried and not generation.checkpoint:
            return
        with watch.phase(Phase.VERIFY, generation=generation.number, step=step):
            try:
                found = self._proof(generation).hold(named)
            except WattmeshError as error:
                if generation.checkpoint or self._must_be_carried(generation, wait=True):
                    raise
                self._observe_only(str(error))
                return
        if told:
            verify_s = round(time.monotonic() - loaded, 4)
            told.tell(SwitchState.VERIFIED, evidence={"verify_s": verify_s, **found})

    def _begin_group(self, generation: Generation, ranks: Ranks) -> None:
        """Make this generation's process group, unless that of the one before has stayed."""
        stays, self._stays = self._stays, False
        if stays:
            return
        self.budget.begin((generation.layout, generation.ranks), usage.now())
        group.begin(
            self.job.launch_store,
            generation.number,
            ranks,
            device=self.job.device,
            backend=self.job.backend,
            timeout_s=self.job.deadlines.longest_s,
        )

    def _ask_whether_carried(self, generation: Generation) -> None:
        """Refuse a state that cannot be checkpointed, before its first step; a collective call.

        Raises:
            InputInvalid: on every rank, where the run may be switched.
        """
        assert self.state is not None
        problem = carried.problem(self.state, generation.layout)
        self.built = {} if problem else carried.buffers_of(self.state)
        told = group.agree_on_problem(problem)
        must = self._must_be_carried(generation, wait=bool(told))
        if told and (must or generation.retreats):
            raise InputInvalid(told)
        if told:
            self._observe_only(told)

    def _must_be_carried(self, generation: Generation, *, wait: bool) -> bool:
        """Return whether the run may be switched, so that it must not train unproven.

        A collective call. With `wait` the leader waits up to `MODE_WAIT_S` for the daemon's mode.
        """
        job = self.job
        leads = job.leads(generation)
        until = time.monotonic() + (MODE_WAIT_S if wait else 0.0)
        while leads and not job.knows_mode() and time.monotonic() < until:
            time.sleep(POLL_S)
        job.acted_on = any(group.gather(leads and job.may_be_switched()))
        return job.acted_on

    def _observe_only(self, why: str) -> None:
        """Train without checkpoints and switches, because none can be made."""
        self.job.uncarried = why
        if dist.get_rank() == 0:
            log.error("%s The run is measured, and neither saved nor switched.", why)

    def _log_traceback(self, generation: Generation, error: BaseException) -> None:
        """Log where an error of this layout came from, if the launch goes back from it.

        Else it is raised. An error of wattmesh's own that the user's script has no part in says all
        in its sentence. The traceback is logged as text, because a log handler that kept its frames
        would keep the layout's tensors.
        """
        own = isinstance(error, WattmeshError) and not (
            script_line(error) or (error.__cause__ and script_line(error.__cause__))
        )
        if generation.retreats and not own:
            log.error(
                "rank %d could not be brought up as %s.\n%s",
                self.job.rank,
                generation.layout,
                "".join(traceback.format_exception(error)).rstrip(),
            )

    def _set_peers_free(self, generation: Generation, error: BaseException) -> None:
        """Close this rank's connections, so that peers waiting in a collective get an error.

        A connection closes once nothing refers to its process group: not the state, not the frames
        of the traceback, not torch's caches. Does nothing where there is no layout to go back to.
        """
        with self.job.watchdog.phase(
            Phase.TEARDOWN, generation=generation.number, step=generation.step
        ):
            if generation.retreats:
                traceback.clear_frames(error.__traceback__)
                self.tear_down()
                group.end()

    def _loaded(self, generation: Generation) -> Named:
        """Load; damage to what this very launch saved ends the launch, not the run.

        Raises:
            SwitchFailed: it is damaged; the next launch begins from the newest whole checkpoint.
        """
        try:
            return self._load(generation)
        except CheckpointDamaged as error:
            if generation.number == 1:
                raise  # what the launch began from was whole just before
            raise SwitchFailed(str(error)) from error

    def _load(self, generation: Generation) -> Named:
        """Load the generation's checkpoint into the fresh state; returns what was filled."""
        assert self.state is not None
        folder = self._where(generation)
        opened = checkpoint.open_on_all(folder)
        self._state_bytes = sum(each.size for each in opened.manifest.data.values())
        if generation.number > 1:
            # This launch wrote it, so it comes from an optimizer that the same `build` made.
            begin_slots(self.state, opened)
        self.job.experts.expect(self.state, opened.trainer)
        named = name_to_fill(self.state)
        layout = generation.layout
        header = checkpoint.load(
            folder, named, self.state, layout=layout, opened=opened, memory=self.memory
        )
        if header.run != generation.run or header.position != generation.position:
            raise SwitchFailed(
                f"{folder.name} is of run {header.run} at {header.position}, the generation's "
                f"record says run {generation.run} at {generation.position}."
            )
        return named

    def _proof(self, generation: Generation) -> Proof:
        assert self.state is not None
        return Proof(
            self.job,
            self.state,
            generation,
            folder=self._where(generation),
            memory=self.memory,
            acted_on=lambda: self._must_be_carried(generation, wait=True),
        )

    def _where(self, generation: Generation) -> Path:
        return self.job.folder.path / (generation.staged or generation.checkpoint)

    def _verdict(
        self, generation: Generation, reporter: SwitchReporter | None, cause: BaseException | None
    ) -> str:
        """Wait for the leader's verdict: "" if this generation stands, else why it was given up."""
        launch_store, number = self.job.launch_store, generation.number
        # There is no layout to go back to: the rank that failed says why, and the launch ends.
        if cause is not None and not generation.retreats:
            if not isinstance(cause, REFUSALS):
                self.job.watchdog.give_reason(
                    f"rank {self.job.rank} could not begin to train ({words(cause)})."
                )
            # For REFUSALS the session tells the supervisor first: once the other ranks know, all
            # leave at once, and this process may be ended before it has written that.
            raise cause
        with self.job.watchdog.phase(Phase.AGREE, generation=number, step=generation.step):
            if self.job.leads(generation):
                votes = {
                    rank: launch_store.wait(f"vote/{number}/{rank}") for rank in generation.ranks
                }
                why = launch_store.spoiler(number) if any(votes.values()) else ""
                if why and reporter is not None and generation.retreats:
                    step, elapsed_s = generation.step, reporter.elapsed_s
                    log.warning("%s", switch_line.taken_back(reporter.note, step, elapsed_s, why))
                    reporter.tell(SwitchState.ROLLING_BACK, detail=why)
                    launch_store.publish(_rollback_of(generation, why))
                launch_store.put(f"verdict/{number}", why)
            return str(launch_store.wait(f"verdict/{number}"))

    def _give_up(self, generation: Generation) -> None:
        """Tear down a generation that was given up; ends the launch if its memory stays held."""
        step = generation.step
        watch = self.job.watchdog
        with watch.phase(Phase.TEARDOWN, generation=generation.number, step=step):
            self.leave_group()
            share, name = self.tear_down()
        if share > LIVE_SHARE:
            self.job.launch_store.fail(
                f"rank {self.job.rank} still holds {share:.0%} of the layout it left ({name}); "
                "the launcher restarts in the layout before."
            )

    def _confirmed(self, generation: Generation, reporter: SwitchReporter | None) -> None:
        """Report that this generation stands, and delete the records of a switch in progress."""
        if reporter is None or not self.job.leads(generation):
            if generation.staged:
                self.fsync.begin(generation)
            return
        back = generation.purpose is Purpose.ROLLBACK
        reporter.tell(
            SwitchState.ROLLED_BACK if back else SwitchState.CONFIRMED,
            detail=reporter.note.why if back else "",
            evidence={"total_s": round(reporter.elapsed_s, 4)},
        )
        if generation.staged:
            self.fsync.begin(generation)
        self.job.folder.switch_file.unlink(missing_ok=True)
        self.job.folder.next_file.unlink(missing_ok=True)
        if not back:
            by_restart = generation.number == 1
            # WARNING level, so that a script without logging set up shows it too.
            log.warning(
                "%s", switch_line.arrived(generation, reporter.elapsed_s, by_restart=by_restart)
            )


REFUSALS = (Refused, CallHuman, FixInput)
"""Errors after which starting again would not help."""

MODE_WAIT_S = 10.0
"""How long a run that cannot be saved or proven waits for the daemon to tell its mode."""


def _rollback_of(generation: Generation, why: str) -> Generation:
    """Return the generation that rolls `generation` back, from the same checkpoint."""
    note = generation.switch
    assert note is not None
    return replace(
        generation,
        number=generation.number + 1,
        purpose=Purpose.ROLLBACK,
        layout=note.old_layout,
        ranks=note.old_ranks,
        placement=note.old_placement,
        switch=replace(note, why=why),
    )
