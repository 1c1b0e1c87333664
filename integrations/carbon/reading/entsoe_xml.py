"""Documents of ENTSO-E's transparency platform: XML to intervals. Pure.

A document holds series, a series periods, a period points by position. A period has one resolution,
another period of the same answer may have another (markets went from 60 to 15 minutes). With curve
type A03 a point that repeats the one before is left out. Where there is nothing to say, an
acknowledgement comes instead, with status 200 or 400, whose reason says why. Documents of
generation and load hold megawatts; a publication document (A44) holds prices, in EUR/MWh.

Invariant: what has a document type declaration is refused before it is parsed, so no entity is
expanded; an answer yields at most `MOST_POINTS`.
"""

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

MOST_POINTS = 200_000
"""Two years of quarter hours for three series."""
RESOLUTIONS = {
    "PT15M": timedelta(minutes=15),
    "PT30M": timedelta(minutes=30),
    "PT60M": timedelta(hours=1),
    "PT1H": timedelta(hours=1),
}
AUCTION = "classificationSequence_AttributeInstanceComponent.position"
FIRST_YEAR, LAST_YEAR = 2000, 2200
REPEATS = "A03"
UNIT, PRICE_UNIT = "MAW", "EUR/MWH"
PRICES, GENERATION_LOAD = "Publication_MarketDocument", "GL_MarketDocument"
ACKNOWLEDGEMENT = "Acknowledgement_MarketDocument"
_DECLARED = re.compile(r"<!\s*(DOCTYPE|ENTITY)", re.IGNORECASE)


class DocumentError(ValueError):
    """Not such a document; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """Why there is no document: ENTSO-E's code (999: no data) and its words."""

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSeries:
    """One series: its zone, the type of production ("" for load), and its intervals.

    `leaves`: energy that leaves the grid there: load, and what storage takes. `contract`: of a
    price, the market that made it (A01: day ahead). `unread`: it has periods, and no interval of
    them could be used. `auction`: which of a zone's auctions for the
    same hours, by number; 1 where a document does not count them.
    """

    zone: str
    production: str
    leaves: bool
    intervals: tuple[tuple[datetime, datetime, float], ...]
    contract: str = ""
    auction: int = 1
    unread: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketDocument:
    """A document: when it was made, its series, and what of it could not be used.

    `prices`: it holds prices, EUR/MWh, and not megawatts.
    """

    created_at: datetime
    series: tuple[DocumentSeries, ...]
    refused: tuple[str, ...]
    prices: bool = False


def parsed(body: bytes) -> MarketDocument | Acknowledgement:
    """Read one answer.

    Raises:
        DocumentError: it is neither a document nor an acknowledgement.
    """
    try:
        # Another encoding would hide a declaration from the search.
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"is not UTF-8: {error}") from error
    if _DECLARED.search(text):
        raise DocumentError("declares a document type or an entity, which none of ENTSO-E's does")
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise DocumentError(f"is not XML: {error}") from error
    name = _name(root)
    if name == ACKNOWLEDGEMENT:
        return Acknowledgement(code=_text(root, "code"), text=_text(root, "text"))
    if name not in (GENERATION_LOAD, PRICES):
        raise DocumentError(f"is a {name[:40]}, not a {GENERATION_LOAD}")
    refused: list[str] = []
    series = []
    room = MOST_POINTS
    for each in root:
        if _name(each) == "TimeSeries":
            one = _series(each, refused, room, prices=name == PRICES)
            room -= len(one.intervals)
            series.append(one)
    return MarketDocument(
        created_at=_moment(_text(root, "createdDateTime")),
        series=tuple(series),
        refused=tuple(dict.fromkeys(refused)),
        prices=name == PRICES,
    )


def _series(element: ET.Element, refused: list[str], room: int, *, prices: bool) -> DocumentSeries:
    intervals: list[tuple[datetime, datetime, float]] = []
    unit, wanted = _text(element, "quantity_Measure_Unit.name"), UNIT
    if prices:
        energy = _text(element, "price_Measure_Unit.name")
        unit, wanted = f"{_text(element, 'currency_Unit.name')}/{energy}", PRICE_UNIT
    if unit != wanted:
        refused.append(f"a series in {unit[:20]!r}, not in {wanted}, was left out")
    else:
        repeats = _text(element, "curveType") == REPEATS
        for period in element:
            if _name(period) == "Period":
                left = room - len(intervals)
                value = "price.amount" if prices else "quantity"
                intervals.extend(_period(period, value, repeats, refused, left))
    zones = [each for each in element.iter() if _name(each).endswith("omain.mRID")]
    return DocumentSeries(
        zone=(zones[0].text or "").strip() if zones else "",
        leaves=bool(zones) and _name(zones[0]).startswith("out"),
        production=_text(element, "psrType"),
        intervals=tuple(intervals),
        contract=_text(element, "contract_MarketAgreement.type"),
        auction=_whole(_text(element, AUCTION)),
        unread=not intervals and any(_name(each) == "Period" for each in element),
    )


def _period(
    period: ET.Element, value_name: str, repeats: bool, refused: list[str], room: int
) -> Iterator[tuple[datetime, datetime, float]]:
    """Yield the intervals of a period; those left out in an A03 curve repeat the one before.

    A point that came and cannot be read is not one that was left out: it repeats nothing.
    """
    resolution = _text(period, "resolution")
    step = RESOLUTIONS.get(resolution)
    if step is None:
        refused.append(f"a period with the resolution {resolution[:20]!r} was left out")
        return
    start, end = _moment(_text(period, "start")), _moment(_text(period, "end"))
    count = (end - start) // step
    if not 0 < count <= room:
        raise DocumentError(f"holds {count} points in one period; {MOST_POINTS} are the most")
    told: dict[int, float | None] = {}
    for point in period:
        if _name(point) == "Point":
            position, value = _text(point, "position"), _text(point, value_name)
            place = _whole(position) if position else 0
            number = _finite(value)
            # A place that is told twice has a value only where both tell the same.
            told[place] = number if told.get(place, number) == number else None
            if told[place] is None or not 0 < place <= count:
                refused.append(f"a point {position[:10]!r} of {value[:20]!r} was left out")
    # What a point that has no place in the period meant to change is not known.
    repeats = repeats and all(0 < each <= count for each in told)
    last: float | None = None
    for place in range(1, count + 1):
        last = told.get(place, last if repeats else None)
        if last is not None:
            yield start + (place - 1) * step, start + place * step, last


def _whole(text: str) -> int:
    """Read the number of an auction or a place: 1 for none, 0 for one that is no number."""
    if not text:
        return 1
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _name(element: ET.Element) -> str:
    """The name without its namespace, of which there are several versions."""
    return element.tag.rpartition("}")[2]


def _text(element: ET.Element, name: str) -> str:
    """Text of the first descendant of that name; "" for none."""
    return next((each.text or "" for each in element.iter() if _name(each) == name), "").strip()


def _moment(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise DocumentError(f"has {text[:40]!r} where a time belongs") from error
    if at.tzinfo is None:
        raise DocumentError(f"has the time {text[:40]!r} without a zone")
    if not FIRST_YEAR <= at.year <= LAST_YEAR:
        raise DocumentError(f"has the time {text[:40]!r}, which no document tells of")
    return at
