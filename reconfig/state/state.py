"""The training state of one rank: a handle that the session can empty.

Invariant: nothing outside of this handle keeps tensors of the model alive, so that a teardown frees
the old model's memory before the new one is built.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import nn

from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.batches import Batches, Loader
from wattmesh.reconfig.state.expert_stacks import ExpertStacks
from wattmesh.reconfig.state.streams import Streams


class Stateful(Protocol):
    """An object with a state that a checkpoint stores as a whole, equal on every rank."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Load the state."""
        ...


@dataclass(slots=True)
class State:
    """Everything that `build` made for one rank; the session empties it at teardown.

    Attributes:
        modules: the parts of the model on this rank (one, or one per pipeline stage). Parameter
            names are global: a layer keeps its number on whatever stage it sits.
        optimizers: one per part, same order.
        extra: schedules and the like, by name; replicated, stored as a whole.
        averages: by slot ("ema"), then by the parameter's global name: tensors of the parameter's
            shape, sharded as it is.
        by_data_rank: state of each data parallel rank (of a loader that cannot seek), by name; the
            data parallel degree must then stay the same.
        parts: anything else that `train_step` needs (meshes, a pipeline schedule, a loader).
        position: the training position; the session sets it, the loader reads it.
        loader: makes the loader of this rank's batches from a position on: called at the first
            batch after `build`, and again where it ends.
        experts: the stacks of experts, of a job whose experts may be placed anew at a save step;
            None: they lie in the order of their numbers for ever.
        streams: set by the session: this rank's random streams from the checkpoint.
        batches: what the loader gives, one for each `next(state.batches)`.
    """

    modules: list[nn.Module]
    optimizers: list[torch.optim.Optimizer]
    extra: dict[str, Stateful] = field(default_factory=dict)
    averages: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    by_data_rank: dict[str, Stateful] = field(default_factory=dict)
    parts: SimpleNamespace = field(default_factory=SimpleNamespace)
    position: Position = field(default_factory=Position)
    loader: Loader | None = None
    experts: ExpertStacks | None = None
    streams: Streams = field(default_factory=Streams, init=False, repr=False)
    batches: Batches = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Make no loader: where it begins is not known yet."""
        self.batches = Batches(self.loader, lambda: self.position)

    def parameters(self) -> Sequence[nn.Parameter]:
        """List this rank's parameters over all parts."""
        return [each for module in self.modules for each in module.parameters()]

    def close(self) -> None:
        """Drop everything; the handle stays, empty.

        Objects made from the model (captured graphs, schedules) go first, then the model.
        """
        self.batches.close()
        self.loader = None
        self.parts = SimpleNamespace()
        self.modules.clear()
        self.optimizers.clear()
        self.extra.clear()
        self.averages.clear()
        self.by_data_rank.clear()
