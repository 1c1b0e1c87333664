"""docs/reference/cli.md: every command, in the words of its own help."""

from collections.abc import Iterator
from typing import Any

import typer

from scripts.pages.markdown import block, page
from wattmesh.controller.cli.tree import whole

WIDTH = 96

INTRODUCTION = """Every command that reads takes `--json`: stable keys, the ones of the
[HTTP API](api.md). Exit status 0: done. 1: failed, with one sentence on standard error. 2: misuse.
`--debug` anywhere shows the traceback of a failure."""


def commands() -> Iterator[tuple[str, str]]:
    """Give every command's full name and its help, the root first."""
    yield from _walk(typer.main.get_command(whole()), "wattmesh", None)


# Typer brings its own copy of click, whose types it does not publish: hence Any.
def _walk(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:
    context = command.context_class(
        command,
        info_name=name,
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )
    yield context.command_path, command.get_help(context)
    for child_name, child in getattr(command, "commands", {}).items():
        yield from _walk(child, child_name, context)


def render() -> str:
    """Write the page."""
    sections = (f"## {name}\n\n{block(text)}" for name, text in commands())
    return page("Command line", INTRODUCTION, *sections)
