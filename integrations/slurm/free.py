"""Says what is free when: for each number of nodes, when a job of it may begin. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from wattmesh.reconfig.launcher.nodes_ahead import NodesAhead


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeNodes:
    """From `fewest` to `most` nodes: they can begin at the same time.

    Attributes:
        soonest: not before, even if every job ended now; None: never, as things are.
        expected: if every job runs until its limit; None: not known.
    """

    fewest: int
    most: int
    soonest: datetime | None
    expected: datetime | None

    def to_json(self) -> dict[str, Any]:
        """Encode as a JSON object."""
        return {
            "nodes_from": self.fewest,
            "nodes_to": self.most,
            "soonest": self.soonest.isoformat() if self.soonest else None,
            "expected": self.expected.isoformat() if self.expected else None,
        }


def free_nodes(ahead: NodesAhead) -> tuple[FreeNodes, ...]:
    """Group the numbers of nodes from 1 to all by when they can begin.

    Both times only rise with the number, so each group is found by bisection.
    """
    return tuple(_groups(ahead))


def _groups(ahead: NodesAhead) -> Iterator[FreeNodes]:
    count, everything = 1, len(ahead.nodes)
    while count <= everything:
        here = (ahead.soonest(count), ahead.expected(count))
        low, high = count, everything
        while low < high:
            middle = (low + high + 1) // 2
            same = (ahead.soonest(middle), ahead.expected(middle)) == here
            low, high = (middle, high) if same else (low, middle - 1)
        yield FreeNodes(fewest=count, most=low, soonest=here[0], expected=here[1])
        count = low + 1


def sentences(ahead: NodesAhead) -> list[str]:
    """Say it for people."""
    if not ahead.nodes:
        return ["Slurm names no node there: see `sinfo`."]
    said = []
    for each in free_nodes(ahead):
        many = f"{each.fewest} to {each.most}" if each.fewest < each.most else str(each.most)
        said.append(f"{many} of {len(ahead.nodes)} nodes: {_when(each, ahead.now)}")
    return said


def _when(each: FreeNodes, now: datetime) -> str:
    if each.soonest is None:
        return "never, as things are"
    if each.expected == now:
        return "now"
    if each.expected == each.soonest:
        return f"at {_moment(each.soonest)}"
    least = "" if each.soonest == now else f", not before {_moment(each.soonest)}"
    if each.expected is None:
        return f"not known when{least}"
    return f"at {_moment(each.expected)} if jobs run until their limits{least}"


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"
