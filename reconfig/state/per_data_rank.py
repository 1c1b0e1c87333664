"""State that each data parallel rank has of its own: how far a loader that cannot seek has read.

    trainer.json: "by_data_rank": {"degree": n, "states": {name: [state of rank 0, ...]}}

The logical digest, which must be equal in every layout, does not count it: after a load the state
is what the job's own `load_state_dict` made of the saved text, and may well be told in other words
(a loader that has opened its files again). That the right data follow is checked where it counts,
by `report(data=)` at the next save step.

Invariant: such a state is handed to the data parallel rank that it was saved from, of a layout with
the same degree, or to nobody.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state import plain
from wattmesh.reconfig.state.state import Stateful
from wattmesh.reconfig.state.streams import place_of

KEY = "by_data_rank"


def data_rank(layout: Layout, group_rank: int) -> int:
    """Which share of the global batch a rank works on: 0 .. layout.data_parallel - 1."""
    return place_of(layout, group_rank)[0]


def own(
    states: Mapping[str, Stateful],
    layout: Layout,
    group_rank: int,
    inside: dict[str, torch.Tensor],
) -> dict[str, Any]:
    """Give this rank's states as JSON, {} where another rank speaks for its data parallel rank."""
    mine = data_rank(layout, group_rank)
    stage, within = group_rank // (layout.world_size // layout.pp), layout.cp * layout.tp
    if stage or group_rank % within:
        return {}
    return {
        name: {str(mine): plain.encode(each.state_dict(), f"{KEY}.{name}.{mine}", inside)}
        for name, each in states.items()
    }


def together(layout: Layout, told: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Bring what every rank told into one table."""
    states: dict[str, dict[str, Any]] = {}
    for part in told:
        for name, of_rank in part.items():
            states.setdefault(name, {}).update(of_rank)
    return {"degree": layout.data_parallel, "states": states}


def give_back(
    states: Mapping[str, Stateful],
    trainer: Mapping[str, Any],
    layout: Layout,
    group_rank: int,
    value: Callable[[Any], Any],
) -> None:
    """Give every state back to the rank that it was saved from.

    Args:
        states: of the freshly built job.
        trainer: the checkpoint's trainer.json.
        layout: of the freshly built job.
        group_rank: this rank in it.
        value: decodes what `plain.encode` made.

    Raises:
        InputInvalid: there is none for this rank, or it was saved under another degree.
    """
    saved = trainer.get(KEY, {"degree": layout.data_parallel, "states": {}})
    for name, each in states.items():
        found = saved["states"].get(name, {}).get(str(data_rank(layout, group_rank)))
        if saved["degree"] != layout.data_parallel or found is None:
            raise InputInvalid(
                f"checkpoint: {name!r} was saved by {saved['degree']} data parallel ranks"
                f"{'' if name in saved['states'] else ' that had none of it'}, the layout has "
                f"{layout.data_parallel}; a loader that cannot seek by global sample keeps its "
                "data parallel degree."
            )
        each.load_state_dict(value(found))
