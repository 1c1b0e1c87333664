"""DeepSpeed ZeRO jobs: switched by restart, loaded into another world size or another stage.

    run = DeepSpeedRun(engine, "llama-8b", checkpoint_dir)     # after deepspeed.initialize
    client = run.resume()                                      # what `boundary` was given, or None
    while training:
        ...                                                    # forward, backward, step
        if save_step and run.boundary({"samples": n}, restart=wanted):
            break                                              # leave; the launcher starts again
    else:
        run.finish("all samples are trained")

DeepSpeed writes its own checkpoint; we index it (a virtual universal checkpoint, no byte copied),
hash it, and at the next launch export it in DeepSpeed's universal layout, which ZeRO-1, 2 and 3
load on any number of ranks. Works under `wattmesh.integrations.torchrun` or any launcher. What a
ZeRO engine cannot give back after a reshard is refused by `refusal`.

Invariant: nothing is loaded, and nothing older deleted, before a checkpoint's bytes were hashed.
DeepSpeed itself is never imported here: the caller brings its engine.
"""

import logging
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from wattmesh import errors
from wattmesh.errors import CheckpointDamaged, Fenced, InputInvalid, WattmeshError
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.attempt import AttemptLock, highest_attempt
from wattmesh.reconfig.launch.folder import OUTCOME_VARIABLE, RunFolder, write_json
from wattmesh.reconfig.universal.convert.virtual import write_virtual
from wattmesh.reconfig.universal.exports import deepspeed as universal
from wattmesh.reconfig.universal.exports.values import from_trainer
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.folder import open_checkpoint
from wattmesh.reconfig.universal.prune import prune
from wattmesh.reconfig.universal.sources.detect import open_source
from wattmesh.reconfig.universal.verify import hash_in_background, verify

log = logging.getLogger(__name__)

WRITING = ".deepspeed"
"""Folder that DeepSpeed writes into; hard links keep the bytes when it is deleted."""

LOADING = ".universal"
"""Folder of the export that an engine loads; deleted afterwards."""

CLIENT = "wattmesh"
"""Key of the caller's state: DeepSpeed mixes a client's keys with its own."""

_ZERO = {"DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3"}


def refusal(engine: Any) -> str:
    """Return in one sentence why an engine's state cannot be moved; "" when it can."""
    stage = engine.zero_optimization_stage()
    groups = len(engine.optimizer.param_groups)
    offloads = [engine.zero_offload_optimizer(), engine.zero_offload_param()]
    places = [str(getattr(each.device, "value", each.device)) for each in offloads if each]
    kind = type(engine.optimizer).__name__
    found = {
        "DeepSpeed's pipeline module is not supported": engine.pipeline_parallelism,
        "DeepSpeed's mixture of experts is not supported": engine.has_moe_layers,
        f"tensor parallelism {engine.mp_world_size} is not supported": engine.mp_world_size != 1,
        f"ZeRO stage {stage} is not supported, 1, 2 and 3 are": stage not in (1, 2, 3),
        f"{kind} is not supported, ZeRO's own optimizers are": kind not in _ZERO,
        "offloaded parameters and optimizer states are not supported": set(places) - {"none"},
        f"ZeRO-3 loads one parameter group, this optimizer has {groups}": stage == 3 and groups > 1,
        'its configuration lacks "checkpoint": {"load_universal": true}': (
            not engine.load_universal_checkpoint()
        ),
    }
    return next((words for words, holds in found.items() if holds), "")


class DeepSpeedRun:
    """One rank's handle on a run that DeepSpeed trains."""

    def __init__(
        self, engine: Any, name: str, checkpoint_dir: str | Path, *, keep: int = 3
    ) -> None:
        """Join the run in `checkpoint_dir`, on a file system that all hosts share.

        Raises:
            InputInvalid: the engine's state cannot be moved; the message says why.
            Refused: another launch of this run is alive.
        """
        if words := refusal(engine):
            raise InputInvalid(f"this DeepSpeed engine cannot be switched: {words}.")
        self._engine = engine
        self._hosts = dist.new_group(backend="gloo")
        self._keep = keep
        self._folder = RunFolder(Path(checkpoint_dir))
        self._claim: AttemptLock | None = None
        self._resumed: str | None = None
        self._hashing: threading.Thread | None = None
        self._on_first(lambda: self._take(name))

    @property
    def step(self) -> int:
        """Optimizer steps done, of this launch and all before it."""
        return int(self._engine.global_steps)

    def resume(self) -> Mapping[str, Any] | None:
        """Load the newest good checkpoint; return its `boundary`'s client state, None without one.

        Raises:
            CheckpointDamaged: on every rank; there are checkpoints and none of them is good.
            InputInvalid: on every rank; this engine cannot hold it.
        """
        tag: str = self._on_first(self._export_newest)
        if not tag:
            return None
        folder = self._folder.path / LOADING
        _, client = self._engine.load_checkpoint(str(folder), tag=tag)
        self._gather(None)
        self._resumed = tag
        self._on_first(lambda: shutil.rmtree(folder))
        self._on_first(lambda: self._tell("training", f"under DeepSpeed from {tag}"))
        told: Mapping[str, Any] = client.get(CLIENT, {})
        return told

    def boundary(self, client: Mapping[str, Any], *, restart: str = "") -> bool:
        """Save at this step; whether every rank shall leave now.

        Args:
            client: plain data that the next launch's `resume` gives back: samples, seeds.
            restart: why the next launch shall follow at once; from one rank or several, "" to go
                on. How many ranks and which stage it has is the launcher's and the script's.

        Raises:
            InputInvalid: on every rank; the checkpoint could not be written or indexed.
        """
        words = self._gather([restart, self._folder.stop_file.exists()])
        target = self._folder.checkpoint(self.step)
        if not self._on_first(target.exists):
            self._save(target, client)
        reason = next((why for why, _ in words if why), "")
        stopped = any(stop for _, stop in words)
        if not (reason or stopped):
            return False
        outcome = "restart" if reason else "stopped"
        self._on_first(lambda: self._leave(outcome, reason or "asked to stop"))
        return True

    def finish(self, sentence: str) -> None:
        """Report that the run is done: no launch follows."""
        self._on_first(lambda: self._leave("done", sentence))

    def _save(self, target: Path, client: Mapping[str, Any]) -> None:
        """DeepSpeed writes, the first rank indexes and hashes."""
        folder = self._folder.path / WRITING
        problem = ""
        try:
            self._engine.save_checkpoint(
                str(folder), tag=target.name, client_state={CLIENT: dict(client)}, save_latest=False
            )
        except (OSError, RuntimeError) as error:
            problem = f"rank {dist.get_rank()}: {error}"
        if failed := [each for each in self._gather(problem) if each]:
            raise InputInvalid(f"DeepSpeed did not save step {self.step}: {failed[0]}")
        self._on_first(lambda: self._publish(folder / target.name, target))

    def _take(self, name: str) -> None:
        self._folder.path.mkdir(parents=True, exist_ok=True)
        self._claim = AttemptLock(self._folder, name)
        self._folder.drop_stagings()
        self._folder.stop_file.unlink(missing_ok=True)
        for each in (WRITING, LOADING):
            shutil.rmtree(self._folder.path / each, ignore_errors=True)

    def _publish(self, written: Path, target: Path) -> None:
        """Index what was written; hash it behind training, then delete the oldest."""
        self._wait_hashed()
        write_virtual(open_source(written), target, fence=self._fence)
        shutil.rmtree(written)
        self._hashing = threading.Thread(target=self._hash, args=(target,), daemon=True)
        self._hashing.start()

    def _hash(self, target: Path) -> None:
        try:
            found = hash_in_background(target)
            if not found.good:
                log.error("%s is damaged and will not be resumed: %s", target, found.damage[0])
                return
            resumed = {self._resumed} if self._resumed else set()
            prune(self._folder.path, keep=self._keep, protected=resumed, holds_lock=True)
        except WattmeshError as error:
            log.error("%s was not hashed, nothing older is deleted: %s", target, error)

    def _wait_hashed(self) -> None:
        if self._hashing is not None:
            self._hashing.join()

    def _fence(self) -> None:
        mine = self._claim.identity.attempt if self._claim else 0
        if (newest := highest_attempt(self._folder)) > mine:
            raise Fenced(f"attempt {newest} of this run exists; {mine} does not publish any more.")

    def _export_newest(self) -> str:
        """Write the newest good checkpoint in DeepSpeed's universal layout; its tag, or ""."""
        found = self._folder.checkpoints()
        for path in found:
            result = verify(path, record_digests=True)
            if result.good:
                return self._export(path)
            log.error("%s is damaged, the one before it is tried: %s", path, result.damage[0])
        if found:
            raise CheckpointDamaged(
                f"none of the {len(found)} checkpoints in {self._folder.path} is good; look at "
                f"`wattmesh checkpoint verify {found[0]}`."
            )
        return ""

    def _export(self, path: Path) -> str:
        checkpoint = open_checkpoint(path)
        groups = len(self._engine.optimizer.param_groups)
        kept = universal.engine_of(checkpoint, groups)
        numbers = from_trainer(checkpoint.trainer).numbers
        folder = self._folder.path / LOADING
        folder.mkdir()
        with Files(checkpoint.folder) as files:
            universal.export(
                checkpoint.index, files, folder / path.name, engine=kept, numbers=numbers
            )
        return path.name

    def _leave(self, outcome: str, sentence: str) -> None:
        self._wait_hashed()
        self._tell(outcome, sentence)
        if self._claim is not None:
            self._claim.close()

    def _tell(self, outcome: str, sentence: str) -> None:
        """Write the outcome of this launch where a supervisor asked for it."""
        if path := os.environ.get(OUTCOME_VARIABLE, ""):
            with suppress(OSError):
                told = {"outcome": outcome, "sentence": sentence, "step": self.step}
                write_json(Path(path), told)

    def _on_first(self, act: Callable[[], Any]) -> Any:
        """Run `act` on the first rank; every rank gets its JSON value or its error."""
        value, error = None, ["", ""]
        if dist.get_rank() == 0:
            try:
                value = act()
            except WattmeshError as caught:
                error = [type(caught).__name__, str(caught)]
            except OSError as caught:
                error = [InputInvalid.__name__, f"{self._folder.path}: {caught}"]
        value, (kind, sentence) = self._gather([value, error])[0]
        if kind:
            raise getattr(errors, kind)(sentence)
        return value

    def _gather(self, fact: Any) -> list[Any]:
        """Gather every rank's JSON value over a gloo group, as DeepSpeed's may be NCCL only."""
        return group.gather(fact, self._hosts)
