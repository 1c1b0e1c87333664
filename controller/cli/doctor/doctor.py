"""`wattmesh doctor`: is everything in order, and if not, what to do."""

from typing import Annotated

import typer
from rich.text import Text

from wattmesh.controller.cli import options
from wattmesh.controller.cli.doctor.checks import examine
from wattmesh.controller.cli.doctor.findings import CheckStatus, Finding
from wattmesh.controller.cli.output import BAD, GOOD, WARN, print_json, print_lines, styled
from wattmesh.controller.cli.tables import Column, table

STYLES = {CheckStatus.OK: GOOD, CheckStatus.PROBLEM: BAD, CheckStatus.UNKNOWN: WARN}
COLUMNS = (Column(title="CHECK"), Column(title=""), Column(title="FOUND"))


def doctor(
    config: options.Config = options.DEFAULT_CONFIG,
    socket: Annotated[
        str | None,
        typer.Option(
            "--socket",
            envvar="WATTMESH_URL",
            metavar="PATH",
            help="The daemon's Unix socket; default the one in the settings.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check settings, journal, disk, catalogues, daemon, agent, signals, power and clock."""
    findings = list(examine(config, socket))
    bad = [each for each in findings if each.verdict is CheckStatus.PROBLEM]
    if as_json:
        print_json({"ok": not bad, "findings": [_json(each) for each in findings]})
    else:
        print_lines(screen(findings))
    if bad:
        raise typer.Exit(1)


def screen(findings: list[Finding]) -> list[Text]:
    """Lay out the findings: each line ok, or a problem with what to do."""
    rows = [
        (
            each.check,
            Text(each.verdict, style=STYLES[each.verdict]),
            styled(each.text, (f" -> {each.do}" if each.do else "", "bold")),
        )
        for each in findings
    ]
    return table(COLUMNS, rows)


def _json(finding: Finding) -> dict[str, str]:
    return {
        "check": finding.check,
        "verdict": finding.verdict.value,
        "text": finding.text,
        "do": finding.do,
    }
