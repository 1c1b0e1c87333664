"""What a training script touches: `attach`, `session.state`, `report`, `boundary`, `done`.

    session = wattmesh.attach(name, build=build, probe=probe, layout=default, checkpoint_dir=...)
    while not session.done:
        metrics = train_step(session.state)
        session.report(tokens=..., samples=..., loss=...)
        session.boundary()

Invariant: `attach` and `boundary` return only when this rank has a state to train or when
`session.done`; a parked rank waits inside them. The training position comes only from the
checkpoint and the session.
"""

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import SupportsFloat, SupportsIndex

import torch

from wattmesh.errors import CallHuman, Diverged, FixInput, InputInvalid, Refused
from wattmesh.reconfig.checkpoint.foreign import Save
from wattmesh.reconfig.client.pace import Pace
from wattmesh.reconfig.client.reached import ReachedStepFile
from wattmesh.reconfig.client.reporter import Reporter, SilentReporter
from wattmesh.reconfig.gpus.allocated_gpus import allocated_gpus
from wattmesh.reconfig.gpus.own_gpus import gpu_of_rank
from wattmesh.reconfig.hook.attach_check import walker
from wattmesh.reconfig.hook.boundary import Boundary
from wattmesh.reconfig.hook.expert_costs import RankExpertCosts, TakeCosts
from wattmesh.reconfig.hook.job import AttachedJob, Build, Probe
from wattmesh.reconfig.hook.launching.launch_leader import LaunchLeader, begin_launch
from wattmesh.reconfig.hook.launching.launcher import heed_sigterm, refuse, write_outcome
from wattmesh.reconfig.hook.launching.start import AttachRequest
from wattmesh.reconfig.hook.progress import progress
from wattmesh.reconfig.hook.rank_runner import RankRunner
from wattmesh.reconfig.hook.reports import profiled, reported
from wattmesh.reconfig.hook.reports.first_steps import FirstSteps
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.closing import Closing
from wattmesh.reconfig.launch.failures.bounded import within
from wattmesh.reconfig.launch.failures.deadlines import Deadlines, Phase
from wattmesh.reconfig.launch.failures.watchdog import RankWatchdog
from wattmesh.reconfig.launch.folder import (
    HOLDS_VARIABLE,
    OUTCOME_VARIABLE,
    RESIZES_VARIABLE,
)
from wattmesh.reconfig.launch.generation import Generation, Outcome, Purpose
from wattmesh.reconfig.launch.launch_store import POLL_S, LaunchStore
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.ranges import shown
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.wire.messages import Progress

log = logging.getLogger(__name__)

FLUSH_S = 3.0
"""How long the end of a job waits until the daemon has accepted its last reports."""


class Session(Closing):
    """One rank's handle on a run; made by `attach`."""

    def __init__(
        self, job: AttachedJob, leader: LaunchLeader | None, unheed: Callable[[], None]
    ) -> None:
        """Start before the first generation; `unheed` restores the SIGTERM handler."""
        self._job = job
        self._leader = leader
        self._unheed = unheed
        self._runner = RankRunner(job)
        self._boundary = Boundary(job, self._runner)
        self._pace = Pace(time.monotonic())
        self._first_steps = FirstSteps(job)
        self._notes = profiled.ProfileNotes(job)
        self._loss: float | None = None
        self._expected = Position()
        self._due = False
        self._handled_step = 0
        self._reports = 0
        self._reached = ReachedStepFile(job.folder.reached_file)
        self._reached_before = 0
        self._after_save_step: list[Callable[[], None]] = []
        self._over: Generation | None = None
        self._closed = False

    @property
    def state(self) -> State:
        """What this rank trains with.

        Raises:
            RuntimeError: the session is done and nothing is left to train.
        """
        if self._runner.state is None:
            raise RuntimeError("session.state: the session is done; there is nothing to train.")
        return self._runner.state

    @property
    def done(self) -> bool:
        """Whether this launch's training has ended; see `outcome` for how."""
        return self._over is not None

    @property
    def outcome(self) -> str:
        """How this launch ended: "done", "stopped", "restart", "suspended"; "" while it trains."""
        over = self._over
        return str(over.outcome) if over is not None and over.outcome is not None else ""

    @property
    def generation(self) -> Generation:
        """The record of the present generation: layout, ranks, where it began."""
        assert self._runner.generation is not None
        return self._runner.generation

    @property
    def leads(self) -> bool:
        """Whether this rank leads the run now; let this rank write to an experiment tracker.

        Exactly one rank of a generation leads; after a switch it may be another one.
        """
        return not self.done and self._job.leads(self.generation)

    @property
    def run(self) -> str:
        """The run's UUID: the same after every switch and restart."""
        return self.generation.run

    @property
    def routing_file(self) -> Path:
        """Where the recording of its experts' routing lies, if there is one."""
        return self._job.folder.routing_file

    @property
    def retrained(self) -> bool:
        """Whether an earlier launch had already reported the newest step, and then lost it."""
        return 0 < self.position.step <= self._reached_before

    @property
    def switch_waits(self) -> bool:
        """Whether `boundary` has left a switch for its next call, on every rank alike."""
        return self._boundary.waits

    @property
    def position(self) -> Position:
        """Where training stands; at the end, where it ended."""
        return self._over.position if self._over is not None else self.state.position

    def report(
        self,
        *,
        tokens: SupportsIndex | SupportsFloat,
        samples: SupportsIndex | SupportsFloat = 0,
        loss: SupportsFloat | None = None,
        data: Iterable[int] | torch.Tensor = (),
    ) -> None:
        """Report one optimizer step; never waits for the daemon.

        Args:
            tokens: consumed by this step, over all ranks: a whole number, as an int, a float, a
                numpy number or a tensor of one element.
            samples: consumed by this step, over all ranks; likewise.
            loss: of this step, the same on every rank; None when this rank does not know it. A
                value that is not finite is sent as unknown; a tensor on a device is synchronized.
            data: indices, in the run's data order, of the samples that this rank's loader gave for
                this step; compared at the next save step with what the run should have read.

        Raises:
            Diverged: something other than the session has changed this rank's position.
            InputInvalid: `tokens` or `samples` is not a whole number, and the run may be switched;
                for a run that is only observed, the log and `status` show one sentence instead. Or
                a switch waits, of what was saved before this step.
        """
        state = self.state
        before = state.position
        self._check_position(before)
        if self.switch_waits:
            raise InputInvalid(
                f"a switch waits since step {before.step}, and another step was trained: leave "
                "the loop where `switch_waits` is true, and call `boundary` again."
            )
        tokens = reported.counted(tokens, "tokens", self._job)
        samples = reported.counted(samples, "samples", self._job)
        self._job.consumed.add(data)
        state.position = Position(
            step=before.step + 1, samples=before.samples + samples, tokens=before.tokens + tokens
        )
        self._expected = state.position
        self._loss = reported.loss(loss)
        self._job.unknown_loss = shown(loss) if self._loss is None and loss is not None else ""
        ended_s = time.monotonic()
        self._pace.note(ended_s, state.position.tokens)
        self._first_steps.step(ended_s)
        self._notes.step(self.generation, state, self._loss, ended_s)
        self._rest()
        if self.leads:
            self._reached.note(state.position.step)
            self._job.voice().progress(self._progress(state.position))

    def count_expert_tokens(
        self,
        tokens: SupportsIndex,
        busy_s: float | None = None,
        paired: tuple[float, float] | None = None,
    ) -> None:
        """Count what experts on this rank's GPU computed in a step, over all layers.

        `tokens`: a tensor is summed on its device, and read at the next save step only. `busy_s`:
        the seconds that it took, where the job measures them. `paired`: the loss of one batch with
        the routers' lean and without it, equal on all ranks. See `expert_costs` of `attach`.
        """
        self._job.experts.count(tokens, busy_s, paired)

    def after_save_step(self, call: Callable[[], None]) -> None:
        """Call this on this rank at the end of each save step after which it trains on.

        It may not be collective, and what it raises ends the training.
        """
        self._after_save_step.append(call)

    def boundary(self, *, last: bool = False, may_switch: bool = True) -> None:
        """Do what is due after a step: at a save step a checkpoint, and a switch if ordered.

        Call it after optimizer.step and zero_grad, on every rank: it is collective at save steps.

        Args:
            last: training ends here, on every rank: this is a save step, and the end of the run.
            may_switch: False where frames above the caller hold the model, which a switch in place
                could then not free: it is prepared, and waits (`switch_waits`) for the next call.
        """
        if self.done:
            return
        if self._boundary.waits:
            with self._last_words():
                self._boundary.carry_out()
            self._resume(due=True)
            return
        position = self.state.position
        self._check_position(position)
        total = self._job.tokens_total
        due = position.step % self._job.boundary_every == 0 or 0 < total <= position.tokens
        due = last or ((due or self._due) and position.step > self._handled_step)
        if not due and not self._boundary.saves.writing:
            return
        if last:
            self.finish()
        self._notes.leave(self.state, due=due)
        with self._last_words():
            agreed = self._boundary.run(self._loss, due=due, may_switch=may_switch)
        if due:
            self._due = bool(agreed.deferred) and agreed.outcome is None
            if not self._due:
                self._handled_step = position.step
        if not self._boundary.waits:
            self._resume(due=due)

    def _resume(self, *, due: bool) -> None:
        self._first_steps.resume(ended_s := time.monotonic())
        self._notes.resume(ended_s)
        if due:
            self._settle()

    def _check_position(self, found: Position) -> None:
        """Raise if anything but the session changed the position: ranks would be out of step."""
        if found != self._expected:
            raise Diverged(
                f"rank {self._job.rank} stands at {found}, though its steps led to "
                f"{self._expected}: only the session sets state.position."
            )

    def finish(self) -> None:
        """Ask for the end of the run at the next save step; it is enough if one rank asks."""
        self._job.finish_asked = True

    def _close(self, error: BaseException | None) -> None:
        """End this rank's part; an `error` before the end is published to every rank."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        clean = error is None or self.done or isinstance(error, SystemExit)
        # Every call to the store may hang if a host is lost.
        with suppress(RuntimeError):
            if clean:
                self._job.watchdog.stop()
                within(self._job.deadlines.leave_s, self._job.launch_store.leave, None)
            else:
                words = f"rank {self._job.rank} failed: {error!r}"
                tell = partial(self._job.watchdog.give_reason, words)
                within(self._job.deadlines.leave_s, tell, None)
        # SIGTERM ends this process from here: before, it would have come before the reason.
        self._unheed()
        if clean:
            # After a failure, ending the group might hang on a peer: process exit ends it.
            self._runner.leave_group()
        self._runner.close()
        self._reached.rest()
        self._job.client.close(FLUSH_S)
        if self._leader is not None:
            if clean:
                within(2 * self._job.deadlines.leave_s, self._await_others, None)
            self._leader.close()

    def begin(self) -> None:
        """Wait for generation 1 and follow it; part of `attach`."""
        with self._last_words():
            self._runner.follow(1)
        self._reached_before = int(self._job.launch_store.peek("reached") or 0)
        self._settle()
        self._end_if_trained()
        if self._job.rank == 0 and not self.done:
            write_outcome("training", f"as {self.generation.layout}", self.generation.step)

    def _end_if_trained(self) -> None:
        """End without another step if the checkpoint already holds all of `tokens_total`."""
        total = self._job.tokens_total
        if not self.done and 0 < total <= self.position.tokens:
            self._handled_step = self.position.step - 1
            self.boundary()

    def _settle(self) -> None:
        """Adopt the generation that this rank is in now, or end if it is over."""
        generation = self.generation
        if generation.purpose is Purpose.OVER:
            self._end(generation)
            return
        self._job.resumed_from = self._job.resumed_from or generation.checkpoint
        self._handled_step = max(self._handled_step, generation.step)
        self._expected = self.state.position
        self._job.consumed.begin(self._expected.samples)
        self._pace.begin(generation.number)
        self._first_steps.begin(generation, time.monotonic())
        self._notes.begin(generation, self.state)
        self._reached.rest()
        self._job.experts.settle(self.state, generation, leads=self.leads)
        for call in self._after_save_step:
            call()
        self._rest()

    def _rest(self) -> None:
        self._job.watchdog.resting(
            Phase.TRAIN, generation=self.generation.number, step=self.state.position.step
        )

    def _end(self, over: Generation) -> None:
        if self._job.pump is not None:
            self._job.pump.run()
        self._over = over
        if self._job.rank == 0:
            write_outcome(over.outcome or Outcome.DONE, over.detail, over.step)
        with suppress(RuntimeError):
            self._job.launch_store.leave()
        self._runner.leave_group()
        self._job.watchdog.stop()
        self._job.client.close(FLUSH_S)
        self._unheed()

    def _await_others(self) -> None:
        """Let rank 0 leave last: it may host the store from which the others learn of the end."""
        until = time.monotonic() + self._job.deadlines.leave_s
        launch_store = self._job.launch_store
        with suppress(RuntimeError):
            while time.monotonic() < until:
                if all(launch_store.has_left(rank) for rank in range(launch_store.launched)):
                    return
                time.sleep(POLL_S)

    def _progress(self, position: Position) -> Progress:
        self._reports += 1
        return progress(
            self.generation,
            position,
            self._boundary.saves,
            seq=self._reports,
            pace=self._pace,
            loss=self._loss,
            boundary_every=self._job.boundary_every,
        )

    @contextmanager
    def _last_words(self) -> Iterator[None]:
        """Tell the other ranks and the supervisor why this rank cannot go on."""
        try:
            yield
        except (Refused, CallHuman, FixInput) as error:
            refuse(self._job.launch_store, error)
            raise


def attach(
    name: str,
    *,
    build: Build,
    probe: Probe,
    layout: Layout,
    checkpoint_dir: str | Path,
    boundary_every: int = 20,
    tokens_total: int = 0,
    device: str = "cpu",
    backend: str = "",
    deadlines: Deadlines | None = None,
    gpu_uuid: str = "",
    initial_ranks: tuple[int, ...] | None = None,
    keep: int = 3,
    reporter: Reporter | None = None,
    save: Save | None = None,
    seekable: bool = True,
    gc_freeze: bool = False,
    expert_costs: TakeCosts | None = None,
) -> Session:
    """Join a run as one of its ranks; returns when this rank has a state to train or all is done.

    Args:
        name: what people call the run, `[A-Za-z0-9_.-]{1,64}`; chooses its section in the daemon's
            settings. Another text is taken for the nearest name, with a warning.
        build: makes meshes, model and optimizers for a layout; called with the process group
            initialized.
        probe: loss of a fixed batch, forward only; the same number on every rank.
        layout: where to begin when no checkpoint says otherwise.
        checkpoint_dir: the run's folder, on a file system that every rank sees.
        boundary_every: optimizer steps between save steps.
        tokens_total: the run is done at this many tokens; 0 leaves it to `Session.finish`.
        device: "cpu" or "cuda"; chooses the process group's backends.
        backend: replaces that choice, as torch takes it. It must serve CPU tensors too, for example
            "cpu:gloo,cuda:gloo" for ranks that share a GPU, which NCCL does not support.
        deadlines: seconds per phase before the watchdog ends a rank.
        gpu_uuid: NVML's UUID of this rank's device, for the daemon's accounting; "" looks for it
            if `device` is "cuda". The log and `status` say so if it is not found.
        initial_ranks: the ranks that begin; None takes the first `layout.world_size` ranks.
        keep: how many checkpoints to keep.
        save: the job's own checkpointer, called with the state and the step on every rank. It
            writes a folder of torch's distributed checkpoint, or begins to; None lets the session
            save.
        reporter: gives orders and receives reports on global rank 0 in place of a daemon (a script
            of switches, see `wattmesh.reconfig.equivalence`).
        seekable: whether the loader can begin at any global sample in any layout; without it the
            data parallel degree never changes.
        gc_freeze: exclude all objects alive now from garbage collection (`gc.freeze`), for the life
            of the process, so that switches in place need not walk them.
        expert_costs: takes what GPUs cost the experts of a mixture, as all ranks agreed at a save
            step, on every rank, also when a generation begins; None: nothing is asked or changed.

    Raises:
        InputInvalid: no launcher, or a layout that does not fit the launched ranks.
        Refused: another live launch holds this run.
        CallHuman: every checkpoint is damaged.
    """
    deadlines = deadlines or Deadlines()
    folder = profiled.folder_of(walker.folder_of(checkpoint_dir))
    launch_store = LaunchStore.connect(deadlines.wake_s)
    gpu, gpu_unknown = gpu_of_rank(gpu_uuid, device, launch_store.rank)
    job_has = allocated_gpus()
    launch_store.introduce(gpu, gpu_unknown, job_has.allocated, job_has.allocated_why)
    job = AttachedJob(
        name=name,
        launch_store=launch_store,
        watchdog=RankWatchdog(
            launch_store, deadlines=deadlines, folder=folder, interrupt=group.interrupt
        ),
        folder=folder,
        deadlines=deadlines,
        build=build,
        probe=probe,
        device=device,
        backend=backend,
        boundary_every=boundary_every,
        tokens_total=tokens_total,
        keep=keep,
        client=reporter or SilentReporter(),
        relaunched=OUTCOME_VARIABLE in os.environ,
        holds=HOLDS_VARIABLE in os.environ,
        resizes=RESIZES_VARIABLE in os.environ,
        seekable=seekable,
        save=save,
        gc_freeze=gc_freeze,
        experts=RankExpertCosts(expert_costs, gpu),
    )
    walker.prepare(job, layout)
    profiled.prepare(job)
    wanted = AttachRequest(
        layout=layout, ranks=initial_ranks, launched=launch_store.launched, seekable=seekable
    )
    return _join(job, wanted)


def _join(job: AttachedJob, wanted: AttachRequest) -> Session:
    """Start the watchdog, claim the run on global rank 0, and follow the first generation."""
    job.folder.path.mkdir(parents=True, exist_ok=True)
    unheed = heed_sigterm(job)
    job.watchdog.start()
    session = Session(job, begin_launch(job, wanted) if job.rank == 0 else None, unheed)
    atexit.register(session.close)
    session.begin()
    return session
