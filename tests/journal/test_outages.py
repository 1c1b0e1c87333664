"""Outages of a run, from its own launches: what was ordered is none."""

from datetime import datetime, timedelta

import pytest

from tests.builders.runs import T0, UID, register
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.outages import Launches
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.reconfig.wire.messages import Finish

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


def launch(journal: Journal, attempt: int, at: datetime) -> None:
    """Let the run introduce itself anew."""
    register(journal, now=at, plan=RunPlan(), incarnation=f"i{attempt}", attempt=attempt)


def end(journal: Journal, attempt: int, at: datetime, reason: str) -> None:
    """Let an incarnation end."""
    message = Finish(
        run="r", incarnation=f"i{attempt}", attempt=attempt, step=1, tokens=1, reason=reason
    )
    journal.runs.finish(message, owner_uid=UID, now=at)


def share(journal: Journal, run: str, now: datetime) -> float:
    """The share of its time that a run stood in outages."""
    return journal.outages.launches().get(run, Launches()).outage_share(now)


def test_a_run_that_never_failed_has_no_outages(journal: Journal) -> None:
    """Nor has one that nobody knows."""
    launch(journal, 1, T0)
    assert share(journal, "r", T0 + DAY) == 0.0
    assert share(journal, "x", T0 + DAY) == 0.0


def test_time_between_launches_counts_and_an_ordered_restart_does_not(journal: Journal) -> None:
    """Two hours out of ten days; the hour of a restart is part of a switch."""
    launch(journal, 1, T0)
    end(journal, 1, T0 + DAY, "failed")
    launch(journal, 2, T0 + DAY + 2 * HOUR)
    end(journal, 2, T0 + 2 * DAY, "restart")
    launch(journal, 3, T0 + 2 * DAY + HOUR)
    assert share(journal, "r", T0 + 10 * DAY) == pytest.approx(2 / 240)


def test_the_first_outage_of_a_young_run_is_no_habit(journal: Journal) -> None:
    """Less than a day counts as a day; more than half is never expected."""
    launch(journal, 1, T0)
    end(journal, 1, T0 + HOUR, "failed")
    launch(journal, 2, T0 + 2 * HOUR)
    assert share(journal, "r", T0 + 2 * HOUR) == pytest.approx(1 / 24)
    end(journal, 2, T0 + 3 * HOUR, "failed")
    launch(journal, 3, T0 + 9 * DAY)
    assert share(journal, "r", T0 + 9 * DAY) == 0.5
