"""Switches: the intent row that is the order, and what the run reports about it.

Invariant: a run has at most one open switch (a unique column holds it while it is open); the row is
committed, under the leader's epoch, before anybody can fetch it as an order; a report moves it
forwards or changes nothing. One addition is allowed: with its final report repeated, the run may
add how long it took to reach its normal pace.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, or_, select, update

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import RUNS, SWITCHES, TRANSITIONS
from wattmesh.controller.journal.database.values import (
    from_us,
    insert_new,
    to_evidence,
    to_text,
    to_us,
)
from wattmesh.controller.journal.leadership import check_epoch
from wattmesh.controller.journal.runs.run_store import speaker
from wattmesh.controller.journal.runs.stays import note_stays
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.switch import AT_PACE, FINAL, REFUSED, SwitchState, advance, position
from wattmesh.reconfig.wire.messages import Order, SwitchMode, Transition

UG = 1_000_000

REMEMBERED = 50
"""The newest switches of a run that are read."""

_COUNTED = (SwitchState.FAILED, SwitchState.ROLLED_BACK, SwitchState.CONFIRMED)
"""The endings that tell whether a run's switches work; an abandoned switch does not."""

_HANDED_OVER = (SwitchMode.SUSPEND, SwitchMode.RESIZE)
"""Those for which a launcher holds the next launch."""

# Made once: building a statement costs more than SQLite takes to run it.
_OF_RUNS = select(RUNS.c.run).where(
    or_(RUNS.c.finished_at.is_(None), RUNS.c.clock_mhz.is_not(None))
)
_RANKED = (
    select(
        SWITCHES,
        func.row_number()
        .over(
            partition_by=(SWITCHES.c.run, SWITCHES.c.state.in_([str(each) for each in _COUNTED])),
            order_by=SWITCHES.c.created_at.desc(),
        )
        .label("place"),
    )
    .where(or_(SWITCHES.c.run.in_(_OF_RUNS), SWITCHES.c.open_run.is_not(None)))
    .subquery()
)
_OPEN = select(SWITCHES).where(SWITCHES.c.open_run == bindparam("which"))
_ALL_OPEN = select(SWITCHES).where(SWITCHES.c.open_run.is_not(None))
_HISTORIES = select(_RANKED).where(
    or_(_RANKED.c.place <= REMEMBERED, _RANKED.c.open_run.is_not(None))
)
_BEGUN = (
    select(TRANSITIONS.c.switch_id, func.min(TRANSITIONS.c.at).label("begun_us"))
    .where(
        TRANSITIONS.c.switch_id.in_(
            select(SWITCHES.c.switch_id).where(SWITCHES.c.open_run.is_not(None))
        )
    )
    .group_by(TRANSITIONS.c.switch_id)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchRow:
    """One switch, with what the run measured: seconds in `evidence`, counted from the boundary."""

    switch_id: str
    run: str
    attempt: int
    epoch: int
    from_point: str
    to_point: str
    order: Order
    state: SwitchState
    requested_by: str
    reason: str
    predicted_ug: int | None
    switch_cost_ug: int | None
    created_at: datetime
    updated_at: datetime
    detail: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total_s(self) -> float | None:
        """Seconds until the new layout was in place; None before it is known."""
        return _seconds(self.evidence.get("total_s"))

    @property
    def refused(self) -> str:
        """Why the launcher held no next launch, so that the run left nothing; "" otherwise."""
        why = self.evidence.get(REFUSED)
        return why if self.state is SwitchState.ROLLED_BACK and isinstance(why, str) else ""

    @property
    def at_pace_s(self) -> float | None:
        """Seconds until the first step at normal pace had ended; None: that was not observed."""
        return _seconds(self.evidence.get(AT_PACE))


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionRow:
    """One step of a switch as the run reported it. `at`: when the daemon heard it."""

    switch_id: str
    state: SwitchState
    at: datetime
    step: int
    elapsed_s: float
    detail: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchHistory:
    """The newest switches of one run, newest first by the run's own count of launches and steps.

    Attributes:
        begun_at: when the run reported that it took the order of its open switch; None: it has no
            open switch, or the order waits.
    """

    rows: tuple[SwitchRow, ...] = ()
    begun_at: datetime | None = None

    @property
    def open(self) -> SwitchRow | None:
        """The switch that has not ended."""
        return next((each for each in self.rows if each.state not in FINAL), None)

    @property
    def refusal(self) -> SwitchRow | None:
        """The newest switch to sleep or another size, where its launcher refused it."""
        ended = (each for each in self.rows if each.state in _COUNTED)
        newest = next((each for each in ended if each.order.mode in _HANDED_OVER), None)
        return newest if newest is not None and newest.refused else None

    def failures_in_a_row(self, thawed_at: datetime | None) -> int:
        """Count failed and rolled-back switches since the last confirmed one, or the thaw.

        One that a launcher refused is none: the run left nothing, and need not be looked at.
        """
        since = itertools.takewhile(
            lambda row: (
                row.state is not SwitchState.CONFIRMED
                and (thawed_at is None or row.updated_at > thawed_at)
            ),
            (each for each in self.rows if each.state in _COUNTED and not each.refused),
        )
        return sum(1 for _ in since)


class Histories:
    """The histories of all runs that have not ended, as one transaction read them.

    Rows are parsed when a run is asked for, so a bad row affects no other run.

    Attributes:
        switching: the runs that have an open switch.
    """

    def __init__(self, rows: Mapping[str, list[Row[Any]]], begun: Mapping[str, datetime]) -> None:
        """Take the rows by run, and by switch id when open switches were begun."""
        self._rows, self._begun = rows, begun
        self._read: dict[str, SwitchHistory] = {}
        self.switching = frozenset(run for run, each in rows.items() if any(map(_is_open, each)))

    def of(self, run: str) -> SwitchHistory:
        """Give the history of a run."""
        if run not in self._read:
            read = sorted(map(_row, self._rows.get(run, ())), key=_lived, reverse=True)
            begun = (self._begun[each.switch_id] for each in read if each.switch_id in self._begun)
            self._read[run] = SwitchHistory(rows=tuple(read), begun_at=next(begun, None))
        return self._read[run]


class SwitchStore:
    """The switches table and its transitions."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database

    def order(
        self,
        order: Order,
        *,
        from_point: str,
        requested_by: str,
        reason: str,
        predicted_g: float | None,
        switch_cost_g: float | None,
        now: datetime,
    ) -> bool:
        """Commit the intent of a switch; False when the run already has an open one.

        Raises:
            Fenced: the order's epoch is over; nothing was written.
        """
        row = {
            "switch_id": order.switch_id,
            "run": order.run,
            "open_run": order.run,
            "attempt": order.attempt,
            "epoch": order.epoch,
            "from_point": from_point,
            "to_point": order.point,
            "wire_order": to_text(order.to_json()),
            "state": str(SwitchState.ORDERED),
            "requested_by": requested_by,
            "reason": reason,
            "predicted_ug": None if predicted_g is None else round(predicted_g * UG),
            "switch_cost_ug": None if switch_cost_g is None else round(switch_cost_g * UG),
            "created_at": to_us(now),
            "updated_at": to_us(now),
        }
        with self._database.writing() as connection:
            check_epoch(connection, order.epoch)
            return insert_new(connection, SWITCHES, row)

    def open(self, run: str) -> SwitchRow | None:
        """Give the run's open switch."""
        with self._database.reading() as connection:
            row = connection.execute(_OPEN, {"which": run}).first()
        return _row(row) if row else None

    def all_open(self) -> dict[str, SwitchRow]:
        """Give the open switch of every run that has one, by run."""
        with self._database.reading() as connection:
            rows = connection.execute(_ALL_OPEN)
            return {row.open_run: _row(row) for row in rows}

    def histories(self) -> Histories:
        """Give the newest switches of every run that has not ended."""
        with self._database.reading() as connection:
            rows = connection.execute(_HISTORIES).all()
            begun = {each.switch_id: from_us(each.begun_us) for each in connection.execute(_BEGUN)}
        by_run: dict[str, list[Row[Any]]] = {}
        for row in rows:
            by_run.setdefault(row.run, []).append(row)
        return Histories(by_run, begun)

    def history(self, run: str | None = None, limit: int = 50) -> tuple[SwitchRow, ...]:
        """List switches, newest first; those of one run by its own count of launches and steps."""
        query = select(SWITCHES).order_by(SWITCHES.c.created_at.desc()).limit(limit)
        if run is not None:
            query = query.where(SWITCHES.c.run == run)
        with self._database.reading() as connection:
            rows = [_row(row) for row in connection.execute(query)]
        return tuple(rows if run is None else sorted(rows, key=_lived, reverse=True))

    def transitions(self, switch_id: str) -> tuple[TransitionRow, ...]:
        """List what the run reported about one switch, in the order of its states."""
        query = (
            select(TRANSITIONS)
            .where(TRANSITIONS.c.switch_id == switch_id)
            .order_by(TRANSITIONS.c.at)
        )
        with self._database.reading() as connection:
            rows = (
                TransitionRow(
                    switch_id=row.switch_id,
                    state=SwitchState(row.state),
                    at=from_us(row.at),
                    step=row.step,
                    elapsed_s=row.elapsed_s,
                    detail=row.detail,
                    evidence=to_evidence(row.evidence),
                )
                for row in connection.execute(query)
            )
            return tuple(sorted(rows, key=lambda each: position(each.state)))

    def record(
        self, transition: Transition, *, owner_uid: int, now: datetime
    ) -> tuple[SwitchRow, bool]:
        """Store one reported step; a repeated or late one changes nothing.

        Gives the switch, and whether the step was reported for the first time.

        Raises:
            InputInvalid: no such run or switch. Refused: another owner. Fenced: superseded.
        """
        with self._database.writing() as connection:
            speaker(connection, transition, owner_uid)
            row = _hold(connection, transition.switch_id)
            if row is None or row.run != transition.run:
                raise InputInvalid(f"run {transition.run} has no switch {transition.switch_id}")
            taken = insert_new(connection, TRANSITIONS, _transition_values(transition, now))
            if advance(SwitchState(row.state), transition.state):
                evidence = {**to_evidence(row.evidence), **transition.evidence}
                values = {
                    "detail": transition.detail or row.detail,
                    "evidence": to_text(evidence),
                    **_moved(connection, transition.state, transition.run, now),
                }
                _update(connection, transition.switch_id, values)
                _store_layout(connection, transition)
                note_stays(connection, [transition.run], now)
            elif _adds_pace(row, transition):
                evidence = {**to_evidence(row.evidence), AT_PACE: transition.evidence[AT_PACE]}
                _update(connection, transition.switch_id, {"evidence": to_text(evidence)})
            return _row(connection.execute(_one(transition.switch_id)).one()), taken

    def close(
        self, switch_id: str, state: SwitchState, *, detail: str, now: datetime, epoch: int
    ) -> bool:
        """End an open switch that cannot be confirmed any more; False when it had ended.

        Raises:
            Fenced: the epoch is over; nothing was written.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            row = _hold(connection, switch_id)
            if row is None or not advance(SwitchState(row.state), state):
                return False
            _update(
                connection, switch_id, {"detail": detail, **_moved(connection, state, row.run, now)}
            )
            note_stays(connection, [row.run], now)
            return True


def _seconds(value: object) -> float | None:
    """Read seconds that a run reported; None unless a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) and value > 0 else None


def _is_open(row: Row[Any]) -> bool:
    return row.open_run is not None


def _adds_pace(row: Row[Any], transition: Transition) -> bool:
    """Return whether a run repeats its final report and adds when it reached its pace."""
    if transition.state not in FINAL or transition.state != row.state:
        return False
    return _seconds(transition.evidence.get(AT_PACE)) is not None


def _lived(row: SwitchRow) -> tuple[int, int, datetime]:
    """Order a run's switches by its own count of launches and steps: the wall clock may step."""
    return row.attempt, row.order.not_before_step, row.created_at


def _moved(connection: Connection, state: SwitchState, run: str, now: datetime) -> dict[str, Any]:
    """Give the columns that every step sets.

    An end after a thaw is dated after it, whatever the wall clock says: failures count from it.
    """
    thawed_us = connection.execute(select(RUNS.c.thawed_at).where(RUNS.c.run == run)).scalar()
    not_before_us = thawed_us + 1 if thawed_us is not None and state in FINAL else 0
    return {
        "state": str(state),
        "updated_at": max(to_us(now), not_before_us),
        "open_run": None if state in FINAL else run,
    }


def _transition_values(transition: Transition, now: datetime) -> dict[str, Any]:
    return {
        "switch_id": transition.switch_id,
        "state": str(transition.state),
        "run": transition.run,
        "at": to_us(now),
        "step": transition.step,
        "elapsed_s": transition.elapsed_s,
        "detail": transition.detail,
        "evidence": to_text(transition.evidence),
    }


def _store_layout(connection: Connection, transition: Transition) -> None:
    if transition.layout is not None and transition.state in FINAL:
        layout = to_text(transition.layout.to_dict())
        connection.execute(
            update(RUNS)
            .where(RUNS.c.run == transition.run)
            .values(layout=layout, ranks=to_text(transition.ranks))
        )


def _one(switch_id: str) -> Any:
    return select(SWITCHES).where(SWITCHES.c.switch_id == switch_id)


def _hold(connection: Connection, switch_id: str) -> Row[Any] | None:
    """Read a switch and lock its row for this transaction."""
    row: Row[Any] | None = connection.execute(_one(switch_id).with_for_update()).one_or_none()
    return row


def _update(connection: Connection, switch_id: str, values: Mapping[str, Any]) -> None:
    connection.execute(update(SWITCHES).where(SWITCHES.c.switch_id == switch_id).values(**values))


def _row(row: Row[Any]) -> SwitchRow:
    return SwitchRow(
        switch_id=row.switch_id,
        run=row.run,
        attempt=row.attempt,
        epoch=row.epoch,
        from_point=row.from_point,
        to_point=row.to_point,
        order=Order.from_json(json.loads(row.wire_order)),
        state=SwitchState(row.state),
        requested_by=row.requested_by,
        reason=row.reason,
        predicted_ug=row.predicted_ug,
        switch_cost_ug=row.switch_cost_ug,
        created_at=from_us(row.created_at),
        updated_at=from_us(row.updated_at),
        detail=row.detail,
        evidence=to_evidence(row.evidence),
    )
