"""What one rank's session stands on: its store, watchdog, folder, callbacks and voice.

Invariant: nothing here holds a tensor; tensors live in the `State` handle alone.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.checkpoint.foreign import Save
from wattmesh.reconfig.client.reporter import Pump, Relay, Reporter
from wattmesh.reconfig.hook.boundary_vote import Agreed
from wattmesh.reconfig.hook.consumed import Consumed
from wattmesh.reconfig.launch.deadlines import Deadlines
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launch.generation import Generation, SwitchNote
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.launch.peers import boot_id
from wattmesh.reconfig.launch.watchdog import Watchdog
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire import Transition

Build = Callable[[Layout, Ranks], State]
Probe = Callable[[State], float]
Evidence = dict[str, float | str]


def _unnoted(step: int, agreed: Agreed, trouble: str) -> None:
    """Nobody looks on at a save step."""


@dataclass(slots=True, kw_only=True)
class Job:
    """One rank's surroundings, for the life of the process.

    Attributes:
        client: on global rank 0, speaks to the daemon. `pump`: carries for other leaders there.
        backend: of the process group, as torch takes it; "" for the device's usual one.
        relaunched: whether somebody launches this job again after it left to restart.
        seekable: whether the loader can begin at any global sample in any layout.
        save: the job's own checkpointer, where it has one.
        gc_freeze: whether what is alive at `attach` is set aside from garbage collections.
        resumed_from: name of the checkpoint this launch began with, never pruned by it.
        stop_reason, finish_asked: what this process was asked for; heeded at the next save step.
        consumed: the samples that this rank's steps used since the last save step.
        acted_on: whether the run may be switched, as all ranks know it; see `may_be_switched`.
        uncarried: why no checkpoint can be made of this run, which is observed all the same; "".
        unprobed: why no switch of this run could be proven, so that it is never switched; "".
        misreported: what `report` was first given that is no count; "".
        unknown_loss: the loss of the newest step as it was reported, where it is no finite number.
        noted: hears of every save step: its step, what was agreed, and the sentence for `status`.
    """

    name: str
    launch_store: LaunchStore
    watchdog: Watchdog
    folder: RunFolder
    deadlines: Deadlines
    build: Build
    probe: Probe
    device: str
    boundary_every: int
    tokens_total: int
    keep: int
    client: Reporter
    relaunched: bool
    backend: str = ""
    seekable: bool = True
    save: Save | None = None
    gc_freeze: bool = False
    pump: Pump | None = None
    resumed_from: str = ""
    stop_reason: str = ""
    finish_asked: bool = False
    consumed: Consumed = field(default_factory=Consumed)
    acted_on: bool = True
    uncarried: str = ""
    unprobed: str = ""
    misreported: str = ""
    unknown_loss: str = ""
    noted: Callable[[int, Agreed, str], None] = _unnoted

    def __post_init__(self) -> None:
        """Refuse numbers that nothing can be done every so often with."""
        if self.boundary_every < 1 or self.keep < 1:
            raise InputInvalid(
                f"attach: boundary_every = {self.boundary_every} and keep = {self.keep} must be 1 "
                "or more."
            )

    @property
    def rank(self) -> int:
        """This process's global rank."""
        return self.launch_store.rank

    def ranks(self, generation: Generation) -> Ranks:
        """Who takes part in `generation`, seen from here."""
        return Ranks(
            participants=generation.ranks,
            global_rank=self.rank,
            fresh=not generation.checkpoint,
        )

    def voice(self, generation: Generation) -> Reporter:
        """Who speaks for this rank while it leads `generation`."""
        return self.client if self.rank == 0 else Relay(self.launch_store)

    def may_be_switched(self, generation: Generation) -> bool:
        """Whether the daemon acts, as the leader knows, or a script gives orders in its place.

        Without either nobody acts on the run. One whose daemon has not answered yet is taken to be
        observed.
        """
        if self.is_alone:
            return bool(self.launch_store.peek("scripted"))
        return self.voice(generation).orders().mode == "act"

    @property
    def is_alone(self) -> bool:
        """Whether there is no daemon whose mode says if anybody acts on the run."""
        return not self.launch_store.peek("daemon")

    def knows_mode(self, generation: Generation) -> bool:
        """Whether the daemon, if there is one, has said whether it acts."""
        return self.is_alone or self.voice(generation).orders().mode != ""

    def attempt(self, generation: Generation) -> int:
        """This launch's attempt number; global rank 0 may have had to claim a higher one."""
        return int(self.launch_store.peek("attempt") or generation.attempt)

    def leads(self, generation: Generation) -> bool:
        """Whether this rank speaks for `generation`."""
        return generation.leader == self.rank


@dataclass(slots=True)
class SwitchReporter:
    """One switch as this rank tells it: states with their seconds and evidence."""

    job: Job
    generation: Generation
    note: SwitchNote
    heard: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the boundary began, also across processes of one host."""
        began = self.note.began_s if self.note.boot == boot_id() else self.heard
        return time.monotonic() - began

    def tell(
        self, state: SwitchState, *, detail: str = "", evidence: Evidence | None = None
    ) -> None:
        """Report one state; only the leader's voice is heard."""
        self.note.evidence.update(evidence or {})
        if not self.job.leads(self.generation):
            return
        if self.job.pump is not None:
            # What the leader before left to be passed on was said earlier than this.
            self.job.pump.run()
        self.job.voice(self.generation).transition(
            Transition(
                run=self.generation.run,
                incarnation=self.generation.incarnation,
                attempt=self.generation.attempt,
                plan=self.note.plan,
                epoch=self.note.epoch,
                state=state,
                step=self.generation.step,
                elapsed_s=round(self.elapsed_s, 4),
                layout=self.generation.layout,
                ranks=self.generation.ranks,
                detail=detail,
                evidence=dict(self.note.evidence),
            )
        )
