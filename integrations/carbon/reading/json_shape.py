"""Where an unknown service keeps what, in its address and in its JSON, as the settings say it.

Paths are keys joined by dots (`data.history`, `0.value`); addresses are templates with `{zone}`,
`{start}`, `{end}` and `{hours}`. Pure. Invariant: a unit is declared or the shape is refused;
percentiles and indices are no unit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from string import Formatter
from typing import Any
from urllib.parse import quote, urlsplit

from wattmesh.errors import InputInvalid
from wattmesh.telemetry.slots import border, index_at

G_PER_KWH: Mapping[str, float] = {
    "g/kWh": 1.0,
    "kg/MWh": 1.0,
    "t/GWh": 1.0,
    "lbs/MWh": 0.45359237,
}
"""Units that are accepted, in g/kWh (the international pound is 453.59237 g exactly)."""

ORIGIN = datetime(2020, 1, 1, tzinfo=UTC)
"""Declared intervals begin at this time plus multiples of their length."""

FIELDS = ("zone", "start", "end", "hours")
MILLISECONDS_FROM = 1e11
"""Larger numbers are milliseconds since 1970; as seconds they would be after the year 5138."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonShape:
    """The form of a service's requests and answers.

    Attributes:
        url, forecast_url: templates; "" for no forecast.
        rows, forecast_rows: path to the list; "": the answer is the list.
        start, end: paths in a row to the interval's times; one of them may be "".
        value, forecast_value: paths in a row to the number.
        estimated: path in a row to a flag, true or a text where the value is estimated.
        issued: path in the answer to the forecast's issue time; "": there is none.
        unit: of both numbers; a key of `G_PER_KWH`.
    """

    url: str
    forecast_url: str = ""
    rows: str = ""
    forecast_rows: str = ""
    start: str = "start"
    end: str = ""
    value: str = "value"
    forecast_value: str = "value"
    estimated: str = ""
    issued: str = ""
    unit: str = "g/kWh"

    def __post_init__(self) -> None:
        """Check unit, interval and addresses.

        Raises:
            InputInvalid: the message names the key and what is allowed.
        """
        if self.unit not in G_PER_KWH:
            raise InputInvalid(
                f"carbon: unit {self.unit!r} is no grams by energy; allowed are "
                f"{', '.join(G_PER_KWH)} (a percentile or an index ranks hours, it has no grams)"
            )
        if not (self.start or self.end):
            raise InputInvalid(
                "carbon: start and end are both empty; an interval needs one of them"
            )
        split(self.url)
        if self.forecast_url:
            split(self.forecast_url)


def split(template: str) -> tuple[str, str]:
    """Split a URL template into (scheme and host, path and query).

    Raises:
        InputInvalid: not http(s), with a user or password in it, or with an unknown field.
    """
    try:
        names = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
        parts = urlsplit(template)
        _ = parts.port
    except ValueError as error:
        raise InputInvalid(f"carbon: {template!r} is not an address ({error})") from None
    unknown = sorted(names - set(FIELDS))
    if unknown:
        raise InputInvalid(
            f"carbon: {{{unknown[0]}}} in {template!r} is not known; allowed are "
            + ", ".join(f"{{{name}}}" for name in FIELDS)
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname or "{" in parts.netloc:
        raise InputInvalid(f"carbon: {template!r} does not begin with http(s)://host")
    if "@" in parts.netloc:
        raise InputInvalid("carbon: an address with a user in it; put the token into token_file")
    base = f"{parts.scheme}://{parts.netloc}"
    return base, template[len(base) :] or "/"


def filled(template: str, *, zone: str, start: datetime, end: datetime, hours: float) -> str:
    """Fill in a template, URL-quoted, with times as 2026-12-01T00:00:00Z."""
    return template.format(
        zone=quote(zone, safe=""),
        start=_written(start),
        end=_written(end),
        hours=math.ceil(hours),
    )


def at_path(document: Any, path: str) -> Any:
    """Return the value at a path; None where there is none. A number is an index into a list."""
    for key in path.split(".") if path else ():
        if isinstance(document, dict):
            document = document.get(key)
        elif isinstance(document, list) and key.isdecimal() and int(key) < len(document):
            document = document[int(key)]
        else:
            return None
    return document


def moment(value: Any) -> datetime | None:
    """Parse a time: ISO 8601 with an offset, or seconds or milliseconds since 1970.

    None for anything else, also for a text without an offset, whose time zone is unknown.
    """
    if isinstance(value, bool):
        return None
    try:
        if isinstance(value, int | float):
            seconds = value / 1000 if abs(value) >= MILLISECONDS_FROM else value
            return datetime.fromtimestamp(seconds, UTC)
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
    return at.astimezone(UTC) if at.tzinfo else None


def number(value: Any) -> float | None:
    """Parse a number, or a text that is one; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def finite_number(value: Any) -> float | None:
    """Parse a number as `number` does; None for one that is not finite, too."""
    found = number(value)
    return found if found is not None and math.isfinite(found) else None


def placed(
    rows: list[Any], shape: JsonShape, interval_s: float, refused: list[str]
) -> dict[int, Any]:
    """Return rows by the index of their interval; of several the last one counts.

    A row without a usable time, or that is not one whole interval, adds a sentence to `refused`.
    """
    found: dict[int, Any] = {}
    for row in rows:
        begin, trouble = _begin(row, shape, interval_s)
        if begin is None:
            refused.append(trouble)
        else:
            found[index_at(ORIGIN, interval_s, begin)] = row
    return found


def _begin(row: Any, shape: JsonShape, interval_s: float) -> tuple[datetime | None, str]:
    """The start of a row's interval, or None and the reason where it is not a whole one."""
    length = timedelta(seconds=interval_s)
    start = moment(at_path(row, shape.start)) if shape.start else None
    end = moment(at_path(row, shape.end)) if shape.end else None
    for at, path in ((start, shape.start), (end, shape.end)):
        if path and at is None:
            return None, f"A row {str(row)[:120]!r} has no time with its offset at {path!r}."
    begin = start or (end or ORIGIN) - length
    on_border = border(ORIGIN, interval_s, index_at(ORIGIN, interval_s, begin)) == begin
    if on_border and (end is None or end - begin == length):
        return begin, ""
    return None, (
        f"The row of {begin:%Y-%m-%d %H:%M:%S} UTC is not one interval of {interval_s:g} s "
        "that begins at a multiple of it."
    )


def _written(at: datetime) -> str:
    return quote(f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}")
