"""What a node does when a job of Slurm has ended there: the GPUs' clocks are given back at once.

The actuator gives back by itself what a process that ended has left, within two seconds; the next
job may begin before. Invariant: whatever goes wrong, the node is not failed for it: nothing is
raised, and it takes at most the time that it is given.
"""

import time
from collections.abc import Callable
from pathlib import Path

from wattmesh.errors import WattmeshError
from wattmesh.telemetry.actuator.client import ActuatorClient
from wattmesh.telemetry.actuator.settings import ActuatorSettings
from wattmesh.telemetry.desired import Applied

SOCKET = ActuatorSettings().socket

LIMIT_S = 10.0
"""How long it may take; Slurm fails a node whose epilog takes too long (`PrologEpilogTimeout`)."""

MOST_LIMIT_S = 600.0

AGAIN_S = 0.5
"""Until the GPUs are looked at again: the driver may still list a process that has just ended."""

LOOKS = 3


def give_back(
    socket: Path = SOCKET,
    *,
    limit_s: float = LIMIT_S,
    say: Callable[[str], None] = lambda sentence: None,
) -> bool:
    """Have everything given back on this node that no process of its run needs any more.

    May be repeated. What other jobs of the node hold is theirs and stays, as do an operator's caps.

    Args:
        socket: of the actuator.
        limit_s: seconds that all of it may take.
        say: called with a sentence for the node's log.

    Returns:
        Whether the actuator looked.
    """
    until = time.monotonic() + limit_s
    held, looked = "", False
    for look in range(LOOKS):
        if look:
            time.sleep(AGAIN_S)
        left_s = until - time.monotonic()
        if left_s <= AGAIN_S:
            break
        try:
            held, looked = _locked(ActuatorClient(socket, left_s).look()), True
        except WattmeshError as error:
            say(f"whether GPUs were given back is not known: {error}")
            return looked
        if not held:
            return True
    if held:
        say(f"clocks are still locked where a run computes: {held}")
    return looked


def _locked(applied: Applied) -> str:
    return ", ".join(each.gpu_uuid for each in applied.gpus if each.clock_mhz is not None)
