"""What global rank 0 does for its launch: claim the run, register it, decide how it begins.

Invariant: nothing is published and no generation begins before the run folder's lock is held.
"""

import logging
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace

from wattmesh.errors import CallHuman, FixInput, Refused
from wattmesh.reconfig import ranges
from wattmesh.reconfig.client import reached
from wattmesh.reconfig.client.cost_client import CostClient
from wattmesh.reconfig.client.daemon_client import DaemonClient
from wattmesh.reconfig.client.outbox import JobOutbox
from wattmesh.reconfig.client.reporter import Pump, Reporter, SilentReporter
from wattmesh.reconfig.gpus.allocated_gpus import together
from wattmesh.reconfig.gpus.own_gpus import OwnGpus, gpus_unknown
from wattmesh.reconfig.hook.job import AttachedJob
from wattmesh.reconfig.hook.launching.launcher import refuse
from wattmesh.reconfig.hook.launching.start import AttachRequest, FirstGeneration, first_generation
from wattmesh.reconfig.hook.reports import own_code
from wattmesh.reconfig.launch import asleep
from wattmesh.reconfig.launch.attempt import AttemptLock
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.launch.launch_phase import LaunchPhase
from wattmesh.reconfig.launch.launch_store import POLL_S, LaunchStore
from wattmesh.reconfig.launch.launched import scheduler_key
from wattmesh.reconfig.launch.peers import RankProcess
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.link import DaemonLink
from wattmesh.reconfig.wire.messages import RESIZES, SUSPENDS, SWITCH_ID_KEY, Register, Transition

log = logging.getLogger(__name__)

CAPABILITIES = ("in_place", "parking")

FIXED_DATA_PARALLEL = "fixed_data_parallel"
"""The run must keep its data parallel degree, because its loader cannot seek by global sample."""


class LaunchLeader:
    """Global rank 0's duties for one launch."""

    def __init__(self, launch_store: LaunchStore, folder: RunFolder, name: str) -> None:
        """Claim the run.

        Raises:
            Refused: another live launch holds it.
        """
        self._launch_store = launch_store
        self._folder = folder
        self._claim = AttemptLock(folder, name)
        self.voice: Reporter = SilentReporter()
        self._costs: CostClient | None = None

    def open(self, wanted: AttachRequest, job: AttachedJob) -> Generation:
        """Decide how this launch begins, tell the daemon, and announce generation 1."""
        self._folder.stop_file.unlink(missing_ok=True)
        asleep.awake(self._folder)
        wanted = replace(wanted, own_save=job.save is not None)
        begun = first_generation(self._folder, self._claim.identity, wanted)
        generation = begun.generation
        self._launch_store.put("attempt", self._claim.identity.attempt)
        self._launch_store.put("reached", reached.read(self._folder.reached_file))
        link = DaemonLink.from_environment()
        self._launch_store.put("daemon", link is not None)
        self._launch_store.put("scripted", not isinstance(job.client, SilentReporter))
        if link is not None:
            self.voice = self._client(link, generation, job)
        self._report_earlier_switch(begun)
        self._launch_store.publish(generation)
        return generation

    def accepted(self) -> None:
        """Record that the daemon has accepted this launch; called by the daemon client."""
        self._claim.accepted()

    def close(self) -> None:
        """Release the claim on the run."""
        if self._costs is not None:
            self._costs.close()
        self._claim.close()

    def _client(self, link: DaemonLink, generation: Generation, job: AttachedJob) -> DaemonClient:
        identity = self._claim.identity
        peers = self._all_peers()
        job_has = _allocated(peers)
        client = DaemonClient(
            link,
            Register(
                run=identity.run,
                name=identity.name,
                incarnation=identity.incarnation,
                attempt=identity.attempt,
                layout=generation.layout,
                ranks=generation.ranks,
                world_size=self._launch_store.launched,
                gpus=tuple(each.gpu for each in peers),
                allocated=job_has.allocated,
                supersedes=identity.supersedes,
                scheduler_key=scheduler_key(os.environ),
                step=generation.step,
                tokens=generation.tokens,
                tokens_total=job.tokens_total,
                boundary_every=min(job.boundary_every, ranges.NEVER),
                checkpoint_digest=generation.digest,
                capabilities=(
                    *_capabilities(job),
                    *gpus_unknown((*(each.gpu_unknown for each in peers), job_has.allocated_why)),
                    *_computes_with(self._launch_store.launched),
                ),
                pid=os.getpid(),
                host=socket.gethostname(),
            ),
            JobOutbox(self._folder.outbox),
            self,
            LaunchPhase(self._launch_store, job.watchdog).read,
        )
        client.start()
        if job.experts.wanted:
            self._costs = CostClient(link, self._launch_store, identity.run)
            self._costs.start()
        return client

    def _all_peers(self) -> list[RankProcess]:
        """Return every rank's process and GPU, once all have introduced themselves."""
        while len(found := self._launch_store.peers()) < self._launch_store.launched:
            time.sleep(POLL_S)
        return [found[rank] for rank in sorted(found)]

    def raise_above(self, floor: int) -> int:
        """Claim an attempt number above `floor` and publish it; called by the daemon client."""
        launch_store = self._launch_store.separate(5.0)
        attempt = self._claim.raise_above(floor, lambda number: launch_store.put("attempt", number))
        log.warning("the daemon knows of later launches: this is attempt %d now", attempt)
        return attempt

    def _report_earlier_switch(self, begun: FirstGeneration) -> None:
        generation, note = begun.generation, begun.generation.switch
        why = self._last_words()
        if note is not None:
            # An empty detail keeps the reason for the restart, which the launch before gave.
            self._transition(generation, note.switch_id, note.epoch, SwitchState.LAUNCHING, why)
        elif begun.died_in is not None:
            switch_id, epoch = (
                str(begun.died_in.get(SWITCH_ID_KEY)),
                int(begun.died_in.get("epoch", 0)),
            )
            died = why or "the launch before ended without a word"
            detail = f"restarted in the layout of {generation.checkpoint or 'the start'}: {died}"
            self._transition(generation, switch_id, epoch, SwitchState.ROLLED_BACK, detail)
            self._folder.switch_file.unlink(missing_ok=True)

    def _transition(
        self, generation: Generation, switch_id: str, epoch: int, state: SwitchState, detail: str
    ) -> None:
        self.voice.transition(
            Transition(
                run=generation.run,
                incarnation=generation.incarnation,
                attempt=generation.attempt,
                switch_id=switch_id,
                epoch=epoch,
                state=state,
                step=generation.step,
                elapsed_s=0.0,
                layout=generation.layout,
                ranks=generation.ranks,
                detail=detail,
            )
        )

    def _last_words(self) -> str:
        """Collect and delete the failure sentences that ranks of the launch before left."""
        words = " ".join(self._folder.failure_sentences())
        for path in self._folder.failures.glob("*.json"):
            path.unlink(missing_ok=True)
        return words


def begin_launch(job: AttachedJob, wanted: AttachRequest) -> LaunchLeader:
    """Do global rank 0's part of a launch; a refusal is told to every rank."""
    try:
        leader = LaunchLeader(job.launch_store, job.folder, job.name)
        leader.open(wanted, job)
    except (Refused, CallHuman, FixInput) as error:
        refuse(job.launch_store, error)
        job.watchdog.stop()
        raise
    if not isinstance(leader.voice, SilentReporter):
        job.client = leader.voice
        job.pump = Pump(job.launch_store, leader.voice)
    return leader


def _capabilities(job: AttachedJob) -> tuple[str, ...]:
    restart = ("restart",) if job.relaunched else ()
    suspends = (SUSPENDS,) if job.holds else ()
    resizes = (RESIZES,) if job.resizes else ()
    fixed = () if job.seekable else (FIXED_DATA_PARALLEL,)
    return (*CAPABILITIES, *restart, *suspends, *resizes, *fixed)


def _allocated(peers: Sequence[RankProcess]) -> OwnGpus:
    """Join what ranks say of their nodes: all GPUs that the job has, or why they are unknown."""
    found = [
        OwnGpus(allocated=each.allocated, allocated_why=each.allocated_unknown) for each in peers
    ]
    return together(found, (each.gpu for each in peers))


def _computes_with(launched: int) -> tuple[str, ...]:
    """Name what the run computes with; the daemon compares it with that of proven points."""
    said = own_code.fingerprint(launched).to_capabilities()
    return tuple(ranges.clean(each)[:255] for each in said)
