"""What the command lines of launchers share: numbers, options, signals, and how they speak.

Invariant: a number that makes no sense starts nothing.
"""

import argparse
import signal
import sys
from collections.abc import Callable
from math import isfinite
from types import FrameType

from wattmesh.reconfig.launcher.launch_book import Records


def say(sentence: str) -> None:
    """Tell people, on stderr."""
    print(f"wattmesh: {sentence}", file=sys.stderr, flush=True)


def on_stop(stop: Callable[[], None]) -> None:
    """Call `stop` at each SIGTERM and SIGINT from now on."""

    def heed(number: int, frame: FrameType | None) -> None:
        stop()

    signal.signal(signal.SIGTERM, heed)
    signal.signal(signal.SIGINT, heed)


def print_launches(records: Records) -> None:
    """Print a line for each launch of a run's book."""
    for each in records:
        jobs = ", ".join(each.jobs) or each.begun_by
        until = f" until {each.begins_at}" if each.begins_at else ""
        print(f"{each.state:9} {each.ranks} ranks{until}, job {jobs}, {each.key or 'by hand'}")


def command_of(chosen: argparse.Namespace) -> list[str]:
    """Return the words of the training command, without the `--` before them."""
    words: list[str] = chosen.command
    return words[1:] if words[:1] == ["--"] else words


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options of a `Supervisor`'s limits."""
    parser.add_argument(
        "--max-restarts", type=read_count_or_zero, default=5, help="failures in a row"
    )
    parser.add_argument(
        "--stop-grace", type=read_seconds, default=600.0, help="seconds to stop in band"
    )


def read_count(text: str) -> int:
    """Read how many there are of something, at least 1.

    Raises:
        argparse.ArgumentTypeError: it is no such number.
    """
    return _whole(text, 1)


def read_count_or_zero(text: str) -> int:
    """Read how many there are of something, at least 0.

    Raises:
        argparse.ArgumentTypeError: it is no such number.
    """
    return _whole(text, 0)


def read_seconds(text: str) -> float:
    """Read a time in seconds, at least 0 and finite.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not isfinite(found) or found < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, 0 or more")
    return found


def _whole(text: str, least: int) -> int:
    try:
        found = int(text)
    except ValueError:
        found = least - 1
    if found < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {least}")
    return found
