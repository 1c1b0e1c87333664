"""Another job of the same size, where this one could not start a rank of a run that trained before.

A job may have nodes that are of no use: Slurm's controller was restarted and gave it no GPUs, a
node refuses every step. The run is not at fault, and another job may be better off.

Invariant: at most `MOST` such jobs follow each other; a launch that started a rank ends the count.
"""

import uuid

from wattmesh.errors import WattmeshError
from wattmesh.integrations.slurm.slurm_queue import SlurmQueue
from wattmesh.reconfig.launch.folder import RunFolder, read_json
from wattmesh.reconfig.launcher.contract import HeldState, NextLaunch
from wattmesh.reconfig.launcher.launch_book import BookedState, Records

MOST = 2

KEY = "again-"
"""How the key of such a launch begins."""


def in_a_row(records: Records) -> int:
    """Return how many of the newest launches that began were such jobs. Pure."""
    begun = [each for each in records if each.state is BookedState.BEGUN]
    count = 0
    for each in reversed(begun):
        if not each.key.startswith(KEY):
            break
        count += 1
    return count


def hold(folder: RunFolder, queue: SlurmQueue, ranks: int, records: Records) -> str:
    """Have one more job held; returns why none is, or "".

    Args:
        folder: of the run.
        queue: holds it.
        ranks: how many it starts.
        records: the launch book.
    """
    if in_a_row(records) >= MOST:
        return f"{MOST} jobs after each other could start no rank"
    run = str((read_json(folder.run_file) or {}).get("run", ""))
    following = NextLaunch(key=f"{KEY}{uuid.uuid4()}", run=run, ranks=ranks)
    try:
        held = queue.hold(following)
    except WattmeshError as error:
        return str(error)
    return "" if held.state is HeldState.HELD else f"{held.name} is {held.state}, not held"
