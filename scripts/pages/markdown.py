"""Small pieces of Markdown."""

import inspect
from collections.abc import Iterable, Sequence

NOTICE = "<!-- Written by `make docs` from the code; do not edit. -->"


def page(title: str, *parts: str) -> str:
    """Put a page together; parts are separated by an empty line."""
    return "\n\n".join([f"# {title}", NOTICE, *parts]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a table."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def code(text: str) -> str:
    """Mark text as code; "" stays empty."""
    return f"`{text}`" if text else ""


def block(text: str) -> str:
    """Show text as it is."""
    return f"```text\n{text.rstrip()}\n```"


def docstring(thing: object) -> str:
    """Give a docstring, dedented; an undocumented thing is a mistake of ours."""
    text = inspect.getdoc(thing)
    if not text:
        raise ValueError(f"{thing!r} has no docstring: write one, the reference page shows it")
    return text
