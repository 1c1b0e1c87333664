"""What is wrong with the database, said so that a person knows what to do next. Pure.

Invariant: one sentence of what happened, with the driver's own words where they help, and what to
do; never a traceback.
"""

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from wattmesh.errors import JournalUnavailable

_LOCKED = ("database is locked", "lock timeout", "database table is locked", "deadlock detected")
_FULL = ("database or disk is full", "No space left", "could not extend")
_CLOSED = ("readonly database", "unable to open")
_NO_RIGHT = ("permission denied for",)
_READS_ONLY = ("read-only transaction", "hot standby")
_TAKES_NOBODY = (
    "not currently accepting connections",
    "too many connections",
    "too many clients",
    "remaining connection slots",
)
_DAMAGED = ("malformed", "not a database", "invalid page", "could not read block")
_OTHER_SHAPE = ("no such table", "no such column", "does not exist")
_REFUSED = ("password authentication", "no password supplied", "pg_hba.conf", 'FATAL:  role "')
_ABSENT = ("FATAL:  database",)
_AWAY = (
    "connection failed",
    "connection refused",
    "Connection refused",
    "closed the connection",
    "terminating connection",
    "shutting down",
    "starting up",
    "connection is bad",
    "timeout expired",
    "consuming input failed",
    "lost synchronization",
)


class Locked(JournalUnavailable):
    """Another process holds the database for now: callers wait for it, also at start-up."""


def unavailable(error: SQLAlchemyError, where: str, waited_s: float) -> JournalUnavailable:
    """Turn SQLAlchemy's error into ours, with the message of `in_words`."""
    kind = Locked if any(sign in _cause(error) for sign in _LOCKED) else JournalUnavailable
    return kind(in_words(error, where, waited_s))


def locked(where: str, waited_s: float) -> Locked:
    """Return the error which says that another process holds the database.

    Args:
        where: the database, as the sentence begins.
        waited_s: how long was waited for it.
    """
    return Locked(f"{where} {_locked(waited_s)}")


def in_words(error: SQLAlchemyError, where: str, waited_s: float) -> str:
    """Say what is wrong with the database `where` and what to do.

    Args:
        error: as SQLAlchemy raised it.
        where: the database, as the sentence begins.
        waited_s: how long a lock is waited for.
    """
    if isinstance(error, PoolTimeout):
        return (
            f"{where} is too slow: every connection was busy for more than {waited_s:.0f} s; look "
            "at its disk, nothing acknowledged is lost"
        )
    cause = _cause(error)
    for signs, sentence in (
        (_LOCKED, _locked(waited_s)),
        (_FULL, "cannot grow, its disk is full; free some space there"),
        (_REFUSED, f"refuses us ({cause}); check the user and journal.password_file"),
        (_TAKES_NOBODY, f"takes no connection ({cause}); see who holds them in `pg_stat_activity`"),
        (_NO_RIGHT, f"refuses us ({cause}); make its tables our user's (`ALTER TABLE ... OWNER`)"),
        (
            _READS_ONLY,
            f"takes no writes ({cause}); name the primary in journal.url, for this is a replica or "
            "is set to read-only",
        ),
        (_ABSENT, f"is not on its server ({cause}); create it, then run `wattmesh db upgrade`"),
        (_AWAY, f"does not answer ({cause}); start it, or mend the way to it"),
        (_CLOSED, f"cannot be opened for writing ({cause}); check the folder and its owner"),
        (_DAMAGED, f"is damaged ({cause}); stop wattmesh and put a good copy in its place"),
        (_OTHER_SHAPE, f"lacks a table ({cause}); run `wattmesh db upgrade`"),
    ):
        if any(sign in cause for sign in signs):
            return f"{where} {sentence}"
    return f"{where} does not answer ({cause}); check the database and its disk"


def _cause(error: SQLAlchemyError) -> str:
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0]


def _locked(waited_s: float) -> str:
    return (
        f"is locked by another process for more than {waited_s:.0f} s; end whatever has it open "
        "(`fuser` names it for SQLite, `pg_stat_activity` for PostgreSQL)"
    )
