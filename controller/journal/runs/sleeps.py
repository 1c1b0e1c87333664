"""A run that sleeps, or waits in a queue, in the journal: since when, until when, who has its GPUs.

Invariant: a run is asleep, or queued for another size, because its launch said so when it left,
after its launcher had said that it holds the next one; that is over as soon as another launch
registers, or a person ends it.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, select, update

from wattmesh.controller.journal.database.tables import SWITCHES
from wattmesh.controller.journal.database.values import to_us
from wattmesh.controller.journal.runs.frozen_catalogue import from_text
from wattmesh.controller.journal.runs.stays import RESTART
from wattmesh.reconfig.catalogue import PAUSED, Release
from wattmesh.reconfig.switch import FINAL, SwitchState
from wattmesh.reconfig.wire.messages import RESIZES, Finish, SwitchMode

LONGEST = timedelta(days=31)
"""The longest sleep that is believed; a run that names a later time is lost after this."""

AWAKE: Mapping[str, Any] = {"asleep_at": None, "wakes_at": None, "held_as": ""}
"""Columns of a run that neither sleeps nor waits in a queue."""


def when_it_left(message: Finish, heard: datetime, now: datetime) -> datetime:
    """Give when a launch left, by its own word, but not before it was last heard nor after now."""
    told = datetime.fromisoformat(message.left_at) if message.left_at else now
    return min(max(told, heard), now)


def asleep(message: Finish, left_at: datetime) -> dict[str, Any]:
    """Give the columns of a run that fell asleep; one that names no time is due at once.

    Both its times are by its own clock, which may differ from ours: how long it sleeps counts.
    """
    told = datetime.fromisoformat(message.wakes_at) if message.wakes_at else left_at
    began = datetime.fromisoformat(message.left_at) if message.left_at else left_at
    wakes_at = left_at + min(max(told - began, timedelta(0)), LONGEST)
    return {"asleep_at": to_us(left_at), "wakes_at": to_us(wakes_at), "held_as": message.held_as}


def queued(message: Finish, left_at: datetime) -> dict[str, Any]:
    """Give the columns of a run that left for another size; `wakes_at`: when the old one may begin.

    A launch that does not say who holds the next one is taken to come back at once, as after a
    restart in the same size.
    """
    if not leaves_for_queue(message):
        return {}
    return {**asleep(message, left_at), "asleep_at": None}


def leaves_for_queue(message: Finish) -> bool:
    """Return whether a launch leaves for another size, which its launcher holds."""
    return message.reason == RESTART and message.held_as != "" and message.wakes_at is not None


def woken(row: Row[Any]) -> dict[str, Any]:
    """Give the columns of a run whose next launch registers; an order to sleep is over with it."""
    over = {"ordered_point": "", "ordered_reason": ""} if row.asleep_at is not None else {}
    return {**AWAKE, **(over if row.ordered_point == PAUSED else {})}


def release_of(row: Row[Any]) -> str:
    """Say what becomes of a run's GPUs while it sleeps; without a catalogue they stay its own.

    So do those of a run that sleeps inside its scheduler's job (`RunRow.sleeps_in_job`).
    """
    if json.loads(row.allocated) and RESIZES not in json.loads(row.capabilities):
        return Release.HELD.value
    return from_text(row.catalogue).release.value if row.catalogue else Release.HELD.value


def confirm_suspension(connection: Connection, message: Finish, now: datetime) -> None:
    """Confirm the open order to sleep of a launch that left to sleep, should its report be lost."""
    row = connection.execute(
        select(SWITCHES).where(SWITCHES.c.open_run == message.run).with_for_update()
    ).one_or_none()
    if row is None or row.attempt != message.attempt or row.state in {str(each) for each in FINAL}:
        return
    if json.loads(row.wire_order).get("mode") == SwitchMode.SUSPEND.value:
        connection.execute(
            update(SWITCHES)
            .where(SWITCHES.c.switch_id == row.switch_id)
            .values(
                state=str(SwitchState.CONFIRMED),
                open_run=None,
                updated_at=to_us(now),
                detail=f"the next launch is held by {message.held_as}",
            )
        )
