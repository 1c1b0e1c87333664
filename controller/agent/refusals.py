"""Changes that the controller refuses: narrowed down to single rows, kept back, offered again.

A refused batch was not counted, so its changes become unsent again. They are offered in smaller
batches, until each refused row is alone in its batch and the others are delivered. A row that is
refused alone is kept back: the others go on, and it is offered again once an hour and after a
restart. Invariant: what is kept back stays in the outbox, whole and unsent; nothing is given up.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from wattmesh.controller.agent.outbox_rows import (
    KEY,
    KEY_COLUMNS,
    UNSENT,
    key_of_change,
    unsend,
)
from wattmesh.telemetry.energy.delivery import MOST_ROWS, EnergyBatch

SIZES = (MOST_ROWS, 40, 1)
"""Largest batch, in rows, by how often its rows were refused: never, once, twice."""

AGAIN_US = 3600 * 1_000_000
"""Microseconds until a row that was refused alone is offered again."""

MJ_PER_J = 1e3

_SENDABLE = (
    f"FROM rows LEFT JOIN refusals USING ({KEY_COLUMNS}) WHERE {UNSENT} AND "
    f"(coalesce(times, 0) < {len(SIZES)} OR retry_at <= ?1 OR retry_at > ?1 + {AGAIN_US})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBack:
    """The rows of an outbox that the controller refuses; `why`: its newest reason, "" for none."""

    rows: int = 0
    energy_mj: int = 0
    why: str = ""

    def to_json(self) -> dict[str, object]:
        """Give what the controller is told of the refused rows."""
        return {"rows": self.rows, "energy_j": self.energy_mj / MJ_PER_J, "why": self.why}


def offered(connection: sqlite3.Connection, now_us: int) -> tuple[list[sqlite3.Row], bool]:
    """Give the rows of the next batch, and whether they are all there is to send.

    Rows that were never refused come first, so that refused ones delay no others.
    """
    if connection.execute("SELECT 1 FROM refusals LIMIT 1").fetchone() is None:
        query = f"SELECT * FROM rows WHERE {UNSENT} ORDER BY slot_start LIMIT {MOST_ROWS + 1}"
        rows = connection.execute(query).fetchall()
        return rows[:MOST_ROWS], len(rows) <= MOST_ROWS
    size = f"min(coalesce(times, 0), {len(SIZES) - 1})"
    first = connection.execute(
        f"SELECT {size} AS tried, count(*) AS waiting {_SENDABLE} GROUP BY 1 ORDER BY 1", (now_us,)
    ).fetchall()
    if not first:
        return [], True
    tried, waiting = first[0]["tried"], sum(each["waiting"] for each in first)
    found = connection.execute(
        f"SELECT rows.* {_SENDABLE} AND {size} = ?2 ORDER BY slot_start LIMIT {SIZES[tried]}",
        (now_us, tried),
    ).fetchall()
    return found, len(found) == waiting


def put_back(connection: sqlite3.Connection, batch: EnergyBatch, why: str, now_us: int) -> bool:
    """Mark a refused batch as unsent; say whether it was a single row, now kept back."""
    for change in batch.rows:
        unsend(connection, change)
    alone = len(batch.rows) == 1
    # A row that is refused alone need not be tried in smaller batches.
    times = len(SIZES) if alone else 1
    connection.executemany(
        f"INSERT INTO refusals ({KEY_COLUMNS}, times, retry_at, why) VALUES (?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET times = max(times + 1, excluded.times), "
        "retry_at = excluded.retry_at, why = excluded.why",
        [(*key_of_change(each), times, now_us + AGAIN_US, why) for each in batch.rows],
    )
    return alone


def taken(connection: sqlite3.Connection, batch: EnergyBatch) -> None:
    """Delete the refusals of a batch's rows: the controller has taken them."""
    connection.executemany(
        f"DELETE FROM refusals WHERE {KEY}", [key_of_change(each) for each in batch.rows]
    )


def tidy(connection: sqlite3.Connection) -> None:
    """Delete refusals of rows that no longer exist because they were joined into longer ones."""
    connection.execute(
        f"DELETE FROM refusals WHERE ({KEY_COLUMNS}) NOT IN (SELECT {KEY_COLUMNS} FROM rows)"
    )


def kept_back(connection: sqlite3.Connection) -> KeptBack:
    """Count the rows that are kept back, and sum their energy."""
    found: Sequence[sqlite3.Row] = connection.execute(
        "SELECT why, coalesce(energy_mj, 0) - coalesce(sent_energy_mj, 0) AS unsent_mj "
        f"FROM refusals JOIN rows USING ({KEY_COLUMNS}) WHERE times >= {len(SIZES)} AND {UNSENT} "
        "ORDER BY retry_at"
    ).fetchall()
    if not found:
        return KeptBack()
    energy_mj = sum(each["unsent_mj"] for each in found)
    return KeptBack(rows=len(found), energy_mj=energy_mj, why=found[-1]["why"])
