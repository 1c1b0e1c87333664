"""Nodes whose actuator refuses this controller by its fence, and what to do about it. Pure.

Invariant: the last answer of a node that is no longer heard does not count.
"""

from collections.abc import Iterable
from datetime import datetime

from wattmesh.controller.cycle.fleet import recently_heard
from wattmesh.controller.journal.nodes.node_store import NodeRow
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.ranges import clean
from wattmesh.telemetry.actuator.rules.fence import hand_over
from wattmesh.telemetry.desired import FENCES, Applied

NAMED = 5
"""How many nodes a sentence names."""


def refusing(nodes: Iterable[NodeRow], now: datetime) -> dict[str, dict[str, Applied]]:
    """Return the nodes that are heard and refuse us, with their answers, by reason."""
    found: dict[str, dict[str, Applied]] = {why: {} for why in FENCES}
    for node in nodes:
        if node.facts.get("applied") is None or not recently_heard(node, now):
            continue
        try:
            said = Applied.from_json(node.facts["applied"])
        except InputInvalid:
            continue
        if said.fenced:
            found[said.fenced][node.node] = said
    return found


def sentences(
    nodes: Iterable[NodeRow], now: datetime, *, journal: str, epoch: int
) -> tuple[str, ...]:
    """Say which actuators refuse us, why, and what to run where; one sentence for each reason.

    Args:
        nodes: as their agents reported.
        now: the wall clock.
        journal: our journal's identity.
        epoch: our epoch.
    """
    found = refusing(nodes, now)
    step = hand_over(journal, epoch)
    told = []
    # An actuator that names our journal refused another controller; its next answer clears this.
    if others := {name: said for name, said in found["journal"].items() if said.journal != journal}:
        whose = ", ".join(sorted({said.journal for said in others.values()}))
        told.append(
            f"{_actuators(others)} another journal ({whose}) and not this one ({journal}), so none "
            "of their GPUs is set: if this one took its place, stop every daemon on the other, and "
            f"{step}."
        )
    if wrong := found["epoch"]:
        newest = max(said.epoch for said in wrong.values())
        told.append(
            f"{_actuators(wrong)} epoch {newest} of this journal, which is at {epoch}, so none of "
            "their GPUs is set: if another daemon leads, it does no harm; if the journal was put "
            "back by other means than `wattmesh db restore`, stop the daemon, run `wattmesh db "
            f"renew` and start it; else {step}."
        )
    return tuple(told)


def _actuators(nodes: Iterable[str]) -> str:
    """Name the nodes as the subject of a sentence; the verb is "obey"."""
    names = [clean(each).replace(":", ",") for each in sorted(nodes)]
    listed = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    one = len(names) == 1
    return f"{len(names)} actuator{'' if one else 's'} ({listed}) obey{'s' if one else ''}"
