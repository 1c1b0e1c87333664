"""Watches a real job from inside while it is validated: its state around each switch, gradients.

The user's script drives its own loop. The hook calls `begin`, `step` and `leave`, which gather
through `gather.py`, and write what they find into the launch's folder:

    asked-checks.json   what to watch (by `configs validate`)
    round-trips.jsonl   V1 of every switch, and of a load of a checkpoint
    gradient-STEP.npz   the gradient that the optimizer was about to apply at a step
    stepped-STEP.npz    what that step made of parameters and optimizer; of the last step of an
                        interval, of parameters
    sample-STEP.npz     some elements of the state at a boundary, where steps draw random numbers
    state.npz           the state at the newest boundary, where it is asked for
    facts.json          dtypes, memory, dropout, random numbers, code and libraries

Invariant: nothing is compared with what the checkpoint code wrote; a state that is larger than
asked for is never gathered, and the facts say so.
"""

import hashlib
import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from wattmesh import durable
from wattmesh.reconfig.equivalence.asked import AskedChecks, JobFacts, ValidationFiles
from wattmesh.reconfig.equivalence.gather import (
    gather_gradients,
    gather_trained,
    gather_whole,
    shard_again,
)
from wattmesh.reconfig.equivalence.sample import sampled
from wattmesh.reconfig.equivalence.shelf import read_whole, write_whole
from wattmesh.reconfig.equivalence.whole import WholeState, change_of_step, round_trip
from wattmesh.reconfig.fingerprint import Fingerprint
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.generation import Generation, Purpose
from wattmesh.reconfig.probe.noise import coarsest
from wattmesh.reconfig.probe.reordered import Products, uncompiled
from wattmesh.reconfig.state import streams
from wattmesh.reconfig.state.state import State

_SHOWN = 3
"""How many layers with dropout are named."""


class Witness:
    """One rank's part in watching its launch."""

    def __init__(self, folder: Path, asked: AskedChecks, fingerprint: Fingerprint) -> None:
        """Watch as asked; nothing is written before the first generation."""
        self._files = ValidationFiles(folder)
        self._asked = asked
        self._before: WholeState | None = None
        self._layout = ""
        self._number = 0
        self._step = 0
        self._caught: set[int] = set()
        self._before_step: WholeState | None = None
        self._hooks: list[Any] = []
        self._products: Products | None = None
        self._streams = ""
        self._facts = JobFacts(fingerprint=fingerprint.to_dict())

    def begin(self, state: State, generation: Generation) -> None:
        """Compare the state of a new generation with the one before. A collective call."""
        if generation.number == self._number:
            return
        origin, self._number, self._layout = self._layout, generation.number, str(generation.layout)
        self._step = generation.step
        self._note_facts(state, generation.layout.pp)
        if generation.step and not self._facts.too_large_bytes:
            self._compare(state, generation, origin)
        self._watch_steps(state)
        if self._asked.seed and not generation.step:
            streams.set_to(streams.seeded(streams.now(), self._asked.seed))
        self._streams = _streams()

    def step(self, state: State) -> None:
        """Note the end of a step, after the optimizer's. A collective call."""
        self._step, facts = state.position.step, self._facts
        if self._before_step is not None:
            before, self._before_step = self._before_step, None
            kinds = ("param.", "slot.") if self._step in self._caught else ("param.",)
            after = gather_trained(state, kinds)
            if after.arrays:
                write_whole(self._files.stepped(self._step), change_of_step(before, after))
        told = (facts.draws, facts.products)
        facts.draws = facts.draws or _streams() != self._streams
        if self._products is not None and self._step == self._asked.reorder_after + 1:
            ranks = group.gather(sorted(self._products.dtypes))
            facts.products = coarsest(each for rank in ranks for each in rank)
        if (facts.draws, facts.products) != told:
            self._write_facts()
        if self._products is None and self._asked.reorder_after == self._step:
            self._reorder()

    def leave(self, state: State) -> None:
        """Keep the state before a boundary. A collective call."""
        self._before = None
        if self._facts.too_large_bytes:
            return
        whole = gather_whole(state)
        self._before = whole if whole.arrays else None
        if self._before is not None and self._asked.keep_state:
            write_whole(self._files.state, self._before)
        if self._before is not None and self._facts.draws:
            place = self._files.sample(state.position.step)
            write_whole(place, sampled(self._before, ("param.", "slot.")))

    def _compare(self, state: State, generation: Generation, origin: str) -> None:
        """Write V1 of what led to this generation."""
        shard_again(state)
        after = gather_whole(state)
        if not after.arrays:
            return
        before, how = self._before, "switch"
        if generation.switch is None:
            how = "load"
            before = read_whole(self._files.state) if self._files.state.exists() else None
        elif generation.purpose is Purpose.ROLLBACK:
            how = "rollback"
        if before is None:
            return
        words = "the load of a checkpoint" if how == "load" else f"the {how} to {self._layout}"
        verdict = round_trip(before, after, what=f"{words} at step {generation.step}")
        row = {"how": how, "origin": origin, "target": self._layout, "step": generation.step}
        row |= {"measured": verdict.measured, "sentence": verdict.sentence}
        with self._files.round_trips.open("ab") as file:
            file.write(f"{json.dumps(row)}\n".encode())

    def _watch_steps(self, state: State) -> None:
        """Catch the gradients of the named steps where the first optimizer applies them."""
        for each in self._hooks:
            each.remove()
        self._hooks = []
        if not state.optimizers:
            return
        catch = _Catch(self, state)
        register = getattr(state.optimizers[0], "register_step_pre_hook", None)
        if register is not None:
            self._hooks.append(register(catch))

    def caught(self, state: State) -> None:
        """Gather the gradient of the step in hand, if it is asked for. A collective call.

        Over seeds, where only samples are kept, what the step changes is taken from its boundaries.
        Of an interval's last step only the move is kept: what begins after a switch's first step,
        as a schedule that starts anew, shows there.
        """
        step, every = self._step + 1, self._asked.every
        if self._step == 0 or step in self._caught or self._facts.too_large_bytes:
            return
        if self._step % every:
            if step % every == 0 and not self._asked.sampled and self._before_step is None:
                self._before_step = gather_trained(state, ("param.",))
            return
        self._caught.add(step)
        found = gather_gradients(state)
        if found.arrays:
            kept = sampled(found) if self._asked.sampled else found
            write_whole(self._files.gradient(step), kept)
        if not self._asked.sampled:
            self._before_step = gather_trained(state, ("param.",))

    def _reorder(self) -> None:
        """Sum every product in parts from here on, backward passes included."""
        uncompiled().__enter__()
        self._products = Products(self._asked.parts)
        self._products.__enter__()

    def _note_facts(self, state: State, stages: int) -> None:
        facts = self._facts
        size = stages * max(group.gather(_bytes_of(state)))
        facts.state_bytes = max(facts.state_bytes, size)
        facts.too_large_bytes = size if size > self._asked.largest_bytes else 0
        facts.parameters = sorted({str(each.dtype)[6:] for each in state.parameters()})
        facts.dropout = _dropout(state)
        facts.unsaved_schedule = unsaved_schedule(state)
        if torch.cuda.is_available():
            facts.device_bytes = torch.cuda.get_device_properties(0).total_memory
        self._write_facts()

    def _write_facts(self) -> None:
        if os.environ.get("RANK", "0") == "0":
            durable.write_text(self._files.facts, json.dumps(asdict(self._facts)) + "\n")


class _Catch:
    """A hook of an optimizer that holds the state only through its handle."""

    def __init__(self, witness: Witness, state: State) -> None:
        self._witness, self._state = witness, state

    def __call__(self, *_: Any) -> None:
        """Run before the optimizer's step."""
        self._witness.caught(self._state)


def _bytes_of(state: State) -> int:
    """Return the bytes of the unsharded parameters, gradients and usual moments on this rank."""
    total = 0
    for each in state.parameters():
        count = math.prod(each.shape) if isinstance(each, DTensor) else each.numel()
        total += 3 * count * each.element_size()
    return total


def _dropout(state: State) -> list[str]:
    """Name layers that drop at random while they train."""
    return [name for name, module in _named(state) if _drops(module)][:_SHOWN]


def unsaved_schedule(state: State) -> bool:
    """Say whether one of torch's schedules sets a rate here and none is kept in `State.extra`."""
    scheduled = any(
        "initial_lr" in group for each in state.optimizers for group in each.param_groups
    )
    kept = (repr(each.state_dict()) for each in state.extra.values())
    return scheduled and not any("last_epoch" in each for each in kept)


def _drops(module: nn.Module) -> bool:
    share = getattr(module, "p", 0.0)
    return "Dropout" in type(module).__name__ and isinstance(share, float) and share > 0


def _named(state: State) -> list[tuple[str, nn.Module]]:
    return [each for module in state.modules for each in module.named_modules()]


def _streams() -> str:
    """Return a digest of this process's random streams."""
    found = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    if torch.cuda.is_available():
        found.update(torch.cuda.get_rng_state().numpy().tobytes())
    return found.hexdigest()
