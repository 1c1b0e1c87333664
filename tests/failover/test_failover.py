"""Rows of the failover matrix, on two real daemons, with a run whose messages are told."""

from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.failover.__main__ import ToldJob, TrainingJob, goals, standing, strike
from benchmarks.failover.site import Site
from tests import postgresql
from wattmesh.reconfig.switch import SwitchState

ROWS = [
    ("killed", SwitchState.REBUILDING),
    ("cut off", SwitchState.LOADED),
    ("stopped", SwitchState.ANNOUNCED),
]


@pytest.fixture(scope="module")
def here(postgresql_server: postgresql.Server) -> Iterator[tuple[Site, TrainingJob | ToldJob]]:
    """Two daemons, a node whose agent knows both, and a run."""
    with standing(postgresql_server, pooled=False, real=False) as made:
        yield made


@pytest.mark.parametrize(("how", "state"), ROWS, ids=[each for each, _ in ROWS])
def test_the_other_leads_and_the_switch_ends(
    here: tuple[Site, TrainingJob | ToldJob], how: str, state: SwitchState
) -> None:
    """Once, as it was ordered; after its term the old leader changes nothing and tells no wish."""
    site, job = here
    before = site.rows("SELECT count(*) FROM switches")[0][0]
    row = strike(site, how, state, job)
    assert row["switch"] == "confirmed"
    assert site.rows("SELECT count(*) FROM switches")[0][0] == before + 1
    assert (row["acts_after_term"], row["wishes_after_term"]) == (0, 0), row


def test_daemons_of_the_version_before_go_on_through_an_upgrade(
    here: tuple[Site, TrainingJob | ToldJob],
) -> None:
    """The tables are added to while they work; they order, hear, fail over and start on it."""
    site, job = here
    for change in (
        "ALTER TABLE runs ADD COLUMN IF NOT EXISTS mood TEXT",
        "ALTER TABLE switches ADD COLUMN IF NOT EXISTS taste TEXT NOT NULL DEFAULT ''",
        "CREATE TABLE IF NOT EXISTS moods (id INTEGER PRIMARY KEY, mood TEXT NOT NULL)",
        "UPDATE alembic_version SET version_num = '9999'",
    ):
        site.rows(change)
    row = strike(site, "killed", SwitchState.VERIFIED, job)
    assert (row["switch"], row["acts_after_term"]) == ("confirmed", 0)
    assert site.rows("SELECT version_num FROM alembic_version") == [("9999",)]


def test_an_act_of_the_old_leader_would_be_seen(
    here: tuple[Site, TrainingJob | ToldJob],
) -> None:
    """The sabotaged twin: a change by the other user, while this one leads, is written down."""
    site, _ = here
    old = site.other(site.leader)
    site.rows(f"SET SESSION AUTHORIZATION {old.name}")
    try:
        site.rows("UPDATE runs SET frozen = frozen RETURNING 1")
    finally:
        site.rows("RESET SESSION AUTHORIZATION")
    found = site.rows(
        "SELECT count(*) FROM written WHERE who = %s AND position(who in leader) = 0", old.name
    )
    assert found[0][0] >= 1
    row: dict[str, Any] = {"acts_after_term": 1, "wishes_after_term": 0, "leads_after_s": 1.0}
    row |= {"switch": "failed", "state": "loaded"}
    assert [each.name for each in goals([row]) if not each.ok] == [
        "acts_after_term",
        "switches_ended_well",
    ]
