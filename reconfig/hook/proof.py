"""The proof of a generation: all ranks agree, and hold the state that its record describes.

Invariant: nothing here changes what is trained; random numbers that the probe and the load drew are
undone.
"""

import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from wattmesh.errors import InputInvalid, SwitchFailed
from wattmesh.reconfig.checkpoint import checkpoint
from wattmesh.reconfig.checkpoint.digest import Values, combine, pieces_of, pieces_of_values
from wattmesh.reconfig.checkpoint.in_memory.host_memory import HostMemory
from wattmesh.reconfig.hook.job import AttachedJob, Evidence
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.failures.deadlines import Phase
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.launch.group import RankFailed
from wattmesh.reconfig.launch.guard import all_or_none, ending
from wattmesh.reconfig.probe import noise, probing, rebuild_check
from wattmesh.reconfig.state import streams
from wattmesh.reconfig.state.aliased_load import is_state
from wattmesh.reconfig.state.boxes import LocalBox
from wattmesh.reconfig.state.optimizer.optimizers import names_of, present_state, settings_of
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import MODEL, Named, by_owner, model_boxes, name_all
from wattmesh.reconfig.universal.logical import head_of

log = logging.getLogger(__name__)

T = TypeVar("T")


class Proof:
    """One rank's part in the proof of one generation."""

    def __init__(
        self,
        job: AttachedJob,
        state: State,
        generation: Generation,
        *,
        folder: Path,
        memory: HostMemory,
        acted_on: Callable[[], bool],
    ) -> None:
        """Take what is to be proven.

        Args:
            job: this rank's job.
            state: as built, and loaded if there was a checkpoint.
            generation: the record to compare it with.
            folder: folder of the checkpoint.
            memory: of this rank, where the checkpoint may be in shared memory.
            acted_on: returns whether the run may be switched; a collective call.
        """
        self._job = job
        self._state = state
        self._generation = generation
        self._folder = folder
        self._memory = memory
        self._acted_on = acted_on

    def hold(self, loaded: Named | None) -> Evidence:
        """Compare this rank's memory, as it is now, with the record and with its peers; collective.

        Args:
            loaded: what was filled from the checkpoint; None where there is none.

        Returns:
            The evidence, for the report of the switch.

        Raises:
            SwitchFailed: they differ.
        """
        state, generation = self._state, self._generation
        head, began_s = head_of(generation.digest), time.monotonic()
        extra, digest, values = self._together(lambda: _looked_at(state, loaded, head))
        digested_s = time.monotonic()
        probe = self._first_probe()
        probed_s = time.monotonic()
        facts = rebuild_check.Facts(
            step=state.position.step,
            samples=state.position.samples,
            tokens=state.position.tokens,
            digest=digest,
            extra=hashlib.sha256(extra.encode()).hexdigest()[:16],
            random=state.streams.digest,
            probe=probe,
            damage=state.streams.damage,
            dtypes=tuple({str(p.dtype).removeprefix("torch.") for p in state.parameters()}),
        )
        every = group.gather(facts.to_json())
        problem = rebuild_check.disagreement(every, generation)
        found: Evidence = {
            "probe_after": probe,
            "digest_after": digest,
            "digest_after_s": round(digested_s - began_s, 4),
            "probe_after_s": round(probed_s - digested_s, 4),
        }
        if not problem and not self._job.unprobed:
            problem = self._weigh_probe(every, found)
            if problem and self._only_probed():
                self._never_switch(problem)
                problem = ""
        if problem:
            suspect = digest != generation.digest or any(each["damage"] for each in every)
            raise SwitchFailed(problem + (self._damage(digest, values) if suspect else ""))
        # Undo what `build`, the load and the probe drew: the script goes on with its own streams.
        streams.set_to(state.streams.own)
        return found

    def _probe(self) -> float:
        return probing.take(self._job.probe, self._state)

    def _first_probe(self) -> float:
        """Take the probe; nan if it fails in a run that is only observed."""

        def finite() -> float:
            probe = self._probe()
            if self._generation.probe is None and not math.isfinite(probe):
                raise InputInvalid(f"attach: the probe gave {probe!r}; give a finite loss.")
            return probe

        try:
            return self._together(finite)
        except InputInvalid as error:
            if self._generation.retreats or not self._only_probed():
                raise
            self._never_switch(str(error))
            return math.nan

    def _only_probed(self) -> bool:
        """Return whether a failing probe may be ignored: no switch, and the run is only observed.

        A collective call.
        """
        if self._generation.switch is not None:
            return False
        return not self._acted_on()

    def _never_switch(self, why: str) -> None:
        """Keep training and saving in this layout, because no switch could be proven."""
        self._job.unprobed = why
        if dist.get_rank() == 0:
            log.error("%s The run is measured and saved, and never switched.", why)

    def _together(self, act: Callable[[], T]) -> T:
        """Run a part of the proof so that all ranks succeed or all raise.

        Where there is a layout to go back to, `act` just runs: the rank runner then releases the
        peers of a rank that failed.

        Raises:
            InputInvalid, CallHuman, Refused, Diverged: on every rank, if raised on any.
        """
        if self._generation.retreats:
            return act()
        try:
            return all_or_none(act)
        except RankFailed as failure:
            raise (ending(failure) or InputInvalid(str(failure))) from failure

    def _weigh_probe(self, every: Sequence[dict[str, Any]], found: Evidence) -> str:
        """Say how the probe moved by more than its noise, "" if it did not; collective.

        The noise is measured only if the difference exceeds the tolerance that `noise.at_once`
        gives without measuring, so a job that computes in fp32 is not held up.
        """
        generation = self._generation
        dtypes = sorted({dtype for each in every for dtype in each["dtypes"]})
        difference = rebuild_check.probe_difference(every, generation)
        allowed = noise.at_once(dtypes)
        if allowed.relative < difference < math.inf:

            def again() -> float:
                # Each repetition gets the full deadline of the phase.
                step = generation.step
                with self._job.watchdog.phase(
                    Phase.VERIFY, generation=generation.number, step=step
                ):
                    return self._probe()

            # Imported here because it needs a part of torch that nothing else here needs.
            from wattmesh.reconfig.probe import reordered  # noqa: PLC0415

            computed = reordered.measure(again, difference, dtypes)
            allowed = noise.tolerance(computed, dtypes)
            found.update(
                probe_noise=max(computed.moved, default=0.0),
                probe_orders=len(computed.moved),
                computed_in=computed.products,
            )
        found["probe_allowed"] = allowed.relative
        return rebuild_check.probe_problem(every, generation, allowed)

    def _damage(self, digest: str, values: Values) -> str:
        """Say which value differs from the checkpoint, or whether its files are damaged."""
        generation = self._generation
        if not generation.checkpoint:
            return ""
        changed = ""
        if digest != generation.digest:
            changed = checkpoint.changed_value(self._folder, values)
        if changed:
            return f"; {changed}"
        found = checkpoint.find_damage(self._folder, self._memory)
        return f"; {found}" if found else "; every byte of it is as it was written"


def _looked_at(state: State, loaded: Named | None, head: str) -> tuple[str, str, Values]:
    """Return the extra state, digest and plain values of a state now; a collective call."""
    extra = checkpoint.facts_of(state)
    boxes, values = _now(state, loaded)
    pieces = {**pieces_of(boxes, head), **pieces_of_values(values)}
    digest = combine(pieces, extra, values, head)
    return extra, digest, values


def _now(state: State, loaded: Named | None) -> tuple[Mapping[str, LocalBox], Values]:
    """Return the boxes of a state's tensors and its plain values, from memory as it is now."""
    if loaded is None:
        # Before the first step there are no slots, only parameters and settings.
        names = names_of(state).values()
        return model_boxes(state), by_owner(settings_of(state), frozenset(names))
    if is_state(state, loaded.tensors) and not any(map(_is_model, loaded.plain)):
        return loaded.boxes, by_owner(present_state(state).plain, loaded.slots)
    named = name_all(state)
    return named.boxes, named.values


def _is_model(key: str) -> bool:
    return key.startswith(MODEL)
