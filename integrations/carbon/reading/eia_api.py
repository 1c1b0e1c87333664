"""Asking EIA's API, version 2, for the hourly grid monitor (EIA-930): pages, key, labels, errors.

Labels are hours of UTC and most authorities name an hour by its end. An answer has at most 5,000
rows; the rest is asked for by offset.

Invariant: the key is a query parameter that no text shows; a row that cannot be placed in time or
is of another authority is never used.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.errors import AuthFailed, InputInvalid, NoData, Transient, ZoneMismatch
from wattmesh.integrations.carbon.reading.answers import ErrorAnswer, ErrorClass
from wattmesh.integrations.carbon.reading.credentials import Credentials
from wattmesh.integrations.carbon.reading.http import BehindBreaker, JsonHttp

BASE_URL = "https://api.eia.gov/v2"
HOUR = timedelta(hours=1)
LABELS = ("ending", "starting")
ROWS = 5000
"""Most rows of one answer in JSON."""
MOST_PAGES = 40
"""About a year and a half of hours with fourteen fuels."""
UNIT = "megawatthours"
HTTP_FORBIDDEN = 403
_FORM = "%Y-%m-%dT%H"


class EiaApi(BehindBreaker):
    """One authority, asked with one key."""

    def __init__(
        self,
        *,
        zone: str,
        key: str,
        label: str = "ending",
        base_url: str = BASE_URL,
        http: JsonHttp | None = None,
    ) -> None:
        """Take the authority and the key.

        Args:
            zone: code of the authority, e.g. CISO, PJM, ERCO.
            key: the API key.
            label: whether an hour is labelled by its `ending` (as EIA documents) or `starting`.
            base_url: another address of the same API.
            http: client to use instead of one for `base_url`.

        Raises:
            InputInvalid: an unknown label, or a malformed key or zone.
        """
        if label not in LABELS:
            raise InputInvalid(f"carbon: label {label!r} is not one of {', '.join(LABELS)}")
        if not zone.isalnum():
            raise InputInvalid(f"carbon: zone {zone!r} is no code of an authority like CISO")
        self.zone = zone
        self._credentials = Credentials.parameter("api_key", key)
        self._shift = HOUR if label == "ending" else timedelta()
        self._http = http or JsonHttp(base_url)

    def rows(
        self,
        path: str,
        start: datetime,
        end: datetime,
        *,
        nothing: str,
        facets: Mapping[str, str] | None = None,
    ) -> Iterator[Any]:
        """Fetch the rows of the hours that begin in [start, end], page by page, oldest first.

        Args:
            path: the route below the base address, with its slashes.
            start: of the first hour, aware.
            end: of the last hour, aware.
            nothing: what is not there when there are no rows, and why that can be.
            facets: what to narrow the answer to, besides the authority.

        Raises:
            NoData: there are none. Transient: the answer has another form. SourceUnavailable:
                nothing usable came. SourceRefused: the key is wrong.
        """
        query = {
            "frequency": "hourly",
            "data[0]": "value",
            "facets[respondent][]": self.zone,
            **{f"facets[{name}][]": value for name, value in (facets or {}).items()},
            "start": f"{(start + self._shift).astimezone(UTC):{_FORM}}",
            "end": f"{(end + self._shift).astimezone(UTC):{_FORM}}",
            "sort[0][column]": "period",
            "sort[0][direction]": "asc",
            "length": str(ROWS),
        }
        told = 0
        for _ in range(MOST_PAGES):
            body = self._http.get(
                path,
                query={**query, "offset": str(told)},
                credentials=self._credentials,
                classify=_classify,
            )
            rows = _page(body)
            yield from rows
            told += len(rows)
            if len(rows) < ROWS:
                break
        if not told:
            raise NoData(
                f"EIA has no {nothing} of {self.zone} from {query['start']} to {query['end']} UTC"
            )

    def begin(self, row: Any) -> datetime | None:
        """Give the start of a row's hour; None when the row does not say it.

        Raises:
            ZoneMismatch: the row is of another authority, or of a part of one.
        """
        try:
            period, zone = row["period"], row["respondent"]
            begin = datetime.strptime(period, _FORM).replace(tzinfo=UTC) - self._shift
        except (LookupError, TypeError, ValueError, OverflowError):
            return None
        part = row.get("subba")
        if zone != self.zone or part is not None:
            whose = str(zone)[:20] + ("" if part is None else f", part {str(part)[:20]}")
            raise ZoneMismatch(
                f"EIA answered for {whose!r}, asked for {self.zone!r}; nothing was stored"
            )
        return begin


def _page(body: Any) -> list[Any]:
    response = body.get("response") if isinstance(body, dict) else None
    rows = response.get("data") if isinstance(response, dict) else None
    if not isinstance(rows, list):
        raise Transient(f"EIA answered {str(body)[:80]!r}, which has no response.data")
    return rows


def _classify(answer: ErrorAnswer) -> ErrorClass | None:
    """Decode EIA's errors: a missing, wrong or suspended key gets 403."""
    if answer.status == HTTP_FORBIDDEN:
        advice = (
            "check the key in key_file (of an exogenous provider: token_file); EIA suspends keys "
            "that ask too often for a while"
        )
        return ErrorClass(error=AuthFailed, advice=advice)
    return None
