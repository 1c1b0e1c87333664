"""One rank of the job that benchmarks.equivalence trains: the example, attached, with a script.

What is seen is appended to JSON lines in the arm's folder by global rank 0, so that an arm can be
carried out in several launches: losses.jsonl, trips.jsonl, ends.jsonl, samples.jsonl.
"""

import json
import os
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.equivalence.controls import HARM, AfterLoad
from benchmarks.equivalence.job_type_controls import JOB_TYPE_HARM, OTHER_HARM
from benchmarks.equivalence.sent import SentBytes
from examples.pretrain.config import TrainConfig, preset
from examples.pretrain.data import Corpus, standard_library
from examples.pretrain.options import parse_layout
from examples.pretrain.train import Metrics, build_state, local_batch, probe, train_step
from wattmesh.integrations.pytorch.gradients import sum_over_ranks
from wattmesh.reconfig.equivalence.checks.samples import merge
from wattmesh.reconfig.equivalence.gather import gather_whole
from wattmesh.reconfig.equivalence.lab import Notes, train
from wattmesh.reconfig.equivalence.script import Script, Turn
from wattmesh.reconfig.equivalence.shelf import read_whole, write_whole
from wattmesh.reconfig.equivalence.verdict import Verdict
from wattmesh.reconfig.equivalence.whole import WholeState, close_states
from wattmesh.reconfig.hook.session import attach
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.failures.deadlines import Deadlines
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state.state import State

PATIENT = Deadlines(agree_s=600, save_s=900, teardown_s=600, rebuild_s=900, verify_s=600)
"""Sixteen ranks on two cores take their time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One run to be compared with others; travels as JSON in the environment variable ARM.

    Attributes:
        folder: where it keeps its checkpoints and what it saw.
        layouts: as the example's command line takes them; the first one begins.
        turns: (step, number of the layout to be in after it).
        keep_states: every so many steps the whole state is written to `states`; 0 for never.
        compare_states: compare with the states that another arm left in `states`.
        held_tokens: tokens of text that nobody trains on, on which the last state is judged.
        meddle: by step: harm done right after the switch there, behind the session's back.
        at_load: by step: harm done inside the session's load.
        learning_rate: instead of the preset's; 0 for that.
        count_sent: note the bytes that all ranks give to all-to-alls in each step.
    """

    folder: str
    preset: str
    dtype: str
    steps: int
    boundary_every: int
    seed: int = 0
    layouts: list[str] = field(default_factory=lambda: [""])
    turns: list[tuple[int, int]] = field(default_factory=list)
    states: str = ""
    keep_states: int = 0
    compare_states: bool = False
    held_tokens: int = 0
    meddle: dict[str, str] = field(default_factory=dict)
    at_load: dict[str, str] = field(default_factory=dict)
    learning_rate: float = 0.0
    count_sent: bool = False

    @property
    def path(self) -> Path:
        """Its folder."""
        return Path(self.folder)

    @property
    def world_size(self) -> int:
        """Ranks of its largest layout."""
        return max(parse_layout(each).world_size for each in self.layouts)

    @property
    def pause(self) -> Path:
        """While this file exists, the next switch goes by restart."""
        return self.path / "pause"


class Recording(Corpus):
    """A corpus that remembers which samples were read."""

    read: list[int]

    def batch(self, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Read, and remember."""
        self.read.extend(range(first, first + count))
        return super().batch(first, count)

    @classmethod
    def around(cls, corpus: Corpus) -> "Recording":
        """Read what `corpus` reads."""
        found = cls(corpus.text, corpus.seq_len, corpus.seed)
        object.__setattr__(found, "read", [])
        return found


class HeldBack(Corpus):
    """Text behind the training text, one window after the other."""

    def start(self, sample: int) -> int:
        """Windows in order."""
        return sample * self.seq_len


class Rank:
    """This process's part in an arm."""

    def __init__(self, arm: Arm) -> None:
        """Prepare; nothing is built yet."""
        self.arm = arm
        self.rank = int(os.environ["RANK"])
        found = preset(arm.preset, dtype=arm.dtype, seed=arm.seed)
        rate = arm.learning_rate or found.learning_rate
        self.config: TrainConfig = replace(found, learning_rate=rate)
        self.layouts = [parse_layout(each) for each in arm.layouts]

    def build(self, layout: Layout, ranks: Ranks) -> State:
        """Build the example; its loader is watched."""
        state = build_state(self.config, layout, fresh=ranks.fresh)
        state.parts.corpus = Recording.around(state.parts.corpus)
        if self.arm.at_load:
            harms = self.arm.at_load if layout != self.layouts[0] else {}
            state.extra["after_load"] = AfterLoad(
                lambda: self._hurt(state, harms.get(str(state.position.step), ""))
            )
        return state

    def step(self, state: State) -> Metrics:
        """One step; what the probe read before it is not counted."""
        state.parts.corpus.read.clear()
        if not self.arm.count_sent:
            return train_step(state)
        with SentBytes() as sent:
            metrics = train_step(state)
        counts = group.gather(sent.count)
        if self.rank == 0:
            self._note("sent", {"step": state.position.step + 1, "bytes": sum(counts)})
        return metrics

    def run(self) -> int:
        """Train to the end of the arm, or to where it is paused."""
        arm = self.arm
        script = Script(
            [Turn(step=step, layout=self.layouts[place]) for step, place in arm.turns],
            restart=arm.pause.exists,
        )
        notes = Notes(
            shelf=arm.path / "before.npz" if arm.turns else None,
            gathered=self._gathered,
            compared=self._compared,
            seen=self._seen,
            meddle=lambda state: self._hurt(state, arm.meddle.get(str(state.position.step), "")),
            stepped=self._stepped,
        )
        with attach(
            "equivalence",
            build=self.build,
            probe=probe,
            layout=self.layouts[0],
            checkpoint_dir=arm.path / "run",
            boundary_every=arm.boundary_every,
            tokens_total=arm.steps * self.config.tokens_per_step,
            deadlines=PATIENT,
            reporter=script,
            keep=2,
        ) as session:
            train(session, script, self.step, notes)
        if self.rank == 0:
            for step, state, detail in script.ends():
                self._note("ends", {"step": step, "state": str(state), "detail": detail})
        return 0

    def _hurt(self, state: State, how: str) -> None:
        if how:
            {**HARM, **JOB_TYPE_HARM, **OTHER_HARM}[how](state, self.rank)

    def _seen(self, step: int, loss: float, layout: str) -> None:
        if self.rank == 0:
            self._note("losses", {"step": step, "loss": loss, "layout": layout, "at": time.time()})

    def _stepped(self, state: State, step: int) -> None:
        """After a step, on every rank: samples, whole states, the last judgement."""
        corpus, layout = state.parts.corpus, state.parts.layout
        by_rank = group.gather(corpus.read)
        if self.rank == 0:
            copies = layout.world_size // layout.data_parallel
            self._note("samples", {"step": step, "counts": merge(by_rank, copies=copies)})
        keep = self.arm.keep_states
        if keep and step % keep == 0:
            whole = gather_whole(state)
            if self.rank == 0:
                write_whole(self._state_file(step), whole)
        if step == self.arm.steps and self.arm.held_tokens:
            held = self._held_loss(state)
            if self.rank == 0:
                self._note("held", {"loss": held, "tokens": self.arm.held_tokens})

    def _gathered(self, step: int, whole: WholeState) -> None:
        """Before a switch: hold the state against the other arm's."""
        if self.arm.compare_states:
            found = close_states(whole, read_whole(self._state_file(step)))
            self._note("states", {"step": step, **asdict(found)})

    def _compared(self, step: int, verdict: Verdict) -> None:
        places = dict(self.arm.turns)
        self._note("trips", {"step": step, "to": places[step], **asdict(verdict)})

    def _held_loss(self, state: State) -> float:
        """Mean loss over the held-back tokens, forward only. Collective."""
        config = self.config
        seq_len, trained = config.model.seq_len, config.corpus_bytes
        text = standard_library(trained + self.arm.held_tokens + 1)[trained:]
        kept = state.parts.corpus
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        state.parts.corpus = HeldBack(data, seq_len, 0)
        for module in state.modules:
            module.eval()
        batches = self.arm.held_tokens // config.tokens_per_step
        total = 0.0
        for number in range(batches):
            share = state.parts.runner.evaluate(local_batch(state, number * config.global_batch))
            total += float(sum_over_ranks(share)[0])
        for module in state.modules:
            module.train()
        state.parts.corpus = kept
        return total / batches

    def _state_file(self, step: int) -> Path:
        return Path(self.arm.states) / f"step-{step:06}.npz"

    def _note(self, name: str, line: dict[str, Any]) -> None:
        with (self.arm.path / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def main() -> int:
    """Run one rank."""
    torch.set_num_threads(1)
    data = json.loads(os.environ["ARM"])
    data["turns"] = [(step, place) for step, place in data["turns"]]
    return Rank(Arm(**data)).run()
