"""Clocks of the runs' GPUs: whether they can be set, what is wished, when a wish ends. Pure.

The wish for a run is a column of its row, committed under the leader's epoch before any agent can
hear of it; what every node is to hear follows from the rows alone. Invariant: a wish is only for
GPUs of a run that trains, in mode `act`, and that nobody froze, or for an operator's power cap;
everything else is nobody's wish, and the actuator then leads the GPU back to its baseline.
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
"""How long a lock outlives the last word of the controller."""

BEAT_S, STEP_S = 1.0, 5.0
"""How often the actuator looks, and least time between two of its steps back up."""

Controls = Mapping[str, GpuControl]
"""What the nodes' actuators said lately, by GPU."""


def back_s(step_share: float = 0.1, write_every_s: float = 60.0) -> float:
    """Longest time from the wish for a higher clock, or for none, to the boards running at it.

    Whoever dies in between: the lease on the old clock ends, and the actuator steps up; each step
    waits for a look (docs/safety.md, "GPUs").

    Args:
        step_share: of the nodes' actuators (`[actuator]`).
        write_every_s: of theirs too.
    """
    return LEASE_S + BEAT_S + ceil(1 / step_share) * (min(write_every_s, STEP_S) + BEAT_S)


BACK_S = back_s()
"""With the actuator's defaults."""


def trouble(row: RunRow, controls: Controls, coverage: tuple[int, int]) -> str:
    """Say why no clock of a run's GPUs can be set now, as a clause; "" when all can.

    Args:
        row: the run.
        controls: by GPU.
        coverage: GPUs of its own whose power was read lately, and all it uses; below 100 % no clock
            acts, for nobody could say what it does.
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
    """Say whether the wish for a run's GPUs must be taken back.

    A GPU that cannot be held at the clock, or of which nothing is heard, frees all the others: the
    ranks of one run wait for each other, so a lock on some of them saves nothing.
    """
    if row.clock_mhz is None:
        return False
    if mode is not Mode.ACT or frozen or row.frozen or row.state == "finished":
        return True
    return any(gpu not in controls or controls[gpu].trouble for gpu in row.gpus if gpu)


def has_clocks(row: RunRow) -> bool:
    """Say whether any point of a run's catalogue names a clock; without one none is ever due."""
    points = row.catalogue.points if row.catalogue else ()
    return row.clock_mhz is not None or any(each.clock_mhz is not None for each in points)


def due_clock(row: RunRow, newest: SwitchRow | None) -> int | None:
    """Give the clock a run is to have after its newest switch; its own when nothing is due.

    A switch to a point of another clock changes the layout first; the clock follows as soon as the
    run has confirmed it.
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
    """Give the whole wish for one node.

    Args:
        node: its name.
        gpus: the GPUs it reported.
        rows: every run.
        epoch: of this leader.
        mode: outside `act` nothing is wished to save grams.
        frozen: why nothing at all is acted upon; "" when it is.
        cap: the operator's power cap; it binds in every mode, and frozen runs too.
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
