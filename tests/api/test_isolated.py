"""One run's numbers stop the control cycle for nobody else."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import update

from tests.api.conftest import Served
from tests.builders import messages
from tests.builders.cycles import acting, live
from wattmesh.controller.cycle.isolation import Isolation
from wattmesh.controller.journal.database.tables import RUNS
from wattmesh.policies.isolation import UNDECIDABLE
from wattmesh.reconfig import ranges

MOST: dict[str, Any] = {
    "step": ranges.MOST_STEPS,
    "tokens": ranges.MOST_TOKENS - 1,
    "tokens_total": ranges.MOST_TOKENS,
    "boundary_every": ranges.NEVER,
    "world_size": ranges.MOST_RANKS,
    "attempt": ranges.INT4,
}
LEAST = dict.fromkeys(MOST, 0) | {"world_size": 1}


def ids() -> Iterator[str]:
    """Run ids, one after the other."""
    yield from (f"6d1c9d0e-0000-4000-8000-{number:012d}" for number in range(2, 99))


def test_the_cycle_decides_about_every_run_but_the_one_it_cannot(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """The widest a registration may be, and what an older version or half a write has left."""
    caplog.set_level(logging.ERROR)
    served.register()
    served.post(f"/v1/runs/{messages.RUN}/progress", messages.progress())
    fresh = ids()
    for changes in (MOST, LEAST, MOST | {"tokens": 0}, LEAST | {"boundary_every": ranges.NEVER}):
        run = next(fresh)
        body = messages.register(run=run, name=f"n{run[-2:]}", incarnation=run, **changes)
        assert served.post(f"/v1/runs/{run}/register", body).status == 200
    torn, old, lost = next(fresh), next(fresh), next(fresh)
    for run in (torn, old, lost):
        body = messages.register(run=run, name=f"n{run[-2:]}", incarnation=run)
        assert served.post(f"/v1/runs/{run}/register", body).status == 200
        body = messages.progress(run=run, incarnation=run)
        assert served.post(f"/v1/runs/{run}/progress", body).status == 200
    stored: dict[str, dict[str, Any]] = {
        torn: {"speeds": "{"},
        old: {"boundary_every": 2**63 - 1, "loss": float("inf"), "tokens_total": 2**63 - 1},
        lost: {"layout": f'{{"tp": {2**62}}}'},
    }
    with served.journal.database.writing() as connection:
        for run, values in stored.items():
            connection.execute(update(RUNS).where(RUNS.c.run == run).values(**values))
    isolation = Isolation()
    cycle = live(served.journal, acting(), served.loop_facts.lead.epoch, isolation=isolation)
    for _ in range(3):
        report = cycle.run(served.clock.wall)
        kinds = {each.run: each.kind for each in report.decisions}
        assert report.trouble == ""
        assert kinds.pop(torn) == UNDECIDABLE
        assert UNDECIDABLE not in kinds.values()
        assert {messages.RUN, old} <= set(kinds)
        assert lost not in kinds
        served.clock.pass_s(5.0)
    told = [each.getMessage() for each in caplog.records]
    assert len([each for each in told if "nothing can be decided" in each]) == 1, told
    assert len([each for each in told if "cannot be read" in each]) == 1, told
    assert isolation.count == 3
    why = served.get(f"/v1/runs/{torn}/why").body["decisions"]
    assert "JSONDecodeError in " in why[0]["reason"]
    assert served.get("/v1/status").status == 200
    retired = served.post(f"/v1/runs/{lost}/retire", {})
    assert (retired.status, retired.body["done"]) == (200, f"Retired {lost}: its rows stay.")
