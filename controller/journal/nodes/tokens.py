"""Tokens of nodes' agents: made here, shown once, stored as a hash, and ended for good.

Invariant: a token is 256 random bits, so its plain SHA-256 reveals nothing; nothing in the journal,
or in a backup of it, gives access. A revoked token has no hash any more, so setting a clock back
does not make it valid again.
"""

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, insert, or_, select, update

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import NODE_TOKENS
from wattmesh.controller.journal.database.values import from_us, one_line, to_us
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.ranges import NODE

TOKEN_BYTES = 32
ENDED = "ended-"
"""Prefix of what replaces the hash of a token that gives no access, whatever the time."""

MOST_VALID = 4
"""The most valid tokens of one node: rotations may follow each other while old tokens still run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One token, without its secret. `ends_at`: when it ended or will; None: it does not."""

    node: str
    made_at: datetime
    made_by: str
    ends_at: datetime | None
    ended_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeToken:
    """What a valid token gives access to: one node, until `ends_at`."""

    node: str
    ends_at: datetime | None


class TokenStore:
    """The table of tokens."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database

    def make(self, node: str, *, by: str, now: datetime, others_end: datetime | None = None) -> str:
        """Make a token for a node and return it; it cannot be shown again.

        Args:
            node: whose token it is.
            by: who asked.
            now: when.
            others_end: when the node's other tokens end; None: it may have none.

        Raises:
            InputInvalid: the node has a token already, or too many, or the name is invalid.
        """
        NODE.read(node, "the node")
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with self._database.writing() as connection:
            there = len(connection.execute(_valid(now).where(NODE_TOKENS.c.node == node)).all())
            if there and others_end is None:
                raise InputInvalid(
                    f"{node} has a token: `wattmesh nodes token rotate {node}` gives it a new one, "
                    "`revoke` ends it"
                )
            if there >= MOST_VALID:
                raise InputInvalid(
                    f"{node} has {there} tokens that are still valid: `wattmesh nodes token revoke "
                    f"{node}` ends them all, then make one"
                )
            if others_end is not None:
                _end(connection, node, others_end, by, now)
            connection.execute(
                insert(NODE_TOKENS).values(
                    digest=digest_of(token),
                    node=node,
                    made_at=to_us(now),
                    made_by=one_line(by, 255),
                    ended_by="",
                )
            )
        return token

    def revoke(self, node: str, *, by: str, now: datetime) -> int:
        """End every token of a node now; return how many."""
        with self._database.writing() as connection:
            return _end(connection, node, now, by, now)

    def all(self) -> tuple[TokenRow, ...]:
        """List every token, ended ones included, oldest first."""
        with self._database.reading() as connection:
            rows = connection.execute(select(NODE_TOKENS).order_by(NODE_TOKENS.c.made_at)).all()
        return tuple(
            TokenRow(
                node=row.node,
                made_at=from_us(row.made_at),
                made_by=row.made_by,
                ends_at=from_us(row.ends_at),
                ended_by=row.ended_by,
            )
            for row in rows
        )

    def valid(self, now: datetime) -> Mapping[str, NodeToken]:
        """Give every token that has not ended, by its digest."""
        with self._database.reading() as connection:
            rows = connection.execute(_valid(now)).all()
        return {row.digest: NodeToken(node=row.node, ends_at=from_us(row.ends_at)) for row in rows}


def digest_of(token: str) -> str:
    """Give the hash that is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _valid(now: datetime) -> Select[Any]:
    ends = NODE_TOKENS.c.ends_at
    kept = NODE_TOKENS.c.digest.not_like(f"{ENDED}%")
    return select(NODE_TOKENS).where(kept, or_(ends.is_(None), ends > to_us(now)))


def _end(connection: Connection, node: str, at: datetime, by: str, now: datetime) -> int:
    """End the valid tokens of a node at a time; one that ends sooner keeps its end.

    When that is now, the hashes of all its tokens are replaced, so that none gives access again.
    """
    table, later_us, ended = NODE_TOKENS.c, max(to_us(at), to_us(now)), 0
    theirs = select(NODE_TOKENS).where(table.node == node, table.digest.not_like(f"{ENDED}%"))
    for row in connection.execute(theirs).all():
        values: dict[str, Any] = {}
        if row.ends_at is None or row.ends_at > later_us:
            values |= {"ends_at": to_us(at), "ended_by": one_line(by, 255)}
            ended += 1
        if at <= now:
            values["digest"] = ENDED + secrets.token_hex(16)
        if values:
            connection.execute(
                update(NODE_TOKENS).where(table.digest == row.digest).values(**values)
            )
    return ended
