"""Asking ENTSO-E's transparency platform: areas, documents, and what its refusals mean.

Invariant: an acknowledgement that there is no data is an answer; every other one is an error.
"""

from collections.abc import Mapping
from datetime import datetime

from wattmesh.errors import AuthFailed, InputInvalid, NoData, RateLimited
from wattmesh.integrations.carbon.reading.answers import ErrorAnswer, ErrorClass
from wattmesh.integrations.carbon.reading.credentials import Credentials
from wattmesh.integrations.carbon.reading.entsoe_xml import (
    Acknowledgement,
    DocumentError,
    MarketDocument,
    parsed,
)
from wattmesh.integrations.carbon.reading.http import BehindBreaker, JsonHttp

BASE_URL = "https://web-api.tp.entsoe.eu"
PATH = "/api"
HTTP_BAD_REQUEST, HTTP_UNAUTHORIZED = 400, 401
NOTHING = "999"
"""The reason code of an acknowledgement for many mistakes; most often there is no data."""
AREAS: Mapping[str, str] = {
    "AT": "10YAT-APG------L",
    "BE": "10YBE----------2",
    "CH": "10YCH-SWISSGRIDZ",
    "CZ": "10YCZ-CEPS-----N",
    "DE": "10Y1001A1001A82H",
    "DK1": "10YDK-1--------W",
    "DK2": "10YDK-2--------M",
    "ES": "10YES-REE------0",
    "FI": "10YFI-1--------U",
    "FR": "10YFR-RTE------C",
    "NL": "10YNL----------L",
    "PL": "10YPL-AREA-----S",
    "PT": "10YPT-REN------W",
    "SE1": "10Y1001A1001A44P",
    "SE2": "10Y1001A1001A45N",
    "SE3": "10Y1001A1001A46L",
    "SE4": "10Y1001A1001A47J",
}
"""Energy identification codes of bidding zones; DE is Germany with Luxembourg."""
CODE_LENGTH = 16


def area_of(zone: str) -> str:
    """Give the code of a zone: a key of `AREAS`, or a code of 16 characters.

    Raises:
        InputInvalid: it is neither.
    """
    area = AREAS.get(zone, zone)
    if len(area) != CODE_LENGTH or not area.replace("-", "").isalnum():
        raise InputInvalid(
            f"carbon: zone {zone!r} is neither one of {', '.join(AREAS)} nor a code of "
            f"{CODE_LENGTH} characters like {AREAS['FR']}"
        )
    return area


class EntsoePlatform(BehindBreaker):
    """One account on the platform."""

    def __init__(
        self, *, token: str, base_url: str = BASE_URL, http: JsonHttp | None = None
    ) -> None:
        """Take the token.

        Args:
            token: the security token of an account.
            base_url: another address of the same API.
            http: client to use instead of one for `base_url`.

        Raises:
            InputInvalid: a malformed token.
        """
        self._credentials = Credentials.parameter("securityToken", token)
        self._http = http or JsonHttp(base_url)

    def document(
        self, query: Mapping[str, str], start: datetime, end: datetime, *, zone: str
    ) -> MarketDocument | Acknowledgement:
        """Fetch one document about [start, end); an acknowledgement of no data is an answer.

        Raises:
            SourceUnavailable: nothing usable came. SourceRefused: the token or the zone is wrong.
        """
        asked = {
            **query,
            "periodStart": f"{start:%Y%m%d%H%M}",
            "periodEnd": f"{end:%Y%m%d%H%M}",
        }
        try:
            answer = self._http.get(
                PATH,
                query=asked,
                headers={"Accept": "application/xml"},
                credentials=self._credentials,
                classify=_classify,
                read=parsed,
            )
        except NoData as error:
            # What the platform said stands last.
            return Acknowledgement(code=NOTHING, text=str(error).rpartition("; ")[2])
        if isinstance(answer, Acknowledgement) and _limited(answer):
            raise RateLimited(f"ENTSO-E asks for less: {answer.text[:160]}")
        if isinstance(answer, Acknowledgement) and answer.code != NOTHING:
            raise InputInvalid(
                f"ENTSO-E refused a question about {zone}: {answer.code} {answer.text[:160]}"
            )
        assert isinstance(answer, MarketDocument | Acknowledgement)
        return answer


def _classify(answer: ErrorAnswer) -> ErrorClass | None:
    """Decode ENTSO-E's errors: a refusal is mostly an acknowledgement with status 400."""
    if answer.status == HTTP_UNAUTHORIZED:
        advice = "check the token; a new account must ask for API access by mail"
        return ErrorClass(error=AuthFailed, advice=advice)
    if answer.status != HTTP_BAD_REQUEST:
        return None
    try:
        told = parsed(answer.body)
    except DocumentError:
        return None
    if not isinstance(told, Acknowledgement):
        return None
    if _limited(told):
        return ErrorClass(error=RateLimited, advice=told.text[:160])
    return ErrorClass(error=NoData, advice=told.text[:160])


def _limited(told: Acknowledgement) -> bool:
    return "maximum allowed" in told.text or "limit" in told.text.lower()
