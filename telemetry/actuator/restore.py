"""Restore every GPU to its baseline: for ExecStopPost and `wattmesh restore-all`.

Invariant: it needs neither daemon nor agent nor actuator; where an actuator runs, that process does
it, because two writers would overwrite each other.
"""

import time
from contextlib import closing
from dataclasses import replace
from typing import Any

from wattmesh.errors import Refused, RetryLater
from wattmesh.telemetry.actuator.client import ActuatorClient
from wattmesh.telemetry.actuator.device import NvmlGpus
from wattmesh.telemetry.actuator.engine import Engine, RestoredGpu
from wattmesh.telemetry.actuator.journal import ActuatorJournal, InUse
from wattmesh.telemetry.actuator.rules.facts import LockAndCap
from wattmesh.telemetry.actuator.settings import ActuatorSettings

TRIES = 3
TRY_AGAIN_S = 1.0
"""Attempts, and the pause between them: after this command no process is left to try again."""


def restore_all(settings: ActuatorSettings, *, obligations: bool = False) -> list[dict[str, Any]]:
    """Restore every GPU, through the running actuator or else in this process.

    Args:
        settings: the `[actuator]` table.
        obligations: whether an operator's caps are lifted too.

    Returns:
        one object per GPU of the machine: gpu_uuid, was, now, obligation, trouble.

    Raises:
        Refused: this user may not. RetryLater: the disk fails, or the running actuator does not
            answer.
    """
    try:
        journal = ActuatorJournal.open(settings.journal)
    except InUse as busy:
        return _by_the_running_one(settings, obligations, busy)
    with closing(journal), closing(NvmlGpus(settings.library)) as device:
        engine = Engine(journal=journal, device=device, settings=settings)
        returned = engine.start(obligations=not obligations)
        for _ in range(TRIES):
            if not any(each.trouble for each in returned):
                break
            time.sleep(TRY_AGAIN_S)
            was = {each.gpu_uuid: each.before for each in returned}
            returned = tuple(
                replace(each, before=was.get(each.gpu_uuid, each.before))
                for each in engine.insist()
            )
        return [returned_json(each) for each in returned]


def _by_the_running_one(
    settings: ActuatorSettings, obligations: bool, busy: Refused
) -> list[dict[str, Any]]:
    """Let the actuator that holds the journal do it.

    Raises:
        Refused: this user may not. RetryLater: it does not answer.
    """
    try:
        return ActuatorClient(settings.socket).restore(obligations=obligations)
    except RetryLater as silent:
        raise RetryLater(f"{busy}; it does not answer: {silent}") from silent


def returned_json(returned: RestoredGpu) -> dict[str, Any]:
    """Encode the result for one GPU."""
    return {
        "gpu_uuid": returned.gpu_uuid,
        "was": _levers(returned.before),
        "now": {**_levers(returned.after), "limit_w": returned.limit_w},
        "obligation": returned.obligation,
        "trouble": returned.trouble,
    }


def _levers(held: LockAndCap) -> dict[str, Any]:
    return {"clock_mhz": held.lock_mhz, "cap_w": held.set_w, "found_w": held.found_w}
