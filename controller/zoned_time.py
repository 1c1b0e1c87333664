"""Reads a moment with its zone from text; who asks says what is wrong in words of its own. Pure."""

from datetime import datetime


def zoned_time(text: str) -> datetime | None:
    """Read a time with its zone; None where it is no time, or has no zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
