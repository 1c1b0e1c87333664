"""The counters that energy is booked up to, of the daemon's own devices and of the nodes'."""

from collections.abc import Collection, Iterator

from sqlalchemy import select

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import COUNTERS, NODE_COUNTERS
from wattmesh.controller.journal.database.values import from_us
from wattmesh.telemetry.energy.ledger import CounterBaseline

MOST_NAMED = 200
"""The most devices that one statement names: databases limit the parameters of a statement."""

_COUNTER = tuple(CounterBaseline.__dataclass_fields__)


class CounterStore:
    """Reads both tables of counters."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database

    def newest(self, gpus: Collection[str]) -> dict[str, CounterBaseline]:
        """Give the newest counter of each of these devices that has one."""
        found: dict[str, CounterBaseline] = {}
        with self._database.reading() as connection:
            for table in (COUNTERS, NODE_COUNTERS):
                for named in _in_batches(gpus):
                    query = select(*(table.c[name] for name in _COUNTER))
                    rows = connection.execute(query.where(table.c.gpu_uuid.in_(named))).all()
                    for row in rows:
                        each = CounterBaseline(**{**row._mapping, "at": from_us(row.at)})
                        known = found.get(each.gpu_uuid)
                        if known is None or each.at > known.at:
                            found[each.gpu_uuid] = each
        return found


def _in_batches(gpus: Collection[str]) -> Iterator[list[str]]:
    named = sorted(gpus)
    for first in range(0, len(named), MOST_NAMED):
        yield named[first : first + MOST_NAMED]
