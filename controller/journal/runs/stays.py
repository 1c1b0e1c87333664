"""Where each run was when: its layout and clock, and whether a switch of ours was under way.

Invariant: a row is written in the transaction that changes what it says, so the history of a run
can be read long after its switches: from it, baselines are told apart from what the run did.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, func, select

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import INCARNATIONS, RUNS, STAYS, SWITCHES
from wattmesh.controller.journal.database.values import from_us, to_layout, to_us, upsert
from wattmesh.reconfig.catalogue import Release
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState

RESTART = "restart"
"""End reason of an incarnation that we asked to restart: no outage, but part of a switch."""

SUSPENDED = "suspended"
"""End reason of an incarnation that left to sleep, because we asked it to."""

OURS = (RESTART, SUSPENDED)
"""End reasons that we caused, so that no baseline's clock stops for them."""

_STAYS = select(STAYS).where(STAYS.c.run == bindparam("which")).order_by(STAYS.c.at)
_LAUNCHES = (
    select(INCARNATIONS)
    .where(INCARNATIONS.c.run == bindparam("which"))
    .order_by(INCARNATIONS.c.started_at)
)
_SAME = STAYS.alias()
_NEWEST_AT = select(func.max(_SAME.c.at)).where(_SAME.c.run == RUNS.c.run).scalar_subquery()
_HERE: Select[Any] = (
    select(
        RUNS.c.run,
        RUNS.c.layout,
        RUNS.c.clock_mhz,
        RUNS.c.tokens,
        RUNS.c.finish_reason,
        SWITCHES.c.state,
        STAYS.c.at.label("newest_at"),
        STAYS.c.layout.label("newest_layout"),
        STAYS.c.clock_mhz.label("newest_clock_mhz"),
        STAYS.c.switching.label("newest_switching"),
    )
    .join_from(RUNS, SWITCHES, SWITCHES.c.open_run == RUNS.c.run, isouter=True)
    .join(STAYS, (STAYS.c.run == RUNS.c.run) & (STAYS.c.at == _NEWEST_AT), isouter=True)
    .where(RUNS.c.run.in_(bindparam("which", expanding=True)))
)
_TOGETHER = 500
"""Runs in one query: databases limit how many values one takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StayRow:
    """From `at` on, until the next row of the run. `switching`: a switch of ours is under way.

    `tokens`: what the run had reported by then.
    """

    at: datetime
    layout: Layout
    clock_mhz: int | None
    switching: bool
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRow:
    """One launch. `end`: when it ended or was last heard. `ours`: we asked it to end.

    `gpus`: those of its ranks, "" where one is not known, and those that its job had beyond them,
    so many as `spare` says.
    `gave_back`: it left to sleep, and its GPUs were given back meanwhile.
    """

    start: datetime
    end: datetime
    ours: bool
    gpus: tuple[str, ...] = ()
    gave_back: bool = False
    spare: int = 0


class StayStore:
    """The histories of runs."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database

    def of(self, run: str) -> tuple[StayRow, ...]:
        """List a run's stays in time order."""
        with self._database.reading() as connection:
            return tuple(
                StayRow(
                    at=from_us(row.at),
                    layout=to_layout(row.layout),
                    clock_mhz=row.clock_mhz,
                    switching=bool(row.switching),
                    tokens=row.tokens,
                )
                for row in connection.execute(_STAYS, {"which": run})
            )

    def launches(self, run: str) -> tuple[LaunchRow, ...]:
        """List a run's launches in time order."""
        with self._database.reading() as connection:
            return tuple(_launch(row) for row in connection.execute(_LAUNCHES, {"which": run}))


def _launch(row: Row[Any]) -> LaunchRow:
    ranks: list[str] = json.loads(row.gpus)
    held = held_gpus(ranks, json.loads(row.allocated))
    return LaunchRow(
        start=from_us(row.started_at),
        end=from_us(row.ended_at or row.last_seen_at),
        ours=row.end_reason in OURS,
        gpus=held,
        gave_back=row.asleep_release == Release.RELEASED,
        spare=len(held) - len(ranks) if ranks else 0,
    )


def held_gpus(ranks: Sequence[str], allocated: Sequence[str]) -> tuple[str, ...]:
    """Join the GPUs of a launch's ranks ("": not known) and those that its job has beyond them.

    Each of these may be the one of a rank whose GPU is not known, so that one is counted once.
    """
    beyond = [each for each in dict.fromkeys(allocated) if each not in ranks]
    unknown = max(0, ranks.count("") - len(beyond))
    return (*filter(None, ranks), *beyond, *("",) * unknown)


def note_stays(connection: Connection, runs: Sequence[str], now: datetime) -> None:
    """Store where runs are now, of those where that changed; part of the caller's transaction."""
    for begin in range(0, len(runs), _TOGETHER):
        some = {"which": runs[begin : begin + _TOGETHER]}
        here: Sequence[Row[Any]] = connection.execute(_HERE, some).all()
        upsert(connection, STAYS, [stay for row in here if (stay := _stay(row, now))])


def _stay(row: Row[Any], now: datetime) -> dict[str, Any]:
    """Give the row of a run's stay from now on; empty if it is where it was."""
    moving = row.state is not None and row.state != str(SwitchState.ORDERED)
    switching = int(moving or row.finish_reason in OURS)
    newest = (row.newest_layout, row.newest_clock_mhz, row.newest_switching)
    if row.newest_at is not None and newest == (row.layout, row.clock_mhz, switching):
        return {}
    # A wall clock that was stepped back must not put a stay before the one it follows.
    at_us = max(to_us(now), row.newest_at + 1 if row.newest_at is not None else 0)
    return {
        "run": row.run,
        "at": at_us,
        "layout": row.layout,
        "clock_mhz": row.clock_mhz,
        "switching": switching,
        "tokens": row.tokens,
    }
