"""What one rank's session works with: its store, watchdog, folder, callbacks and reporter.

Invariant: nothing here holds a tensor; only the `State` handle does.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.checkpoint.foreign import Save
from wattmesh.reconfig.client.reporter import Pump, Reporter, StoreReporter
from wattmesh.reconfig.hook.boundary_vote import VoteResult
from wattmesh.reconfig.hook.consumed import Consumed
from wattmesh.reconfig.hook.expert_costs import RankExpertCosts
from wattmesh.reconfig.launch.failures.deadlines import Deadlines
from wattmesh.reconfig.launch.failures.watchdog import RankWatchdog
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launch.generation import Generation, SwitchNote
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.launch.peers import boot_id
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Transition

Build = Callable[[Layout, Ranks], State]
Probe = Callable[[State], float]
Evidence = dict[str, float | str]


def _unnoted(step: int, agreed: VoteResult, trouble: str) -> None:
    """Ignore a save step: the default of `AttachedJob.noted`."""


@dataclass(slots=True, kw_only=True)
class AttachedJob:
    """One rank's surroundings, for the life of the process.

    Attributes:
        client: on global rank 0, sends reports to the daemon and holds its orders.
        pump: on global rank 0, forwards the messages of leaders on other ranks.
        backend: of the process group, as torch takes it; "" for the device's usual one.
        relaunched: whether a supervisor launches this job again after it ends for a restart.
        holds: whether its launcher can hold its next launch while the run sleeps.
        resizes: whether its launcher can hold a next launch of another number of ranks.
        seekable: whether the loader can begin at any global sample in any layout.
        save: the job's own checkpointer, where it has one.
        gc_freeze: whether objects alive at `attach` are excluded from garbage collection.
        resumed_from: name of the checkpoint this launch began with, never pruned by it.
        stop_reason, finish_asked: requests to this process; acted on at the next save step.
        consumed: the samples that this rank's steps used since the last save step.
        experts: what this rank's experts computed, and what they cost.
        acted_on: whether the run may be switched, as all ranks know it; see `may_be_switched`.
        uncarried: why no checkpoint can be made of this run, which is still observed; "" if one
            can.
        unprobed: why no switch of this run could be proven, so that it is never switched; "" if
            one could.
        misreported: the error of the first `report` whose count was invalid; "".
        unknown_loss: the reported loss of the newest step, if it is not a finite number; "".
        noted: called at every save step with the step, what was agreed, and the sentence for
            `status`.
    """

    name: str
    launch_store: LaunchStore
    watchdog: RankWatchdog
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
    holds: bool = False
    resizes: bool = False
    backend: str = ""
    seekable: bool = True
    save: Save | None = None
    gc_freeze: bool = False
    pump: Pump | None = None
    resumed_from: str = ""
    stop_reason: str = ""
    finish_asked: bool = False
    consumed: Consumed = field(default_factory=Consumed)
    experts: RankExpertCosts = field(default_factory=RankExpertCosts)
    acted_on: bool = True
    uncarried: str = ""
    unprobed: str = ""
    misreported: str = ""
    unknown_loss: str = ""
    noted: Callable[[int, VoteResult, str], None] = _unnoted

    def __post_init__(self) -> None:
        """Check that `boundary_every` and `keep` are 1 or more."""
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
        """Return who takes part in `generation`, from this rank's view."""
        return Ranks(
            participants=generation.ranks,
            global_rank=self.rank,
            fresh=not generation.checkpoint,
            placement=generation.placement,
        )

    def voice(self) -> Reporter:
        """Return the reporter to use while this rank leads: the client, or a relay to rank 0."""
        return self.client if self.rank == 0 else StoreReporter(self.launch_store)

    def may_be_switched(self) -> bool:
        """Return whether a daemon in mode `act`, or a script in its place, may switch this run.

        Call it on the leader. A run whose daemon has not answered yet counts as observed only.
        """
        if self.is_alone:
            return bool(self.launch_store.peek("scripted"))
        return self.voice().orders().mode == "act"

    @property
    def is_alone(self) -> bool:
        """Whether this launch has no daemon, and so no mode."""
        return not self.launch_store.peek("daemon")

    def knows_mode(self) -> bool:
        """Return whether the daemon has told its mode; True without a daemon."""
        return self.is_alone or self.voice().orders().mode != ""

    def attempt(self, generation: Generation) -> int:
        """Return this launch's attempt number; rank 0 may have raised it above `generation`'s."""
        return int(self.launch_store.peek("attempt") or generation.attempt)

    def leads(self, generation: Generation) -> bool:
        """Return whether this rank leads `generation`."""
        return generation.leader == self.rank


@dataclass(slots=True)
class SwitchReporter:
    """Reports the states of one switch, with elapsed seconds and evidence."""

    job: AttachedJob
    generation: Generation
    note: SwitchNote
    heard: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the boundary began, also in a later process on the same host.

        On another host, or after a reboot: seconds since this reporter was made.
        """
        began = self.note.began_s if self.note.boot == boot_id() else self.heard
        return time.monotonic() - began

    def tell(
        self, state: SwitchState, *, detail: str = "", evidence: Evidence | None = None
    ) -> None:
        """Keep `evidence` and report one state; only the leader sends."""
        self.note.evidence.update(evidence or {})
        if not self.job.leads(self.generation):
            return
        if self.job.pump is not None:
            # Messages that the previous leader left for forwarding are older, so they go first.
            self.job.pump.run()
        self.job.voice().transition(
            Transition(
                run=self.generation.run,
                incarnation=self.generation.incarnation,
                attempt=self.generation.attempt,
                switch_id=self.note.switch_id,
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
