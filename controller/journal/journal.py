"""The journal: everything wattmesh remembers, as one object with a store per idea."""

from collections.abc import Callable

from sqlalchemy import Connection, inspect, select, text

from wattmesh import durable, migrations
from wattmesh.controller.journal.carbon.exogenous import ExogenousStore
from wattmesh.controller.journal.carbon.forecasts import ForecastStore
from wattmesh.controller.journal.carbon.points import CarbonStore
from wattmesh.controller.journal.clock_marks import ClockMarks
from wattmesh.controller.journal.database.copies import in_use
from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import SCHEMA_FLOOR
from wattmesh.controller.journal.decisions import DecisionStore
from wattmesh.controller.journal.energy.budgets import BudgetStore
from wattmesh.controller.journal.energy.by_slot import BySlot
from wattmesh.controller.journal.energy.counters import CounterStore
from wattmesh.controller.journal.energy.coverage import CoverageStore
from wattmesh.controller.journal.energy.ledger import LedgerStore
from wattmesh.controller.journal.energy.ledger_slots import LedgerSlots
from wattmesh.controller.journal.events import EventStore
from wattmesh.controller.journal.leadership import Leadership
from wattmesh.controller.journal.nodes.caps import CapStore
from wattmesh.controller.journal.nodes.node_store import NodeStore
from wattmesh.controller.journal.nodes.tokens import TokenStore
from wattmesh.controller.journal.retention import Retention
from wattmesh.controller.journal.runs.expert_learning import ExpertLearningStore
from wattmesh.controller.journal.runs.outages import OutageStore
from wattmesh.controller.journal.runs.run_nodes import RunNodeStore
from wattmesh.controller.journal.runs.run_store import RunStore
from wattmesh.controller.journal.runs.signs import SignStore
from wattmesh.controller.journal.runs.stays import StayStore
from wattmesh.controller.journal.runs.switches import SwitchStore
from wattmesh.errors import FixInput


class Journal:
    """The stores of one database. Methods raise `JournalUnavailable` when it does not answer."""

    def __init__(self, database: Database, lock: durable.Lock | None = None) -> None:
        """Make a store for every group of tables; `close` releases `lock`."""
        self.database = database
        self._lock = lock
        self.runs = RunStore(database)
        self.signs = SignStore(database, self.runs.liveness)
        self.switches = SwitchStore(database)
        self.decisions = DecisionStore(database)
        self.forecasts = ForecastStore(database)
        self.carbon = CarbonStore(database, self.forecasts)
        self.exogenous = ExogenousStore(database, self.carbon)
        self.by_slot = BySlot(database)
        self.ledger = LedgerStore(database)
        self.ledger_slots = LedgerSlots(database)
        self.coverage = CoverageStore(database, self.ledger.added)
        self.counters = CounterStore(database)
        self.stays = StayStore(database)
        self.expert_learning = ExpertLearningStore(database)
        self.budgets = BudgetStore(database)
        self.caps = CapStore(database)
        self.nodes = NodeStore(database, self.ledger.added)
        self.tokens = TokenStore(database)
        self.run_nodes = RunNodeStore(database)
        self.outages = OutageStore(database)
        self.leadership = Leadership(database)
        self.events = EventStore(database)
        self.retention = Retention(database)
        self.clock_marks = ClockMarks(database)

    @classmethod
    def open(cls, url: str, *, daemon: bool = False) -> "Journal":
        """Open a journal whose schema is at this version's revision.

        Args:
            url: of its database.
            daemon: hold the file's lock until `close`, so that nobody replaces the file.

        Raises:
            JournalUnavailable: the database does not answer (`Locked`: another process has it).
            FixInput: it is at another revision; the message names the command.
        """
        database = Database(url)
        journal = cls(database, in_use(database) if daemon else None)
        try:
            journal.check_revision()
        except BaseException:
            journal.close()
            raise
        return journal

    @classmethod
    def later(cls, url: str, prepare: Callable[[], None], away: str) -> "Journal":
        """Make a daemon's journal whose database does not answer yet; it is checked once it does.

        Args:
            url: of its database.
            prepare: brings its schema up to date where that may be done unasked; may be repeated.
            away: why it does not answer yet.
        """
        journal = cls(Database(url))

        def check(connection: Connection) -> None:
            if journal._lock is None:
                journal._lock = in_use(journal.database)
            prepare()
            _check(journal.database.name, connection)

        journal.database.admit_by(check, away)
        return journal

    def check_revision(self) -> None:
        """Refuse a schema that this version cannot work with; cheap enough for every cycle.

        Raises:
            JournalUnavailable: the database does not answer.
            FixInput: it cannot; the message names the next step.
        """
        with self.database.reading() as connection:
            _check(self.database.name, connection)

    def close(self) -> None:
        """Close every connection and release the lock."""
        self.database.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def revision(database: Database) -> str | None:
    """Read the schema's revision without alembic; None for a database without one.

    Raises:
        JournalUnavailable: the database does not answer.
    """
    with database.reading() as connection:
        return _revision(connection)


_VERSION = text("SELECT version_num FROM alembic_version")
_SQLITE_TABLE = text("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = :name")


def _revision(connection: Connection) -> str | None:
    if not _has_table(connection, "alembic_version"):
        return None
    found: str | None = connection.execute(_VERSION).scalar()
    return found


def _has_table(connection: Connection, name: str) -> bool:
    """Say whether there is such a table; SQLAlchemy's own way is slow for every cycle."""
    if connection.dialect.name == "sqlite":
        return connection.execute(_SQLITE_TABLE, {"name": name}).first() is not None
    return inspect(connection).has_table(name)


def _floor(connection: Connection) -> str | None:
    """Read the oldest revision whose code works with the schema."""
    if not _has_table(connection, SCHEMA_FLOOR.name):
        return None
    found: str | None = connection.execute(select(SCHEMA_FLOOR.c.oldest)).scalar()
    return found


def _check(name: str, connection: Connection) -> None:
    """Refuse a schema that this version cannot work with.

    Raises:
        FixInput: it is older, or newer and no longer fit for us; the message names the next step.
    """
    found = _revision(connection)
    if found == migrations.HEAD:
        return
    if found is None:
        raise FixInput(f"the journal {name} has no tables yet: run `wattmesh db upgrade`")
    if found in migrations.REVISIONS:
        raise FixInput(
            f"the journal {name} is at revision {found}, this wattmesh needs {migrations.HEAD}: "
            "run `wattmesh db upgrade`"
        )
    if _floor(connection) in migrations.REVISIONS:
        return  # it was only added to: we do not see what is new
    raise FixInput(
        f"the journal {name} is at revision {found}, which is newer than this wattmesh "
        f"({migrations.HEAD}): install the newer wattmesh and restart the daemon"
    )
