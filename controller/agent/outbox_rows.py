"""Rows of an outbox in SQLite: read them, write them, and give the part not sent yet.

Invariant: a row holds absolute amounts and, beside them, the amounts that were sent; the difference
is the unsent change, so nothing is delivered twice.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.controller.agent.coarsen import Key
from wattmesh.telemetry.energy.ledger import CounterBaseline, EnergyRow

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)

COLUMNS = (
    "gpu_uuid, run, slot_start, slot_end, incarnation, energy_mj, unobserved_ms, upper_mj, "
    "source, quality, line"
)
BOOK = f"""
INSERT INTO rows ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET slot_end = excluded.slot_end, incarnation = excluded.incarnation,
    energy_mj = excluded.energy_mj, unobserved_ms = excluded.unobserved_ms,
    upper_mj = excluded.upper_mj, source = excluded.source, quality = excluded.quality
"""
UNSENT = (
    "(energy_mj IS NOT sent_energy_mj OR unobserved_ms <> sent_unobserved_ms "
    "OR upper_mj <> sent_upper_mj)"
)
SENT = "sent_energy_mj = energy_mj, sent_unobserved_ms = unobserved_ms, sent_upper_mj = upper_mj"
KEY_COLUMNS = "gpu_uuid, run, slot_start, line"
KEY = "gpu_uuid = ? AND run = ? AND slot_start = ? AND line = ?"

_COUNTER = tuple(each.name for each in fields(CounterBaseline))
_COUNTER_MARKS = ", ".join("?" * len(_COUNTER))


def to_us(moment: datetime) -> int:
    """Give the microseconds since 1970."""
    return (moment - _EPOCH) // _US


def key_of(row: sqlite3.Row) -> Key:
    """Give a row's primary key."""
    return row["gpu_uuid"], row["run"], row["slot_start"], row["line"]


def key_of_change(row: EnergyRow) -> Key:
    """Give the primary key of the row that a change belongs to."""
    return row.gpu_uuid, row.run, to_us(row.slot_start), row.line


def values_of(row: EnergyRow) -> tuple[Any, ...]:
    """Give a row in the order of `COLUMNS`."""
    start, end = to_us(row.slot_start), to_us(row.slot_end)
    amounts = (row.energy_mj, row.unobserved_ms, row.upper_mj)
    words = (row.source, row.quality, row.line)
    return (row.gpu_uuid, row.run, start, end, row.incarnation, *amounts, *words)


def row_of(row: sqlite3.Row) -> EnergyRow:
    """Read a row with its absolute amounts."""
    values = {name: row[name] for name in COLUMNS.split(", ")}
    start, end = _EPOCH + row["slot_start"] * _US, _EPOCH + row["slot_end"] * _US
    return EnergyRow(**{**values, "slot_start": start, "slot_end": end})


def change_of(row: sqlite3.Row) -> EnergyRow:
    """Read a row with the amounts that were not sent yet."""
    values = {name: row[name] for name in COLUMNS.split(", ")}
    energy_mj, sent_mj = row["energy_mj"], row["sent_energy_mj"]
    return EnergyRow(
        **{
            **values,
            "slot_start": _EPOCH + row["slot_start"] * _US,
            "slot_end": _EPOCH + row["slot_end"] * _US,
            "energy_mj": None if energy_mj == sent_mj else energy_mj - (sent_mj or 0),
            "unobserved_ms": row["unobserved_ms"] - row["sent_unobserved_ms"],
            "upper_mj": row["upper_mj"] - row["sent_upper_mj"],
        }
    )


def unsend(connection: sqlite3.Connection, change: EnergyRow) -> None:
    """Mark a sent change as unsent again; its row may have been deleted or grown meanwhile."""
    key = key_of_change(change)
    row = connection.execute(f"SELECT * FROM rows WHERE {KEY}", key).fetchone()
    if row is None:
        connection.execute(BOOK, values_of(change))
        return
    energy_mj, sent_mj = row["energy_mj"], row["sent_energy_mj"]
    if change.energy_mj is not None:
        if energy_mj is None:  # joined meanwhile with a slot of unknown energy
            energy_mj, sent_mj = change.energy_mj, None
        else:
            # None where nothing is left: a known energy of 0 must not look as if it had been sent.
            sent_mj = ((sent_mj or 0) - change.energy_mj) or None
    connection.execute(
        "UPDATE rows SET energy_mj = ?, sent_energy_mj = ?, sent_unobserved_ms = ?, "
        f"sent_upper_mj = ? WHERE {KEY}",
        (
            energy_mj,
            sent_mj,
            row["sent_unobserved_ms"] - change.unobserved_ms,
            row["sent_upper_mj"] - change.upper_mj,
            *key,
        ),
    )


def fact(connection: sqlite3.Connection, name: str) -> str:
    """Read a named fact that is kept beside the rows; "" when there is none."""
    row = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return row["value"] if row else ""


def put_fact(connection: sqlite3.Connection, name: str, value: str) -> None:
    """Keep a named fact beside the rows."""
    connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))


def counter_of(row: sqlite3.Row) -> CounterBaseline:
    """Read a counter."""
    return CounterBaseline(**{**dict(row), "at": _EPOCH + row["at"] * _US})


def put_counters(connection: sqlite3.Connection, baselines: Iterable[CounterBaseline]) -> None:
    """Keep each device's counter at the last booking."""
    connection.executemany(
        f"INSERT OR REPLACE INTO counters ({', '.join(_COUNTER)}) VALUES ({_COUNTER_MARKS})",
        [
            tuple(to_us(each.at) if name == "at" else getattr(each, name) for name in _COUNTER)
            for each in baselines
        ],
    )


def begin_anew(connection: sqlite3.Connection, baselines: Iterable[CounterBaseline]) -> bool:
    """Say whether new counters do not continue the kept ones.

    New ones do not where they are booked without a gap only from a later moment on
    (`CounterBaseline.since_us`).
    """
    kept = {
        row["gpu_uuid"]: row["since_us"]
        for row in connection.execute("SELECT gpu_uuid, since_us FROM counters")
    }
    return any(kept.get(each.gpu_uuid, each.since_us) != each.since_us for each in baselines)
