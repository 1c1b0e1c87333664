"""`wattmesh attach-check`: a user's own attached script, walked through layouts on the spot."""

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from wattmesh.controller.attach_check.judge import CheckedRun, CheckedSwitch, judge, worst
from wattmesh.controller.attach_check.run import MOST_RANKS, CheckRequest, check
from wattmesh.controller.cli import options
from wattmesh.controller.cli.doctor.doctor import screen
from wattmesh.controller.cli.doctor.findings import CheckStatus, Finding
from wattmesh.controller.cli.output import print_json, print_lines
from wattmesh.controller.cli.progress import counted
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.ranges import clean_lines

STATUS = {CheckStatus.OK: 0, CheckStatus.PROBLEM: 1, CheckStatus.UNKNOWN: 2}

_USE = "wattmesh attach-check --layouts dp2,tp2,1 -- train.py"


def attach_check(
    script: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- SCRIPT", help="Your script and its own arguments."),
    ] = None,
    *,
    layouts: Annotated[
        str,
        typer.Option(
            "--layouts", metavar="LIST", help="Layouts to try, in this order: dp2,tp2,dp2tp2,1."
        ),
    ] = "",
    nproc: Annotated[
        int,
        typer.Option(
            "--nproc", min=0, metavar="N", help="Number of ranks; 0: as the largest layout."
        ),
    ] = 0,
    steps_per_layout: Annotated[
        int,
        typer.Option(
            "--steps-per-layout",
            min=0,
            metavar="N",
            help="Steps in each layout and between saves; 0: the script's boundary_every, at most "
            "5.",
        ),
    ] = 0,
    patience: Annotated[
        float,
        typer.Option(
            "--patience",
            min=1,
            metavar="SECONDS",
            help="Seconds without a message after which the script counts as hung.",
        ),
    ] = 600.0,
    log: Annotated[
        Path, typer.Option("--log", metavar="FILE", help="File for the output of the script.")
    ] = Path("attach-check.log"),
    scratch: Annotated[
        Path | None,
        typer.Option(
            "--scratch", metavar="DIR", help="Folder for the check's checkpoints; they are deleted."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Try your attached script in several layouts, on this machine, and say what is wrong.

    The check does not touch the script's checkpoint_dir, save= or daemon; files that the script
    writes itself are written.

    Exit status 0: all is well. 1: something to mend. 2: something could not be checked.
    """
    try:
        asked = CheckRequest(
            script=_script(script or []),
            layouts=(found := _layouts(layouts, script or [])),
            nproc=nproc or _ranks(found),
            steps_each=steps_per_layout,
            patience_s=patience,
            log=log,
            scratch=scratch,
        )
        with counted(f"checking {asked.name}", len(asked.layouts)) as progress:
            seen = check(asked, progress)
    except InputInvalid as error:
        print(f"wattmesh: {clean_lines(str(error))}", file=sys.stderr)
        raise typer.Exit(2) from error
    findings = judge(seen)
    if as_json:
        print_json(to_json(asked, seen, findings))
    else:
        print_lines([*screen(findings), Text(f"the output of {asked.name} is in {log}")])
    raise typer.Exit(STATUS[worst(findings)])


def to_json(asked: CheckRequest, seen: CheckedRun, findings: Sequence[Finding]) -> dict[str, Any]:
    """Give the keys of `attach-check --json`."""
    return {
        "verdict": worst(findings).value,
        "script": [*asked.script],
        "findings": [
            {
                "check": each.check,
                "verdict": each.verdict.value,
                "text": each.text,
                "where": each.where,
                "do": each.do,
            }
            for each in findings
        ],
        "switches": [_switch(each) for each in seen.switches],
        "log": str(asked.log),
    }


def _switch(each: CheckedSwitch) -> dict[str, Any]:
    """Give one switch; a number that was not measured is null."""
    names = ("held_share", "probe_before", "probe_after", "probe_allowed", "probe_noise")
    return {
        "from": str(each.before),
        "to": str(each.to),
        "step": each.end.step,
        "state": each.end.state.value,
        "detail": each.end.detail,
        "elapsed_s": each.end.elapsed_s,
        **{name: each.number(name) for name in names},
    }


def _script(words: Sequence[str]) -> tuple[str, ...]:
    if not words:
        raise InputInvalid(f"name your script behind --, as in {_USE}")
    return tuple(words)


def _layouts(text: str, script: Sequence[str]) -> tuple[Layout, ...]:
    if not text.strip():
        late = " before the --" if any(each.startswith("--layouts") for each in script) else ""
        raise InputInvalid(f"give --layouts{late}, as in {_USE}")
    found = tuple(Layout.from_text(each) for each in text.split(","))
    for one, other in pairwise(found):
        if one == other:
            raise InputInvalid(f"--layouts names {one} twice in a row; a switch needs two layouts")
    return found


def _ranks(layouts: Sequence[Layout]) -> int:
    most = max(each.world_size for each in layouts)
    if most > MOST_RANKS:
        raise InputInvalid(
            f"--layouts needs {most} ranks on this one machine; if you mean it, give --nproc {most}"
        )
    return most
