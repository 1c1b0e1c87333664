"""State of each data parallel rank, such as the position of a loader that cannot seek.

    trainer.json: "by_data_rank": {"degree": n, "states": {name: [state of rank 0, ...]}}

The logical digest must be equal in every layout and does not include it: after a load the job's own
`load_state_dict` may represent it differently (a loader that has reopened its files).
`report(data=)` checks at the next save step that the right data follow.

Invariant: such a state is only loaded on the data parallel rank that saved it, in a layout with the
same degree.
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
    """Return a rank's share of the global batch: 0 .. layout.data_parallel - 1."""
    return place_of(layout, group_rank)[0]


def own(
    states: Mapping[str, Stateful],
    layout: Layout,
    group_rank: int,
    inside: dict[str, torch.Tensor],
) -> dict[str, Any]:
    """Encode this rank's states as JSON; {} if another rank does for its data parallel rank."""
    mine = data_rank(layout, group_rank)
    stage, within = group_rank // (layout.world_size // layout.pp), layout.cp * layout.tp
    if stage or group_rank % within:
        return {}
    return {
        name: {str(mine): plain.encode(each.state_dict(), f"{KEY}.{name}.{mine}", inside)}
        for name, each in states.items()
    }


def together(layout: Layout, told: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the states of all ranks."""
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
    """Load every state on the rank that saved it.

    Args:
        states: of the freshly built job.
        trainer: the checkpoint's trainer.json.
        layout: of the freshly built job.
        group_rank: this rank in it.
        value: decodes the JSON of `plain.encode`.

    Raises:
        InputInvalid: there is none for this rank, or it was saved with another degree.
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
