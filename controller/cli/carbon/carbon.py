"""`wattmesh carbon`: the grid signal now, behind and ahead, and who provides it."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from wattmesh.controller.cli import formats, options
from wattmesh.controller.cli.answers import ask
from wattmesh.controller.cli.carbon import carbon_screen
from wattmesh.controller.cli.output import (
    STRONG,
    WARN,
    print_answer,
    print_json,
    print_lines,
    styled,
)
from wattmesh.controller.cli.runs.status_screen import grid
from wattmesh.controller.cli.tables import Column, table

app = typer.Typer(help="Show the grid signals, now, past and forecast, and their providers.")

COLUMNS = (
    Column(title="FROM"),
    Column(title="TO"),
    Column(title="G/KWH", right=True),
    Column(title="QUALITY"),
    Column(title=""),
)
BAR_WIDTH = 30


@app.command()
def now(socket: options.Socket = options.SOCKET, as_json: options.AsJson = False) -> None:
    """Show the present intensity of each signal, and its forecast."""
    view = ask(socket, None).get("/v1/carbon/now")
    print_answer(view, lambda: grid(view), as_json)


@app.command()
def history(
    hours: Annotated[float, typer.Option("--hours", min=0.01, help="Hours back.")] = 24.0,
    socket: options.Socket = options.SOCKET,
    offline: options.Offline = None,
    as_json: options.AsJson = False,
) -> None:
    """List past intervals, each with its quality."""
    view = ask(socket, offline).get("/v1/carbon/history", hours=hours)
    print_answer(view, lambda: screen(view), as_json)


@app.command()
def forecast(
    signal: Annotated[
        str | None,
        typer.Argument(
            help="Signal to show, or a unique part of its name; default: the one decided on."
        ),
    ] = None,
    hours: Annotated[float, typer.Option("--hours", min=0.01, help="Hours ahead.")] = 24.0,
    socket: options.Socket = options.SOCKET,
    offline: options.Offline = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the forecast that decisions rest on: its source, its band and its past errors."""
    view = ask(socket, offline).get("/v1/carbon/forecast", signal=signal)
    print_answer(view, lambda: carbon_screen.forecast(view, hours), as_json)


@app.command()
def providers(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            envvar="WATTMESH_CONFIG",
            metavar="FILE",
            help="Settings file whose sources are asked; default: the daemon's, if it exists.",
        ),
    ] = None,
    no_ask: Annotated[
        bool, typer.Option("--no-ask", help="Ask no provider; only list them.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """List every provider, and ask the configured ones what they serve with their keys."""
    # Imported only here: the other commands need neither the settings nor any provider.
    from wattmesh.controller.cli.carbon import carbon_providers  # noqa: PLC0415
    from wattmesh.controller.settings import read as reader  # noqa: PLC0415

    file = config or (options.DEFAULT_CONFIG if options.DEFAULT_CONFIG.is_file() else None)
    carbon = reader.load(file).carbon if file is not None else None
    known = carbon_providers.listed(carbon)
    answers = carbon_providers.ask_sources(carbon) if carbon is not None and not no_ask else []
    if as_json:
        print_json({"providers": known, "asked": answers})
        return
    print_lines(carbon_screen.providers(known, answers))
    if file is None:
        print_lines(["", "no settings are named (--config FILE): nobody was asked"])


def screen(view: Mapping[str, Any]) -> list[Text | str]:
    """Lay out the answer of `GET /v1/carbon/history`."""
    points = view["points"]
    head = styled((view["signal"] or "no signal is set", STRONG))
    if not points:
        return [head, styled(("nothing is known of these hours", WARN))]
    highest = max(point["g_per_kwh"] for point in points)
    behind = datetime.fromisoformat(points[-1]["end"]) - datetime.fromisoformat(points[0]["start"])
    dated = behind > timedelta(hours=24)
    rows = [
        (
            _when(point["start"], dated=dated),
            _when(point["end"], dated=dated),
            formats.intensity(point["g_per_kwh"]),
            point["quality"],
            formats.bar(point["g_per_kwh"] / highest, BAR_WIDTH).rstrip("░") if highest else "",
        )
        for point in points
    ]
    return [head, *table(COLUMNS, rows)]


def _when(text: str, *, dated: bool) -> str:
    """Write a time, with its day where the hours alone would be ambiguous."""
    clock = formats.clock(text, seconds=True)
    return f"{datetime.fromisoformat(text).astimezone(UTC):%d %b} {clock}" if dated else clock
