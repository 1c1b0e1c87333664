"""How a trainer's own names of tensors (torch calls them FQNs) map to logical keys, and back.

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
"""The state of tensors that are neither the model's nor an optimizer's slots: carried whole."""


AVERAGE = "average."
"""Before the slot of an average of a parameter (EMA); an optimizer slot has no dot in its name."""


MAX_NAME = 1024
"""Characters of a tensor's name; the longest of known models have some 150."""


def is_name(value: Any) -> bool:
    """Whether a tensor may be called that: text of 1 to MAX_NAME characters, all printable."""
    return type(value) is str and 0 < len(value) <= MAX_NAME and value.isprintable()


def is_average(state: str) -> bool:
    """Whether a state is an average that the job keeps of a parameter."""
    return state.startswith(AVERAGE)


@dataclass(frozen=True, slots=True)
class Names:
    """A trainer's two prefixes, each with its closing dot; the model's may be empty."""

    model: str
    optim: str

    def entry_key(self, fqn: str) -> tuple[str, str]:
        """Give the logical (name, state) of a tensor.

        Raises:
            InputInvalid: an optimizer slot with a name that is reserved.
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
        """Give the trainer's name of a logical key."""
        if state == PARAM:
            return f"{self.model}{name}"
        if is_average(state):
            return f"{state}.{name}"
        return name if state == EXTRA else f"{self.optim}state.{name}.{state}"


HOOK = Names("model.", "optim.")
"""The hook's, and of every `dcp.save({"model": ..., "optim": ...})`."""

TORCHTITAN = Names("", "optimizer.")
"""torchtitan's: the model's parameters stand at the top."""
