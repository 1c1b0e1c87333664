"""Events: what happened beside decisions and switches (clock steps, outages, skips, reloads)."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, insert, select

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import EVENTS
from wattmesh.controller.journal.database.values import from_us, to_us


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """One event, in one sentence."""

    at: datetime
    kind: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What is to be recorded, with other rows in one transaction."""

    kind: str
    detail: str


# Made once: building a statement costs more than SQLite takes to run it.
_ADD = insert(EVENTS)


def add_event(connection: Connection, event: Event, at: datetime) -> None:
    """Record an event in a transaction that is under way."""
    row = {"kind": event.kind, "detail": event.detail, "at": to_us(at)}
    connection.execute(_ADD, row)


class EventStore:
    """The events table."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database

    def add(self, kind: str, detail: str, at: datetime) -> None:
        """Record an event."""
        with self._database.writing() as connection:
            add_event(connection, Event(kind=kind, detail=detail), at)

    def list(
        self,
        limit: int = 100,
        since: datetime | None = None,
        *,
        kind: str | None = None,
        begins: str = "",
    ) -> tuple[EventRow, ...]:
        """List events, newest first; of one kind, or whose sentence begins so, where asked."""
        query = select(EVENTS).order_by(EVENTS.c.id.desc()).limit(limit)
        if since is not None:
            query = query.where(EVENTS.c.at >= to_us(since))
        if kind is not None:
            query = query.where(EVENTS.c.kind == kind)
        if begins:
            query = query.where(EVENTS.c.detail.startswith(begins, autoescape=True))
        with self._database.reading() as connection:
            return tuple(
                EventRow(at=from_us(row.at), kind=row.kind, detail=row.detail)
                for row in connection.execute(query)
            )
