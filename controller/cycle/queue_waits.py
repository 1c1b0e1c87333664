"""The measured wait for GPUs in a run's catalogue, where that is longer than was stated. Pure.

Invariant: a measured wait makes the deadline guard more careful, never less, and allows no other
size where nobody stated a wait.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from wattmesh.controller.journal.runs.outages import Launches
from wattmesh.controller.journal.runs.run_row import RunRow
from wattmesh.reconfig.launcher import queue_waits

NEWEST = 200
"""How many waits count: queues change with the season."""


def with_measured_waits(
    rows: Iterable[RunRow], launches: Mapping[str, Launches]
) -> tuple[RunRow, ...]:
    """Return the runs, each with the longer of the stated and the measured 95 % wait.

    Measured are the run's own moves to another size; too few of them say nothing.
    """
    return tuple(_measured(row, launches.get(row.run, Launches())) for row in rows)


def _measured(row: RunRow, launches: Launches) -> RunRow:
    stated_s = row.catalogue.switch.reacquire_s if row.catalogue is not None else None
    if row.catalogue is None or stated_s is None or len(launches.rows) <= queue_waits.FEWEST:
        return row
    measured_s = queue_waits.reacquire_s(launches.waits_s[-NEWEST:])
    if measured_s is None or measured_s <= stated_s:
        return row
    switch = replace(row.catalogue.switch, reacquire_s=measured_s)
    return replace(row, catalogue=replace(row.catalogue, switch=switch))
