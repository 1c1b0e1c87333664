"""Which command lives in which module.

Invariant: only the module of the command that was typed is imported, so that neither `status` nor
the list of commands waits for what `db` or `demo` need.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]
from typer.core import TyperGroup

import wattmesh


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyCommand:
    """A command's module under this package, and its name there (a function, or a group's app).

    Attributes:
        about: one sentence for the list of commands, at most `LONGEST_ABOUT` letters.
    """

    module: str
    name: str
    about: str = ""


LONGEST_ABOUT = 60
"""Beside the longest name this fits a screen of 80 columns."""


class Sentences(TyperGroup):
    """A group that lists its commands with whole sentences: they are wrapped, and never cut."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: each for name, each in found.items() if each and not each.hidden}
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(10**4)) for name, each in shown.items()]
            )


COMMANDS = {
    "demo": LazyCommand(
        module="services.demo",
        name="demo",
        about="Let a recorded grid day move a real job (four minutes).",
    ),
    "daemon": LazyCommand(
        module="services.daemon", name="daemon", about="Run the daemon (as its systemd unit does)."
    ),
    "agent": LazyCommand(
        module="services.agent",
        name="agent",
        about="Run this node's agent (as its systemd unit does).",
    ),
    "actuator": LazyCommand(
        module="services.actuator",
        name="actuator",
        about="Run the process that sets clocks and caps.",
    ),
    "restore-all": LazyCommand(
        module="services.restore_all",
        name="restore_all",
        about="Undo wattmesh's clocks and caps on this machine, now.",
    ),
    "status": LazyCommand(
        module="runs.status", name="status", about="Show what the daemon sees, does and needs."
    ),
    "budget": LazyCommand(
        module="accounting.budget",
        name="budget",
        about="Show what was spent and saved, by run and budget.",
    ),
    "report": LazyCommand(
        module="accounting.report",
        name="report",
        about="Report the energy and carbon of a month.",
    ),
    "reopen": LazyCommand(
        module="runs.operate", name="reopen", about="Reopen a month that was closed wrongly."
    ),
    "why": LazyCommand(
        module="runs.why", name="why", about="Tell why a run was switched, or was not."
    ),
    "decisions": LazyCommand(
        module="runs.why", name="decisions", about="List the newest decisions about all runs."
    ),
    "runs": LazyCommand(
        module="runs.runs", name="runs", about="List every run in the journal, live ones first."
    ),
    "freeze": LazyCommand(
        module="runs.operate", name="freeze", about="Stop acting on one run, or on all."
    ),
    "thaw": LazyCommand(
        module="runs.operate", name="thaw", about="End a freeze: act on the run, or on all, again."
    ),
    "retire": LazyCommand(
        module="runs.operate",
        name="retire",
        about="Stop following a run that is over; keep its rows.",
    ),
    "switch": LazyCommand(
        module="runs.operate", name="switch", about="Order a run to another operating point."
    ),
    "powercap": LazyCommand(
        module="services.powercap",
        name="powercap",
        about="Cap the power of all GPUs together, until a time.",
    ),
    "nodes": LazyCommand(
        module="services.nodes", name="app", about="Manage the tokens of nodes, and retire nodes."
    ),
    "carbon": LazyCommand(
        module="carbon.carbon", name="app", about="Show the grid signals: now, past and forecast."
    ),
    "configs": LazyCommand(
        module="configs.configs",
        name="app",
        about="List, show, predict and measure a job's operating points.",
    ),
    "policy": LazyCommand(
        module="policy.policy",
        name="app",
        about="Show a run's plan; replay policies on recorded grids.",
    ),
    "experts": LazyCommand(
        module="experts.experts",
        name="app",
        about="What experts cost, and where they should lie.",
    ),
    "checkpoint": LazyCommand(
        module="checkpoint.checkpoint",
        name="app",
        about="Convert, inspect, verify, export and prune checkpoints.",
    ),
    "settings": LazyCommand(
        module="services.settings",
        name="app",
        about="Check a settings file, or print one to start from.",
    ),
    "db": LazyCommand(
        module="services.db", name="app", about="Upgrade, back up and restore the journal."
    ),
    "attach-check": LazyCommand(
        module="configs.attach_check",
        name="attach_check",
        about="Try your attached script in several layouts, here.",
    ),
    "units": LazyCommand(
        module="services.install", name="units", about="Write the systemd units and their users."
    ),
    "rules": LazyCommand(
        module="services.install",
        name="rules",
        about="Write the alerts and recording rules for Prometheus.",
    ),
    "dashboards": LazyCommand(
        module="services.install",
        name="dashboards",
        about="Write the dashboards for Grafana.",
    ),
    "completion": LazyCommand(
        module="services.install",
        name="completion",
        about="Print the completion script for your shell.",
    ),
    "doctor": LazyCommand(
        module="doctor.doctor", name="doctor", about="Check everything here, and say what to do."
    ),
}

COMPLETE_VARIABLE = "_WATTMESH_COMPLETE"
"""Set by a shell that asks for completions; typer answers."""

INNER: dict[tuple[str, ...], LazyCommand] = {
    ("policy", "plan"): LazyCommand(module="policy.plan", name="app")
}
"""Commands that are used often, and must not wait for the imports of the rest of their group."""


def completing(words: Sequence[str]) -> Sequence[str]:
    """Give the words that choose the branch: those that a shell asks about, if one does."""
    if COMPLETE_VARIABLE not in os.environ:
        return words
    completion_init()
    # Bash tells the line by one variable, zsh and fish by another.
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    return line.split()[1:]


def build(words: Sequence[str]) -> typer.Typer:
    """Make the command tree for what was typed: the branch it names, else the list of all."""
    app = _root()
    asked = words[0] if words else ""
    if asked in COMMANDS:
        _import_command(app, asked, INNER.get(tuple(words[:2]), COMMANDS[asked]))
        return app
    for name, place in COMMANDS.items():
        app.command(name, short_help=place.about)(_named_only)
    return app


def whole() -> typer.Typer:
    """Make the whole command tree, with all that is in every command."""
    app = _root()
    for name, place in COMMANDS.items():
        _import_command(app, name, place)
    return app


def _root() -> typer.Typer:
    app = typer.Typer(
        name="wattmesh",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    return app


def _named_only() -> None:
    """Stand for a command in the list of all."""


def _import_command(app: typer.Typer, name: str, place: LazyCommand) -> None:
    found = getattr(import_module(f"wattmesh.controller.cli.{place.module}"), place.name)
    if isinstance(found, typer.Typer):
        for group in (found, *(each.typer_instance for each in found.registered_groups)):
            if group is not None:
                group.info.cls = Sentences
        app.add_typer(found, name=name, short_help=place.about)
    else:
        app.command(name, short_help=place.about)(found)


def _version(asked: bool) -> None:
    if asked:
        print(f"wattmesh {wattmesh.__version__}")
        raise typer.Exit


def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
    debug: bool = typer.Option(
        False, "--debug", help="Show the traceback of a failure (anywhere in the line)."
    ),
) -> None:
    """Energy and carbon control for PyTorch training clusters."""
