"""Who may begin a run, who may report for it, and how it ends.

Invariant: the first register binds the owner; a report is taken only from the owner and only from
the newest incarnation, so a superseded launch can change nothing.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, case, func, select, update

from wattmesh.controller.journal.database.tables import INCARNATIONS, RUN_NODES, RUNS
from wattmesh.controller.journal.database.values import to_text, to_us, upsert
from wattmesh.controller.journal.runs.frozen_catalogue import to_stored
from wattmesh.controller.journal.runs.introduced import (
    incarnation_row,
    registered,
    registered_gpus,
)
from wattmesh.controller.journal.runs.liveness import LaunchStatus, Liveness
from wattmesh.controller.journal.runs.run_nodes import HERE
from wattmesh.controller.journal.runs.run_row import RunPlan
from wattmesh.controller.journal.runs.sleeps import AWAKE, woken
from wattmesh.controller.journal.runs.stays import OURS, RESTART
from wattmesh.errors import Fenced, InputInvalid, Refused, RetryLater
from wattmesh.policies.best_single import best_single
from wattmesh.reconfig.catalogue import Catalogue
from wattmesh.reconfig.wire.messages import Register

_HELD = select(RUNS).where(RUNS.c.run == bindparam("which")).with_for_update()
_CHANGE = update(RUNS).where(RUNS.c.run == bindparam("which"))
_BOUND = RUNS.outerjoin(RUN_NODES, RUN_NODES.c.run == RUNS.c.run)
_VOUCHED = and_(
    RUNS.c.owner_uid == bindparam("uid"), func.coalesce(RUN_NODES.c.node, HERE) == bindparam("node")
)
_THEIRS = select(RUNS).select_from(_BOUND).where(_VOUCHED, RUNS.c.finished_at.is_(None))
_NEW = (
    select(func.count())
    .select_from(_BOUND)
    .where(
        _VOUCHED,
        RUNS.c.registered_at.between(bindparam("since_us"), bindparam("until_us")),
        RUNS.c.run != bindparam("which"),
    )
)
_LAUNCHES = (
    select(
        func.count(case((INCARNATIONS.c.run == bindparam("which"), 1))),
        func.coalesce(
            func.sum(
                func.length(INCARNATIONS.c.gpus)
                + func.length(INCARNATIONS.c.allocated)
                + func.length(INCARNATIONS.c.released)
            ),
            0,
        ),
    )
    .select_from(_BOUND.join(INCARNATIONS, INCARNATIONS.c.run == RUNS.c.run))
    .where(
        _VOUCHED, INCARNATIONS.c.started_at.between(bindparam("since_us"), bindparam("until_us"))
    )
)
_NAMED_FIRST = (
    select(RUNS.c.owner_uid)
    .where(RUNS.c.name == bindparam("called"))
    .order_by(RUNS.c.registered_at)
    .limit(1)
)

EXPIRED = "expired: "
"""Begins the reason of a run that we ended for its silence; it goes on when it is heard again."""

RETIRED = "retired: "
"""Begins the reason of a run that a person ended; another launch begins it again."""

MOST_RUNS = 100_000

NEW_RUNS_FACTOR, NEW_RUNS_TIME = 2, timedelta(hours=1)
"""Within this time a user begins at most so many times as many runs as the quota allows."""


MOST_LAUNCHES = 240
"""Launches of one run within an hour: as many as one that is restarted every 15 s makes."""

MOST_NAMED = 16 << 20
"""Letters of GPU names in the launches of one user within an hour: 250,000 GPUs."""


class Forgotten(InputInvalid):
    """The run is not followed any more; it has to register again."""


def speaker(connection: Connection, message: Any, owner_uid: int) -> Row[Any]:
    """Check that a report comes from the owner's newest incarnation; give the run's row.

    Raises:
        InputInvalid: no such run. Refused: another owner. Fenced: an older incarnation.
    """
    row: Row[Any] = speaking(find_run(connection, message.run), message, owner_uid)
    return row


def speaking(row: Any, message: Any, owner_uid: int) -> Any:
    """Check that a report on the run in `row` comes from its owner's newest incarnation."""
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


def check_name(connection: Connection, message: Register, uid: int, plan: RunPlan) -> None:
    """Let only its owner use a name that the settings give to a run.

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


def end_run(
    connection: Connection, row: Row[Any], reason: str, *, heard: datetime, now: datetime
) -> None:
    """Write the end of a run; its launch ended when it was last heard.

    A launch that said why it leaves keeps that as the reason when its run expires; one that left
    for a restart or a sleep of ours does not, because its run was to go on. A point that was
    ordered meanwhile is forgotten: a later launch is not moved by an old order.

    Args:
        connection: of the transaction.
        row: the run.
        reason: begins with `EXPIRED` or `RETIRED`.
        heard: its newest heartbeat, which the journal may not have yet.
        now: when.
    """
    if reason.startswith(EXPIRED) and row.finish_reason not in ("", *OURS):
        reason = row.finish_reason
    ended = {"finished_at": to_us(now), "finish_reason": reason, "last_seen_at": to_us(heard)}
    ended |= {"ordered_point": "", "ordered_reason": "", **AWAKE}
    connection.execute(update(RUNS).where(RUNS.c.run == row.run).values(**ended))
    connection.execute(
        update(INCARNATIONS)
        .where(INCARNATIONS.c.incarnation == row.incarnation, INCARNATIONS.c.ended_at.is_(None))
        .values(ended_at=to_us(heard), end_reason=reason)
    )


def go_on(connection: Connection, row: Row[Any]) -> None:
    """Undo the end of a launch that was only silent."""
    if row.finish_reason:
        change_run(connection, row.run, finished_at=None, finish_reason="")
        connection.execute(
            update(INCARNATIONS)
            .where(INCARNATIONS.c.incarnation == row.incarnation)
            .values(ended_at=None, end_reason="")
        )


def make_room(
    connection: Connection,
    liveness: Liveness,
    message: Register,
    uid: int,
    *,
    now: datetime,
    most: int,
    node: str = HERE,
) -> None:
    """End the runs of a user that were silent longest, when the user is at the quota.

    Runs are counted per node that vouches for the uid, so uids that a node makes up use no quota of
    other nodes.

    Raises:
        Refused: all of them report, or the user began too many runs within an hour.
    """
    whose = {"uid": uid, "node": node}
    rows = connection.execute(_THEIRS, whose).all()
    others = [row for row in rows if row.run != message.run]
    begun = {**whose, **_around(now), "which": message.run}
    new = connection.execute(_NEW, begun).scalar_one()
    if new >= NEW_RUNS_FACTOR * most and len(others) == len(rows):
        raise Refused(
            f"uid {uid} has begun {new} runs within an hour, and no more than "
            f"{NEW_RUNS_FACTOR * most} are taken (twice api.runs_per_user); wait a while"
        )
    if len(others) < most:
        return
    silent = [row for row in others if liveness.state(LaunchStatus.of(row), now) == "lost"]
    if not silent:
        raise Refused(
            f"uid {uid} has {len(others)} runs that report, and no more than {most} are taken "
            "of one user (api.runs_per_user); end one with `wattmesh retire RUN` first"
        )
    heard = {row.run: liveness.last_heard(LaunchStatus.of(row))[0] for row in silent}
    made_room = f"{EXPIRED}made room for a newer run of uid {uid}"
    for row in sorted(silent, key=lambda row: heard[row.run])[: len(others) - most + 1]:
        end_run(connection, row, made_room, heard=heard[row.run], now=now)
        liveness.forget(row.run)


def check_launches(
    connection: Connection, message: Register, uid: int, *, now: datetime, node: str = HERE
) -> None:
    """Limit launches and their GPU names per hour: the journal keeps every launch.

    Raises:
        RetryLater: the limit is reached.
    """
    asked = {"uid": uid, "node": node, **_around(now), "which": message.run}
    launches, letters = connection.execute(_LAUNCHES, asked).one()
    if launches >= MOST_LAUNCHES:
        raise RetryLater(
            f"run {message.run} was launched {launches} times within an hour, and no more are "
            "kept: see why it ends; it trains on, and is let in again as the hour passes"
        )
    _check_letters(letters, message, uid)


def _check_letters(letters: int, message: Register, uid: int) -> None:
    named = len(to_text(message.gpus)) + len(to_text(message.allocated))
    if letters and letters + named > MOST_NAMED:
        raise RetryLater(
            f"launches of uid {uid} named GPUs with {letters} letters within an hour, and no more "
            f"than {MOST_NAMED} are kept: launch less often; it is let in as the hour passes"
        )


def _around(now: datetime) -> dict[str, int]:
    """Give the hour before now and the hour after, in microseconds since 1970.

    With the hour after, launches dated by a clock that was up to an hour ahead count. Launches that
    a clock dated a year ahead do not, so they lock nobody out for a year.
    """
    return {"since_us": to_us(now - NEW_RUNS_TIME), "until_us": to_us(now + NEW_RUNS_TIME)}


def knows_more(row: Row[Any], message: Register) -> bool:
    """Return whether a launch names other GPUs than when it registered before."""
    return any(getattr(row, name) != said for name, said in registered_gpus(message).items())


def name_gpus(
    connection: Connection, message: Register, uid: int, *, now: datetime, node: str = HERE
) -> None:
    """Store the GPUs that a launch names after its first register.

    Raises:
        RetryLater: GPU names reached their limit for an hour.
    """
    asked = {"uid": uid, "node": node, **_around(now), "which": message.run}
    _check_letters(connection.execute(_LAUNCHES, asked).one()[1], message, uid)
    known = registered_gpus(message)
    change_run(connection, message.run, **known)
    connection.execute(
        update(INCARNATIONS)
        .where(INCARNATIONS.c.incarnation == message.incarnation)
        .values(gpus=known["gpus"], allocated=known["allocated"])
    )


def check_newer(
    row: Row[Any], liveness: Liveness, message: Register, owner_uid: int, now: datetime
) -> None:
    """Admit a launch only when it is the newest and its predecessor is gone.

    Raises:
        Refused: the run belongs to another user. Fenced: it is not the newest, or another is live.
    """
    if row.owner_uid != owner_uid:
        raise Refused(
            f"run {message.run} belongs to uid {row.owner_uid}; uid {owner_uid} may not register it"
        )
    if row.incarnation == message.incarnation:
        return
    if message.attempt <= row.attempt:
        raise Fenced(
            f"run {row.name}: attempt {message.attempt} is not newer than attempt "
            f"{row.attempt}, which is known; claim a higher one"
        )
    known = LaunchStatus.of(row)
    if message.supersedes == row.incarnation or known.ended or known.finished:
        return
    if liveness.state(known, now) == "live":
        seen_at, phase = liveness.last_heard(known)
        raise Fenced(
            f"run {row.name}: attempt {row.attempt} on {row.host} is alive (heard "
            f"{(now - seen_at).total_seconds():.1f} s ago, {phase}); end it before launching "
            "another"
        )


def first_row(message: Register, owner_uid: int, now: datetime, plan: RunPlan) -> Mapping[str, Any]:
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
    """Choose the best single point, by which a saving is split; "" when there is none."""
    if catalogue is None or baseline not in {point.id for point in catalogue.points}:
        return ""
    return best_single(
        catalogue,
        baseline,
        tokens=(message.tokens_total or catalogue.tokens_total) - message.tokens,
        world_size=message.world_size,
        seconds=None if deadline is None else (deadline - now).total_seconds(),
    )


def succeed(
    connection: Connection,
    row: Row[Any],
    message: Register,
    now: datetime,
    seen_us: int,
    *,
    doubted: bool = False,
) -> None:
    """Replace the launch before by this one; the one before ended when it was last seen.

    `doubted`: the wall clock may be wrong, so how long this launch waited is not known.
    """
    restarts = row.finish_reason == RESTART
    released = _given_back(row, message, ours=restarts)
    values = {
        **registered(message, now),
        **woken(row),
        "outage_from": None if row.finish_reason in OURS else seen_us,
        "released": to_text(released),
    }
    connection.execute(update(RUNS).where(RUNS.c.run == message.run).values(**values))
    connection.execute(
        update(INCARNATIONS)
        .where(INCARNATIONS.c.incarnation == row.incarnation)
        .where(INCARNATIONS.c.ended_at.is_(None))
        .values(ended_at=seen_us, end_reason="superseded")
    )
    began = {**incarnation_row(message, now, released), "waited_us": None}
    if restarts and message.asked_s is not None and not doubted:
        # The daemon may have been away: only the launch knows since when it is there.
        began["waited_us"] = max(0, to_us(now) - round(message.asked_s * 1e6) - row.last_seen_at)
    upsert(connection, INCARNATIONS, [began])


def _given_back(row: Row[Any], message: Register, *, ours: bool) -> list[str]:
    """Name the GPUs that a run gave back and does not hold again.

    After a restart that we ordered, GPUs that the new launch lacks are given back, as many as it
    has fewer: for each that it took elsewhere another one idles that was idle before. Any other
    launch gives none back: what was given back before stays so, but for GPUs that the launch holds.
    A launch holds what its job has, used or not.
    """
    left = (*json.loads(row.gpus), *json.loads(row.allocated)) if ours else ()
    before = {*json.loads(row.released), *left} - {""}
    holds = {*message.gpus, *message.allocated} - {""}
    lacks = sorted(before - holds)
    fewer = len(before) - len(holds)
    return lacks[: max(0, fewer)] if ours else lacks


def find_run(connection: Connection, run: str) -> Row[Any] | None:
    """Read a run's row and hold it for this transaction."""
    return connection.execute(_HELD, {"which": run}).one_or_none()


def change_run(connection: Connection, run: str, **values: object) -> None:
    """Change columns of one run."""
    done = connection.execute(_CHANGE, {"which": run, **values})
    if done.rowcount != 1:
        raise InputInvalid(f"run {run} is not known; `wattmesh runs` lists those that are")
