"""The `[actuator]` table of the one settings file, read with the standard library alone.

The privileged process does not import pydantic; keys, defaults and ranges are those of
`wattmesh.controller.settings.model.ActuatorSection` (a test holds the two equal).
"""

import grp
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from wattmesh.errors import SettingsInvalid
from wattmesh.named_file import SETTINGS_BYTES, read_named
from wattmesh.toml_text import read_toml

MOST_DAYS = 366.0
"""A limit that lasts longer should be set by the administrator of the boards, not by a lease."""

DAY_S = 86_400.0


class ActuatorMode(StrEnum):
    """How far the actuator may go."""

    OBSERVE = "observe"
    DRY_RUN = "dry-run"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActuatorSettings:
    """What the operator allows; units and meaning as in `ActuatorSection`."""

    mode: ActuatorMode = ActuatorMode.OBSERVE
    socket: Path = Path("/run/wattmesh-actuator/actuator.sock")
    group: str = "wattmesh-actuator"
    agent: str = "wattmesh"
    journal: Path = Path("/var/lib/wattmesh-actuator/journal")
    library: Path | None = None
    baseline_lock_mhz: int | None = None
    cap_floor_share: float = 0.5
    write_every_s: float = 60.0
    step_share: float = 0.1
    boards: tuple[str, ...] = ()
    obligation_days: float = 31.0


def load(path: Path) -> ActuatorSettings:
    """Read a settings file; without the table every default applies.

    Raises:
        SettingsInvalid: the file cannot be read, or lists every mistake in the table.
    """
    try:
        raw = read_toml(read_named(path, SETTINGS_BYTES).decode())
    except (OSError, ValueError) as error:
        raise SettingsInvalid(str(path), [("file", f"cannot be read: {error}")]) from error
    table = raw.get("actuator", {})
    if not isinstance(table, dict):
        raise SettingsInvalid(str(path), [("actuator", "must be a table")])
    settings = parse(table, where=path)
    api = raw.get("api", {})
    if isinstance(api, dict):
        jobs, operators = api.get("group", ""), api.get("operators_group", OPERATORS)
        if mixed := list(mixed_groups(jobs, operators, settings.group)):
            raise SettingsInvalid(str(path), mixed)
    return settings


def mixed_groups(jobs: str, operators: str, actuator: str) -> Iterator[tuple[str, str]]:
    """Find groups in the settings that must differ but are one, by name or by gid.

    Args:
        jobs: api.group, of those who own runs; "": nobody.
        operators: api.operators_group; "": nobody.
        actuator: actuator.group; "": nobody.

    Yields:
        (key, what to do) for each mistake.
    """
    if actuator and _same_group(jobs, actuator):
        yield (
            "actuator.group",
            f'"{actuator}" is api.group too, so every job owner could reach the actuator; name two '
            'groups, "wattmesh-jobs" as api.group and "wattmesh-actuator" here',
        )
    if actuator and _same_group(operators, actuator):
        yield (
            "actuator.group",
            f'"{actuator}" is api.operators_group too; give it a group of its own, with nobody in '
            'it but the agent\'s user: "wattmesh-actuator"',
        )
    if operators and _same_group(jobs, operators):
        yield (
            "api.group",
            f'"{jobs}" is api.operators_group too, so every job owner would be an operator; name '
            "two groups, or leave api.group out where only operators connect",
        )


OPERATORS = "wattmesh-operators"
"""Default of api.operators_group."""


def _same_group(one: str, other: str) -> bool:
    if not one or not other:
        return False
    numbers = []
    for name in (one, other):
        with suppress(KeyError, TypeError, ValueError):
            numbers.append(grp.getgrnam(name).gr_gid)
    return one == other or (len(numbers) == 2 and numbers[0] == numbers[1])


def parse(table: Mapping[str, Any], *, where: Path) -> ActuatorSettings:
    """Check the table; relative paths are relative to the folder of `where`.

    Raises:
        SettingsInvalid: lists every mistake with its key and what is allowed.
    """
    readers = _readers(where.absolute().parent)
    values: dict[str, Any] = {}
    mistakes: list[tuple[str, str]] = []
    for key, value in table.items():
        reader = readers.get(key)
        if reader is None:
            mistakes.append((f"actuator.{key}", "is not a key of this table"))
            continue
        try:
            values[key] = reader(value)
        except (TypeError, ValueError) as error:
            mistakes.append((f"actuator.{key}", f"{value!r} {error}"))
    if mistakes:
        raise SettingsInvalid(str(where), mistakes)
    return ActuatorSettings(**values)


def _readers(folder: Path) -> dict[str, Callable[[Any], Any]]:
    def path(value: Any) -> Path:
        return folder / Path(_text(value)).expanduser()

    found: dict[str, Callable[[Any], Any]] = {
        "mode": _mode,
        "socket": path,
        "group": _text,
        "agent": _text,
        "journal": path,
        "library": path,
        "baseline_lock_mhz": _whole_above_zero,
        "cap_floor_share": _share,
        "write_every_s": _seconds,
        "step_share": _share,
        "boards": _texts,
        "obligation_days": _days,
    }
    if set(found) != {each.name for each in fields(ActuatorSettings)}:
        raise AssertionError("a key of ActuatorSettings has no reader")
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("must be text")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("must be a list of texts")
    return tuple(_text(each) for each in value)


def _mode(value: Any) -> ActuatorMode:
    if value not in set(ActuatorMode):
        raise ValueError("must be one of " + ", ".join(ActuatorMode))
    return ActuatorMode(value)


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError("must be a number")
    return float(value)


def _whole_above_zero(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError("must be a whole number above 0")
    return value


def _share(value: Any) -> float:
    share = _number(value)
    if not 0 < share <= 1:
        raise ValueError("must be above 0 and at most 1")
    return share


def _days(value: Any) -> float:
    days = _number(value)
    if not 0 < days <= MOST_DAYS:
        raise ValueError(f"must be above 0 and at most {MOST_DAYS:g}")
    return days


def _seconds(value: Any) -> float:
    seconds = _number(value)
    if not 0 <= seconds < float("inf"):
        raise ValueError("must be 0 or more")
    return seconds
