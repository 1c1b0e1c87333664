"""Asking NESO's data portal, a CKAN data store: resources, questions, and what its refusals mean.

A resource is asked by its id in a question of SQL. Ids change when NESO publishes a resource anew;
then the catalogue of its package says the new one, which is kept until the process ends.

Invariant: only ids of 36 hexadecimal characters and times that were formatted here stand in a
question; an answer that is not `success`, or is to another question, is never used.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from wattmesh.errors import (
    NoData,
    NotEntitled,
    RateLimited,
    SourceUnavailable,
    Transient,
    ZoneMismatch,
)
from wattmesh.integrations.carbon.reading.answers import ErrorAnswer, ErrorClass
from wattmesh.integrations.carbon.reading.http import BehindBreaker, JsonHttp, RetryPolicy

BASE_URL = "https://api.neso.energy"
SQL, CATALOGUE = "/api/3/action/datastore_search_sql", "/api/3/action/package_show"
MOST_ROWS = 20_000
"""CKAN gives 32,000 at most."""
CENTURY = range(2000, 2100)
HTTP_FORBIDDEN, HTTP_CONFLICT = 403, 409
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SINGLE = ("generator", "bmu")
"""Columns of resources that tell single wind farms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One table of the portal.

    Attributes:
        id: what it was when this was written.
        package, name: where the catalogue says its id now.
        time, value, made: its columns: start of the half hour, megawatts, when it was made.
    """

    id: str
    package: str
    name: str
    time: str
    value: str
    made: str


class NesoPortal(BehindBreaker):
    """The portal, asked by one thread."""

    def __init__(self, *, base_url: str = BASE_URL, http: JsonHttp | None = None) -> None:
        """Set the address, or a client to use instead."""
        self._http = http or JsonHttp(base_url, patience=RetryPolicy(tries=1))
        self._ids: dict[str, str] = {}

    def rows(self, resource: Resource, start: datetime, end: datetime) -> Iterator[dict[str, Any]]:
        """Fetch the rows whose half hour begins in [start, end), oldest first.

        Columns are those that `resource` names, and `Date`, `Settlement_Period` and `Capacity`,
        whatever their case.

        Raises:
            NoData: there are none. SourceUnavailable: nothing usable came. ZoneMismatch: they are
                of something else.
        """
        known = self._ids.get(resource.name, resource.id)
        try:
            found = self._asked(resource, known, start, end)
        except NoData as error:
            found, missing = [], str(error)
        else:
            missing = f"NESO has no {resource.name} for {start:%Y-%m-%d} to {end:%Y-%m-%d}"
        if not found:
            newer = self._id_now(resource)
            if newer == known:
                raise NoData(missing)
            found = self._asked(resource, newer, start, end)
            if not found:
                raise NoData(missing)
        return (_row(each, resource) for each in found)

    def _asked(
        self, resource: Resource, resource_id: str, start: datetime, end: datetime
    ) -> list[Any]:
        """Ask for rows by an id; empty when it has none of that time."""
        since, until = (f"{each.astimezone(UTC):%Y-%m-%dT%H:%M:%S}" for each in (start, end))
        sql = (
            f'SELECT * FROM "{resource_id}" WHERE "{resource.time}" >= \'{since}\' '
            f'AND "{resource.time}" < \'{until}\' ORDER BY "{resource.time}" LIMIT {MOST_ROWS}'
        )
        result = _result(self._http.get(SQL, query={"sql": sql}, classify=_classify))
        if result.get("sql", sql) != sql:
            raise ZoneMismatch(
                f"NESO answered the question {str(result['sql'])[:80]!r}, which was not asked; "
                "nothing was stored"
            )
        found = result.get("records")
        if not isinstance(found, list):
            raise Transient(f"NESO answered {str(result)[:80]!r}, which has no records")
        if len(found) >= MOST_ROWS or result.get("records_truncated"):
            raise SourceUnavailable(
                f"NESO has more than {MOST_ROWS} rows of {resource.name} from {since} to {until}; "
                "some would be missing, so none is used"
            )
        return found

    def _id_now(self, resource: Resource) -> str:
        """Ask the catalogue for the id of a resource; the one that is known when it says none."""
        known = self._ids.get(resource.name, resource.id)
        package = _result(
            self._http.get(CATALOGUE, query={"id": resource.package}, classify=_classify)
        )
        several = package.get("resources")
        for each in several if isinstance(several, list) else ():
            if not isinstance(each, dict):
                continue
            names = {_plain(each.get("name")), _plain(each.get("title"))}
            found = str(each.get("id"))
            if _plain(resource.name) in names and _ID.fullmatch(found):
                self._ids[resource.name] = found
                return found
        return known


def read_moment(value: Any) -> datetime | None:
    """Decode a time of this century; without an offset it is UTC, as NESO's pages say of targets.

    Of the archive's stamps nobody says it; London's time is never behind UTC, so read as UTC a
    stamp is never too early.
    """
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    if at.year not in CENTURY:
        return None
    return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)


def _row(sent: Any, resource: Resource) -> dict[str, Any]:
    """Give a record's columns their names.

    Raises:
        Transient: it is no record, or a column is missing. ZoneMismatch: it is of a wind farm.
    """
    if not isinstance(sent, dict):
        raise Transient(f"NESO sent {str(sent)[:80]!r}, which is no record")
    told = {str(name).casefold(): value for name, value in sent.items()}
    if any(name.startswith(_SINGLE) for name in told):
        raise ZoneMismatch(
            f"NESO's {resource.name} tells single wind farms, not Great Britain; nothing was stored"
        )
    wanted = (resource.time, resource.value, resource.made, "Date", "Settlement_Period", "Capacity")
    for name in wanted:
        if name.casefold() not in told:
            raise Transient(f"NESO's {resource.name} has no column {name}: {str(sent)[:80]!r}")
    return {name: told[name.casefold()] for name in wanted}


def _result(body: Any) -> dict[str, Any]:
    """Return the result of an answer.

    Raises:
        Transient: it is malformed. SourceUnavailable: the portal says that it has no success.
    """
    if not isinstance(body, dict) or not isinstance(body.get("success"), bool):
        raise Transient(f"NESO answered {str(body)[:80]!r}, which is no answer of CKAN")
    if not body["success"]:
        raise SourceUnavailable(f"NESO's portal failed: {str(body.get('error'))[:160]}")
    if not isinstance(body.get("result"), dict):
        raise Transient(f"NESO answered {str(body)[:80]!r}, which has no result")
    result: dict[str, Any] = body["result"]
    return result


def _plain(name: Any) -> str:
    return str(name).replace("_", " ").strip().casefold()


def _classify(answer: ErrorAnswer) -> ErrorClass | None:
    """Decode the portal's errors; CKAN's own refusals are JSON with a type."""
    if answer.status == HTTP_FORBIDDEN:
        if b"Authorization Error" in answer.body:
            return ErrorClass(error=NotEntitled, advice="NESO does not publish it any more")
        return ErrorClass(error=RateLimited, advice="NESO blocks who asks too often for a while")
    if answer.status == HTTP_CONFLICT:
        return ErrorClass(error=SourceUnavailable, advice="a column or the table is another one")
    return None
