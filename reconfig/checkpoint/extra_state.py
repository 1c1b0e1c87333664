"""A checkpoint's state besides named tensors: each rank's part, and the merged whole.

    trainer.json    {"header", "values", "extra", "by_data_rank", "streams", "without_slots",
                     "digest"}

Invariant: different values of two ranks under one name are refused, with the name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import xxhash

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state import per_data_rank, plain, streams
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import Named, without_slots


def own(
    named: Named, state: State, layout: Layout, group_rank: int, inside: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """Encode this rank's state besides named tensors as JSON; tensors in it go into `inside`.

    Extra state is equal on every rank, so the first rank's is used.

    Raises:
        InputInvalid: a checkpoint cannot store a value; the message names it.
    """
    extra = state.extra if group_rank == 0 else {}
    return {
        "values": {key: plain.encode(value, key, inside) for key, value in named.plain.items()},
        "extra": {
            name: plain.encode(each.state_dict(), f"extra.{name}", inside)
            for name, each in extra.items()
        },
        "without_slots": without_slots(named),
        per_data_rank.KEY: per_data_rank.own(state.by_data_rank, layout, group_rank, inside),
        streams.KEY: streams.own(state.streams, layout, group_rank, inside),
        "inside": sorted(inside),
    }


def together(
    header: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], text: str
) -> dict[str, Any]:
    """Merge every rank's part to trainer.json.

    Args:
        header: of the checkpoint.
        parts: of every rank, in group order.
        text: text of the extra state in the logical digest.

    Raises:
        InputInvalid: ranks hold different values under one name.
    """
    merged: dict[str, Any] = {}
    for part in parts:
        for key, value in part["values"].items():
            if merged.setdefault(key, value) != value:
                raise InputInvalid(
                    f"checkpoint: ranks hold different values for {key!r}: {merged[key]!r} and "
                    f"{value!r}; nothing was written."
                )
    layout = Layout.from_dict(header["layout"])
    return {
        "header": dict(header),
        "values": merged,
        "extra": parts[0]["extra"],
        per_data_rank.KEY: per_data_rank.together(
            layout, [part[per_data_rank.KEY] for part in parts]
        ),
        streams.KEY: {name: each for part in parts for name, each in part[streams.KEY].items()},
        "without_slots": sorted({name for part in parts for name in part["without_slots"]}),
        # With these a reader of the files can recompute the header's digest.
        "digest": {
            "facts_xxh3_64": xxhash.xxh3_64_hexdigest(text.encode()),
            "beside": sorted({name for part in parts for name in part["inside"]}),
            "values": True,
        },
    }
