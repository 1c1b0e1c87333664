"""Actual generation per type (A75), as ENTSO-E's transparency platform gives it.

Written from the published documentation, not from our own client. A series per type, megawatts in
quarter hours; what storage takes is a series that leaves the zone. Invariant: coal, lignite and gas
at 760, 1070 and 370 g/kWh make up the zone's direct intensity, to a megawatt.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

from wattmesh.integrations.carbon.grid_server.faults import AnswerFaults, Fault
from wattmesh.integrations.carbon.grid_server.grids import HOUR, SimulatedGrid, noise

SPACE = "urn:iec62325.351:tc57wg16:451-6:generationloaddocument:3:0"
MOMENT = "%Y-%m-%dT%H:%MZ"
QUARTER = timedelta(minutes=15)
PUBLISHED = HOUR
"""How long after its end an hour is told."""

ZONES = {
    "10Y1001A1001A82H": "DE",
    "10YFR-RTE------C": "FR",
    "10YPL-AREA-----S": "PL",
}
LIGNITE, COAL, GAS = ("B02", 1070.0), ("B05", 760.0), ("B04", 370.0)


def document(
    area: str,
    span: tuple[datetime, datetime],
    now: datetime,
    grid: SimulatedGrid,
    suffering: AnswerFaults,
) -> str:
    """Write the document about a span; "" where there is no data."""
    zone = ZONES.get(area, "")
    hours = [] if suffering.has(Fault.EMPTY) else list(_told(span, now, suffering))
    if zone not in grid.zones or not hours:
        return ""
    told = "10YXX-WRONG----9" if suffering.has(Fault.WRONG_ZONE) else area
    mixes = {hour: _mix(zone, hour, now, grid, suffering) for hour in hours}
    kinds = sorted({kind for mix in mixes.values() for kind in mix})
    series = "".join(
        _series(told, kind, [(hour, mixes[hour].get(kind)) for hour in hours], suffering)
        for kind in kinds
    )
    series += _series(told, "B10", [(hour, 500.0) for hour in hours], suffering, leaves=True)
    return (
        f'<?xml version="1.0" encoding="utf-8"?><GL_MarketDocument xmlns="{SPACE}"><mRID>1</mRID>'
        f"<revisionNumber>1</revisionNumber><type>A75</type><createdDateTime>"
        f"{now:%Y-%m-%dT%H:%M:%SZ}</createdDateTime>{series}</GL_MarketDocument>"
    )


def mix_mw(grid: SimulatedGrid, zone: str, hour: datetime) -> dict[str, float]:
    """Return each type's final generation in an hour."""
    grams, total = grid.truth(zone, hour), 60_000.0
    lignite, coal = 0.72 * grams / LIGNITE[1], 0.22 * grams / COAL[1]
    gas = 0.06 * grams / GAS[1]
    clean = max(0.0, 1 - lignite - coal - gas)
    shares = {LIGNITE[0]: lignite, COAL[0]: coal, GAS[0]: gas, "B19": 0.7 * clean}
    shares |= {"B11": 0.3 * clean, "B10": 0.02}
    return {kind: round(share * total) for kind, share in shares.items()}


def _told(
    span: tuple[datetime, datetime], now: datetime, suffering: AnswerFaults
) -> Iterator[datetime]:
    hour = span[0].replace(minute=0)
    while hour < span[1]:
        if hour + HOUR + PUBLISHED <= now and not suffering.hits(Fault.GAP, hour):
            yield hour
        hour += HOUR


def _mix(
    zone: str, hour: datetime, now: datetime, grid: SimulatedGrid, suffering: AnswerFaults
) -> dict[str, float | None]:
    mix: dict[str, float | None] = dict(mix_mw(grid, zone, hour))
    coal = mix[COAL[0]] or 0.0
    if now < hour + HOUR + grid.ripening.final_after:
        mix[COAL[0]] = round(coal * (1 + grid.ripening.first_error * noise(zone, "first", hour)))
    if suffering.hits(Fault.REVISED, hour):
        mix[COAL[0]] = round(1.2 * coal)
    if suffering.hits(Fault.ZERO, hour):
        mix = dict.fromkeys(mix, 0.0)
    if suffering.has(Fault.NEW_FUEL):
        mix["B99"] = 3_000.0
    if suffering.has(Fault.MISSING_FUEL):
        del mix[GAS[0]]
    if suffering.hits(Fault.NULL, hour):
        mix[GAS[0]] = None
    return mix


def _series(
    area: str,
    kind: str,
    hours: list[tuple[datetime, float | None]],
    suffering: AnswerFaults,
    *,
    leaves: bool = False,
) -> str:
    """Write a series; an hour without a value ends its period, as a hole does."""
    domain = "outBiddingZone_Domain" if leaves else "inBiddingZone_Domain"
    unit = "KWT" if suffering.has(Fault.WRONG_UNIT) else "MAW"
    periods: list[list[tuple[datetime, float]]] = []
    for hour, value in hours:
        if value is None:
            continue
        if not periods or periods[-1][-1][0] + HOUR != hour:
            periods.append([])
        periods[-1].append((hour, value))
    hourly = suffering.has(Fault.RESOLUTION)
    return (
        f'<TimeSeries><mRID>1</mRID><{domain}.mRID codingScheme="A01">{area}</{domain}.mRID>'
        f"<quantity_Measure_Unit.name>{unit}</quantity_Measure_Unit.name>"
        f"<curveType>A03</curveType><MktPSRType><psrType>{kind}</psrType></MktPSRType>"
        f"{''.join(_period(each, hourly=hourly) for each in periods)}</TimeSeries>"
    )


def _period(hours: list[tuple[datetime, float]], *, hourly: bool) -> str:
    """Write neighbouring hours; a point that repeats the one before is left out."""
    step = HOUR if hourly else QUARTER
    start, end = hours[0][0], hours[-1][0] + HOUR
    points, last = [], None
    for number, (_, value) in enumerate(hours):
        place = number * int(HOUR / step) + 1
        if value != last:
            points.append(
                f"<Point><position>{place}</position><quantity>{value:g}</quantity></Point>"
            )
        last = value
    return (
        f"<Period><timeInterval><start>{start:{MOMENT}}</start><end>{end:{MOMENT}}</end>"
        f"</timeInterval><resolution>{'PT60M' if hourly else 'PT15M'}</resolution>"
        f"{''.join(points)}</Period>"
    )
