"""`wattmesh why RUN` and `wattmesh decisions`: why each switch was made, or was not."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.text import Text

from wattmesh.controller.cli import formats, options
from wattmesh.controller.cli.answers import ask
from wattmesh.controller.cli.client import segment
from wattmesh.controller.cli.output import DIM, legend, print_json, print_lines, styled
from wattmesh.controller.cli.runs.why_screen import (
    around,
    basis,
    brief,
    experts,
    history_entries,
    measured,
    over,
)
from wattmesh.errors import InputInvalid

Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="Most decisions to show.")]


def why(
    *,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or id of the run.")],
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="HH:MM", help="Show only what held at this time (UTC)."),
    ] = None,
    limit: Limit = 50,
    socket: options.Socket = options.SOCKET,
    offline: options.Offline = None,
    as_json: options.AsJson = False,
) -> None:
    """Tell why a run was switched, or was not: each decision in one sentence, newest first."""
    moment = None if at is None else time_of_day(at, datetime.now(UTC))
    answer = ask(socket, offline).get(f"/v1/runs/{segment(run)}/why", limit=limit)
    if as_json:
        print_json(answer)
        return
    entries = history_entries(
        answer["decisions"], answer["switches"], answer.get("transitions", {})
    )
    shown, left_out = brief(entries) if moment is None else (around(entries, moment), 0)
    lines: list[Text | str] = []
    if moment is None:
        lines += [*over(answer["run"]), *measured(answer["run"])]
        lines += experts(answer.get("expert_costs", ()))
    lines += [line for entry in shown for line in entry.lines]
    rows = [*answer["decisions"], *answer["switches"]]
    baseline = next((each["baseline"] for each in rows), "")
    lines += [*legend(lines), *basis(rows, baseline)] if lines else []
    print_lines(lines or [f"nothing has been decided about {run} yet"])
    if shown:
        less = f"{formats.plural(left_out, 'reason')} of one cycle left out; " if left_out else ""
        print_lines([styled((f"({less}`wattmesh why {run} --json` has all, and the inputs)", DIM))])


def decisions(
    run: Annotated[
        str | None, typer.Option("--run", help="Show only this run, by name or id.")
    ] = None,
    limit: Limit = 50,
    socket: options.Socket = options.SOCKET,
    offline: options.Offline = None,
    as_json: options.AsJson = False,
) -> None:
    """List the newest decisions about all runs."""
    answer = ask(socket, offline).get("/v1/decisions", run=run, limit=limit)
    if as_json:
        print_json(answer)
        return
    entries = history_entries(answer["decisions"], ())
    lines: list[Text | str] = [line for entry in entries for line in entry.lines]
    lines += [*legend(lines), *basis(answer["decisions"])] if lines else []
    print_lines(lines or ["no decision yet"])


def time_of_day(text: str, now: datetime) -> datetime:
    """Read 14:02 or 14:02:10 as the newest such moment (UTC), or a full ISO time.

    Raises:
        InputInvalid: neither.
    """
    for form in ("%H:%M", "%H:%M:%S"):
        try:
            found = datetime.strptime(text, form)
        except ValueError:
            continue
        moment = now.replace(
            hour=found.hour, minute=found.minute, second=found.second, microsecond=0
        )
        return moment if moment <= now else moment - timedelta(days=1)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InputInvalid(
            f"--at {text!r} is not a time; write 14:02, or 2026-11-20T14:02:00Z."
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
