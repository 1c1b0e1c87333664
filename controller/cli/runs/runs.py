"""`wattmesh runs`: every run the journal knows, live ones first."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from wattmesh import quantities
from wattmesh.controller.cli import formats, options
from wattmesh.controller.cli.answers import ask
from wattmesh.controller.cli.output import DIM, STRONG, print_json, print_lines
from wattmesh.controller.cli.runs.status_screen import live_first
from wattmesh.controller.cli.tables import Column, table

COLUMNS = (
    Column(title="RUN"),
    Column(title="ID"),
    Column(title="STATE"),
    Column(title="ATTEMPT", right=True),
    Column(title="STEP", right=True),
    Column(title="TOKENS", right=True),
    Column(title="DONE", right=True),
    Column(title="LOSS", right=True),
    Column(title="POINT"),
    Column(title="OWNER", right=True),
    Column(title="LAST HEARD"),
)


def runs(
    socket: options.Socket = options.SOCKET,
    offline: options.Offline = None,
    as_json: options.AsJson = False,
) -> None:
    """List every run in the journal, live ones first."""
    answer = ask(socket, offline).get("/v1/runs")
    if as_json:
        print_json(answer)
        return
    rows = live_first(answer["runs"])
    print_lines(
        table(COLUMNS, [_row(each) for each in rows])
        if rows
        else ["no run has registered yet; `wattmesh.observe(...)` in a training script does it"]
    )


def _row(run: Mapping[str, Any]) -> Sequence[str | Text]:
    done = run["tokens"] / run["tokens_total"] if run["tokens_total"] else None
    return (
        Text(run["name"], style=STRONG),
        Text(run["run"][:8], style=DIM),
        run["activity"],
        str(run["attempt"]),
        formats.count(run["step"]),
        formats.count(run["tokens"]),
        formats.percent(done),
        quantities.UNKNOWN if run["loss"] is None else f"{run['loss']:.4f}",
        run["point"] or quantities.UNKNOWN,
        str(run["owner_uid"]),
        f"{quantities.duration(run['last_seen_s'])} ago",
    )
