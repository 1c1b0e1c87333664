"""Requests to a provider and its answers, before HTTP.

Invariant: nothing here reads a clock; `now` is part of the request.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from wattmesh.errors import InputInvalid


class ServedProvider(StrEnum):
    """A provider that is answered for; the value is the first part of its paths."""

    ELECTRICITY_MAPS = "electricity_maps"
    WATTTIME = "watttime"
    NESO = "neso"
    EIA930 = "eia930"
    HTTP_JSON = "http_json"
    ENTSOE = "entsoe"
    OPEN_METEO = "open_meteo"
    OPEN_ELECTRICITY = "open_electricity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request.

    Attributes:
        path: parts after the provider's prefix: `("v4", "carbon-intensity", "latest")`.
        query: first value of each parameter, names as sent (`facets[respondent][]`).
        headers: by lower-case name.
        now: the server's clock, aware UTC.
    """

    path: tuple[str, ...]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer. `body`: text or bytes as they are, anything else becomes JSON."""

    body: Any
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """One request as the server notes it. `key`: the credential it carried, as sent; "": none."""

    service: ServedProvider | None
    path: str
    key: str
    at: datetime


def floor(at: datetime, step: timedelta) -> datetime:
    """Return the start of the interval that holds a moment; intervals count from midnight."""
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + (at - midnight) // step * step


def moment(text: str) -> datetime:
    """Read an ISO 8601 time that names its offset.

    Raises:
        InputInvalid: not a time, or without an offset.
    """
    try:
        at = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError as error:
        raise InputInvalid(f"{text!r} is not an ISO 8601 time") from error
    if at.tzinfo is None:
        raise InputInvalid(f"{text!r} has no offset; write Z behind UTC")
    return at.astimezone(UTC)
