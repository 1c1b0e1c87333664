"""A bar for long work, on bytes or on things: how much is done, how long still.

Invariant: it is drawn on standard error, and only when that is a terminal.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

Told = Callable[[int], None]


@contextmanager
def bar(words: str, nbytes: int) -> Iterator[Told]:
    """Give what to tell the bytes done since the last time, from any thread."""
    if not sys.stderr.isatty():
        yield _silent
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task(words, total=nbytes)
        yield lambda count: drawn.advance(task, count)


@contextmanager
def counted(words: str, total: int) -> Iterator[Told]:
    """Give what to tell how many of `total` are done since the last time."""
    if not sys.stderr.isatty():
        yield _silent
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task(words, total=total)
        yield lambda count: drawn.advance(task, count)


def _silent(count: int) -> None:
    """Nobody looks."""
