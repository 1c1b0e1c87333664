"""Whether a launch of another size has failed, so that the run goes back to the size before.

A launch that was ordered and does not come up leaves its request, spent, in `next.json`. Where the
layout before needs more ranks than this launch has, only another launch can train it. Reads the run
folder; nothing is changed. Invariant: a request that may still come up is not spent.
"""

import uuid
from dataclasses import dataclass, field

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.launch.folder import RunFolder, read_json
from wattmesh.reconfig.launch.generation import SwitchNote

TRIES = 1
"""Launches that may try what was ordered (`RESTART_TRIES` of `reconfig.hook.launching.start`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WayBack:
    """The launch that the run needs.

    Attributes:
        switch_id: of the switch that failed. `ranks`: how many were launched before it.
        key: of the launch; a new one each time, as one that was withdrawn never begins.
    """

    switch_id: str
    run: str
    ranks: int
    key: str = field(default_factory=lambda: f"back-{uuid.uuid4()}")


def way_back(folder: RunFolder, launched: int, *, given_up: bool = False) -> WayBack | None:
    """Give the launch that the run goes back by; None: a launch of this size can train on.

    Args:
        folder: of the run.
        launched: how many ranks a launch has here.
        given_up: what was ordered counts as failed, however often it was tried.
    """
    asked = read_json(folder.next_file)
    identity = read_json(folder.run_file) or {}
    try:
        if not asked or (int(asked["tries"]) < TRIES and not given_up):
            return None
        before = int(asked.get("resized_from", 0))
        note = SwitchNote.from_json(asked["switch"])
    except (KeyError, TypeError, ValueError, InputInvalid):
        return None
    fits = max(note.old_ranks, default=-1) < launched
    if before in (0, launched) or (fits and not given_up):
        return None
    return WayBack(switch_id=note.switch_id, run=str(identity.get("run", "")), ranks=before)
