"""A rank's coordinates in a layout, and the process groups of its parameters.

One world of ranks is seen in two ways, after torchtitan's ParallelDims:

    parameters   (pp, dp_replicate, fsdp, tp)     fsdp = dp_shard * cp
    experts      (pp, dp_replicate, efsdp, ep)    efsdp * ep = dp_shard * cp * tp

Invariant: coordinates are pure arithmetic on the layout and the group rank, so that every rank
knows where every other stands without a message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from wattmesh.integrations.pytorch.context_parallel.context import Narrowed
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.layout import AXES, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshCoordinate:
    """Coordinates of one rank along the axes of its layout."""

    pp: int
    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int

    @classmethod
    def of(cls, layout: Layout, rank: int) -> "MeshCoordinate":
        """Return a group rank's coordinates; `pp` is the outermost axis, `tp` the innermost."""
        found = {}
        for axis in reversed(AXES):
            rank, found[axis] = divmod(rank, getattr(layout, axis))
        return cls(**found)

    def data_rank(self, layout: Layout) -> int:
        """Index of this rank's share of the samples, of `layout.data_parallel` shares."""
        return self.dp_replicate * layout.dp_shard + self.dp_shard


@dataclass(frozen=True, slots=True)
class Meshes:
    """The device meshes and groups of one rank's parameters, sequences and stages.

    Attributes:
        context: the ranks that share this rank's samples, each with a part of every sequence.
        narrowed: by degree of `Layout.cp_layers` below cp, the groups of layers that have it.
    """

    layout: Layout
    place: MeshCoordinate
    device: str
    parameters: DeviceMesh
    experts: DeviceMesh | None
    context: ProcessGroup | None
    narrowed: Mapping[int, Narrowed] = field(default_factory=dict)

    @classmethod
    def make(cls, layout: Layout, device: str = "cpu", *, experts: bool = False) -> "Meshes":
        """Make the groups from the default process group. Collective.

        A layout of the same degrees after a switch takes over the groups of the one before, where
        the session kept them.

        Args:
            layout: of exactly as many ranks as the default group has.
            device: "cpu" or "cuda".
            experts: whether the model has experts, which are laid out over ranks of their own.
        """
        key = ("meshes", layout.degrees, device, experts)
        made = group.reuse(key, partial(_made, layout, device, experts=experts))
        place = MeshCoordinate.of(layout, dist.get_rank())
        below = sorted(set(layout.cp_by_layer) - {layout.cp})
        narrowed = {
            degree: group.reuse(
                ("narrowed", layout.degrees, degree), partial(_narrowed, layout, degree)
            )
            for degree in below
        }
        return cls(layout, place, device, *made, narrowed)

    @property
    def data(self) -> DeviceMesh:
        """The mesh that FSDP shards dense parameters over; two axes with replication (HSDP)."""
        return self._sharding(self.parameters, "fsdp")

    @property
    def expert_data(self) -> DeviceMesh:
        """The mesh that FSDP shards experts over."""
        assert self.experts is not None
        return self._sharding(self.experts, "efsdp")

    def _sharding(self, mesh: DeviceMesh, axis: str) -> DeviceMesh:
        return mesh["dp_replicate", axis] if self.layout.dp_replicate > 1 else mesh[axis]


def _made(
    layout: Layout, device: str, *, experts: bool
) -> tuple[DeviceMesh, DeviceMesh | None, ProcessGroup | None]:
    """Make the meshes of parameters and experts, and the group of a sequence's parts."""
    inner = layout.dp_shard * layout.cp * layout.tp
    parameters = init_device_mesh(
        device,
        (layout.pp, layout.dp_replicate, layout.dp_shard * layout.cp, layout.tp),
        mesh_dim_names=("pp", "dp_replicate", "fsdp", "tp"),
    )
    expert_mesh = None
    if experts:
        expert_mesh = init_device_mesh(
            device,
            (layout.pp, layout.dp_replicate, inner // layout.ep, layout.ep),
            mesh_dim_names=("pp", "dp_replicate", "efsdp", "ep"),
        )
    context = _own_group(context_ranks(layout)) if layout.cp > 1 else None
    return parameters, expert_mesh, context


def context_ranks(layout: Layout) -> list[list[int]]:
    """List the groups of ranks that hold parts of the same sequences."""
    stride = layout.cp * layout.tp
    return [
        [start + tp + each * layout.tp for each in range(layout.cp)]
        for start in range(0, layout.world_size, stride)
        for tp in range(layout.tp)
    ]


def _narrowed(layout: Layout, degree: int) -> Narrowed:
    """Make the groups of layers whose attention is over `degree` ranks. Collective."""
    near = layout.cp // degree
    groups = context_ranks(layout)
    exchange = [ranks[at : at + near] for ranks in groups for at in range(0, layout.cp, near)]
    attend = [ranks[at::near] for ranks in groups for at in range(near)]
    return Narrowed(_own_group(exchange), _own_group(attend) if degree > 1 else None)


def _own_group(groups: Sequence[list[int]]) -> ProcessGroup:
    """Make all of these groups, and return that of this rank. Collective."""
    own: ProcessGroup | None = None
    for ranks in groups:
        made = dist.new_group(ranks)
        own = made if dist.get_rank() in ranks else own
    assert own is not None
    return own
