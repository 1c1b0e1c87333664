"""The folder of one check: what is asked of the run, where it trains meanwhile, what it told.

    asked.json    the layouts, and how many steps in each
    run/          stands in for the run's own checkpoint folder
    told.jsonl    what global rank 0 tells, one line each: {"kind", "body"}

Invariant: a line that is not whole yet is not read.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire import Finish, Message, Progress, Transition

VARIABLE = "WATTMESH_ATTACH_CHECK"
"""Environment variable: the folder of the check that a script runs under."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached(Message):
    """What the script gave to `attach`.

    Attributes:
        layout: that it begins in. `launched`: ranks.
        boundary_every: its own. `steps_each`: steps in each layout, and between two save steps, of
            this check.
        own_saves: whether it has a checkpointer of its own, which is left out.
    """

    layout: Layout
    launched: int
    boundary_every: int
    steps_each: int
    seekable: bool
    own_saves: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveStep(Message):
    """What all ranks agreed on at one save step.

    Attributes:
        ranks: how many trained.
        told: numbers of samples that they reported since the last check; -1 when not compared.
        deferred: why it waits; "".
        trouble: why it left no checkpoint, or what else `wattmesh status` would say; "".
        for_good: why no checkpoint or no switch can be made of this run at all; "".
    """

    step: int
    layout: Layout
    ranks: int
    told: int
    deferred: str
    trouble: str
    for_good: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownLoss(Message):
    """A step whose loss, as it was reported, is no finite number."""

    step: int
    layout: Layout
    loss: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut(Message):
    """A layout that was not ordered, and why."""

    layout: Layout
    why: str


KINDS: dict[str, type[Message]] = {
    "attached": Attached,
    "progress": Progress,
    "save_step": SaveStep,
    "unknown_loss": UnknownLoss,
    "left_out": LeftOut,
    "transition": Transition,
    "finish": Finish,
}


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of one check."""

    path: Path

    @classmethod
    def from_environment(cls) -> Self | None:
        """Find the check that this process runs under; None for a run like any other."""
        name = os.environ.get(VARIABLE, "")
        return cls(Path(name)) if name else None

    @property
    def run(self) -> Path:
        """Where the run has its checkpoints meanwhile."""
        return self.path / "run"

    def ask(self, layouts: Sequence[Layout], steps_each: int) -> None:
        """Write down what is asked; `steps_each` of 0 leaves it to the script's own interval."""
        asked = {"layouts": [each.to_dict() for each in layouts], "steps_each": steps_each}
        (self.path / "asked.json").write_text(json.dumps(asked), encoding="utf-8")

    def asked(self) -> tuple[tuple[Layout, ...], int]:
        """Read the layouts, and the steps in each.

        Raises:
            InputInvalid: this is no folder of a check.
        """
        try:
            asked = json.loads((self.path / "asked.json").read_bytes())
            layouts = tuple(Layout.from_dict(each) for each in asked["layouts"])
            return layouts, int(asked["steps_each"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputInvalid(
                f"{VARIABLE} = {str(self.path)!r} is no folder that `wattmesh attach-check` has "
                "made, so where this run may save is not known; unset the variable."
            ) from error

    def tell(self, message: Message) -> None:
        """Add one line."""
        kind = next(name for name, each in KINDS.items() if type(message) is each)
        line = json.dumps({"kind": kind, "body": message.to_json()}) + "\n"
        with (self.path / "told.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)

    def told(self, after: int = 0) -> tuple[list[Message], int]:
        """What was told behind so many bytes, in order, and how many bytes it ends at."""
        try:
            with (self.path / "told.jsonl").open("rb") as file:
                file.seek(after)
                whole, end, _ = file.read().rpartition(b"\n")
        except OSError:
            return [], after
        lines: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
        messages = [KINDS[line["kind"]].from_json(line["body"]) for line in lines]
        return messages, after + len(whole) + len(end)
