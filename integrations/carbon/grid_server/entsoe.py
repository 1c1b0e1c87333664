"""Answers as ENTSO-E's transparency platform gives them: XML of day-ahead forecasts and prices.

Documents of actual generation are made by `entsoe_mix.py`.

Written from the published documentation, not from our own client. Values are megawatts, whole days
of the zone's time (Brussels) in periods of a quarter of an hour, curve type A03: a point that
repeats the one before is left out. What cannot be answered is an acknowledgement.
"""

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from zoneinfo import ZoneInfo

from wattmesh.integrations.carbon.grid_server import entsoe_mix, entsoe_prices
from wattmesh.integrations.carbon.grid_server.answers import Reply, Request
from wattmesh.integrations.carbon.grid_server.faults import AnswerFaults, Fault
from wattmesh.integrations.carbon.grid_server.grids import SimulatedGrid, noise

XML = "text/xml"
FORM = "%Y%m%d%H%M"
MOMENT = "%Y-%m-%dT%H:%MZ"
ZONE = ZoneInfo("Europe/Brussels")
DAY = timedelta(days=1)
QUARTER = timedelta(minutes=15)
LONGEST = timedelta(days=366)
PUBLISHED_H = 18
"""Local hour of the day before at which a day's forecasts are out."""
SPACE = "urn:iec62325.351:tc57wg16:451-6:generationloaddocument:3:0"
BOMB = (
    '<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "lol">'
    + "".join(f'<!ENTITY a{n} "{("&a" + (str(n - 1) if n else "") + ";") * 10}">' for n in range(9))
    + "]><GL_MarketDocument>&a8;</GL_MarketDocument>"
)
"""Ten times ten times ten...: 3 GB where it is expanded."""


def zone_of(request: Request) -> str:
    """Return the code of the zone that is asked about."""
    query = request.query
    return query.get("in_Domain") or query.get("outBiddingZone_Domain") or ""


def acknowledged(text: str, *, status: int = 200, code: str = "999") -> Reply:
    """Say why there is no document."""
    body = (
        '<?xml version="1.0" encoding="UTF-8"?><Acknowledgement_MarketDocument '
        'xmlns="urn:iec62325.351:tc57wg16:451-1:acknowledgementdocument:7:0"><mRID>x</mRID>'
        f"<createdDateTime>2026-01-01T00:00:00Z</createdDateTime><Reason><code>{code}</code>"
        f"<text>{text}</text></Reason></Acknowledgement_MarketDocument>"
    )
    return Reply(status=status, body=body, content_type=XML)


def answer(
    request: Request, grid: SimulatedGrid, suffering: AnswerFaults, keys: frozenset[str]
) -> Reply:
    """Answer one request."""
    query = request.query
    token = query.get("securityToken", "")
    if not token or (keys and token not in keys):
        page = "<html><body>Unauthorized: missing or invalid security token</body></html>"
        return Reply(status=401, body=page, content_type="text/html")
    if request.path != ("api",):
        return Reply(
            status=404, body="<html><body>Not Found</body></html>", content_type="text/html"
        )
    try:
        start, end = (
            datetime.strptime(query.get(name, ""), FORM).replace(tzinfo=UTC)
            for name in ("periodStart", "periodEnd")
        )
    except ValueError:
        return acknowledged("Mandatory parameter periodStart or periodEnd is wrong", status=400)
    if end - start > LONGEST:
        return acknowledged("The requested interval exceeds the maximum allowed", status=400)
    return _document(request, (start, end), grid, suffering)


def _document(
    request: Request,
    span: tuple[datetime, datetime],
    grid: SimulatedGrid,
    suffering: AnswerFaults,
) -> Reply:
    """Answer a sound question."""
    if suffering.has(Fault.ENTITIES):
        return Reply(body=BOMB, content_type=XML)
    if request.query.get("documentType") == "A75":
        body = entsoe_mix.document(zone_of(request), span, request.now, grid, suffering)
        missing = "No matching data found for Data item A75"
        return Reply(body=body, content_type=XML) if body else acknowledged(missing)
    if request.query.get("documentType") == "A44":
        return _prices(request, span, suffering)
    query, now = request.query, request.now
    productions = {"A69": ("B16", "B18", "B19"), "A65": ("",)}.get(query.get("documentType", ""))
    days = [] if suffering.has(Fault.EMPTY) else list(days_of(*span, now, suffering))
    if not productions or not days or query.get("processType") != "A01":
        return acknowledged(f"No matching data found for Data item {query.get('documentType')}")
    zone = "10YXX-WRONG----9" if suffering.has(Fault.WRONG_ZONE) else zone_of(request)
    series = "".join(_series(zone, each, days, suffering) for each in productions)
    body = (
        f'<?xml version="1.0" encoding="utf-8"?><GL_MarketDocument xmlns="{SPACE}"><mRID>1</mRID>'
        f"<revisionNumber>1</revisionNumber><createdDateTime>{now:%Y-%m-%dT%H:%M:%SZ}"
        f"</createdDateTime>{series}</GL_MarketDocument>"
    )
    return Reply(body=body, content_type=XML)


def _prices(request: Request, span: tuple[datetime, datetime], suffering: AnswerFaults) -> Reply:
    """Answer a question about prices; a zone's two domains are one."""
    query, now, zone = request.query, request.now, zone_of(request)
    days = list(days_of(*span, now, suffering, entsoe_prices.PUBLISHED_H))
    if not days or suffering.has(Fault.EMPTY) or query.get("out_Domain") != zone:
        return acknowledged("No matching data found for Data item ENERGY_PRICES")
    told = "10YXX-WRONG----9" if suffering.has(Fault.WRONG_ZONE) else zone
    return Reply(body=entsoe_prices.document(told, days, now, suffering), content_type=XML)


def megawatts(zone: str, production: str, start: datetime) -> float:
    """Return the day-ahead forecast of a quarter of an hour."""
    hour = start.hour + start.minute / 60
    if production == "B16":
        sun = max(0.0, math.sin(math.pi * (hour - 5) / 14)) if 5 < hour < 19 else 0.0
        return round(20_000 * sun * (0.7 + 0.3 * noise(zone, "sun", _half_day(start))))
    if production == "":
        swing = math.cos(2 * math.pi * (hour - 18) / 24)
        return round(55_000 + 9_000 * swing + 2_000 * noise(zone, "load", _half_day(start)))
    most = 6_000 if production == "B18" else 30_000
    return round(most * (0.5 + 0.5 * noise(zone, production, _half_day(start))))


def _half_day(at: datetime) -> datetime:
    return at.replace(hour=at.hour // 12 * 12, minute=0)


def days_of(
    start: datetime,
    end: datetime,
    now: datetime,
    suffering: AnswerFaults,
    published_h: int = PUBLISHED_H,
) -> Iterator[tuple[datetime, datetime]]:
    """Give the local days that overlap and are published, at that hour of the day before."""
    day = start.astimezone(ZONE).date()
    while True:
        first, last = (
            datetime.combine(day + n * DAY, clock_time(), ZONE).astimezone(UTC) for n in (0, 1)
        )
        if first >= end:
            return
        late = DAY if suffering.has(Fault.LATE_ISSUE) else timedelta()
        out = datetime.combine(day - DAY + late, clock_time(published_h), ZONE)
        if out <= now and not suffering.hits(Fault.GAP, first):
            yield first, last
        day += DAY


def _series(
    zone: str, production: str, days: list[tuple[datetime, datetime]], suffering: AnswerFaults
) -> str:
    domain = "inBiddingZone_Domain" if production else "outBiddingZone_Domain"
    unit = "KWT" if suffering.has(Fault.WRONG_UNIT) else "MAW"
    kind = f"<MktPSRType><psrType>{production}</psrType></MktPSRType>" if production else ""
    periods = "".join(
        _period(zone, production, day, number, suffering) for number, day in enumerate(days)
    )
    return (
        "<TimeSeries><mRID>1</mRID><businessType>A94</businessType>"
        f'<{domain}.mRID codingScheme="A01">{zone}</{domain}.mRID>'
        f"<quantity_Measure_Unit.name>{unit}</quantity_Measure_Unit.name>"
        f"<curveType>A03</curveType>{kind}{periods}</TimeSeries>"
    )


def _period(
    zone: str,
    production: str,
    day: tuple[datetime, datetime],
    number: int,
    suffering: AnswerFaults,
) -> str:
    start, end = day
    hourly = suffering.has(Fault.RESOLUTION) and number % 2 == 1
    step = timedelta(hours=1) if hourly else QUARTER
    points, last = [], None
    for place in range((end - start) // step):
        at = start + place * step
        value = megawatts(zone, production, at)
        if suffering.hits(Fault.REVISED, at):
            value = round(1.2 * value)
        if suffering.hits(Fault.SPIKE, at):
            value = 9e9
        if value != last:
            points.append(
                f"<Point><position>{place + 1}</position><quantity>{value:g}</quantity></Point>"
            )
        last = value
    return (
        f"<Period><timeInterval><start>{start:{MOMENT}}</start><end>{end:{MOMENT}}</end>"
        f"</timeInterval><resolution>{'PT60M' if hourly else 'PT15M'}</resolution>"
        f"{''.join(points)}</Period>"
    )
