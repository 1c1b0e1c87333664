"""Maps a trainer's FQNs to logical keys, and back.

    <model prefix><name>                    (name, "param")
    <optim prefix>state.<name>.<slot>       (name, slot)
    average.<slot>.<name>                   (name, "average.<slot>"), where the model has a prefix
    anything else                           (its FQN, "extra")

Invariant: `fqn(*entry_key(x)) == x` for every x, so no two FQNs share a key.
"""

from dataclasses import dataclass
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.index.index import PARAM

EXTRA = "extra"
"""The state of tensors that are neither the model's nor slots of an optimizer."""


AVERAGE = "average."
"""Prefix of the state of a parameter's average (EMA); the name of an optimizer slot has no dot."""


MAX_NAME = 1024
"""Characters of a tensor's name; the longest of known models have some 150."""


def is_name(value: Any) -> bool:
    """Tell whether a value is a legal name: 1 to MAX_NAME printable characters."""
    return type(value) is str and 0 < len(value) <= MAX_NAME and value.isprintable()


def is_average(state: str) -> bool:
    """Tell whether a state is an average of a parameter that the job keeps."""
    return state.startswith(AVERAGE)


@dataclass(frozen=True, slots=True)
class Names:
    """A trainer's two prefixes, each with its final dot; the model's may be empty."""

    model: str
    optim: str

    def entry_key(self, fqn: str) -> tuple[str, str]:
        """Return the logical (name, state) of a tensor.

        Raises:
            InputInvalid: an optimizer slot has a reserved name.
        """
        slots = f"{self.optim}state."
        if fqn.startswith(slots) and "." in fqn[len(slots) :]:
            name, _, slot = fqn[len(slots) :].rpartition(".")
            if slot in (PARAM, EXTRA):
                raise InputInvalid(
                    f"checkpoint: {fqn!r} is an optimizer slot called {slot!r}, which is reserved; "
                    "rename the slot."
                )
            return name, slot
        slot, dot, name = fqn.removeprefix(AVERAGE).partition(".")
        if self.model and fqn.startswith(AVERAGE) and slot and dot and name:
            return name, f"{AVERAGE}{slot}"
        if fqn.startswith(self.model) and not fqn.startswith(self.optim):
            return fqn[len(self.model) :], PARAM
        return fqn, EXTRA

    def fqn(self, name: str, state: str) -> str:
        """Return the trainer's name of a logical key."""
        if state == PARAM:
            return f"{self.model}{name}"
        if is_average(state):
            return f"{state}.{name}"
        return name if state == EXTRA else f"{self.optim}state.{name}.{state}"


HOOK = Names("model.", "optim.")
"""Names of the hook, and of every `dcp.save({"model": ..., "optim": ...})`."""

TORCHTITAN = Names("", "optimizer.")
"""Names of torchtitan, whose parameters have no prefix."""
