"""Runs: who owns them, which incarnation may speak for them, and what they last reported.

Invariant: the first register binds the owner; a report is taken only from the owner and only from
the newest incarnation, so that a launch that was superseded can change nothing any more.
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, delete, func, insert, or_, select, update

from wattmesh.controller.journal.engine import Database
from wattmesh.controller.journal.frozen_catalogue import from_text, point_rows, to_stored
from wattmesh.controller.journal.introduced import first_mark, incarnation_row, registered
from wattmesh.controller.journal.leadership import check_epoch
from wattmesh.controller.journal.liveness import Known, Liveness, Sign
from wattmesh.controller.journal.stays import RESTART, note_stay
from wattmesh.controller.journal.stored import sound
from wattmesh.controller.journal.tables import (
    FREEZE,
    INCARNATIONS,
    POINTS,
    RUNS,
    SWITCHES,
    TOKEN_MARKS,
)
from wattmesh.controller.journal.values import (
    from_us,
    insert_new,
    one_line,
    to_layout,
    to_text,
    to_us,
    upsert,
)
from wattmesh.errors import Fenced, InputInvalid, Refused, WattmeshError
from wattmesh.policies.best_single import best_single
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.ranges import clean
from wattmesh.reconfig.wire import Finish, Progress, Register, Registered

log = logging.getLogger(__name__)

# Made once: building a statement costs more than SQLite takes to run it.
_ALL = select(RUNS).order_by(RUNS.c.registered_at)
_OPEN = _ALL.where(RUNS.c.finished_at.is_(None))
_RECENT = _ALL.where(or_(RUNS.c.finished_at.is_(None), RUNS.c.finished_at >= bindparam("since_us")))
_UNSETTLED = _ALL.where(
    or_(
        RUNS.c.finished_at.is_(None),
        RUNS.c.clock_mhz.is_not(None),
        RUNS.c.run.in_(select(SWITCHES.c.open_run).where(SWITCHES.c.open_run.is_not(None))),
    )
)
_CALLED = (
    select(RUNS)
    .where(or_(RUNS.c.run == bindparam("called"), RUNS.c.name == bindparam("called")))
    .order_by(RUNS.c.registered_at.desc())
)
_HELD = select(RUNS).where(RUNS.c.run == bindparam("which")).with_for_update()
_CHANGE = update(RUNS).where(RUNS.c.run == bindparam("which"))
_SPEAKER = update(INCARNATIONS).where(INCARNATIONS.c.incarnation == bindparam("which"))

_THEIRS = select(RUNS).where(RUNS.c.owner_uid == bindparam("uid"), RUNS.c.finished_at.is_(None))
_NEW = select(func.count()).where(
    RUNS.c.owner_uid == bindparam("uid"),
    RUNS.c.registered_at >= bindparam("since_us"),
    RUNS.c.run != bindparam("which"),
)
_NAMED_FIRST = (
    select(RUNS.c.owner_uid)
    .where(RUNS.c.name == bindparam("called"))
    .order_by(RUNS.c.registered_at)
    .limit(1)
)

EXPIRED = "expired: "
"""A run that we ended for its silence; it goes on when it is heard again."""

RETIRED = "retired: "
"""A run that a person ended; another launch of it begins it again."""

MOST_RUNS = 100_000

NEW_RUNS_FACTOR, NEW_RUNS_TIME = 2, timedelta(hours=1)
"""A user begins at most so many times the quota of new runs in so long."""

TROUBLE_LENGTH = 500
"""Characters that are kept of a run's own sentence."""


class Forgotten(InputInvalid):
    """The run is none of those that are followed; it has to register again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What the settings say about a run; frozen at its first registration.

    Attributes:
        named: the settings name it, so the name belongs to one user: `owner_uid`, or (None) whoever
            registered a run of that name first.
    """

    catalogue: Catalogue | None = None
    baseline: str = ""
    deadline: datetime | None = None
    deadline_after_s: float | None = None
    named: bool = False
    owner_uid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run as it last reported. `state`: live, lost or finished.

    Attributes:
        last_seen_at: its newest sign of life, `phase`: what it was doing then. `progress_at`: its
            newest report of a step of this launch; None before the first.
        trouble: why its newest save step left no checkpoint, as it says; "" when all is well.
        released: GPUs it gave back when it was started again on fewer of them.
        incarnation_at: when the newest launch registered. `outage_from`: since when the one before
            had been silent, when we did not cause that; None when we did, or there was none.
        clock_mhz: lock that is wished for its GPUs, since `clock_at`; None: none.
        protocol: of its hook. `pause_share`: of its time, what it is to be counted with for long
            pauses between two steps.
        speeds: what was measured of points (`wattmesh.controller.measured_speeds`), as text.
    """

    run: str
    name: str
    owner_uid: int
    state: str
    incarnation: str
    attempt: int
    layout: Layout
    ranks: tuple[int, ...]
    world_size: int
    gpus: tuple[str, ...]
    step: int
    samples: int
    tokens: int
    tokens_total: int
    tokens_per_s: float | None
    loss: float | None
    boundary_every: int
    checkpoint_step: int
    checkpoint_digest: str
    phase: str
    trouble: str
    registered_at: datetime
    last_seen_at: datetime
    incarnation_at: datetime
    outage_from: datetime | None
    finished_at: datetime | None
    finish_reason: str
    catalogue: Catalogue | None
    baseline: str
    best_single: str
    deadline: datetime | None
    frozen: str
    ordered_point: str
    ordered_reason: str
    clock_mhz: int | None
    clock_at: datetime | None
    capabilities: tuple[str, ...]
    host: str
    pid: int
    scheduler_key: str
    released: tuple[str, ...] = ()
    protocol: int = 1
    progress_at: datetime | None = None
    pause_share: float = 0.0
    speeds: str = ""

    @property
    def point(self) -> OperatingPoint | None:
        """The catalogue's point it is at: its own layout, and the lock wished for its GPUs."""
        return self.catalogue.find(self.layout, self.clock_mhz) if self.catalogue else None

    @property
    def step_s(self) -> float | None:
        """Usual seconds of a step, as it reports them; None until it has trained a few."""
        if not self.tokens_per_s or not self.step or not self.tokens:
            return None
        return self.tokens / self.step / self.tokens_per_s


class RunStore:
    """The runs table and its incarnations."""

    def __init__(self, database: Database) -> None:
        """Keep the database; who lives is known from here on."""
        self._database = database
        self.liveness = Liveness()
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
    ) -> Registered:
        """Take in one incarnation of a run; a repeat changes nothing.

        Args:
            message: what the run says of itself.
            owner_uid: who says so.
            now: when.
            epoch: of who leads.
            plan: what the settings say of that name.
            most: runs of one user that have not ended; one more ends the longest silent of them.

        Raises:
            Refused: the run, or its name, belongs to another user, or the user has too many.
            Fenced: a newer attempt is known, or another incarnation is still alive.
        """
        with self._database.writing() as connection:
            _check_name(connection, message, owner_uid, plan)
            self._make_room(connection, message, owner_uid, now, most)
            if insert_new(connection, RUNS, _first(message, owner_uid, now, plan)):
                upsert(connection, TOKEN_MARKS, [first_mark(message, now)])
                if plan.catalogue is not None:
                    upsert(connection, POINTS, point_rows(message.run, plan.catalogue))
                connection.execute(insert(INCARNATIONS).values(**incarnation_row(message, now)))
            else:
                row = _find(connection, message.run)
                assert row is not None  # it could not be inserted
                self._check_newer(row, message, owner_uid, now)
                if row.incarnation != message.incarnation:
                    seen_at, _ = self.liveness.seen(Known.of(row))
                    _succeed(connection, row, message, now, to_us(seen_at))
                elif not row.finish_reason or row.finish_reason.startswith(EXPIRED):
                    _go_on(connection, row)
                    _change(connection, message.run, attempt=max(row.attempt, message.attempt))
                    _seen(connection, message, now)
            note_stay(connection, message.run, now)
        self.liveness.hear(message.run, Sign.of(message, owner_uid, now, "registered"))
        return Registered(
            run=message.run, incarnation=message.incarnation, attempt=message.attempt, epoch=epoch
        )

    def progress(self, message: Progress, *, owner_uid: int, now: datetime) -> None:
        """Take in what a run reports; one older than the newest, or after the end, is ignored.

        Raises:
            InputInvalid: no such run. Refused: another owner. Fenced: an older incarnation.
        """
        with self._database.writing() as connection:
            row = speaker(connection, message, owner_uid)
            # A finish is an incarnation's last word, however late its reports arrive.
            if message.seq < row.seq or row.finish_reason:
                return
            _change(
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
                note_stay(connection, message.run, now)
        self.liveness.hear(message.run, Sign.of(message, owner_uid, now, message.phase))

    def finish(self, message: Finish, *, owner_uid: int, now: datetime) -> None:
        """Take in the end of a run ("done") or of one incarnation (anything else); once.

        Raises:
            InputInvalid: no such run. Refused: another owner. Fenced: an older incarnation.
        """
        with self._database.writing() as connection:
            if speaker(connection, message, owner_uid).finish_reason:
                return
            values: dict[str, Any] = {
                "step": message.step,
                "tokens": message.tokens,
                "loss": message.loss,
                "last_seen_at": to_us(now),
                "finish_reason": message.reason,
            }
            if message.reason == "done":
                values["finished_at"] = to_us(now)
            connection.execute(update(RUNS).where(RUNS.c.run == message.run).values(**values))
            connection.execute(
                update(INCARNATIONS)
                .where(INCARNATIONS.c.incarnation == message.incarnation)
                .values(ended_at=to_us(now), end_reason=message.reason)
            )
            note_stay(connection, message.run, now)
        self.liveness.forget(message.run)

    def end(self, run: str, reason: str, *, now: datetime, epoch: int) -> None:
        """End a run in nobody's name but ours; its rows stay. Once; a finished one stays as it is.

        Args:
            run: its id.
            reason: begins with `EXPIRED`: it goes on when it is heard again; or with `RETIRED`:
                only with another launch.
            now: when.
            epoch: of who leads.

        Raises:
            InputInvalid: no such run. Fenced: another daemon leads by now; nothing was written.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            row = _find(connection, run)
            if row is None:
                raise InputInvalid(f"run {run} is not known; `wattmesh runs` lists those that are")
            if row.finished_at is None:
                _end(connection, row, reason, now)
        self.liveness.forget(run)

    def unreadable(self, run: str) -> bool:
        """Say whether this process met a row of this id that it could not read."""
        return run in self._unreadable

    def _make_room(
        self, connection: Connection, message: Register, uid: int, now: datetime, most: int
    ) -> None:
        """End the longest silent run of a user who has as many as may be.

        Raises:
            Refused: all of them report.
        """
        rows = connection.execute(_THEIRS, {"uid": uid}).all()
        others = [row for row in rows if row.run != message.run]
        begun = {"uid": uid, "since_us": to_us(now - NEW_RUNS_TIME), "which": message.run}
        new = connection.execute(_NEW, begun).scalar_one()
        if new >= NEW_RUNS_FACTOR * most and len(others) == len(rows):
            raise Refused(
                f"uid {uid} has begun {new} runs within an hour, and no more than "
                f"{NEW_RUNS_FACTOR * most} are taken (twice api.runs_per_user); wait a while"
            )
        if len(others) < most:
            return
        silent = [row for row in others if self.liveness.state(Known.of(row), now) == "lost"]
        if not silent:
            raise Refused(
                f"uid {uid} has {len(others)} runs that report, and no more than {most} are taken "
                "of one user (api.runs_per_user); end one with `wattmesh retire RUN` first"
            )
        oldest = sorted(silent, key=lambda row: self.liveness.seen(Known.of(row))[0])
        for row in oldest[: len(others) - most + 1]:
            _end(connection, row, f"{EXPIRED}made room for a newer run of uid {uid}", now)
            self.liveness.forget(row.run)

    def all(self, now: datetime) -> tuple[RunRow, ...]:
        """List every run, oldest first, as it stands at `now`."""
        return self._rows(_ALL, now)

    def open(self, now: datetime, silent: timedelta | None = None) -> tuple[RunRow, ...]:
        """List runs that have not ended, oldest first.

        Args:
            now: at which they stand.
            silent: without those that are lost and were not heard for longer; None: with them.
        """
        return self._rows(_OPEN, now, lambda row: self._heard(row, now, silent))

    def live(self, now: datetime) -> tuple[RunRow, ...]:
        """List runs that are live, oldest first."""
        return self.open(now, timedelta(0))

    def recent(self, now: datetime, since: datetime) -> tuple[RunRow, ...]:
        """List runs that have not ended, or not before `since`, oldest first."""
        return self._rows(_RECENT, now, since_us=to_us(since))

    def unsettled(
        self, now: datetime, switching: Collection[str], silent: timedelta
    ) -> tuple[RunRow, ...]:
        """List live runs, and those of which something is still to be settled.

        Args:
            now: at which they stand.
            switching: runs that have an open switch.
            silent: a lost run that was not heard for longer is to be ended.
        """
        return self._rows(
            _UNSETTLED,
            now,
            lambda row: (
                row.run in switching
                or row.clock_mhz is not None
                or self._heard(row, now, timedelta(0))
                or not self._heard(row, now, silent)
            ),
        )

    def _heard(self, row: Row[Any], now: datetime, silent: timedelta | None) -> bool:
        """Say whether a run lives, or was heard within so long; told without reading the row."""
        known = Known.of(row)
        if silent is None or self.liveness.state(known, now) == "live":
            return True
        return bool(silent) and now - self.liveness.seen(known)[0] <= silent

    def find(self, run: str, now: datetime) -> RunRow | None:
        """Find a run by its id, or the newest of that name."""
        found = self.called(run, now)
        return next((each for each in found if each.run == run), next(iter(found), None))

    def called(self, word: str, now: datetime) -> tuple[RunRow, ...]:
        """List every run of that id or name, newest first."""
        return self._rows(_CALLED, now, called=word)

    def freeze(self, run: str | None, *, reason: str, by: str, now: datetime) -> None:
        """Take hands off one run, or off everything (None)."""
        words = f"{by}: {reason}" if reason else by
        with self._database.writing() as connection:
            if run is not None:
                _change(connection, run, frozen=words)
            else:
                row = {"id": 1, "reason": words, "by": by, "at": to_us(now)}
                upsert(connection, FREEZE, [row])

    def thaw(self, run: str | None, *, by: str, now: datetime) -> None:
        """Lay hands on again, and forget failed switches."""
        with self._database.writing() as connection:
            if run is not None:
                _change(connection, run, frozen="", thawed_at=to_us(now))
            else:
                connection.execute(delete(FREEZE))

    def frozen_all(self) -> str:
        """Say why nothing at all is acted upon; "" when it is."""
        with self._database.reading() as connection:
            return connection.execute(select(FREEZE.c.reason)).scalar() or ""

    def order_point(self, run: str, point: str, *, reason: str, by: str, now: datetime) -> None:
        """Remember what an operator asks for; the cycle decides about it."""
        words = f"{by}: {reason}" if reason else by
        with self._database.writing() as connection:
            _change(connection, run, ordered_point=point, ordered_reason=words)

    def clear_ordered_point(self, run: str, point: str) -> None:
        """Forget an order to a point that was carried out; one that came meanwhile stands."""
        carried_out = (RUNS.c.run == run) & (RUNS.c.ordered_point == point)
        with self._database.writing() as connection:
            connection.execute(
                update(RUNS).where(carried_out).values(ordered_point="", ordered_reason="")
            )

    def wish_clock(self, run: str, clock_mhz: int | None, *, now: datetime, epoch: int) -> None:
        """Commit the lock that is wished for a run's GPUs (None: none), before anybody sets it.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            _change(connection, run, clock_mhz=clock_mhz, clock_at=to_us(now))
            note_stay(connection, run, now)

    def note_speeds(self, run: str, speeds: str, *, epoch: int) -> None:
        """Remember what was measured of a run's points.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            _change(connection, run, speeds=speeds)

    def _check_newer(self, row: Row[Any], message: Register, owner_uid: int, now: datetime) -> None:
        """Let a launch in only when it is the newest and its predecessor is gone."""
        if row.owner_uid != owner_uid:
            raise Refused(
                f"run {message.run} belongs to uid {row.owner_uid}; uid {owner_uid} may not "
                "register it"
            )
        if row.incarnation == message.incarnation:
            return
        if message.attempt <= row.attempt:
            raise Fenced(
                f"run {row.name}: attempt {message.attempt} is not newer than attempt "
                f"{row.attempt}, which is known; claim a higher one"
            )
        known = Known.of(row)
        if message.supersedes == row.incarnation or known.ended or known.finished:
            return
        if self.liveness.state(known, now) == "live":
            seen_at, phase = self.liveness.seen(known)
            raise Fenced(
                f"run {row.name}: attempt {row.attempt} on {row.host} is alive (heard "
                f"{(now - seen_at).total_seconds():.1f} s ago, {phase}); end it before launching "
                "another"
            )

    def _rows(
        self,
        query: Select[Any],
        now: datetime,
        wanted: Callable[[Row[Any]], bool] = bool,
        **values: object,
    ) -> tuple[RunRow, ...]:
        """Read rows; one that cannot be read is left out, and the log says so once.

        `wanted` is asked first: to read a row takes longer.
        """
        with self._database.reading() as connection:
            rows = connection.execute(query, values).all()
        found = []
        for row in rows:
            if not wanted(row):
                continue
            try:
                found.append(self._row(row, now))
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

    def _row(self, row: Row[Any], now: datetime) -> RunRow:
        """Read one row."""
        known = Known.of(row)
        last_seen_at, phase = self.liveness.seen(known)
        values = sound(
            {each: getattr(row, each) for each in RunRow.__dataclass_fields__ if hasattr(row, each)}
        )
        values |= {
            "state": self.liveness.state(known, now),
            "phase": phase,
            "layout": to_layout(row.layout),
            "ranks": tuple(json.loads(row.ranks)),
            "gpus": tuple(json.loads(row.gpus)),
            "released": tuple(json.loads(row.released)),
            "capabilities": tuple(json.loads(row.capabilities)),
            "registered_at": from_us(row.registered_at),
            "last_seen_at": last_seen_at,
            "progress_at": from_us(row.progress_at),
            "incarnation_at": from_us(row.incarnation_at),
            "outage_from": from_us(row.outage_from),
            "finished_at": from_us(row.finished_at),
            "clock_at": from_us(row.clock_at),
            "deadline": from_us(row.deadline),
            "catalogue": from_text(row.catalogue) if row.catalogue else None,
        }
        return RunRow(**values)


def speaker(connection: Connection, message: Any, owner_uid: int) -> Row[Any]:
    """Check that a report comes from the owner's newest incarnation; give the run's row.

    Raises:
        InputInvalid: no such run. Refused: another owner. Fenced: an older incarnation.
    """
    return speaking(_find(connection, message.run), message, owner_uid)


def speaking(row: Row[Any] | None, message: Any, owner_uid: int) -> Row[Any]:
    """Check that what is said of a run, as it stands in `row`, is said by whom `speaker` names."""
    if row is None:
        raise InputInvalid(f"run {message.run} is not known; register it first")
    if row.owner_uid != owner_uid:
        raise Refused(
            f"run {row.name} belongs to uid {row.owner_uid}; uid {owner_uid} may not report for it"
        )
    if row.finish_reason.startswith(RETIRED):
        raise Fenced(
            f"run {row.name} was ended with `wattmesh retire` "
            f"({row.finish_reason.removeprefix(RETIRED)}); launch it again to have it counted again"
        )
    if row.finish_reason.startswith(EXPIRED):
        raise Forgotten(f"run {row.name} was ended, {row.finish_reason}; register it again")
    if row.incarnation != message.incarnation or row.attempt != message.attempt:
        raise Fenced(
            f"run {row.name}: attempt {message.attempt} was superseded by attempt {row.attempt}; "
            "it must stop"
        )
    return row


def _check_name(connection: Connection, message: Register, uid: int, plan: RunPlan) -> None:
    """Let nobody but its owner use a name that the settings name.

    Raises:
        Refused: it belongs to another user.
    """
    if not plan.named:
        return
    owner = plan.owner_uid
    if owner is None:
        owner = connection.execute(_NAMED_FIRST, {"called": message.name}).scalar()
    if owner not in (None, uid):
        raise Refused(
            f"the name {message.name} belongs to uid {owner} (runs.{message.name} in the "
            f"settings), so uid {uid} may not register a run of that name: take another"
        )


def _end(connection: Connection, row: Row[Any], reason: str, now: datetime) -> None:
    """Write the end of a run; its launch ended when it was last heard."""
    ended = {"finished_at": to_us(now), "finish_reason": reason}
    connection.execute(update(RUNS).where(RUNS.c.run == row.run).values(**ended))
    connection.execute(
        update(INCARNATIONS)
        .where(INCARNATIONS.c.incarnation == row.incarnation, INCARNATIONS.c.ended_at.is_(None))
        .values(ended_at=row.last_seen_at, end_reason=reason)
    )


def _go_on(connection: Connection, row: Row[Any]) -> None:
    """Take back the end of a launch that was only silent."""
    if row.finish_reason:
        _change(connection, row.run, finished_at=None, finish_reason="")
        connection.execute(
            update(INCARNATIONS)
            .where(INCARNATIONS.c.incarnation == row.incarnation)
            .values(ended_at=None, end_reason="")
        )


def _find(connection: Connection, run: str) -> Row[Any] | None:
    """Read a run's row and hold it for this transaction."""
    return connection.execute(_HELD, {"which": run}).one_or_none()


def _change(connection: Connection, run: str, **values: object) -> None:
    """Change columns of one run."""
    done = connection.execute(_CHANGE, {"which": run, **values})
    if done.rowcount != 1:
        raise InputInvalid(f"run {run} is not known; `wattmesh runs` lists those that are")


def _first(message: Register, owner_uid: int, now: datetime, plan: RunPlan) -> Mapping[str, Any]:
    """Give the row of a run that was never seen before."""
    catalogue, deadline = plan.catalogue, plan.deadline
    if deadline is None and plan.deadline_after_s is not None:
        deadline = now + timedelta(seconds=plan.deadline_after_s)
    baseline = plan.baseline or (catalogue.reference if catalogue else "")
    return {
        **registered(message, now),
        "run": message.run,
        "owner_uid": owner_uid,
        "registered_at": to_us(now),
        "catalogue": to_stored(catalogue) if catalogue else None,
        "catalogue_digest": catalogue.digest if catalogue else "",
        "baseline": baseline,
        "best_single": _best_single(catalogue, baseline, message, now, deadline),
        "deadline": to_us(deadline),
    }


def _best_single(
    catalogue: Catalogue | None,
    baseline: str,
    message: Register,
    now: datetime,
    deadline: datetime | None,
) -> str:
    """Choose what a saving is parted by; "" where there is none to tell."""
    if catalogue is None or baseline not in {point.id for point in catalogue.points}:
        return ""
    return best_single(
        catalogue,
        baseline,
        tokens=(message.tokens_total or catalogue.tokens_total) - message.tokens,
        world_size=message.world_size,
        seconds=None if deadline is None else (deadline - now).total_seconds(),
    )


def _succeed(
    connection: Connection, row: Row[Any], message: Register, now: datetime, seen_us: int
) -> None:
    """Let a launch take the place of the one before, which ended when it was last seen."""
    ours = row.finish_reason == RESTART
    released = _given_back(row, message) if ours else []
    values = {
        **registered(message, now),
        "outage_from": None if ours else seen_us,
        "released": to_text(released),
    }
    connection.execute(update(RUNS).where(RUNS.c.run == message.run).values(**values))
    connection.execute(
        update(INCARNATIONS)
        .where(INCARNATIONS.c.incarnation == row.incarnation)
        .where(INCARNATIONS.c.ended_at.is_(None))
        .values(ended_at=seen_us, end_reason="superseded")
    )
    upsert(connection, INCARNATIONS, [incarnation_row(message, now, released)])


def _given_back(row: Row[Any], message: Register) -> list[str]:
    """Name the GPUs that a run we restarted no longer has, those of earlier restarts too."""
    before = {*json.loads(row.gpus), *json.loads(row.released)} - {""}
    return sorted(before.difference(message.gpus))


def _seen(connection: Connection, message: Register, now: datetime) -> None:
    """Remember that a run's incarnation spoke."""
    _change(connection, message.run, last_seen_at=to_us(now))
    _spoke(connection, message, now)


def _spoke(connection: Connection, message: Register | Progress, now: datetime) -> None:
    """Remember it of the incarnation alone."""
    row = {"which": message.incarnation, "last_seen_at": to_us(now)}
    connection.execute(_SPEAKER, row)
