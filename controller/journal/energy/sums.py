"""Sums over the whole ledger: single slots and what was rolled up, for metrics and budgets.

Slots older than three days hardly change, so they are added up once and kept; each call reads only
newer slots. Invariant: `totals` gives what adding up everything would give: kept sums are dropped
when any process has written a slot before their end (`changes`).
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, func, literal, select, true

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.prepared import Prepared, prepared
from wattmesh.controller.journal.database.tables import EMISSIONS, ENERGY, ROLLUPS
from wattmesh.controller.journal.energy.changes import DAY_US, changes_before
from wattmesh.telemetry.carbon import signal_quality

KEY = ("scenario", "run", "line", "signal", "stand_in", "quality", "energy_quality")
AMOUNTS = (
    "energy_mj",
    "unobserved_ms",
    "upper_mj",
    "upper_ug",
    "carbon_ug",
    "first_carbon_ug",
    "tokens",
)

Key = tuple[str, ...]
Amounts = tuple[int, ...]
_Sums = Mapping[Key, Amounts]

RECENT_US = 3 * DAY_US
"""Longer than intensities are revised (48 h)."""

LOOKS = 20
"""The sums are reused for so many times the seconds that computing them took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalRow:
    """Sums since the beginning; two signals are two rows.

    Attributes:
        scenario: `energy`: joules as they were booked; else as `EmissionRow` has it.
        signal: what grams are accounted in; of joules, the source that measured them.
        quality: of the intensity. `energy_quality`: of the joules.
        unobserved_ms: time that nobody measured (`energy` only).
        upper_mj, upper_ug: the most drawn in it, and its grams as far as they have a price.
        first_carbon_ug: as first reported, before any intensity was revised.
    """

    scenario: str
    run: str
    line: str
    signal: str
    stand_in: str
    quality: str
    energy_quality: str
    energy_mj: int
    unobserved_ms: int
    upper_mj: int
    upper_ug: int
    carbon_ug: int
    first_carbon_ug: int
    tokens: int

    @property
    def qualities(self) -> tuple[str, ...]:
        """What its amounts are besides measured: by intensity, by joules, by signal."""
        return self.quality, self.energy_quality, signal_quality(self.signal)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Sums of slots that begin before `end_us`, after so many `changes` of these."""

    end_us: int
    changes: int
    sums: _Sums


class Sums:
    """Adds up the ledger."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database
        self._kept: _Kept | None = None
        self._looking = threading.Lock()
        self._look: dict[str, list[TotalRow]] = {}
        self._look_again_s = -inf

    def totals(self) -> tuple[TotalRow, ...]:
        """Sum everything ever booked.

        Raises:
            JournalUnavailable: the database does not answer.
        """
        with self._database.reading() as connection:
            kept = self._old(connection)
            recent = _add_up(
                connection,
                _energy(first=kept.end_us, end=None, of=None),
                _grams(first=kept.end_us, end=None, of=None),
            )
        return _rows(_merged(kept.sums, recent))

    def lately(self, run: str) -> tuple[TotalRow, ...]:
        """Sum everything of one run, as it was a moment ago.

        Every run may ask for itself, so the sums are reused for `LOOKS` times the time that
        computing them took.

        Raises:
            JournalUnavailable: the database does not answer.
        """
        with self._looking:
            began_s = time.monotonic()
            if began_s >= self._look_again_s:
                look: dict[str, list[TotalRow]] = {}
                for row in self.totals():
                    look.setdefault(row.run, []).append(row)
                now_s = time.monotonic()
                self._look, self._look_again_s = look, now_s + LOOKS * (now_s - began_s)
            return tuple(self._look.get(run, ()))

    def between(self, start_us: int, end_us: int, run: str | None = None) -> tuple[TotalRow, ...]:
        """Sum slots that begin in [start, end), of one run or of all; rolled up days too."""
        with self._database.reading() as connection:
            found = _add_up(
                connection,
                _energy(first=start_us, end=end_us, of=run),
                _grams(first=start_us, end=end_us, of=run),
                _rolled(first=start_us, end=end_us, of=run),
            )
        return _rows(found)

    def _old(self, connection: Connection) -> _Kept:
        """Give the sums of old slots: the kept ones where they still hold."""
        newest = connection.execute(_NEWEST).scalar() or 0
        end_us = (newest - RECENT_US) // DAY_US * DAY_US
        # Read first: sums that hold more than these changes are only read once more.
        changes = changes_before(connection, end_us)
        kept = self._kept
        if kept is None or (kept.end_us, kept.changes) != (end_us, changes):
            sums = _add_up(
                connection,
                _energy(first=None, end=end_us, of=None),
                _grams(first=None, end=end_us, of=None),
                _rolled(first=None, end=None, of=None),
            )
            kept = self._kept = _Kept(end_us, changes, sums)
        return kept


def same_slot(scenario: str) -> ColumnElement[bool]:
    """Match emission rows of a scenario with the energy rows they were computed from."""
    return and_(
        EMISSIONS.c.scenario == scenario,
        EMISSIONS.c.run == ENERGY.c.run,
        EMISSIONS.c.gpu_uuid == ENERGY.c.gpu_uuid,
        EMISSIONS.c.slot_start == ENERGY.c.slot_start,
        EMISSIONS.c.line == ENERGY.c.line,
    )


def energy_sums(which: ColumnElement[bool], *by: ColumnElement[int]) -> Any:
    """Sum joules per key (and `by`) of the rows that match `which`."""
    table = ENERGY.c
    key = (table.run, table.line, table.source)
    words = (literal("").label("stand_in"), literal("").label("price_quality"))
    return (
        select(
            literal("energy"),
            *key,
            *words,
            table.quality,
            *by,
            _sum(table.energy_mj),
            _sum(table.unobserved_ms),
            _sum(table.upper_mj),
            literal(0),
            literal(0),
            literal(0),
            literal(0),
        )
        .where(which)
        .group_by(*key, table.quality, *by)
    )


def emission_sums(which: ColumnElement[bool], *by: ColumnElement[int]) -> Any:
    """Sum grams per key (and `by`) of the rows that match `which`."""
    table = EMISSIONS.c
    key = (*(table[name] for name in KEY), *by)
    return (
        select(
            *key,
            _sum(table.energy_mj),
            literal(0),
            _sum(table.upper_mj),
            _sum(table.upper_ug),
            _sum(table.carbon_ug),
            _sum(table.first_carbon_ug),
            _sum(table.tokens),
        )
        .where(which)
        .group_by(*key)
    )


def _sum(column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Sum a column; 0 when every value is NULL."""
    return func.coalesce(func.sum(column), 0)


def rolled_sums() -> Any:
    """Sum per key what was rolled up."""
    key = [ROLLUPS.c[name] for name in KEY]
    return select(*key, *(func.sum(ROLLUPS.c[name]) for name in AMOUNTS)).group_by(*key)


_NEWEST = select(func.max(ENERGY.c.slot_start))


def _from(table: Table, start: str, first: Any, end: Any, of: Any) -> ColumnElement[bool]:
    """Match rows from `first` to before `end`, and of a run; None: of any."""
    conditions: list[ColumnElement[bool]] = [true()]
    if first is not None:
        conditions.append(table.c[start] >= first)
    if end is not None:
        conditions.append(table.c[start] < end)
    if of is not None:
        conditions.append(table.c.run == of)
    return and_(*conditions)


@prepared
def _energy(first: Any, end: Any, of: Any) -> Any:
    return energy_sums(_from(ENERGY, "slot_start", first, end, of))


@prepared
def _grams(first: Any, end: Any, of: Any) -> Any:
    return emission_sums(_from(EMISSIONS, "slot_start", first, end, of))


@prepared
def _rolled(first: Any, end: Any, of: Any) -> Any:
    return rolled_sums().where(_from(ROLLUPS, "day", first, end, of))


def _add_up(connection: Connection, *queries: Prepared) -> dict[Key, Amounts]:
    sums: dict[Key, Amounts] = {}
    for query in queries:
        found = {
            tuple(row[: len(KEY)]): tuple(int(value or 0) for value in row[len(KEY) :])
            for row in connection.execute(*query)
        }
        sums = _merged(sums, found)
    return sums


def _merged(one: _Sums, other: _Sums) -> dict[Key, Amounts]:
    nothing = (0,) * len(AMOUNTS)
    return {
        key: tuple(
            a + b for a, b in zip(one.get(key, nothing), other.get(key, nothing), strict=True)
        )
        for key in {**one, **other}
    }


def _rows(sums: _Sums) -> tuple[TotalRow, ...]:
    found = []
    for key, amounts in sorted(sums.items()):
        values: dict[str, Any] = dict(zip((*KEY, *AMOUNTS), (*key, *amounts), strict=True))
        found.append(TotalRow(**values))
    return tuple(found)
