"""Reads the numbers that launchers are started with: one that makes no sense starts nothing."""

import argparse
from math import isfinite


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
