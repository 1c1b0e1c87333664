"""Saving one state and loading it into another that was freshly built, in one process."""

from pathlib import Path

from wattmesh.reconfig.checkpoint.checkpoint import facts_of, load, save
from wattmesh.reconfig.checkpoint.digest import logical_digest
from wattmesh.reconfig.checkpoint.header import header_of
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all, name_to_fill


def digest_of(state: State) -> str:
    """What the hook compares before and after a switch."""
    named = name_all(state)
    return logical_digest(named.tensors, facts_of(state), named.values)


def through_a_checkpoint(folder: Path, first: State, second: State) -> str:
    """Save `first`, load it into `second`; gives the digest that memory must have now."""
    header = header_of(
        run="r",
        attempt=1,
        position=Position(step=1),
        layout=Layout(),
        ranks=(0,),
        digest=digest_of(first),
    )
    path = save(RunFolder(folder), name_all(first), first, header, lambda: None)
    load(path, name_to_fill(second), second)
    return header.digest
