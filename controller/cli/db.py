"""`wattmesh db`: the journal's schema, shown and brought up to date."""

from typing import Annotated

import typer
from sqlalchemy.exc import SQLAlchemyError

from wattmesh import migrations
from wattmesh.controller.cli import options
from wattmesh.controller.cli.output import print_json, print_lines
from wattmesh.controller.journal.engine import Database
from wattmesh.controller.journal.journal import revision
from wattmesh.controller.settings import read as settings
from wattmesh.errors import JournalUnavailable
from wattmesh.migrations.upgrade import upgrade as run_upgrade

app = typer.Typer(help="The journal's schema.")

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
    answer = _state(url or settings.load(config).journal.url)
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
    where = url or settings.load(config).journal.url
    try:
        run_upgrade(where)
    except SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise JournalUnavailable(
            f"The journal {Database(where).name} was not upgraded ({cause}); nothing was changed, "
            "mend that and run this again."
        ) from error
    answer = _state(where)
    if as_json:
        print_json(answer)
    else:
        print_lines([f"{answer['database']} is up to date (revision {answer['revision']})"])


def _stands(found: object) -> str:
    """Say at which revision a journal is; an empty one is at none."""
    return "has no tables yet" if found is None else f"is at revision {found}"


def _state(url: str) -> dict[str, object]:
    """Give the keys of `db current --json`."""
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
