"""Merges all ranks' parts to one index and one set of values, on the coordinator.

Invariant: ranks hold the same bits under one name; the resulting index is proven to cover every
tensor.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.checkpoint.dcp_storage.files import PlacedPiece
from wattmesh.reconfig.checkpoint.dcp_storage.parts import Part
from wattmesh.reconfig.universal.index import cover
from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.index import Index, Segment, TensorEntry, build
from wattmesh.reconfig.universal.index.names import Names
from wattmesh.reconfig.universal.index.placing import logical_shape


def index_of(parts: Sequence[Part], names: Names, rules: Declared) -> Index:
    """Build the index and prove its cover.

    Raises:
        InputInvalid: ranks hold different tensors under one name, or pieces leave a gap or overlap;
            the message names the tensor.
    """
    _refuse_different([each for part in parts for each in (*part.written, *part.left_out)])
    entries: dict[tuple[str, str], TensorEntry] = {}
    segments = []
    for each in (each for part in parts for each in part.written):
        key = names.entry_key(each.fqn)
        rule = rules.rule(key[0])
        entries.setdefault(
            key,
            TensorEntry(
                name=key[0],
                state=key[1],
                dtype=each.dtype,
                shape=logical_shape(rule, each.whole),
                rule=rule,
            ),
        )
        if each.box.count:
            segments.append(
                Segment(
                    entry=key,
                    file=each.file,
                    offset=each.offset,
                    box=each.box,
                    digest=each.digest,
                )
            )
    index = build(entries.values(), segments)
    cover.prove(index)
    return index


def values_of(parts: Iterable[Part]) -> dict[str, Any]:
    """Merge every rank's values.

    Raises:
        InputInvalid: ranks hold different values under one name.
    """
    merged: dict[str, Any] = {}
    for part in parts:
        for fqn, value in part.values.items():
            if merged.setdefault(fqn, value) != value:
                raise InputInvalid(
                    f"checkpoint: ranks hold different values for {fqn!r}: {merged[fqn]!r} and "
                    f"{value!r}; nothing was written."
                )
    return merged


def _refuse_different(placed: Iterable[PlacedPiece]) -> None:
    """Compare all tensors and pieces with the same name, written ones first."""
    tensors: dict[str, tuple[str, Shape]] = {}
    pieces: dict[tuple[str, Box], bytes] = {}
    for each in sorted(placed, key=lambda found: not found.file):
        told = each.dtype, each.whole
        known = tensors.setdefault(each.fqn, told)
        if known != told:
            raise InputInvalid(
                f"checkpoint: ranks hold different tensors under the name {each.fqn!r}: "
                f"{known[0]} {known[1]} and {told[0]} {told[1]}. {_ADVICE}"
            )
        if not each.box.count:
            continue
        if each.file:
            digest = pieces.setdefault((each.fqn, each.box), each.digest)
        else:
            digest = pieces.get((each.fqn, each.box), b"")
        if digest != each.digest:
            raise InputInvalid(
                f"checkpoint: ranks hold different values under the name {each.fqn!r}, "
                f"{each.box}. {_ADVICE}"
            )


_ADVICE = (
    "Either replicas have drifted apart, or two parts of the model share a name: pipeline stages "
    "keep global layer numbers, experts a dim of their own. Nothing was written."
)
