"""A bar for long work, on bytes or on things: how much is done, how long still.

Invariant: it is drawn on standard error, and only when that is a terminal.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

Told = Callable[[int], None]


def bar(words: str, nbytes: int) -> AbstractContextManager[Told]:
    """Show a bar; give a thread-safe function that takes the bytes done since its last call."""
    return _drawn(words, nbytes, DownloadColumn(), TransferSpeedColumn())


def counted(words: str, total: int) -> AbstractContextManager[Told]:
    """Show a bar; give a function that takes how many of `total` are done since its last call."""
    return _drawn(words, total, MofNCompleteColumn())


@contextmanager
def _drawn(words: str, total: int, *amounts: ProgressColumn) -> Iterator[Told]:
    """Draw the bar if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield _silent
        return
    columns = (TextColumn("{task.description}"), BarColumn(), *amounts, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task(words, total=total)
        yield lambda count: drawn.advance(task, count)


def _silent(count: int) -> None:
    """Draw nothing."""
