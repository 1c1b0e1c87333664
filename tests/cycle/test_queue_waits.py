"""How long a run's own moves waited for nodes, and what the deadline guard makes of it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.builders.cycles import CATALOGUE, acting
from tests.builders.runs import T0, UID, A, B, register
from wattmesh.controller.cycle.fleet import Fleet
from wattmesh.controller.cycle.journal_snapshot import read_snapshot
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.reconfig.catalogue import Release
from wattmesh.reconfig.wire.messages import Finish

HOUR = timedelta(hours=1)
SIZES = ((A, ("g0", "g1", "g2", "g3")), (B, ("h0", "h1")))


def train(
    journal: Journal,
    stated_s: float | None,
    waits_s: Sequence[float],
    *,
    comes_back: bool = False,
    asked_s: float | None = 0.0,
) -> None:
    """Let a run go to another size again and again, or come back in its own each time.

    `asked_s`: for how long each launch has asked when it is let in; None: it does not say.
    """
    switch = replace(CATALOGUE.switch, reacquire_s=stated_s)
    job = replace(CATALOGUE, release=Release.RELEASED, switch=switch)
    for number, wait_s in enumerate((0.0, *waits_s)):
        layout, gpus = SIZES[0 if comes_back else number % 2]
        began = T0 + number * HOUR + timedelta(seconds=wait_s)
        register(
            journal,
            now=began,
            plan=RunPlan(catalogue=job),
            incarnation=f"i{number}",
            supersedes=f"i{number - 1}" if number else "",
            attempt=number + 1,
            layout=layout,
            ranks=tuple(range(len(gpus))),
            world_size=len(gpus),
            gpus=gpus,
            asked_s=asked_s,
        )
        if number == len(waits_s):
            return
        left = T0 + (number + 1) * HOUR
        finish = Finish(
            run="r",
            incarnation=f"i{number}",
            attempt=number + 1,
            step=1,
            tokens=1,
            reason="restart",
            left_at=left.isoformat(),
            wakes_at=(left + HOUR).isoformat(),
            held_as="Slurm job 8 of alps",
        )
        journal.runs.finish(finish, owner_uid=UID, now=left)


def counted(journal: Journal) -> float | None:
    """How long a turn counts the run to wait."""
    (row,) = read_snapshot(journal, acting(), lambda _: Fleet(), T0 + 30 * HOUR).runs
    assert row.catalogue is not None
    return row.catalogue.switch.reacquire_s


@pytest.mark.parametrize(
    ("stated_s", "waits_s", "counted_s"),
    [
        (600.0, [60.0] * 18 + [1500.0], 1500.0),
        (600.0, [60.0] * 17 + [1500.0], 600.0),  # too few of them
        (2000.0, [60.0] * 18 + [1500.0], 2000.0),  # people know of worse
        (None, [60.0] * 19, None),  # nobody allowed another size
    ],
)
def test_a_run_is_counted_to_wait_as_long_as_its_moves_did(
    journal: Journal, stated_s: float | None, waits_s: list[float], counted_s: float | None
) -> None:
    """The 95 % quantile of nineteen waits or more, where people said less."""
    train(journal, stated_s, waits_s)
    assert counted(journal) == counted_s


def test_a_launch_that_came_back_in_its_old_size_is_no_measured_wait(journal: Journal) -> None:
    """It waited as long as its order said; counted, each failure would make the next one longer."""
    train(journal, 600.0, [1500.0] * 25, comes_back=True)
    assert counted(journal) == 600.0


@pytest.mark.parametrize(("asked_s", "counted_s"), [(0.0, 2400.0), (1800.0, 600.0), (None, 60.0)])
def test_time_without_a_daemon_is_no_wait_for_nodes(
    journal: Journal, asked_s: float | None, counted_s: float
) -> None:
    """The launch trained, and nobody let it in; one that does not say since when is left out."""
    train(journal, 60.0, [2400.0] * 19, asked_s=asked_s)
    assert counted(journal) == counted_s
