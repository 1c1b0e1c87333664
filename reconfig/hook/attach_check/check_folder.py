"""The folder of one check: what the run is asked to do, where it saves, and what it reports.

    asked.json    the layouts, and how many steps in each
    run/          replaces the run's own checkpoint folder
    told.jsonl    messages of global rank 0, one per line: {"kind", "body"}

Invariant: an incomplete last line is not read.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.messages import Finish, Message, Progress, Transition

VARIABLE = "WATTMESH_ATTACH_CHECK"
"""Environment variable: the folder of the check that a script runs under."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached(Message):
    """What the script gave to `attach`.

    Attributes:
        layout: the layout in which the script begins.
        launched: how many ranks were launched.
        boundary_every: the script's own interval between save steps.
        steps_each: steps in each layout of this check; also its interval between save steps.
        own_saves: whether the script has its own checkpointer, which is not used in the check.
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
        ranks: how many ranks trained.
        told: how many sample numbers they reported since the last check; -1 if not compared.
        deferred: why the save step is postponed; "" if it is not.
        trouble: why there is no checkpoint, or what else `wattmesh status` would say; "".
        for_good: why this run can never be saved or never be switched; "" if it can.
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
    """A step whose reported loss is not a finite number."""

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
class CheckFolder:
    """The folder of one check."""

    path: Path

    @classmethod
    def from_environment(cls) -> Self | None:
        """Find the check that this process runs under; None if it runs under none."""
        name = os.environ.get(VARIABLE, "")
        return cls(Path(name)) if name else None

    @property
    def run(self) -> Path:
        """Where the run keeps its checkpoints during the check."""
        return self.path / "run"

    def ask(self, layouts: Sequence[Layout], steps_each: int) -> None:
        """Write the request; with 0 `steps_each` comes from the script's own interval."""
        asked = {"layouts": [each.to_dict() for each in layouts], "steps_each": steps_each}
        (self.path / "asked.json").write_text(json.dumps(asked), encoding="utf-8")

    def asked(self) -> tuple[tuple[Layout, ...], int]:
        """Read the layouts, and the steps in each.

        Raises:
            InputInvalid: this is not the folder of a check.
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
        """Append one message to `told.jsonl`."""
        kind = next(name for name, each in KINDS.items() if type(message) is each)
        line = json.dumps({"kind": kind, "body": message.to_json()}) + "\n"
        with (self.path / "told.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)

    def messages(self, after: int = 0) -> tuple[list[Message], int]:
        """Read the messages from byte `after` on; return them in order, and where they end."""
        try:
            with (self.path / "told.jsonl").open("rb") as file:
                file.seek(after)
                whole, end, _ = file.read().rpartition(b"\n")
        except OSError:
            return [], after
        lines: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
        messages = [KINDS[line["kind"]].from_json(line["body"]) for line in lines]
        return messages, after + len(whole) + len(end)
