"""Day-ahead prices (A44), as ENTSO-E's transparency platform gives them.

Written from the published documentation, not from our own client. A series per auction: the local
one (2) comes first, then an intraday one, and last the coupled one (1), which is the day-ahead
price. Curve type A03: a point that repeats the one before is left out. Prices are below zero around
noon.
"""

import math
from collections.abc import Iterable
from datetime import datetime, timedelta

from wattmesh.integrations.carbon.grid_server.faults import AnswerFaults, Fault
from wattmesh.integrations.carbon.grid_server.grids import noise

SPACE = "urn:iec62325.351:tc57wg16:451-3:publicationdocument:7:3"
POSITION = "classificationSequence_AttributeInstanceComponent.position"
MOMENT = "%Y-%m-%dT%H:%MZ"
QUARTER = timedelta(minutes=15)
PUBLISHED_H = 13
"""Local hour of the day before at which a day's prices are out."""
DAY_AHEAD, INTRADAY = "A01", "A07"
OTHER_EUR = 1000.0
"""So much dearer is every other auction: nobody can take it for the day-ahead price unseen."""


def document(
    zone: str, days: Iterable[tuple[datetime, datetime]], now: datetime, suffering: AnswerFaults
) -> str:
    """Write the document about some local days."""
    told = tuple(days)
    series = "".join(
        _series(zone, contract, auction, told, suffering)
        for contract, auction in ((DAY_AHEAD, 2), (INTRADAY, 1), (DAY_AHEAD, 1))
    )
    return (
        f'<?xml version="1.0" encoding="utf-8"?><Publication_MarketDocument xmlns="{SPACE}">'
        f"<mRID>1</mRID><revisionNumber>1</revisionNumber><type>A44</type><createdDateTime>"
        f"{now:%Y-%m-%dT%H:%M:%SZ}</createdDateTime>{series}</Publication_MarketDocument>"
    )


def eur_per_mwh(zone: str, start: datetime) -> float:
    """Return the price of a quarter of an hour: dear in the evening, below zero around noon."""
    evening = max(0.0, math.cos(math.pi * (start.hour - 18) / 8)) if 14 < start.hour < 22 else 0.0
    noon = max(0.0, math.cos(math.pi * (start.hour - 12) / 6)) if 9 < start.hour < 15 else 0.0
    base = 70.0 + 120.0 * evening - 110.0 * noon
    # The second and third quarter are alike, and so one of them is left out.
    quarter = (0.0, 4.0, 4.0, -6.0)[start.minute // 15]
    return round(base + quarter + 20.0 * noise(zone, "price", start.replace(hour=0, minute=0)), 2)


def _series(
    zone: str,
    contract: str,
    auction: int,
    days: Iterable[tuple[datetime, datetime]],
    suffering: AnswerFaults,
) -> str:
    currency = "PLN" if suffering.has(Fault.WRONG_UNIT) else "EUR"
    plus = 0.0 if (contract, auction) == (DAY_AHEAD, 1) else OTHER_EUR
    periods = "".join(
        _period(zone, plus, day, number, suffering) for number, day in enumerate(days)
    )
    return (
        "<TimeSeries><mRID>1</mRID><auction.type>A01</auction.type><businessType>A62</businessType>"
        f'<in_Domain.mRID codingScheme="A01">{zone}</in_Domain.mRID>'
        f'<out_Domain.mRID codingScheme="A01">{zone}</out_Domain.mRID>'
        f"<contract_MarketAgreement.type>{contract}</contract_MarketAgreement.type>"
        f"<currency_Unit.name>{currency}</currency_Unit.name>"
        f"<price_Measure_Unit.name>MWH</price_Measure_Unit.name>"
        f"<{POSITION}>{auction}</{POSITION}><curveType>A03</curveType>{periods}</TimeSeries>"
    )


def _period(
    zone: str,
    plus: float,
    day: tuple[datetime, datetime],
    number: int,
    suffering: AnswerFaults,
) -> str:
    start, end = day
    hourly = suffering.has(Fault.RESOLUTION) and number % 2 == 1
    step = 4 * QUARTER if hourly else QUARTER
    points, last = [], None
    for place in range((end - start) // step):
        at = start + place * step
        quarters = [eur_per_mwh(zone, at + n * QUARTER) for n in range(step // QUARTER)]
        value = round(sum(quarters) / len(quarters), 3) + plus
        if suffering.hits(Fault.REVISED, at):
            value += 20.0
        if suffering.hits(Fault.SPIKE, at):
            value = 9e9
        if value != last:
            points.append(
                f"<Point><position>{place + 1}</position><price.amount>{value:g}</price.amount>"
                "</Point>"
            )
        last = value
    return (
        f"<Period><timeInterval><start>{start:{MOMENT}}</start><end>{end:{MOMENT}}</end>"
        f"</timeInterval><resolution>{'PT60M' if hourly else 'PT15M'}</resolution>"
        f"{''.join(points)}</Period>"
    )
