"""`wattmesh report`: the totals of a month or of a run, for people, programs, slides and cards."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from wattmesh.controller.cli import options
from wattmesh.controller.cli.accounting.model_card import CardWords
from wattmesh.controller.cli.accounting.report_csv import as_csv
from wattmesh.controller.cli.accounting.report_screen import screen
from wattmesh.controller.cli.accounting.run_report import RunForms, run_report
from wattmesh.controller.cli.answers import ask
from wattmesh.controller.cli.drawing import drawn, put
from wattmesh.controller.cli.output import print_json, print_lines, to_json
from wattmesh.errors import InputInvalid

PICTURE = "wattmesh.controller.cli.accounting.report_picture"
ADDING_S = 600.0
"""Timeout in seconds: a month of many GPUs has millions of rows, at 30 microseconds each."""

ONE_RUN_S = 60.0
"""The same for one run: its rows are added up by the database."""


class Format(StrEnum):
    """How the report is written."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    PNG = "png"


def report(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="Name or id of one run, instead of a month."),
    ] = None,
    month: Annotated[
        str | None,
        typer.Option(
            "--month", metavar="YYYY-MM", help="Month to report; default: the present one."
        ),
    ] = None,
    *,
    form: Annotated[
        Format,
        typer.Option("--format", help="Text for people, JSON, CSV, or a PNG picture."),
    ] = Format.TEXT,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write to FILE, not to the terminal."),
    ] = None,
    card: Annotated[
        bool,
        typer.Option(
            "--model-card",
            help="Of RUN: the block `co2_eq_emissions` of a Hugging Face model card.",
        ),
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Of RUN: write a page for a browser to FILE."),
    ] = None,
    training_type: Annotated[
        str,
        typer.Option(help="For --model-card: pre-training or fine-tuning; else it is left out."),
    ] = "",
    location: Annotated[
        str, typer.Option(help="For --model-card: where it ran; default: the grid's zone.")
    ] = "",
    hardware: Annotated[
        str, typer.Option(help="For --model-card: on what; default: how many GPUs.")
    ] = "",
    socket: options.Socket = options.SOCKET,
    offline: options.Offline = None,
    as_json: options.AsJson = False,
) -> None:
    """Report the energy and carbon of a month, by run and line in every scenario; or of one RUN."""
    form = Format.JSON if as_json else form
    answers = ask(socket, offline, timeout_s=ADDING_S if run is None else ONE_RUN_S)
    added = CardWords(training_type=training_type, location=location, hardware=hardware)
    if run is not None:
        _check_run(month, form)
        _check_card(form, added, card=card)
        forms = RunForms(
            as_json=form is Format.JSON, card=added if card else None, page=page, out=out
        )
        run_report(answers, run, forms)
        return
    if card or page is not None or added != CardWords():
        raise InputInvalid("`--model-card` and `--html` are of one run: name it, `report RUN ...`")
    answer = answers.get("/v1/report", month=month)
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


def _check_run(month: str | None, form: Format) -> None:
    """Refuse what a run's report has not.

    Raises:
        InputInvalid: a month beside a run, or a form that only a month has.
    """
    if month is not None:
        raise InputInvalid("the report of a run is of all its time: leave out --month, or RUN")
    if form in (Format.CSV, Format.PNG):
        raise InputInvalid(
            f"the report of a run is no {form.value.upper()}; `--html FILE` draws it, and "
            "`wattmesh budget --audit RUN --json` has every row"
        )


def _check_card(form: Format, added: CardWords, *, card: bool) -> None:
    """Refuse what would be left out without a word.

    Raises:
        InputInvalid: words for a block that is not asked for, or a block as JSON.
    """
    if not card and added != CardWords():
        raise InputInvalid(
            "`--training-type`, `--location` and `--hardware` are of the block: give `--model-card`"
        )
    if card and form is Format.JSON:
        raise InputInvalid("the block of a model card is YAML: leave out `--json`")


def _text(answer: dict[str, Any], form: Format) -> str:
    if form is Format.JSON:
        return to_json(answer) + "\n"
    if form is Format.CSV:
        return as_csv(answer)
    return "".join(f"{line}\n" for line in screen(answer))
