"""Clocks of the runs' GPUs: whether they can be set, what is wished, when a wish ends. Pure.

The wish for a run is a column of its row, committed under the leader's epoch before any agent can
read it. What each node is told follows from the rows alone.

Invariant: a wish exists only for GPUs of a run that has not finished and is not frozen, in mode
`act`, or for a power cap. Without a wish the actuator returns the GPU to its baseline.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from wattmesh.controller.cycle.cap_held import CapNow, obligations
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.journal.runs.switches import SwitchRow
from wattmesh.policies.decision import Mode
from wattmesh.reconfig.switch import SwitchState
from wattmesh.telemetry.desired import Desired, GpuControl, LeaseKind, Wish

LEASE_S = 60.0
"""How long a clock lock lasts after the controller's last message."""

BEAT_S, STEP_S = 1.0, 5.0
"""How often the actuator polls, and the least time between two of its steps back up."""

Controls = Mapping[str, GpuControl]
"""The recent answers of the nodes' actuators, by GPU."""


def back_s(step_share: float = 0.1, write_every_s: float = 60.0) -> float:
    """Return the longest time until boards run at a higher clock, or at none, once it is wished.

    It holds even if a process dies meanwhile: the lease on the old clock ends, and then the
    actuator steps up, one step per poll (docs/safety.md, "GPUs").

    Args:
        step_share: setting of the nodes' actuators (`[actuator]`).
        write_every_s: likewise.
    """
    return LEASE_S + BEAT_S + ceil(1 / step_share) * (min(write_every_s, STEP_S) + BEAT_S)


BACK_S = back_s()
"""The same with the actuator's default settings."""


def trouble(row: RunRow, controls: Controls, coverage: tuple[int, int]) -> str:
    """Say why no clock of a run's GPUs can be set now, as a clause; "" when all can.

    Args:
        row: the run.
        controls: the actuators' answers.
        coverage: how many of its GPUs had their power read lately, and how many it uses; below
            100 % no clock is set, because its effect could not be measured.
    """
    gpus = [gpu for gpu in row.gpus if gpu]
    if not gpus:
        return "the run did not say which GPUs it uses"
    unheard = [gpu for gpu in gpus if gpu not in controls]
    if unheard:
        return f"no agent reports an actuator for {len(unheard)} of its {len(gpus)} GPUs"
    for gpu in gpus:
        if controls[gpu].trouble:
            return f"GPU {gpu} cannot be set: {controls[gpu].trouble}"
    closed = [gpu for gpu in gpus if not controls[gpu].settable]
    if closed:
        return (
            f"the actuators of {len(closed)} of its {len(gpus)} GPUs do not act (actuator.mode on "
            "their nodes)"
        )
    seen, expected = coverage
    if seen < expected:
        return f"the power of only {seen} of its {expected} GPUs is seen"
    return ""


def lapsed(row: RunRow, controls: Controls, *, mode: Mode, frozen: str) -> bool:
    """Return whether the wish for a run's GPUs must be withdrawn.

    One GPU that cannot be held at the clock, or does not answer, frees all others: the ranks of a
    run wait for each other, so a lock on some of them saves nothing.
    """
    if row.clock_mhz is None:
        return False
    if mode is not Mode.ACT or frozen or row.frozen or row.state == "finished":
        return True
    return any(gpu not in controls or controls[gpu].trouble for gpu in row.gpus if gpu)


def has_clocks(row: RunRow) -> bool:
    """Return whether a run has a clock or its catalogue names one; else none is ever due."""
    points = row.catalogue.points if row.catalogue else ()
    return row.clock_mhz is not None or any(each.clock_mhz is not None for each in points)


def due_clock(row: RunRow, newest: SwitchRow | None) -> int | None:
    """Return the clock that a run must have after its newest switch, or its present one.

    A switch to a point with another clock changes the layout first; the clock follows as soon as
    the run has confirmed the switch.
    """
    if newest is None or newest.state is not SwitchState.CONFIRMED or row.catalogue is None:
        return row.clock_mhz
    if newest.order.layout != row.layout:
        return row.clock_mhz
    if row.clock_at is not None and newest.updated_at <= row.clock_at:
        return row.clock_mhz
    point = next((each for each in row.catalogue.points if each.id == newest.to_point), None)
    return point.clock_mhz if point else row.clock_mhz


def desired(
    node: str,
    gpus: Iterable[str],
    rows: Sequence[RunRow],
    *,
    epoch: int,
    mode: Mode,
    frozen: str,
    cap: CapNow | None = None,
    journal: str = "",
) -> Desired:
    """Return all wishes for one node.

    Args:
        node: its name.
        gpus: the GPUs it reported.
        rows: every run.
        epoch: of this leader.
        mode: outside `act` nothing is wished to save carbon.
        frozen: why everything is frozen; "" if it is not.
        cap: the power cap; it holds in every mode, and for frozen runs.
        journal: identity of the journal that the epoch counts in.
    """
    here = set(gpus)
    wishes: dict[str, Wish] = {}
    for row in rows if mode is Mode.ACT and not frozen else ():
        if row.clock_mhz is None or row.frozen or row.state == "finished":
            continue
        for gpu in here.intersection(row.gpus):
            wishes[gpu] = Wish(
                gpu_uuid=gpu,
                kind=LeaseKind.ECONOMY,
                holder=row.run,
                clock_mhz=row.clock_mhz,
                lease_s=LEASE_S,
            )
    duties = obligations(cap, here)
    ordered = tuple(each[gpu] for each in (wishes, duties) for gpu in sorted(each))
    text = json.dumps([journal, epoch, *(wish.to_json() for wish in ordered)])
    serial = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Desired(node=node, epoch=epoch, serial=serial, wishes=ordered, journal=journal)
