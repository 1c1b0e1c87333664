"""`wattmesh units`, `rules`, `dashboards`, `completion`: files for other programs and shells.

Invariant: an existing file with other content is replaced only on request.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from wattmesh import durable
from wattmesh.controller.cli import options
from wattmesh.controller.cli.output import print_json, print_lines
from wattmesh.controller.cli.tree import COMPLETE_VARIABLE
from wattmesh.errors import InputInvalid

IN_UNITS = "/opt/wattmesh/bin/wattmesh"
"""Path of the program in the shipped units."""

RUNBOOK = "docs/runbook.md"
"""Where the links of the shipped alerts lead."""

IN_PROVISIONING = "/etc/grafana/dashboards/wattmesh"
"""Folder of the dashboards in the shipped file for Grafana's provisioning."""

UNSEEN = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")
"""Folders that the units cannot see (ProtectHome, PrivateTmp)."""

_A_PROGRAM = re.compile(r"[A-Za-z0-9_./+:@-]+")
"""A path that a unit takes as it is: systemd reads blanks, quotes, `%`, `$` and `\\` otherwise."""

_A_URL = re.compile(r"[A-Za-z0-9._~:/%+@=-]{1,500}")
"""What stands in YAML and in a link without quotes."""


class ServiceUnit(StrEnum):
    """A process with a unit of its own."""

    DAEMON = "daemon"
    AGENT = "agent"
    ACTUATOR = "actuator"


class Shell(StrEnum):
    """A shell that completes words."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


UNIT = {
    ServiceUnit.DAEMON: "wattmesh.service",
    ServiceUnit.AGENT: "wattmesh-agent.service",
    ServiceUnit.ACTUATOR: "wattmesh-actuator.service",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredFile:
    """A file and the content it is to have."""

    path: Path
    text: str


Root = Annotated[
    Path | None,
    typer.Option("--install", "--root", metavar="DIR", help="Write below DIR; / is this machine."),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Also replace files whose content differs.")
]


def units(
    services: Annotated[
        list[ServiceUnit] | None, typer.Argument(metavar="[daemon|agent|actuator]...")
    ] = None,
    *,
    root: Root = None,
    replace: Replace = False,
    as_json: options.AsJson = False,
) -> None:
    """Write the systemd units and their users; without --install only name the files.

    The head node wants daemon, each node with GPUs agent and actuator. All three if none is named.
    """
    chosen = services or list(ServiceUnit)
    program = _program()
    below = root or Path("/")
    shipped = files("wattmesh.integrations") / "systemd"
    wanted = [
        DesiredFile(
            path=below / "etc/sysusers.d/wattmesh.conf",
            text=(shipped / "wattmesh.conf").read_text(encoding="utf-8"),
        )
    ]
    for each in dict.fromkeys(chosen):
        text = (shipped / UNIT[each]).read_text(encoding="utf-8")
        path = below / "etc/systemd/system" / UNIT[each]
        wanted.append(DesiredFile(path=path, text=text.replace(IN_UNITS, str(program))))
    names = " ".join(UNIT[each].removesuffix(".service") for each in dict.fromkeys(chosen))
    then = [
        "systemd-sysusers",
        "wattmesh settings sample /etc/wattmesh/wattmesh.toml   # if there is none yet",
        f"systemctl daemon-reload && systemctl enable --now {names}",
    ]
    notes = list(_unseen(program))
    how = "" if root else f"{' '.join(['wattmesh units', *chosen])} --install /"
    _finish(wanted, then, notes, how=how, replace=replace, as_json=as_json)


def rules(
    *,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Folder that Prometheus reads rules from."),
    ] = None,
    runbook_url: Annotated[
        str,
        typer.Option(
            "--runbook-url", metavar="URL", help="Where your people read docs/runbook.md."
        ),
    ] = RUNBOOK,
    replace: Replace = False,
    as_json: options.AsJson = False,
) -> None:
    """Write the alerts and recording rules for Prometheus; without --to only name the files."""
    if not _A_URL.fullmatch(runbook_url):
        raise InputInvalid(
            f"--runbook-url {runbook_url!r} is no address: letters, digits and any of "
            "- . _ ~ : / % + @ and =, at most 500 of them."
        )
    below = to or Path("/etc/prometheus/rules")
    shipped = files("wattmesh.integrations") / "prometheus" / "rules"
    wanted = [
        DesiredFile(
            path=below / f"wattmesh-{each.name}",
            text=each.read_text(encoding="utf-8").replace(
                f"runbook_url: {RUNBOOK}#", f"runbook_url: {runbook_url}#"
            ),
        )
        for each in sorted(shipped.iterdir(), key=lambda each: each.name)
        if each.name.endswith(".yml")
    ]
    then = [
        f"name {below}/wattmesh-*.yml under rule_files in prometheus.yml",
        "promtool check config prometheus.yml && systemctl reload prometheus",
    ]
    how = "" if to else f"wattmesh rules --to {below}"
    _finish(wanted, then, [], how=how, replace=replace, as_json=as_json)


def dashboards(
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder that Grafana reads dashboards from."),
    ] = None,
    replace: Replace = False,
    as_json: options.AsJson = False,
) -> None:
    """Write the Grafana dashboards and their provisioning; without --out only name the files."""
    below = (out or Path(IN_PROVISIONING)).absolute()
    shipped = files("wattmesh.integrations") / "grafana"
    wanted = [
        DesiredFile(path=below / each.name, text=each.read_text(encoding="utf-8"))
        for each in sorted((shipped / "dashboards").iterdir(), key=lambda each: each.name)
        if each.name.endswith(".json")
    ]
    for name in ("datasource.yml", "folder.yml"):
        text = (shipped / "provisioning" / name).read_text(encoding="utf-8")
        there = f"path: {json.dumps(str(below))}"
        wanted.append(
            DesiredFile(
                path=below / "provisioning" / name,
                text=text.replace(f"path: {IN_PROVISIONING}", there),
            )
        )
    then = [
        f"cp {below}/provisioning/folder.yml /etc/grafana/provisioning/dashboards/wattmesh.yml",
        f"cp {below}/provisioning/datasource.yml /etc/grafana/provisioning/datasources/wattmesh.yml"
        "   # if Grafana has no Prometheus yet; put its address in",
        "systemctl restart grafana-server",
    ]
    how = "" if out else f"wattmesh dashboards --out {below}"
    _finish(wanted, then, [], how=how, replace=replace, as_json=as_json)


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish")],
    *,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="Write the script to FILE, not to the screen."),
    ] = None,
    replace: Replace = False,
) -> None:
    """Print the completion script for a shell."""
    text = script(shell)
    if to is None:
        print(text)
        return
    _write([DesiredFile(path=to, text=text + "\n")], replace=replace)
    print_lines([f"wrote {to}; it takes effect in the next shell"])


def script(shell: Shell) -> str:
    """Give the completion script of a shell, as typer has it."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined] # noqa: PLC0415

    found: str = get_completion_script(
        prog_name="wattmesh", complete_var=COMPLETE_VARIABLE, shell=shell.value
    )
    return found


def _program() -> Path:
    """Give the path of the program that runs this.

    Raises:
        InputInvalid: a unit cannot name it.
    """
    program = Path(sys.executable).parent / "wattmesh"
    if not _A_PROGRAM.fullmatch(str(program)):
        raise InputInvalid(
            f"{program} has a blank or a sign in its path that systemd reads in its own way: "
            "install wattmesh elsewhere, as with `python3 -m venv /opt/wattmesh`."
        )
    return program


def unseen_by_units(path: Path) -> str:
    """Give the folder that the units hide and in which `path` lies; "" where it lies in none."""
    return next((each for each in UNSEEN if str(path).startswith(each)), "")


def hidden_part(program: Path) -> Path | None:
    """Find what of a program lies, links followed, where the units cannot see it.

    That is the program, or the Python that its first line names: a virtual environment in /opt may
    use one of a home folder. None: they see all of it.
    """
    parts = [program]
    try:
        with program.open("rb") as file:
            first = file.readline(1024)
    except OSError:
        first = b""
    if first.startswith(b"#!/"):
        parts.append(Path(os.fsdecode(first[2:].split()[0])))
    real = (Path(os.path.realpath(each)) for each in parts)
    return next((each for each in real if unseen_by_units(each)), None)


def _unseen(program: Path) -> Iterator[str]:
    """Warn that the units cannot see the program's folder, and so cannot start it."""
    hidden = program if unseen_by_units(program) else hidden_part(program)
    if hidden is not None:
        needs = "" if hidden == program else f"{program} needs "
        yield (
            f"{needs}{hidden}{' which' if needs else ''} lies in a folder that the units cannot "
            "see: install wattmesh elsewhere, as with the system's own `python3 -m venv "
            "/opt/wattmesh`, and run this command from there"
        )


def _finish(
    wanted: list[DesiredFile],
    then: list[str],
    notes: list[str],
    *,
    how: str,
    replace: bool,
    as_json: bool,
) -> None:
    """Write the files, or only name them where `how` says how to write them; print next steps."""
    written = [] if how else _write(wanted, replace=replace)
    if as_json:
        print_json(
            {
                "files": [str(each.path) for each in wanted],
                "written": [str(each) for each in written],
                "then": then,
                "notes": notes,
            }
        )
        return
    for each in wanted:
        did = "wants" if how else "wrote" if each.path in written else "stands"
        print_lines([f"{did:<7} {each.path}"])
    print_lines(f"note    {each}" for each in notes)
    print_lines([f"write   {how}"] if how else [])
    print_lines(f"then    {each}" for each in then)


def _write(wanted: list[DesiredFile], *, replace: bool) -> list[Path]:
    """Write every file whose content differs; none if one of them may not be replaced.

    Raises:
        InputInvalid: a file has other content and `replace` is off, or it cannot be written.
    """
    missing = [each for each in wanted if _text_of(each.path) != each.text]
    others = [str(each.path) for each in missing if each.path.exists()]
    if others and not replace:
        raise InputInvalid(
            f"{', '.join(others)} has other content already, and nothing was written: look with "
            "diff, then add --replace."
        )
    for each in missing:
        try:
            each.path.parent.mkdir(parents=True, exist_ok=True)
            durable.write_text(each.path, each.text)
            each.path.chmod(0o644)
        except OSError as error:
            raise InputInvalid(f"{each.path} cannot be written: {error.strerror}.") from error
    return [each.path for each in missing]


def _text_of(path: Path) -> str | None:
    """Read a file; None where there is none that can be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
