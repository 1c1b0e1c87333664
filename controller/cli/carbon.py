"""`wattmesh carbon`: the grid signal as the daemon has it, now and over the hours behind."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from wattmesh.controller.cli import options, words
from wattmesh.controller.cli.answers import ask
from wattmesh.controller.cli.output import STRONG, WARN, print_json, print_lines, styled
from wattmesh.controller.cli.status_screen import grid
from wattmesh.controller.cli.tables import Column, table

app = typer.Typer(help="The grid signal: its value now, and what was booked with.")

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
    """Show the intensity that holds now, and the forecast, per signal."""
    view = ask(socket, None).get("/v1/carbon/now")
    if as_json:
        print_json(view)
    else:
        print_lines(grid(view))


@app.command()
def history(
    hours: Annotated[float, typer.Option("--hours", min=0.01, help="How far back.")] = 24.0,
    socket: options.Socket = options.SOCKET,
    offline: options.Offline = None,
    as_json: options.AsJson = False,
) -> None:
    """List the intervals behind, each with its quality."""
    view = ask(socket, offline).get("/v1/carbon/history", hours=hours)
    if as_json:
        print_json(view)
    else:
        print_lines(screen(view))


def screen(view: Mapping[str, Any]) -> list[Text | str]:
    """Lay out the answer of `GET /v1/carbon/history`."""
    points = view["points"]
    head = styled((view["signal"] or "no signal is set", STRONG))
    if not points:
        return [head, styled(("nothing is known of these hours", WARN))]
    highest = max(point["g_per_kwh"] for point in points)
    rows = [
        (
            words.clock(point["start"], seconds=True),
            words.clock(point["end"], seconds=True),
            words.intensity(point["g_per_kwh"]),
            point["quality"],
            words.bar(point["g_per_kwh"] / highest, BAR_WIDTH).rstrip("░"),
        )
        for point in points
    ]
    return [head, *table(COLUMNS, rows)]
