"""`wattmesh demo`: a recorded grid day moves a live training job, on any machine.

The demo uses wattmesh and is no part of it (docs/decisions/0045-demo.md): it is `examples.demo`,
found when it is asked for, in the repository or in a folder of the wheel that nothing else imports
from.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import wattmesh
from wattmesh.controller.cli import options
from wattmesh.controller.cli.output import print_json
from wattmesh.errors import InputInvalid

PACKAGE = Path(wattmesh.__file__).resolve().parent
HOLD_EXAMPLES = (PACKAGE / "shipped", PACKAGE.parent)
"""Folders that may hold `examples`: of a wheel, of a repository."""


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
    sys.path.insert(0, str(_folder_of_examples(HOLD_EXAMPLES)))
    # Here and not above: the example imports this command line, and is found only now.
    from examples.demo.plan import DemoPlan  # noqa: PLC0415
    from examples.demo.progress import ProgressPrinter  # noqa: PLC0415
    from examples.demo.run import run  # noqa: PLC0415

    plan = DemoPlan.lasting(seconds, folder=out.absolute())
    report = run(plan, ProgressPrinter(silent=as_json), force=force, known=catalogue)
    if as_json:
        print_json(report)


def _folder_of_examples(folders: Sequence[Path]) -> Path:
    """Find the folder that holds the demo and what it trains.

    Raises:
        InputInvalid: none does.
    """
    for folder in folders:
        if (folder / "examples" / "demo").is_dir() and (folder / "examples" / "pretrain").is_dir():
            return folder
    raise InputInvalid(
        "The demo is examples/demo and trains examples/pretrain, and this installation lacks them; "
        "install wattmesh's wheel again, or clone the repository and run `make demo` there."
    )
