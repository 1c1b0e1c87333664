"""Which time of each GPU its sampler has booked, and which launches held which GPUs.

Invariant: coverage grows in the transaction that books the counters, so it never covers time whose
joules are not in the journal; only the controller writes rows of unread time.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    not_,
    or_,
    select,
)

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.prepared import prepared
from wattmesh.controller.journal.database.tables import (
    CLOSED_RUNS,
    COVERAGE,
    EMISSION_ROWS,
    ENERGY,
    INCARNATIONS,
    RUNS,
)
from wattmesh.controller.journal.database.values import (
    columns,
    from_us,
    to_us,
    upsert,
    with_moments,
)
from wattmesh.controller.journal.energy.changes import note
from wattmesh.controller.journal.energy.emission_rows import numbered
from wattmesh.controller.journal.energy.scenario_slots import OTHER_COMPONENTS
from wattmesh.reconfig.catalogue import Release
from wattmesh.telemetry.energy.ledger import CounterBaseline, EnergyRow, Span
from wattmesh.telemetry.energy.unobserved import PATIENCE, UNOBSERVED, Holding
from wattmesh.telemetry.readings import SPREAD

RUN = "run"
"""The ledger line of a run's own joules."""

Key = tuple[str, str, datetime]
"""GPU, run, slot start."""

AHEAD_US = PATIENCE // timedelta(microseconds=1)
"""The most that one node's deliveries lag behind another's."""


class CoverageStore:
    """The tables of booked time and of launches, read together."""

    def __init__(self, database: Database, added: Callable[[Iterable[int]], None]) -> None:
        """Keep the database; `added` is called with every slot that is written."""
        self._database = database
        self._added = added

    def covered(self) -> dict[str, tuple[Span, ...]]:
        """Give the booked time of each device: unbroken from a meter's first reading on.

        A meter that does not continue another's counter begins a span of its own.
        """
        found = defaultdict[str, list[Span]](list)
        with self._database.reading() as connection:
            for row in connection.execute(_COVERED):
                found[row.gpu_uuid].append((from_us(row.from_at), from_us(row.until_at)))
        return {gpu: tuple(spans) for gpu, spans in found.items()}

    def holdings(
        self, since: datetime, now: datetime, heard: Mapping[str, datetime | None]
    ) -> list[Holding]:
        """List who held which GPUs: launches heard since, and those with rows of unread time.

        A launch holds what its job has, used or not: that beyond its ranks' GPUs as `spare`.
        GPUs that a launch does without, because its run gave them back, are held by nobody (""); so
        are those that a run gives back while it sleeps or waits, and others it holds asleep. A
        launch that named no GPUs is taken to hold one unknown GPU per rank.

        Args:
            since: a launch that was last seen before is left out, unless it has unread time.
            now: a launch that lives holds its GPUs up to now.
            heard: when each run was last heard; None: its newest launch lives.
        """
        with self._database.reading() as connection:
            rows = connection.execute(*_holders(since=to_us(since))).all()
        found = []
        woken = {before.incarnation: after.started_at for before, after in _successors(rows)}
        for row in rows:
            end = from_us(row.last_seen_at)
            if row.incarnation == row.newest:
                end = max(end, heard.get(row.run, end) or now)
            if row.ended_at is not None:
                end = from_us(row.ended_at)
            if row.asleep_release:
                slept_until = _slept_until(row, woken.get(row.incarnation), now)
                if row.asleep_release != Release.RELEASED:
                    end = max(end, slept_until)
                elif end < slept_until:
                    for named in (row.gpus, row.allocated):
                        found.append(_holding("", row, named, end, slept_until))
            start = from_us(row.started_at)
            spare = {*json.loads(row.allocated)}.difference(json.loads(row.gpus))
            for run, named in ((row.run, row.gpus), ("", row.released)):
                each = _holding(run, row, named, start, end)
                # The GPU of a rank that is not known is one of its job's.
                found.append(replace(each, unknown=max(0, each.unknown - len(spare))))
            if spare:
                found.append(
                    Holding(
                        run=row.run,
                        incarnation=row.incarnation,
                        gpus=tuple(sorted(spare)),
                        start=start,
                        end=end,
                        spare=True,
                    )
                )
        return found

    def unread(self, holdings: Collection[Holding]) -> dict[Key, EnergyRow]:
        """Give the booked rows of unread time of these runs; without a run, of these launches."""
        names = sorted({each.run for each in holdings})
        launches = {each.incarnation for each in holdings}
        found: dict[Key, EnergyRow] = {}
        with self._database.reading() as connection:
            for first in range(0, len(names), 200):
                some = {"names": names[first : first + 200]}
                for row in connection.execute(_UNREAD_OF, some):
                    each = EnergyRow(**with_moments(row, *_TIMES))
                    if not each.run and each.incarnation not in launches:
                        continue
                    found[each.gpu_uuid, each.run, each.slot_start] = each
        return found

    def book(self, rows: Iterable[EnergyRow], gone: Iterable[Key]) -> None:
        """Replace rows of unread time, and delete those of time that was read after all."""
        values = [
            columns(row) | {name: to_us(getattr(row, name)) for name in _TIMES} for row in rows
        ]
        taken_back = tuple(gone)
        with self._database.writing() as connection:
            upsert(connection, ENERGY, values)
            for gpu, run, start in taken_back:
                connection.execute(delete(ENERGY).where(*_place(ENERGY, run, gpu, start)))
                connection.execute(
                    delete(EMISSION_ROWS).where(*_place(EMISSION_ROWS, run, gpu, start))
                )
            starts_us = [to_us(start) for _, _, start in taken_back]
            starts_us += [value["slot_start"] for value in values]
            note(connection, starts_us)
        self._added(starts_us)

    def largest_w(self, run: str) -> dict[Span, float]:
        """Give by slot the largest mean draw, in watts, of any GPU that a run held all through it.

        A GPU counts only when its whole slot was read, nothing of it was spread over slots by time,
        and it has no other row in that slot.
        """
        with self._database.reading() as connection:
            return {
                (from_us(row.slot_start), from_us(row.slot_end)): float(row.power_w)
                for row in connection.execute(*_draws(of=run))
                if row.power_w is not None
            }


_UNREAD = and_(ENERGY.c.unobserved_ms > 0, ENERGY.c.line == UNOBSERVED)
"""Rows of unread time; matches the partial index of rows with unobserved time."""

_TIMES = ("slot_start", "slot_end")

_COVERED = select(COVERAGE).order_by(COVERAGE.c.from_at)
_COVERED_OF = select(COVERAGE).where(COVERAGE.c.gpu_uuid.in_(bindparam("names", expanding=True)))
_UNREAD_OF = select(ENERGY).where(_UNREAD, ENERGY.c.run.in_(bindparam("names", expanding=True)))


@prepared
def _holders(since: Any) -> Any:
    """Select launches heard since, and those of runs that hold GPUs or have unread time."""
    table = INCARNATIONS.c
    unread = select(ENERGY.c.run).where(_UNREAD).distinct()
    nobodys = select(ENERGY.c.incarnation).where(_UNREAD, ENERGY.c.run == "").distinct()
    theirs = select(INCARNATIONS.c.run).where(table.incarnation.in_(nobodys))
    return (
        select(
            INCARNATIONS,
            RUNS.c.incarnation.label("newest"),
            RUNS.c.world_size,
            RUNS.c.wakes_at,
            RUNS.c.finished_at,
        )
        .join(RUNS, RUNS.c.run == table.run)
        .where(
            or_(
                table.last_seen_at >= since,
                RUNS.c.held_as != "",
                table.run.in_(unread),
                table.run.in_(theirs),
            )
        )
        .where(table.run.not_in(select(CLOSED_RUNS.c.run)))
        .order_by(table.started_at)
    )


@prepared
def _draws(of: Any) -> Any:
    """Select by slot the largest mean draw of a GPU that the run `of` held alone all through it."""
    table, other = ENERGY.c, ENERGY.alias()
    alone = not_(
        exists().where(
            other.c.gpu_uuid == table.gpu_uuid,
            other.c.slot_start == table.slot_start,
            or_(other.c.run != table.run, other.c.line != table.line),
        )
    )
    draw_w = func.max(table.energy_mj * 1e3 / (table.slot_end - table.slot_start))
    return (
        select(table.slot_start, table.slot_end, draw_w.label("power_w"))
        .join(COVERAGE, COVERAGE.c.gpu_uuid == table.gpu_uuid)
        .where(table.run == of, table.line == RUN, table.unobserved_ms == 0, alone)
        .where(table.quality.not_like(f"%{SPREAD}%"))
        .where(and_(*(table.gpu_uuid.not_like(each) for each in OTHER_COMPONENTS)))
        .where(table.slot_start >= COVERAGE.c.from_at, table.slot_end <= COVERAGE.c.until_at)
        .group_by(table.slot_start, table.slot_end)
    )


def _place(table: Table, run: str, gpu: str, start: datetime) -> tuple[ColumnElement[bool], ...]:
    """Match the rows of unread time of one GPU, run and slot."""
    if table is ENERGY:
        whose = (table.c.gpu_uuid == gpu, table.c.run == run)
    else:
        whose = (numbered(table.c.run_id, run), numbered(table.c.gpu_id, gpu))
    return (*whose, table.c.slot_start == to_us(start), table.c.line == UNOBSERVED)


def extend(
    connection: Connection,
    baselines: Iterable[CounterBaseline],
    *,
    now_us: int = 0,
    copied_us: int = 0,
) -> None:
    """Extend the coverage of devices up to where their counters are booked.

    A counter that does not say since when it is booked extends the newest span. A span that ends
    more than `AHEAD_US` after both our clock and its counter was written when a wall clock was
    ahead: it is cut there, or future time would count as read. In a journal that was restored from
    a copy, no new span begins before `copied_us`: what others had delivered between the copy and
    its restore was lost, and counts as unread. (Our own sampler goes on from the counters of the
    copy, and loses nothing.)

    Args:
        connection: of the transaction that books the counters.
        baselines: the counters.
        now_us: our wall clock, in microseconds since 1970, when another clock dated the counters.
        copied_us: likewise, when this journal was copied; 0: it is no copy.
    """
    advanced = {each.gpu_uuid: each for each in baselines}
    known = defaultdict[str, dict[int, int]](dict)
    for first in range(0, len(advanced), 500):
        names = sorted(advanced)[first : first + 500]
        for row in connection.execute(_COVERED_OF, {"names": names}):
            known[row.gpu_uuid][row.from_at] = row.until_at
    rows = []
    for gpu, each in advanced.items():
        at_us, spans = to_us(each.at), known[gpu]
        newest_us = max(at_us, now_us)
        start_us = min(each.since_us, at_us) or max(spans, default=at_us)
        start_us = max(start_us, min(copied_us, at_us))
        if now_us and at_us - now_us > AHEAD_US:
            at_us = now_us
        changed = {
            begin_us: newest_us
            for begin_us, until_us in spans.items()
            if begin_us <= newest_us < until_us - AHEAD_US
        }
        if start_us <= at_us:
            changed.setdefault(start_us, max(at_us, spans.get(start_us, at_us)))
        rows += [
            {"gpu_uuid": gpu, "from_at": begin_us, "until_at": until_us}
            for begin_us, until_us in changed.items()
        ]
    upsert(connection, COVERAGE, rows)


def _successors(rows: Iterable[Row[Any]]) -> Iterator[tuple[Row[Any], Row[Any]]]:
    """Give each launch with the next one of its run; `rows` are in time order."""
    before: dict[str, Row[Any]] = {}
    for row in rows:
        if row.run in before:
            yield before[row.run], row
        before[row.run] = row


def _slept_until(row: Row[Any], woken_us: int | None, now: datetime) -> datetime:
    """Give until when a run slept after this launch: its next one, its end, its alarm, or now."""
    if woken_us is not None:
        return from_us(woken_us)
    ends_us: list[int] = [each for each in (row.finished_at, row.wakes_at) if each is not None]
    return min([now, *map(from_us, ends_us)])


def _holding(run: str, row: Row[Any], named: str, start: datetime, end: datetime) -> Holding:
    gpus = json.loads(named)
    unnamed = gpus.count("") if gpus else max(1, row.world_size)
    return Holding(
        run=run,
        incarnation=row.incarnation,
        gpus=tuple(sorted({*gpus} - {""})),
        start=start,
        end=end,
        unknown=unnamed if run else 0,
    )
