"""`wattmesh report`: the totals of a month, for people, programs, spreadsheets and slides."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from wattmesh.controller.cli import options
from wattmesh.controller.cli.accounting.report_csv import as_csv
from wattmesh.controller.cli.accounting.report_screen import screen
from wattmesh.controller.cli.answers import ask
from wattmesh.controller.cli.drawing import drawn, put
from wattmesh.controller.cli.output import print_json, print_lines, to_json

PICTURE = "wattmesh.controller.cli.accounting.report_picture"
ADDING_S = 600.0
"""Timeout in seconds: a month of many GPUs has millions of rows, at 30 microseconds each."""


class Format(StrEnum):
    """How the report is written."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    PNG = "png"


def report(
    month: Annotated[
        str | None,
        typer.Option(
            "--month", metavar="YYYY-MM", help="Month to report; default: the present one."
        ),
    ] = None,
    form: Annotated[
        Format,
        typer.Option("--format", help="Text for people, JSON, CSV, or a PNG picture."),
    ] = Format.TEXT,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write to FILE, not to the terminal."),
    ] = None,
    *,
    socket: options.Socket = options.SOCKET,
    offline: options.Offline = None,
    as_json: options.AsJson = False,
) -> None:
    """Report the energy and carbon of a month: by run and line, in every scenario, never netted."""
    form = Format.JSON if as_json else form
    answer = ask(socket, offline, timeout_s=ADDING_S).get("/v1/report", month=month)
    if form is Format.PNG:
        path = out or Path(f"wattmesh-{answer['month']}.png")
        put(path, drawn(PICTURE, answer))
        print_lines([f"Wrote {path}."])
    elif out is not None:
        put(out, _text(answer, form).encode())
    elif form is Format.JSON:
        print_json(answer)
    elif form is Format.CSV:
        sys.stdout.write(as_csv(answer))
    else:
        print_lines(screen(answer))


def _text(answer: dict[str, Any], form: Format) -> str:
    if form is Format.JSON:
        return to_json(answer) + "\n"
    if form is Format.CSV:
        return as_csv(answer)
    return "".join(f"{line}\n" for line in screen(answer))
