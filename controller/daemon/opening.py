"""Open the journal at the start of a daemon, whatever state its database is in."""

from functools import partial

from wattmesh.controller.journal.database.failures import Locked
from wattmesh.controller.journal.database.schema import bring_up_to_date
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.settings.journal_address import journal_url
from wattmesh.controller.settings.model import Settings
from wattmesh.errors import JournalUnavailable


def open_journal(settings: Settings, loop_facts: LoopFacts) -> Journal:
    """Bring the schema up to date where we may, and open the journal.

    A database that others have locked, or a server that does not answer, is opened later. Until
    then the daemon behaves as in any other outage: it holds, and says so.

    Raises:
        JournalUnavailable: an SQLite file cannot be opened, and not because it is locked.
    """
    url = journal_url(settings)
    prepare = partial(bring_up_to_date, url)
    try:
        prepare()
        return Journal.open(url, daemon=True)
    except JournalUnavailable as error:
        if url.startswith("sqlite") and not isinstance(error, Locked):
            raise JournalUnavailable(f"{error}; the daemon was not started") from error
        loop_facts.journal_failed(str(error))
        return Journal.later(url, prepare, str(error))
