"""ZeRO's fragments of every parameter in the ranks' flat buffers, as columns.

Stages 1 and 2 flatten a parameter group, pad it, and give each rank an equal partition; a rank's
file maps its parameters to offsets in it. Stage 3 gives each rank an equal part of every parameter,
in the order of `param_shapes`.

Invariant: the fragments of a parameter follow each other rank by rank without gaps and add up to
its shape; files that do not prove that are refused.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import CONTAINER, Allowance
from wattmesh.reconfig.universal.archives.rebuild import Record, brief
from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.index.index import Column

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Flat:
    """One rank's partition of one group: the fp32 master and its slots.

    Attributes:
        master: fp32, one dim.
        state: slot -> the base optimizer's value for this partition.
        padding: elements at the end that the slots have but the saved master does not.
    """

    master: StoredTensor
    state: Mapping[str, Any]
    padding: int = 0


@dataclass(frozen=True, slots=True)
class Fragments:
    """Columns of fragments, sorted by parameter, then rank.

    Attributes:
        param: number of the parameter.
        rank, group: of the flat buffer.
        at: first element in the flat buffer.
        begin: first element of the parameter.
        count: number of elements.
    """

    param: Column
    rank: Column
    group: Column
    at: Column
    begin: Column
    count: Column


def mapped(
    names: Sequence[str],
    shapes: Shapes,
    mappings: Sequence[Any],
    flats: Sequence[Sequence[Flat]],
    allowance: Allowance,
) -> Fragments:
    """Return the fragments of stages 1 and 2.

    Args:
        names: of all parameters, in order.
        shapes: of all parameters.
        mappings: by rank, `param_slice_mappings`.
        flats: by rank, then group.
        allowance: is charged for every fragment.

    Raises:
        InputInvalid: a mapping is malformed, or the fragments do not add up to the parameters.
    """
    number = {name: at for at, name in enumerate(names)}
    rows: list[tuple[int, int, int, int, int]] = []
    for rank, groups in enumerate(mappings):
        if type(groups) is not list or len(groups) != len(flats[rank]):
            raise InputInvalid(f"rank {rank}: param_slice_mappings does not list its groups.")
        for group, mapping in enumerate(groups):
            if type(mapping) is not dict:
                raise InputInvalid(f"rank {rank}: param_slice_mappings holds what is no mapping.")
            allowance.made(CONTAINER * len(mapping), f"rank {rank}")
            for name, address in mapping.items():
                if name not in number:
                    raise InputInvalid(f"rank {rank}: {brief(name)} is mapped, but has no shape.")
                rows.append((number[name], rank, group, *_address(rank, name, address)))
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 5)
    table = table[table[:, 4] > 0]
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    param, rank_of, group_of, at, count = table.T
    fresh = np.ones(len(param), dtype=bool)
    fresh[1:] = param[1:] != param[:-1]
    before = np.cumsum(count) - count
    begin = before - np.repeat(before[fresh], np.diff([*np.flatnonzero(fresh), len(param)]))
    found = Fragments(param, rank_of, group_of, at, begin, count)
    _prove_mapped(names, shapes, found, fresh, flats)
    return found


def _address(rank: int, name: str, address: Any) -> tuple[int, int]:
    """(start, numel) of a deepspeed.utils.tensor_fragment.fragment_address."""
    state = address.state if type(address) is Record else None
    if type(state) is dict:
        start, count = state.get("start"), state.get("numel")
        if type(start) is int and type(count) is int and 0 <= start < 1 << 48 > count >= 0:
            return start, count
    raise InputInvalid(f"rank {rank}: the address of {name} is malformed.")


def _prove_mapped(
    names: Sequence[str],
    shapes: Shapes,
    found: Fragments,
    fresh: Any,
    flats: Sequence[Sequence[Flat]],
) -> None:
    """Check that parameters are complete.

    A fragment that continues on the next rank must end its partition, and the next one must begin
    the next partition.
    """
    volume = np.array([math.prod(shapes[name]) for name in names], dtype=np.int64)
    held = np.bincount(found.param, weights=found.count, minlength=len(names)).astype(np.int64)
    if wrong := np.flatnonzero(held != volume).tolist():
        name = names[wrong[0]]
        raise InputInvalid(
            f"{name} (param): its fragments have {held[wrong[0]]} elements, its shape "
            f"{shapes[name]} has {volume[wrong[0]]}; a rank's file is missing or from another step."
        )
    sizes = np.array([[flat.master.count for flat in groups] for groups in flats], dtype=np.int64)
    size = sizes[found.rank, found.group] if len(sizes) else np.zeros(0, dtype=np.int64)
    goes_on = ~fresh
    follows = np.flatnonzero(goes_on)
    torn = (
        (found.rank[follows] != found.rank[follows - 1] + 1)
        | (found.group[follows] != found.group[follows - 1])
        | (found.at[follows] != 0)
        | (found.at[follows - 1] + found.count[follows - 1] != size[follows - 1])
    )
    if torn.any():
        row = int(follows[np.flatnonzero(torn)[0]])
        raise InputInvalid(
            f"{names[int(found.param[row])]} (param): its fragment on rank {found.rank[row]} does "
            "not continue the one before; the files are not of one checkpoint."
        )
    if len(outside := np.flatnonzero(found.at + found.count > size)):
        row = int(outside[0])
        raise InputInvalid(
            f"{names[int(found.param[row])]} (param): its fragment on rank {found.rank[row]} ends "
            f"at element {found.at[row] + found.count[row]} of {size[row]}."
        )
    order = np.lexsort((found.at, found.group, found.rank))
    rank, group, at, count = (
        each[order] for each in (found.rank, found.group, found.at, found.count)
    )
    meets = (rank[1:] == rank[:-1]) & (group[1:] == group[:-1]) & (at[1:] < (at + count)[:-1])
    if len(both := np.flatnonzero(meets)):
        raise InputInvalid(
            f"{names[int(found.param[order[both[0]]])]} (param): another parameter has the same "
            f"elements on rank {rank[both[0]]}."
        )


def partitioned(
    groups: Sequence[Shapes], number: Mapping[str, int], flats: Sequence[Sequence[Flat]]
) -> Fragments:
    """Return the fragments of stage 3.

    Args:
        groups: `param_shapes`, by sub-group.
        number: of each parameter.
        flats: by rank, then sub-group.

    Raises:
        InputInvalid: the sizes of the flat buffers do not match the shapes.
    """
    ranks = len(flats)
    columns: list[Column] = []
    for group, shapes in enumerate(groups):
        volume = np.array([math.prod(shape) for shape in shapes.values()], dtype=np.int64)
        part = -(-volume // ranks)
        at = np.cumsum(part) - part
        for rank, flat in enumerate(flats):
            if flat[group].master.count != int(part.sum()):
                raise InputInvalid(
                    f"rank {rank}, sub-group {group}: {flat[group].master.count} elements are "
                    f"stored, its {len(shapes)} parameters over {ranks} ranks make "
                    f"{int(part.sum())}; a rank's file is missing or from another run."
                )
        rank_of = np.arange(ranks, dtype=np.int64)[:, None]
        begin = np.minimum(rank_of * part, volume)
        count = np.minimum(volume - begin, part)
        param = np.array([number[name] for name in shapes], dtype=np.int64)
        wide = [np.broadcast_to(each, count.shape) for each in (param, rank_of, group, at)]
        columns.append(np.stack([*wide, begin, count], axis=-1).reshape(-1, 6))
    table = np.concatenate(columns) if columns else np.zeros((0, 6), dtype=np.int64)
    table = table[table[:, 5] > 0]
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    return Fragments(*table.T)
