"""Through which node a run reports: the one whose agent registered its newest launch.

Invariant: what is remembered was read or written by this process under the epoch it leads with, so
no other daemon has bound the run elsewhere since.
"""

from sqlalchemy import select

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import RUN_NODES
from wattmesh.controller.journal.database.values import upsert

HERE = ""
"""The run reports on the daemon's own socket, not through an agent."""

ANY = "*"
"""The run reports through an agent with the shared token, so its node is not known."""

MOST_REMEMBERED = 100_000


class RunNodeStore:
    """The table of bindings, with a cache."""

    def __init__(self, database: Database) -> None:
        """Begin with an empty cache."""
        self._database = database
        self._known: dict[str, tuple[int | None, str]] = {}

    def remembered(self, run: str, epoch: int | None) -> str | None:
        """Give a run's node from the cache; None: call `of`."""
        known = self._known.get(run)
        return known[1] if known and known[0] == epoch else None

    def of(self, run: str, epoch: int | None) -> str | None:
        """Give a run's node; None while it is unknown (it registered with an older daemon)."""
        known = self.remembered(run, epoch)
        if known is not None:
            return known
        with self._database.reading() as connection:
            node: str | None = connection.execute(
                select(RUN_NODES.c.node).where(RUN_NODES.c.run == run)
            ).scalar()
        if node is not None:
            self._remember(run, epoch, node)
        return node

    def bind(self, run: str, node: str, epoch: int | None) -> None:
        """Bind a run to a node."""
        with self._database.writing() as connection:
            upsert(connection, RUN_NODES, [{"run": run, "node": node}])
        self._remember(run, epoch, node)

    def _remember(self, run: str, epoch: int | None, node: str) -> None:
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known[run] = (epoch, node)
