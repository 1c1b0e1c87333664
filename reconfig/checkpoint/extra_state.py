"""What a checkpoint says of a state beside its tensors: every rank's part, and the whole of it.

    trainer.json    {"header", "values", "extra", "by_data_rank", "streams", "without_slots",
                     "digest"}

Invariant: two ranks that say different things under one name are refused by that name.
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
    """What this rank knows beside named tensors, as JSON; tensors found in it go into `inside`.

    Extra state is equal on every rank, so that the first one's counts.

    Raises:
        InputInvalid: a value that a checkpoint cannot carry; it is named.
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
    """Bring every rank's facts together as trainer.json.

    Args:
        header: of the checkpoint.
        parts: of every rank, in group order.
        text: what the logical digest counts beside tensors.

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
        # By these, who reads the files can take the digest that the header carries from memory.
        "digest": {
            "facts_xxh3_64": xxhash.xxh3_64_hexdigest(text.encode()),
            "beside": sorted({name for part in parts for name in part["inside"]}),
            "values": True,
        },
    }
