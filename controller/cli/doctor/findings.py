"""One line of `wattmesh doctor` or `attach-check`, and the three things that it can say."""

from dataclasses import dataclass
from enum import StrEnum


class CheckStatus(StrEnum):
    """What a check found."""

    OK = "ok"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of doctor. `do`: the next step; "" when ok. `where`: FILE:LINE, where known."""

    check: str
    verdict: CheckStatus
    text: str
    do: str = ""
    where: str = ""


def ok(check: str, text: str) -> Finding:
    """Report that nothing is wrong."""
    return Finding(check=check, verdict=CheckStatus.OK, text=text)


def problem(check: str, text: str, do: str) -> Finding:
    """Report something that a person should fix."""
    return Finding(check=check, verdict=CheckStatus.PROBLEM, text=text, do=do)


def unknown(check: str, text: str, do: str) -> Finding:
    """Report that something cannot be known now."""
    return Finding(check=check, verdict=CheckStatus.UNKNOWN, text=text, do=do)
