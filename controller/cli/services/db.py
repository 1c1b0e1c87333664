"""`wattmesh db`: the journal's schema shown and brought up to date, its backup and its restore."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.exc import SQLAlchemyError

from wattmesh import migrations
from wattmesh.controller.cli import options
from wattmesh.controller.cli.output import print_json, print_lines
from wattmesh.controller.journal.database import copies, identity
from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.identity import JournalIdentity
from wattmesh.controller.journal.journal import Journal, revision
from wattmesh.controller.settings import read as settings
from wattmesh.controller.settings.journal_address import journal_url
from wattmesh.errors import JournalUnavailable
from wattmesh.migrations.upgrade import upgrade as run_upgrade
from wattmesh.telemetry.actuator.rules.fence import hand_over

app = typer.Typer(help="The journal: its schema, its backup, its restore.")

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The journal; default the one in the settings."),
]


@app.command()
def current(
    config: options.Config = options.DEFAULT_CONFIG,
    url: Url = None,
    as_json: options.AsJson = False,
) -> None:
    """Show which revision the journal is at, and the one this version needs."""
    answer = _state(url or journal_url(settings.load(config)))
    if as_json:
        print_json(answer)
        return
    if answer["current"]:
        print_lines([f"{answer['database']} is up to date (revision {answer['revision']})"])
    else:
        print_lines(
            [
                f"{answer['database']} {_stands(answer['revision'])}, this version needs "
                f"{answer['newest']}: run `wattmesh db upgrade`"
            ]
        )


@app.command()
def upgrade(
    config: options.Config = options.DEFAULT_CONFIG,
    url: Url = None,
    as_json: options.AsJson = False,
) -> None:
    """Bring the journal up to date; what is up to date already is left alone."""
    where = url or journal_url(settings.load(config))
    _upgrade(where)
    answer = _state(where)
    if as_json:
        print_json(answer)
    else:
        print_lines([f"{answer['database']} is up to date (revision {answer['revision']})"])


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The new file; none is replaced.")],
    config: options.Config = options.DEFAULT_CONFIG,
    url: Url = None,
    as_json: options.AsJson = False,
) -> None:
    """Copy the whole SQLite journal into a new file, while the daemon runs or not; it is checked.

    PostgreSQL: use pg_dump (docs/operations.md, Backup and restore).
    """
    made = copies.backup(url or journal_url(settings.load(config)), target)
    if as_json:
        print_json(
            {
                "file": str(made.path),
                "bytes": made.size,
                "revision": made.revision,
                "journal": made.journal,
            }
        )
        return
    print_lines([f"{made.path}: {made.size} bytes, checked, revision {made.revision}"])


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="What `db backup` made.")],
    config: options.Config = options.DEFAULT_CONFIG,
    url: Url = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Move aside the journal that stands there; it is kept."),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Put a backup in the place of the SQLite journal; no daemon may run on it.

    What is restored is a journal of its own: actuators obey it once root hands them over, with the
    command that is printed. PostgreSQL: pg_restore, then `wattmesh db renew`.
    """
    done = copies.restore(
        url or journal_url(settings.load(config)),
        source,
        replace=replace,
        now=datetime.now(UTC),
        upgrade=_upgrade,
    )
    told = [f"{done.path} is restored from {source}, checked, revision {migrations.HEAD}"]
    if done.aside is not None:
        told.append(f"what stood there is {done.aside} now")
    _tell(done.identity, told, as_json=as_json, aside=str(done.aside or ""))


@app.command()
def renew(
    config: options.Config = options.DEFAULT_CONFIG,
    url: Url = None,
    as_json: options.AsJson = False,
) -> None:
    """Give a journal that was put back by other means than `db restore` an identity of its own.

    After pg_restore, a snapshot, or a file that was copied back: else actuators take it for the
    journal that it is a copy of, which is ahead of it, and refuse it. No daemon may run on it.
    """
    where = url or journal_url(settings.load(config))
    journal = Journal.open(where)
    try:
        made = identity.renew(journal.database)
    finally:
        journal.close()
    _tell(made, [f"{journal.database.name} is a journal of its own now"], as_json=as_json)


def _tell(made: JournalIdentity, told: Sequence[str], *, as_json: bool, **more: str) -> None:
    """Print a journal's identity, and the command that makes actuators obey it."""
    # The first leader increments the epoch.
    step = hand_over(made.journal, made.epoch + 1)
    if as_json:
        named = {"journal": made.journal, "came_from": made.came_from, "epoch": made.epoch}
        print_json(named | {"next": step} | more)
        return
    print_lines([*told, "next: start the daemon; then, for each GPU node with an actuator,", step])


def _upgrade(url: str) -> None:
    """Bring a journal up to date.

    Raises:
        JournalUnavailable: the upgrade failed; the journal is unchanged.
    """
    try:
        run_upgrade(url)
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise JournalUnavailable(
            f"The journal {Database(url).name} was not upgraded ({cause}); nothing was changed, "
            "mend that and run this again."
        ) from error


def _stands(found: object) -> str:
    """Say at which revision a journal is; an empty one has none."""
    return "has no tables yet" if found is None else f"is at revision {found}"


def _state(url: str) -> dict[str, object]:
    database = Database(url)
    try:
        found = revision(database)
    finally:
        database.close()
    return {
        "database": database.name,
        "revision": found,
        "newest": migrations.HEAD,
        "current": found == migrations.HEAD,
    }
