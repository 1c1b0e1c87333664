"""`wattmesh settings`: name every mistake of a settings file, or print one to start from."""

from pathlib import Path
from typing import Annotated

import typer

from wattmesh import durable
from wattmesh.controller.cli import options
from wattmesh.controller.cli.output import print_answer, print_json, print_lines
from wattmesh.controller.settings import read as reader
from wattmesh.controller.settings import text as settings_text
from wattmesh.errors import InputInvalid, SettingsInvalid

app = typer.Typer(help="Check the daemon's settings file, or print one to start from.")


@app.command()
def check(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", envvar="WATTMESH_CONFIG", help="Settings file.")
    ] = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
) -> None:
    """Name every mistake in FILE at once, with its key and what is allowed."""
    try:
        reader.load(file)
    except SettingsInvalid as error:
        if as_json:
            print_json(_answer(file, error.mistakes))
        raise
    print_answer(_answer(file, ()), lambda: [f"settings {file} have no mistakes"], as_json)


@app.command()
def sample(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Write the sample to FILE, not to the screen."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Print a settings file that names and explains every key."""
    if as_json:
        keys = settings_text.keys()
        print_json(
            [
                {"key": k.path, "kind": k.kind, "default": k.default, "meaning": k.meaning}
                for k in keys
            ]
        )
    elif file is None:
        print(settings_text.sample(), end="")
    else:
        _write(file)


def _write(file: Path) -> None:
    """Write the sample where nothing stands yet; its folder is made."""
    if file.exists():
        raise InputInvalid(f"{file} exists already and was not touched; name another file.")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        durable.write_text(file, settings_text.sample())
    except OSError as error:
        raise InputInvalid(f"{file} cannot be written: {error.strerror}.") from error
    print_lines([f"wrote {file}; `wattmesh settings check {file}` checks it"])


def _answer(file: Path, mistakes: tuple[tuple[str, str], ...]) -> dict[str, object]:
    return {
        "file": str(file),
        "ok": not mistakes,
        "mistakes": [{"key": key, "text": text} for key, text in mistakes],
    }
