"""The journal: everything wattmesh remembers, as one object with a store per idea."""

from sqlalchemy import inspect, text

from wattmesh import migrations
from wattmesh.controller.journal.budgets import BudgetStore
from wattmesh.controller.journal.by_slot import BySlot
from wattmesh.controller.journal.caps import CapStore
from wattmesh.controller.journal.carbon import CarbonStore
from wattmesh.controller.journal.coverage import CoverageStore
from wattmesh.controller.journal.decisions import DecisionStore
from wattmesh.controller.journal.engine import Database
from wattmesh.controller.journal.events import EventStore
from wattmesh.controller.journal.forecasts import ForecastStore
from wattmesh.controller.journal.leadership import Leadership
from wattmesh.controller.journal.ledger import LedgerStore
from wattmesh.controller.journal.nodes import NodeStore
from wattmesh.controller.journal.outages import OutageStore
from wattmesh.controller.journal.retention import Retention
from wattmesh.controller.journal.run_nodes import RunNodeStore
from wattmesh.controller.journal.runs import RunStore
from wattmesh.controller.journal.signs import SignStore
from wattmesh.controller.journal.stays import StayStore
from wattmesh.controller.journal.switches import SwitchStore
from wattmesh.controller.journal.tokens import TokenStore
from wattmesh.errors import FixInput


class Journal:
    """The stores of one database. Methods raise `JournalUnavailable` when it does not answer."""

    def __init__(self, database: Database) -> None:
        """Put a store over every group of tables."""
        self.database = database
        self.runs = RunStore(database)
        self.signs = SignStore(database, self.runs.liveness)
        self.switches = SwitchStore(database)
        self.decisions = DecisionStore(database)
        self.forecasts = ForecastStore(database)
        self.carbon = CarbonStore(database, self.forecasts)
        self.by_slot = BySlot(database)
        self.ledger = LedgerStore(database, self.by_slot.changed)
        self.coverage = CoverageStore(database, self.ledger.added)
        self.stays = StayStore(database)
        self.budgets = BudgetStore(database)
        self.caps = CapStore(database)
        self.nodes = NodeStore(database, self.ledger.added)
        self.tokens = TokenStore(database)
        self.run_nodes = RunNodeStore(database)
        self.outages = OutageStore(database)
        self.leadership = Leadership(database)
        self.events = EventStore(database)
        self.retention = Retention(database)

    @classmethod
    def open(cls, url: str) -> "Journal":
        """Open a journal whose schema is at this version's revision.

        Raises:
            JournalUnavailable: the database does not answer.
            FixInput: it is at another revision; the message names the command.
        """
        journal = cls(Database(url))
        journal.check_revision()
        return journal

    def check_revision(self) -> None:
        """Refuse a schema of another version; cheap enough for every cycle.

        Raises:
            JournalUnavailable: the database does not answer.
            FixInput: another revision; the message names the next step.
        """
        found = revision(self.database)
        if found == migrations.HEAD:
            return
        name = self.database.name
        if found is None or found in migrations.REVISIONS:
            raise FixInput(
                f"the journal {name} is at revision {found or 'none'}, this wattmesh needs "
                f"{migrations.HEAD}: run `wattmesh db upgrade`"
            )
        raise FixInput(
            f"the journal {name} is at revision {found}, which is newer than this wattmesh "
            f"({migrations.HEAD}): install the newer wattmesh and restart the daemon"
        )

    def close(self) -> None:
        """Close every connection."""
        self.database.close()


def revision(database: Database) -> str | None:
    """Read the schema's revision without alembic; None of an empty database.

    Raises:
        JournalUnavailable: the database does not answer.
    """
    with database.reading() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        found: str | None = connection.execute(
            text("SELECT version_num FROM alembic_version")
        ).scalar()
        return found
