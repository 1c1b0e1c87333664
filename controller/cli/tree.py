"""Which command lives in which module.

Invariant: only the module of the command that was typed is imported, so that `status` does not
wait for what `db` or `demo` need; help imports them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import typer

import wattmesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A command's module under this package, and its name there (a function, or a group's app)."""

    module: str
    name: str


COMMANDS = {
    "demo": Place(module="demo", name="demo"),
    "daemon": Place(module="daemon", name="daemon"),
    "agent": Place(module="agent", name="agent"),
    "actuator": Place(module="actuator", name="actuator"),
    "restore-all": Place(module="restore_all", name="restore_all"),
    "status": Place(module="status", name="status"),
    "budget": Place(module="budget", name="budget"),
    "report": Place(module="report", name="report"),
    "reopen": Place(module="operate", name="reopen"),
    "why": Place(module="why", name="why"),
    "decisions": Place(module="why", name="decisions"),
    "runs": Place(module="runs", name="runs"),
    "freeze": Place(module="operate", name="freeze"),
    "thaw": Place(module="operate", name="thaw"),
    "retire": Place(module="operate", name="retire"),
    "switch": Place(module="operate", name="switch"),
    "powercap": Place(module="powercap", name="powercap"),
    "nodes": Place(module="nodes", name="app"),
    "carbon": Place(module="carbon", name="app"),
    "configs": Place(module="configs", name="app"),
    "policy": Place(module="policy", name="app"),
    "checkpoint": Place(module="checkpoint", name="app"),
    "settings": Place(module="settings", name="app"),
    "db": Place(module="db", name="app"),
    "doctor": Place(module="doctor", name="doctor"),
}

INNER: dict[tuple[str, ...], Place] = {("policy", "plan"): Place(module="plan", name="app")}
"""Commands of a group that are asked often, and do not wait for what the rest of it imports."""


def build(words: Sequence[str]) -> typer.Typer:
    """Make the command tree for what was typed: one branch when it is known, else all."""
    app = typer.Typer(
        name="wattmesh",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    asked = words[0] if words and words[0] in COMMANDS else None
    for name, place in COMMANDS.items():
        if asked in (None, name):
            _add(app, name, INNER.get(tuple(words[:2]), place))
    return app


def _add(app: typer.Typer, name: str, place: Place) -> None:
    """Import one command and hang it into the tree."""
    found = getattr(import_module(f"wattmesh.controller.cli.{place.module}"), place.name)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
    else:
        app.command(name)(found)


def _version(asked: bool) -> None:
    """Print the version and stop."""
    if asked:
        print(f"wattmesh {wattmesh.__version__}")
        raise typer.Exit


def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
    debug: bool = typer.Option(
        False, "--debug", help="Show the traceback of a failure (may stand anywhere)."
    ),
) -> None:
    """Energy and carbon control for PyTorch training clusters."""
