"""Which of predicted, measured, validated and stale a point is, and what to run next. Pure.

Invariant: only a validated point that is not stale has nothing to run next.
"""

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from wattmesh.controller.cli import formats
from wattmesh.policies.decision import PolicySettings
from wattmesh.policies.staleness import stale
from wattmesh.reconfig.catalogue import Catalogue, Evidence, OperatingPoint
from wattmesh.reconfig.fingerprint import Fingerprint

STALE = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointState:
    """Where a point stands. `command`: what to run next; "" where nothing is to be run."""

    id: str
    state: str
    why: str = ""
    command: str = ""


def states(catalogue: Catalogue, file: str, now: datetime) -> tuple[PointState, ...]:
    """Return where every point stands.

    By age alone, with the default of `policy.proof_days`: what a run computes with is known once it
    runs, and `wattmesh why` tells it then.
    """
    return tuple(_state(each, file, now) for each in catalogue.points)


def _state(point: OperatingPoint, file: str, now: datetime) -> PointState:
    name = shlex.quote(file)
    prove = f"wattmesh configs validate JOB --catalogue {name} --point {shlex.quote(point.id)}"
    if why := stale(point, now, PolicySettings().proof_days, Fingerprint()):
        return PointState(id=point.id, state=STALE, why=why, command=prove)
    if point.evidence is Evidence.VALIDATED:
        return PointState(id=point.id, state=str(point.evidence))
    measured = point.evidence is Evidence.MEASURED
    return PointState(
        id=point.id,
        state=str(point.evidence),
        why=f"{point.id} is {point.evidence}, not validated",
        command=prove if measured else f"wattmesh configs profile JOB --out {name}",
    )


def state_json(found: PointState) -> dict[str, Any]:
    """Give the keys of one point's state; null where nothing is to be run."""
    return {**asdict(found), "command": found.command or None}


def next_lines(found: tuple[PointState, ...], columns: int) -> Iterator[str]:
    """Say in a sentence each what to run next; points with the same command share one."""
    for command in dict.fromkeys(each.command for each in found if each.command):
        mine = [each for each in found if each.command == command]
        yield from formats.wrapped(
            f"{'; '.join(each.why for each in mine)}. Next: {command}", columns
        )
