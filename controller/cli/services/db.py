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

app = typer.Typer(help="Upgrade, back up and restore the journal.")

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
    """Show the revision of the journal, and the one this version needs."""
    answer = _state(url or journal_url(settings.load(config, by_a_person=True)))
    if as_json:
        print_json(answer)
        return
    if answer["current"]:
        print_lines([f"{answer['database']} is up to date (revision {answer['revision']})"])
    else:
        print_lines(
            [
                f"{answer['database']} {_stands(answer['revision'])}, this version needs "
                f"{answer['newest']}: {_next_step(answer['revision'])}"
            ]
        )


@app.command()
def upgrade(
    config: options.Config = options.DEFAULT_CONFIG,
    url: Url = None,
    as_json: options.AsJson = False,
) -> None:
    """Upgrade the journal to the revision that this version needs."""
    where = url or journal_url(settings.load(config, by_a_person=True))
    _upgrade(where)
    answer = _state(where)
    if as_json:
        print_json(answer)
    else:
        print_lines([f"{answer['database']} is up to date (revision {answer['revision']})"])


@app.command()
def backup(
    target: Annotated[
        Path, typer.Argument(metavar="FILE", help="The new file; an existing one is not replaced.")
    ],
    config: options.Config = options.DEFAULT_CONFIG,
    url: Url = None,
    as_json: options.AsJson = False,
) -> None:
    """Copy the SQLite journal into a new file and check the copy; the daemon may run.

    PostgreSQL: use pg_dump (docs/operations.md, Backup and restore).
    """
    made = copies.backup(url or journal_url(settings.load(config, by_a_person=True)), target)
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
    source: Annotated[Path, typer.Argument(metavar="FILE", help="The file that `db backup` made.")],
    config: options.Config = options.DEFAULT_CONFIG,
    url: Url = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Keep the present journal under another name."),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Replace the SQLite journal by a backup; no daemon may run on it.

    The restored journal has an identity of its own: actuators obey it only after root has run the
    printed command on their nodes. PostgreSQL: pg_restore, then `wattmesh db renew`.
    """
    done = copies.restore(
        url or journal_url(settings.load(config, by_a_person=True)),
        source,
        replace=replace,
        now=datetime.now(UTC),
        upgrade=_upgrade,
    )
    told = [f"{done.path} is restored from {source}, checked, revision {migrations.HEAD}"]
    if done.aside is not None:
        told.append(f"the journal that stood there is now {done.aside}")
    _tell(done.identity, told, as_json=as_json, aside=str(done.aside or ""))


@app.command()
def renew(
    config: options.Config = options.DEFAULT_CONFIG,
    url: Url = None,
    as_json: options.AsJson = False,
) -> None:
    """Give a journal that was not restored by `db restore` an identity of its own.

    Run it after pg_restore, or after a snapshot or a file was put back. Otherwise actuators take
    the copy for the journal that it was made from, find it behind, and refuse it. No daemon may
    run on it.
    """
    where = url or journal_url(settings.load(config, by_a_person=True))
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


def _next_step(found: object) -> str:
    if found is None or found in migrations.REVISIONS:
        return "run `wattmesh db upgrade`"
    return "it was made by a newer wattmesh: install that"


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
