"""`wattmesh report`: what a month came to, for people, programs, spreadsheets and slides."""

import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from wattmesh.controller.cli import options
from wattmesh.controller.cli.answers import ask
from wattmesh.controller.cli.output import print_json, print_lines, to_json
from wattmesh.controller.cli.report_csv import as_csv
from wattmesh.controller.cli.report_screen import screen
from wattmesh.durable import write_bytes
from wattmesh.errors import InputInvalid, WattmeshError

DRAWING_S = 120.0


class Format(StrEnum):
    """How it is written."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    PNG = "png"


def report(
    month: Annotated[
        str | None,
        typer.Option("--month", metavar="YYYY-MM", help="Which month; default the running one."),
    ] = None,
    form: Annotated[
        Format,
        typer.Option("--format", help="A screen, JSON, a table for spreadsheets, a picture."),
    ] = Format.TEXT,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write it there, not to the terminal."),
    ] = None,
    *,
    socket: options.Socket = options.SOCKET,
    offline: options.Offline = None,
    as_json: options.AsJson = False,
) -> None:
    """Report a month: energy and carbon of runs and lines, in every scenario, never netted."""
    form = Format.JSON if as_json else form
    answer = ask(socket, offline).get("/v1/report", month=month)
    if form is Format.PNG:
        path = out or Path(f"wattmesh-{answer['month']}.png")
        _write(path, _drawn(answer))
        print_lines([f"Wrote {path}."])
    elif out is not None:
        _write(out, _text(answer, form).encode())
    elif form is Format.JSON:
        print_json(answer)
    elif form is Format.CSV:
        sys.stdout.write(as_csv(answer))
    else:
        print_lines(screen(answer))


def _text(answer: dict[str, Any], form: Format) -> str:
    """Give the whole file."""
    if form is Format.JSON:
        return to_json(answer) + "\n"
    if form is Format.CSV:
        return as_csv(answer)
    return "".join(f"{line}\n" for line in screen(answer))


def _write(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all.

    Raises:
        InputInvalid: it cannot be written.
    """
    try:
        write_bytes(path, data)
    except OSError as error:
        raise InputInvalid(f"cannot write {path}: {error.strerror}; name another file") from error


def _drawn(answer: dict[str, Any]) -> bytes:
    """Draw the picture in a child process, for nobody else needs matplotlib.

    Raises:
        WattmeshError: it could not be drawn.
    """
    words = [sys.executable, "-m", "wattmesh.controller.cli.report_picture"]
    told = to_json(answer).encode()
    done = subprocess.run(words, input=told, capture_output=True, timeout=DRAWING_S, check=False)
    if done.returncode:
        why = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        raise WattmeshError(f"the picture could not be drawn: {why}")
    return done.stdout
