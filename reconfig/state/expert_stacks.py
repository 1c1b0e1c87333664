"""Which of a rank's tensors are stacks of experts, and the expert that each of their rows holds.

A job whose `build` declares it can have its experts placed anew: `State.experts`. Invariant: a
stack's rows are named, saved, loaded and digested by the numbers of their experts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattmesh.reconfig.placement import Placement

Orders = Mapping[str, Sequence[int]]
"""By global name of a tensor, the logical index along dim 0 of each of its stored rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertStacks:
    """The stacks of experts on one rank.

    Attributes:
        layers: how many layers of the whole model have experts, and `experts` of each.
        layer_of: of each stacked parameter on this rank, by its global name, the number of its
            layer among those. The experts are along dim 0.
        placement: as `Ranks.placement` asked `build`, and as the model routes tokens.
    """

    layers: int
    experts: int
    layer_of: Mapping[str, int]
    placement: Placement = ()

    def orders(self, slots: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, ...]]:
        """Give the order of every tensor in which experts are not in the order of their numbers.

        Args:
            slots: by parameter, the names of its optimizer slots and averages that have its rows.
        """
        if not self.placement:
            return {}
        return {
            key: self.placement[layer]
            for name, layer in self.layer_of.items()
            for key in (f"model.{name}", *slots.get(name, ()))
        }
