"""Runs: what they last reported, and what an operator and the cycle want of them.

Invariant: whatever is written about a run passes the checks of admission.py in the same
transaction.
"""

import logging
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, delete, func, insert, or_, select, update

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import (
    FREEZE,
    INCARNATIONS,
    POINTS,
    RUNS,
    SWITCHES,
    TOKEN_MARKS,
)
from wattmesh.controller.journal.database.values import (
    insert_new,
    one_line,
    to_text,
    to_us,
    upsert,
)
from wattmesh.controller.journal.leadership import check_epoch
from wattmesh.controller.journal.runs.admission import (
    EXPIRED,
    MOST_RUNS,
    RETIRED,
    Forgotten,
    change_run,
    check_launches,
    check_name,
    check_newer,
    end_run,
    find_run,
    first_row,
    go_on,
    knows_more,
    make_room,
    name_gpus,
    speaker,
    speaking,
    succeed,
)
from wattmesh.controller.journal.runs.doubtful_runs import DoubtfulRuns
from wattmesh.controller.journal.runs.frozen_catalogue import point_rows
from wattmesh.controller.journal.runs.introduced import first_mark, incarnation_row
from wattmesh.controller.journal.runs.liveness import LaunchStatus, Liveness, Sign
from wattmesh.controller.journal.runs.run_nodes import HERE
from wattmesh.controller.journal.runs.run_row import LIVES, RunPlan, RunRow, read_run
from wattmesh.controller.journal.runs.seen_processes import SeenProcesses
from wattmesh.controller.journal.runs.sleeps import (
    asleep,
    confirm_suspension,
    leaves_for_queue,
    queued,
    release_of,
    when_it_left,
)
from wattmesh.controller.journal.runs.stays import SUSPENDED, note_stays
from wattmesh.errors import InputInvalid, WattmeshError
from wattmesh.reconfig.catalogue import Release
from wattmesh.reconfig.ranges import clean
from wattmesh.reconfig.wire.messages import OBSERVED, Finish, Progress, Register, Registered

__all__ = [
    "EXPIRED",
    "RETIRED",
    "Forgotten",
    "RunPlan",
    "RunRow",
    "RunStore",
    "speaker",
    "speaking",
]

log = logging.getLogger(__name__)

# Made once: building a statement costs more than SQLite takes to run it.
_FROZEN = select(FREEZE.c.reason)
_ALL = select(RUNS).order_by(RUNS.c.registered_at)
_OPEN = _ALL.where(RUNS.c.finished_at.is_(None))
_RECENT = _ALL.where(or_(RUNS.c.finished_at.is_(None), RUNS.c.finished_at >= bindparam("since_us")))
_LOOKED_AT = _ALL.where(
    or_(
        RUNS.c.finished_at.is_(None),
        RUNS.c.finished_at >= bindparam("since_us"),
        RUNS.c.clock_mhz.is_not(None),
        RUNS.c.run.in_(select(SWITCHES.c.open_run).where(SWITCHES.c.open_run.is_not(None))),
    )
)
_CALLED = (
    select(RUNS)
    .where(or_(RUNS.c.run == bindparam("called"), RUNS.c.name == bindparam("called")))
    .order_by(RUNS.c.registered_at.desc())
)
_NOTE_SPEEDS = (
    update(RUNS).where(RUNS.c.run == bindparam("which")).values(speeds=bindparam("speeds"))
)
_SPEAKER = update(INCARNATIONS).where(INCARNATIONS.c.incarnation == bindparam("which"))

BEGINNING = re.compile(r"[0-9a-f]{8}[0-9a-f-]{0,28}")
"""So much of an id names a run; `wattmesh runs` shows the first part of it."""

TROUBLE_LENGTH = 500
"""Characters kept of a run's own sentence about its trouble."""


class RunStore:
    """The runs table and its incarnations."""

    def __init__(self, database: Database) -> None:
        """Keep the database; begin with no sign of life."""
        self._database = database
        self.liveness = Liveness()
        self.processes = SeenProcesses()
        self.doubtful = DoubtfulRuns(database)
        self._unreadable: set[str] = set()

    def register(
        self,
        message: Register,
        *,
        owner_uid: int,
        now: datetime,
        epoch: int,
        plan: RunPlan,
        most: int = MOST_RUNS,
        node: str = HERE,
        doubted: bool = False,
    ) -> tuple[Registered, bool]:
        """Register one incarnation of a run; return whether it was new, or went on after an end.

        Args:
            message: what the run says of itself.
            owner_uid: who says so.
            now: when.
            epoch: of the leader.
            plan: what the settings say of that name.
            most: quota of unfinished runs per user; one more ends the run that was silent longest.
            node: the node whose agent vouches for the owner.
            doubted: the wall clock may be wrong: a new run's dates follow its next steps.

        Raises:
            Refused: the run, or its name, belongs to another user, or the user has too many.
            Fenced: a newer attempt is known, or another incarnation is still alive.
            RetryLater: it was launched too often within an hour.
        """
        taken, new = True, False
        with self._database.writing() as connection:
            check_name(connection, message, owner_uid, plan)
            make_room(connection, self.liveness, message, owner_uid, now=now, most=most, node=node)
            new = insert_new(connection, RUNS, first_row(message, owner_uid, now, plan))
            if new:
                check_launches(connection, message, owner_uid, now=now, node=node)
                upsert(connection, TOKEN_MARKS, [first_mark(message, now)])
                if plan.catalogue is not None:
                    upsert(connection, POINTS, point_rows(message.run, plan.catalogue))
                connection.execute(insert(INCARNATIONS).values(**incarnation_row(message, now)))
            else:
                row = find_run(connection, message.run)
                assert row is not None  # it could not be inserted
                check_newer(row, self.liveness, message, owner_uid, now)
                if row.incarnation != message.incarnation:
                    check_launches(connection, message, owner_uid, now=now, node=node)
                    seen_at, _ = self.liveness.last_heard(LaunchStatus.of(row))
                    seen_us = to_us(seen_at)
                    succeed(connection, row, message, now, seen_us, doubted=doubted)
                elif not row.finish_reason or row.finish_reason.startswith(EXPIRED):
                    more = OBSERVED in message.capabilities and knows_more(row, message)
                    taken = more or bool(row.finish_reason)
                    go_on(connection, row)
                    if more:
                        name_gpus(connection, message, owner_uid, now=now, node=node)
                    change_run(connection, message.run, attempt=max(row.attempt, message.attempt))
                    _seen(connection, message, now)
                else:
                    taken = False
            note_stays(connection, [message.run], now)
        if new and doubted:
            self.doubtful.add(message.run, counted=plan.deadline is None)
        self.liveness.hear(message.run, Sign.of(message, owner_uid, now, "registered"))
        answer = Registered(
            run=message.run, incarnation=message.incarnation, attempt=message.attempt, epoch=epoch
        )
        return answer, taken

    def progress(self, message: Progress, *, owner_uid: int, now: datetime) -> None:
        """Store a run's report; ignore one older than the newest, or after the end.

        Raises:
            InputInvalid: no such run. Refused: another owner. Fenced: an older incarnation.
        """
        with self._database.writing() as connection:
            row = speaker(connection, message, owner_uid)
            # A finish is an incarnation's last word, however late its reports arrive.
            if message.seq < row.seq or row.finish_reason:
                return
            change_run(
                connection,
                message.run,
                seq=message.seq,
                step=message.step,
                samples=message.samples,
                tokens=message.tokens,
                tokens_per_s=message.tokens_per_s,
                loss=message.loss,
                layout=to_text(message.layout.to_dict()),
                ranks=to_text(message.ranks),
                boundary_every=message.boundary_every,
                checkpoint_step=message.checkpoint_step,
                checkpoint_digest=message.checkpoint_digest,
                phase=message.phase,
                trouble=one_line(message.trouble, TROUBLE_LENGTH),
                last_seen_at=to_us(now),
                progress_at=to_us(now),
                pause_share=min(max(message.pause_share, 0.0), 1.0),
            )
            _spoke(connection, message, now)
            if to_text(message.layout.to_dict()) != row.layout:
                note_stays(connection, [message.run], now)
        self.liveness.hear(message.run, Sign.of(message, owner_uid, now, message.phase))

    def finish(self, message: Finish, *, owner_uid: int, now: datetime) -> bool:
        """Store the end of a run ("done") or of one incarnation (any other reason), once.

        One that left to sleep may tell so long after, when the daemon is back: its own time counts.

        Returns:
            False: it had ended before, and nothing was stored.

        Raises:
            InputInvalid: no such run. Refused: another owner. Fenced: an older incarnation.
        """
        with self._database.writing() as connection:
            row = speaker(connection, message, owner_uid)
            if row.finish_reason:
                return False
            left_at, release = now, ""
            if leaves_for_queue(message):
                heard, _ = self.liveness.last_heard(LaunchStatus.of(row))
                # Its job ends, so nobody of it has the GPUs until the next one has begun.
                left_at, release = when_it_left(message, heard, now), Release.RELEASED.value
            if message.reason == SUSPENDED:
                heard, _ = self.liveness.last_heard(LaunchStatus.of(row))
                left_at, release = when_it_left(message, heard, now), release_of(row)
                confirm_suspension(connection, message, now)
            values: dict[str, Any] = {
                "step": message.step,
                "tokens": message.tokens,
                "loss": message.loss,
                "last_seen_at": to_us(left_at),
                "finish_reason": message.reason,
            }
            if message.reason == "done":
                values["finished_at"] = to_us(now)
            if message.reason == SUSPENDED:
                values |= asleep(message, left_at)
            values |= queued(message, left_at)
            connection.execute(update(RUNS).where(RUNS.c.run == message.run).values(**values))
            ended = {"ended_at": to_us(left_at), "end_reason": message.reason}
            connection.execute(
                update(INCARNATIONS)
                .where(INCARNATIONS.c.incarnation == message.incarnation)
                .values(**ended, asleep_release=release)
            )
            note_stays(connection, [message.run], left_at)
        self.liveness.forget(message.run)
        return True

    def end(self, run: str, reason: str, *, now: datetime, epoch: int) -> None:
        """End a run on our own account, once; its rows stay, and a finished run is left alone.

        Args:
            run: its id.
            reason: begins with `EXPIRED`: it goes on when it is heard again, and what its launch
                said when it left is kept instead; or with `RETIRED`: only with another launch.
            now: when.
            epoch: of the leader.

        Raises:
            InputInvalid: no such run. Fenced: another daemon leads by now; nothing was written.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            row = find_run(connection, run)
            if row is None:
                raise InputInvalid(f"run {run} is not known; `wattmesh runs` lists those that are")
            if row.finished_at is None:
                heard, _ = self.liveness.last_heard(LaunchStatus.of(row))
                end_run(connection, row, reason, heard=heard, now=now)
        self.liveness.forget(run)

    def unreadable(self, run: str) -> bool:
        """Return whether this process met a row of this id that it could not read."""
        return run in self._unreadable

    def all(self, now: datetime) -> tuple[RunRow, ...]:
        """List every run, oldest first, as it stands at `now`."""
        return self._rows(_ALL, now)

    def open(self, now: datetime, silent: timedelta | None = None) -> tuple[RunRow, ...]:
        """List runs that have not ended, oldest first.

        Args:
            now: the time for which their states are given.
            silent: leave out lost runs that were not heard for longer than this; None: keep all.
        """
        return self._rows(_OPEN, now, lambda row: self._heard(row, now, silent))

    def recent(self, now: datetime, since: datetime) -> tuple[RunRow, ...]:
        """List runs that have not ended, or not before `since`, oldest first."""
        return self._rows(_RECENT, now, since_us=to_us(since))

    def looked_at(self, now: datetime, since: datetime) -> tuple[RunRow, ...]:
        """List the runs that a cycle looks at, oldest first.

        These have not ended, or ended since `since`, or have an open switch or a clock lock.
        """
        return self._rows(_LOOKED_AT, now, since_us=to_us(since))

    def _heard(self, row: Row[Any], now: datetime, silent: timedelta | None) -> bool:
        """Return whether a run is live, or was heard within `silent`, without parsing its row."""
        known = LaunchStatus.of(row)
        if silent is None or self.liveness.state(known, now) in LIVES:
            return True
        return bool(silent) and now - self.liveness.last_heard(known)[0] <= silent

    def find(self, run: str, now: datetime) -> RunRow | None:
        """Find a run by its id, or the newest of that name."""
        found = self.called(run, now)
        return next((each for each in found if each.run == run), next(iter(found), None))

    def called(self, word: str, now: datetime) -> tuple[RunRow, ...]:
        """List every run of that id or name, newest first."""
        return self._rows(_CALLED, now, called=word)

    def beginning(self, word: str, now: datetime) -> tuple[RunRow, ...]:
        """List every run whose id begins with `word`; none if `word` cannot begin an id."""
        if not BEGINNING.fullmatch(word):
            return ()
        return self._rows(_ALL.where(RUNS.c.run.startswith(word)), now)

    def freeze(
        self,
        run: str | None,
        *,
        reason: str,
        by: str,
        now: datetime,
        epoch: int | None = None,
    ) -> None:
        """Freeze one run, or all (None): no act touches it any more.

        Args:
            run: its id.
            reason: why; may be "".
            by: who says so.
            now: when.
            epoch: of the leader, where nobody asked for it.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        words = f"{by}: {reason}" if reason else by
        with self._database.writing() as connection:
            if epoch is not None:
                check_epoch(connection, epoch)
            if run is not None:
                change_run(connection, run, frozen=words)
            else:
                row = {"id": 1, "reason": words, "by": by, "at": to_us(now)}
                upsert(connection, FREEZE, [row])

    def thaw(self, run: str | None, *, now: datetime) -> None:
        """Thaw one run, or all (None); a run's earlier failed switches stop counting."""
        with self._database.writing() as connection:
            if run is not None:
                # Failures so far stop counting, even if a wall clock that was ahead dated them.
                newest = select(func.max(SWITCHES.c.updated_at)).where(SWITCHES.c.run == run)
                thawed_us = max(to_us(now), connection.execute(newest).scalar() or 0)
                change_run(connection, run, frozen="", thawed_at=thawed_us)
            else:
                connection.execute(delete(FREEZE))

    def frozen_all(self) -> str:
        """Give the reason of a freeze of everything; "" when there is none."""
        with self._database.reading() as connection:
            return connection.execute(_FROZEN).scalar() or ""

    def order_point(self, run: str, point: str, *, reason: str, by: str) -> None:
        """Store the point that an operator asks for; the cycle decides about it."""
        words = f"{by}: {reason}" if reason else by
        with self._database.writing() as connection:
            change_run(connection, run, ordered_point=point, ordered_reason=words)

    def clear_ordered_point(self, run: str, point: str, *, epoch: int) -> None:
        """Clear an operator's order to a point that was carried out; a newer order stays.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        carried_out = (RUNS.c.run == run) & (RUNS.c.ordered_point == point)
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            connection.execute(
                update(RUNS).where(carried_out).values(ordered_point="", ordered_reason="")
            )

    def wish_clocks(self, wishes: Mapping[str, int | None], *, now: datetime, epoch: int) -> None:
        """Commit the clock lock wished for each run's GPUs (None: none), before anybody sets it.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
            InputInvalid: a run is not known; nothing was written.
        """
        at_us = to_us(now)
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            for run, clock_mhz in wishes.items():
                change_run(connection, run, clock_mhz=clock_mhz, clock_at=at_us)
            note_stays(connection, list(wishes), now)

    def note_speeds(self, speeds: Mapping[str, str], *, epoch: int) -> None:
        """Store what was measured of the points of some runs, by run.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        rows = [{"which": run, "speeds": text} for run, text in speeds.items()]
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            connection.execute(_NOTE_SPEEDS, rows)

    def _rows(
        self,
        query: Select[Any],
        now: datetime,
        wanted: Callable[[Row[Any]], bool] = bool,
        **values: object,
    ) -> tuple[RunRow, ...]:
        """Read rows; one that cannot be read is left out, and logged once.

        `wanted` filters first, as parsing a row takes longer.
        """
        with self._database.reading() as connection:
            rows = connection.execute(query, values).all()
        found = []
        for row in rows:
            if not wanted(row):
                continue
            try:
                found.append(read_run(row, self.liveness, now))
            except (WattmeshError, ValueError, TypeError, OverflowError) as error:
                if row.run not in self._unreadable:
                    self._unreadable.add(row.run)
                    log.error(
                        "run %s cannot be read from the journal and is left out (%s); "
                        "`wattmesh retire %s` ends it, its rows stay",
                        clean(row.run),
                        clean(str(error)),
                        clean(row.run),
                    )
        return tuple(found)


def _seen(connection: Connection, message: Register, now: datetime) -> None:
    change_run(connection, message.run, last_seen_at=to_us(now))
    _spoke(connection, message, now)


def _spoke(connection: Connection, message: Register | Progress, now: datetime) -> None:
    """Store when an incarnation was last heard."""
    row = {"which": message.incarnation, "last_seen_at": to_us(now)}
    connection.execute(_SPEAKER, row)
