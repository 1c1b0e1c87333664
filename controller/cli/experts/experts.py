"""`wattmesh experts`: a run or files in, answers out; only `place` may ask to move experts."""

from pathlib import Path
from typing import Annotated, Any

import typer

from wattmesh.controller.cli import options
from wattmesh.controller.cli.client import DaemonConnection, segment
from wattmesh.controller.cli.output import print_answer
from wattmesh.errors import InputInvalid, WattmeshError

# numpy is loaded by the command that needs it, so that the list of commands answers at once.

app = typer.Typer(help="What experts cost on each GPU, and where they should lie.")


@app.command()
def costs(
    of: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE", help="Name or id of a live run; or what counters showed (JSON)."
        ),
    ],
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """Show joules per expert-token of each GPU, and the scores that a router gets.

    Of a live run as the daemon has learned them; of a file as its counters' spans teach.
    """
    from wattmesh.controller.cli.experts.group_screen import (  # noqa: PLC0415
        costs_lines,
        told_lines,
    )

    if _is_file(of):
        from wattmesh.controller.cli.experts.costs_file import costs_json  # noqa: PLC0415

        answer, lines = costs_json(Path(of)), costs_lines
    else:
        path = f"/v1/runs/{segment(of)}/expert-costs"
        answer, lines = DaemonConnection(socket).get(path, details="yes"), told_lines
    print_answer(answer, lambda: lines(answer), as_json)


def _is_file(word: str) -> bool:
    """Return whether a word means a file: a run's name has no `/`, and mostly no `.json`."""
    return "/" in word or word.endswith(".json") or Path(word).is_file()


@app.command()
def place(
    of: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE",
            help="Name or id of a run that records its routing; or GPUs and routing (JSON).",
        ),
    ],
    *,
    copies: Annotated[
        int,
        typer.Option("--copies", min=0, max=64, help="Copies that each GPU has memory for."),
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the placement here (JSON)."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="With FILE: have this live run place its experts so, at its next save step. The "
            "GPUs are its expert-parallel ranks, in their order.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be ordered, and order nothing.")
    ] = False,
    checkpoint_dir: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint-dir",
            metavar="DIR",
            help="With RUN: the folder that the run gives to `attach`; its recording is there.",
        ),
    ] = None,
    gpus: Annotated[
        Path | None,
        typer.Option(
            "--gpus", metavar="FILE", help="The group's GPUs (JSON), where the routing has none."
        ),
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", help="Of an order: why; the journal keeps it.")
    ] = "by hand",
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """Place experts by recorded routing: traffic, energy and time before and after.

    Of a RUN, by its newest recording, as an order to it; --dry-run orders nothing. Of a FILE
    nothing moves, unless --run names a run whose job lets its experts be placed.
    """
    from wattmesh.controller.cli.experts.placement_file import (  # noqa: PLC0415
        place_json,
        present_placement,
        problem_of,
        read_problem,
        rows_of,
        write_placement,
    )
    from wattmesh.controller.cli.experts.placement_screen import place_lines  # noqa: PLC0415
    from wattmesh.controller.cli.experts.recorded_run import find_recording  # noqa: PLC0415

    recording = None
    if checkpoint_dir is not None or not _is_file(of):
        recording = find_recording(of, checkpoint_dir)
        if run is not None:
            raise InputInvalid("--run is for a FILE; leave it out, RUN itself is ordered")
        run = recording.run
    unknown = ""
    if recording is None:
        problem, present = read_problem(Path(of), gpus), None
        if run is not None:
            lying, unknown = _placed_now(DaemonConnection(socket), run)
            present = present_placement(problem, lying)
    else:
        problem = problem_of(recording.given, recording.path, gpus)
        present = present_placement(problem, recording.placed)
    answer = place_json(problem, copies, present)
    lines = list(place_lines(answer))
    if recording is not None:
        answer["recorded"] = recording.to_json()
        lines.insert(0, recording.sentence())
    if unknown:
        answer["before_is_not_known"] = unknown
        lines.append(f"compared with experts by number: {unknown}")
    if out is not None:
        write_placement(out, answer)
    # A dry run, too, is refused what would be refused.
    rows = rows_of(answer) if run is not None else []
    if run is not None and not dry_run:
        answer["done"] = _order(DaemonConnection(socket), run, answer, rows, reason)
        lines.append(answer["done"])
    print_answer(answer, lambda: lines, as_json)


def _order(
    daemon: DaemonConnection, run: str, answer: dict[str, Any], rows: list[Any], reason: str
) -> str:
    """Order a run to place its experts so, if anything gains; say what was done."""
    from wattmesh.controller.cli.experts.placement_screen import no_gain  # noqa: PLC0415

    if not answer["gains"]:
        return f"{no_gain(answer)}; nothing was ordered"
    wish = {"placement": rows, "gpus": len(answer["gpus"]), "reason": reason}
    return str(daemon.post(f"/v1/runs/{segment(run)}/placement", wish)["done"])


def _placed_now(daemon: DaemonConnection, run: str) -> tuple[list[Any], str]:
    """Ask where a run's experts lie; [] is by number. Say why that is not known, "" where it is.

    A daemon that does not answer refuses the order itself, so it is no error here.
    """
    try:
        told = daemon.get(f"/v1/runs/{segment(run)}/placement")
    except WattmeshError as error:
        return [], f"where they lie is not known, as the daemon does not say ({error})"
    return told.get("placement", []), told.get("why", "")


@app.command()
def bench(
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="GPUS", help="Like 4xh100,4xa100: one layer's group.")
    ],
    experts: Annotated[
        int, typer.Option("--experts", min=1, max=4096, help="Experts of a layer.")
    ] = 64,
    load_cap: Annotated[
        float,
        typer.Option("--load-cap", min=1.0, max=4.0, help="How far loads may lean, over the mean."),
    ] = 1.15,
    as_json: options.AsJson = False,
) -> None:
    """Model what counts by speed and leaning can save on a group, by the vendors' watts."""
    from wattmesh.controller.cli.experts.group_screen import bench_lines  # noqa: PLC0415
    from wattmesh.controller.cli.experts.group_worth import bench_json  # noqa: PLC0415

    answer = bench_json(gpus, experts, load_cap)
    print_answer(answer, lambda: bench_lines(answer), as_json)
