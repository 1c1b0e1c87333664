"""`wattmesh demo`: a recorded grid day moves a live training job, on any machine."""

from pathlib import Path
from typing import Annotated

import typer

from wattmesh.controller.cli import options
from wattmesh.controller.cli.output import print_json
from wattmesh.controller.demo.plan import DemoPlan
from wattmesh.controller.demo.progress import Progress
from wattmesh.controller.demo.run import run


def demo(
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for report, picture and logs.")
    ] = Path("wattmesh-demo"),
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", min=20.0, max=3600.0, help="Real seconds that the recorded day takes."
        ),
    ] = 90.0,
    force: Annotated[bool, typer.Option("--force", help="Replace DIR, whatever it holds.")] = False,
    catalogue: Annotated[
        Path | None,
        typer.Option(
            "--catalogue", metavar="FILE", help="Catalogue of an earlier demo; it skips profiling."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Let a recorded grid day move a live training job through real reshards (four minutes)."""
    plan = DemoPlan.lasting(seconds, folder=out.absolute())
    report = run(plan, Progress(silent=as_json), force=force, known=catalogue)
    if as_json:
        print_json(report)
