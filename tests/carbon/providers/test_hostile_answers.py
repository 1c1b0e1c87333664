"""Whatever JSON a provider answers, reading it ends in rows or in an error of the tree."""

import contextlib
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.errors import WattmeshError
from wattmesh.integrations.carbon import (
    electricity_maps_answers,
    open_electricity_answers,
    watttime_answers,
)
from wattmesh.integrations.carbon.reading import entsoe_xml
from wattmesh.integrations.carbon.reading.answers import ErrorAnswer, classified
from wattmesh.integrations.carbon.reading.credentials import NONE
from wattmesh.integrations.carbon.reading.rows import DecodedRows, batch
from wattmesh.telemetry.carbon import Signal

NOW = datetime(2026, 11, 20, 12, 10, tzinfo=UTC)
EM = electricity_maps_answers.ZoneQuery(zone="DE", factor="lifecycle", granularity="hourly")
WT = watttime_answers.RegionQuery(region="R", signal_type="co2_moer", step=timedelta(minutes=5))

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
EM_ROW = {
    "zone": "DE",
    "carbonIntensity": 275,
    "datetime": "2026-11-20T11:00:00.000Z",
    "updatedAt": "2026-11-20T10:51:02.892Z",
    "emissionFactorType": "lifecycle",
    "isEstimated": True,
    "estimationMethod": "TIME_SLICER_AVERAGE",
}
EM_BODY = {"zone": "DE", "data": [EM_ROW], "temporalGranularity": "hourly", "updatedAt": "x"}
WT_ROW = {
    "point_time": "2026-11-20T12:10:00+00:00",
    "value": 870.0,
    "last_updated": "2026-11-20T12:00:00+00:00",
    "imputed_data_used": True,
}
WT_META = {
    "data_point_period_seconds": 300,
    "region": "R",
    "warnings": [{"type": "T", "message": "m"}],
    "signal_type": "co2_moer",
    "model": {"date": "2026-03-01"},
    "units": "lbs_co2_per_mwh",
    "generated_at": "2026-11-20T12:00:00+00:00",
}
WT_BODY = {"data": [WT_ROW], "meta": WT_META}


def places(body: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Give the way to every part of a body, itself included."""
    parts: list[tuple[Any, Any]] = list(body.items()) if isinstance(body, dict) else []
    parts += enumerate(body) if isinstance(body, list) else ()
    return [path, *(each for key, part in parts for each in places(part, (*path, key)))]


def spoilt(body: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Give a body with one part replaced."""
    if not path:
        return new
    copy = dict(body) if isinstance(body, dict) else list(body)
    copy[path[0]] = spoilt(body[path[0]], path[1:], new)
    return copy


def electricity_maps(body: Any) -> DecodedRows:
    """Read a body both ways."""
    with contextlib.suppress(WattmeshError):
        electricity_maps_answers.forecast(body, EM, NOW)
    return electricity_maps_answers.observed(body, EM, NOW)


def watttime(body: Any) -> DecodedRows:
    """Read a body both ways."""
    with contextlib.suppress(WattmeshError):
        watttime_answers.forecast(body, WT, NOW)
    return watttime_answers.observed(body, WT, NOW).reading


TEXTS = ("", "x", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00")
NUMBERS = (True, 7, -1.5, float("nan"), float("inf"), 10**400)
NEW: tuple[Any, ...] = (None, *TEXTS, *NUMBERS, [], [7], ["x"], [[]], [None], [{}], {}, {"a": 1})
AT = "2026-11-20T21:00:00+10:00"
OE_BODY = {
    "success": True,
    "data": [
        {
            "network_code": "NEM",
            "metric": metric,
            "unit": unit,
            "interval": "1h",
            "results": [
                {"columns": {"region": "NSW1", "fueltech_group": "coal"}, "data": [[AT, value]]}
            ],
        }
        for metric, unit, value in (("energy", "MWh", 100.0), ("emissions", "t", 90.0))
    ],
}
ENTSOE_PARTS = ("2026-11-20T10:00Z", "2026-11-20T11:00Z", "PT60M", "MAW", "B04", "1", "500")


def open_electricity(body: Any) -> list[open_electricity_answers.GroupValue]:
    """Read a body, and reckon with whatever was told."""
    found = list(open_electricity_answers.told(body, network="NEM", zone="NSW1", refused=[]))
    both = [{each.group: each.value for each in found if each.metric == m} for m in OE_METRICS]
    with contextlib.suppress(KeyError):
        open_electricity_answers.intensity(*both)
    return found


OE_METRICS = tuple(open_electricity_answers.UNITS)


def generation(parts: tuple[str, ...]) -> bytes:
    """Write a document of ENTSO-E with these parts."""
    start, end, step, unit, kind, place, value = parts
    return (
        "<GL_MarketDocument><createdDateTime>2026-11-20T12:00:00Z</createdDateTime><TimeSeries>"
        f"<inBiddingZone_Domain.mRID>10YFR-RTE------C</inBiddingZone_Domain.mRID>"
        f"<quantity_Measure_Unit.name>{unit}</quantity_Measure_Unit.name><psrType>{kind}</psrType>"
        f"<Period><start>{start}</start><end>{end}</end><resolution>{step}</resolution><Point>"
        f"<position>{place}</position><quantity>{value}</quantity></Point></Period></TimeSeries>"
        "</GL_MarketDocument>"
    ).encode()


def test_australian_answers_of_another_form() -> None:
    """Each part in turn is replaced: an error of the tree, or numbers that are numbers."""
    assert len(open_electricity(OE_BODY)) == 2
    for path in places(OE_BODY):
        for new in NEW:
            with contextlib.suppress(WattmeshError):
                told = open_electricity(spoilt(OE_BODY, path, new))
                assert all(each.value is None or math.isfinite(each.value) for each in told)


def test_european_documents_of_another_form() -> None:
    """Each part in turn is replaced: an error of documents, a refusal, or numbers."""
    strange = (*TEXTS, "nan", "inf", "1e400", "-1", "99999999999999999999", "PT15M", "<x/>")
    whole = entsoe_xml.parsed(generation(ENTSOE_PARTS))
    assert isinstance(whole, entsoe_xml.MarketDocument)
    assert [each[2] for each in whole.series[0].intervals] == [500.0]
    for place in range(len(ENTSOE_PARTS)):
        for new in strange:
            parts = (*ENTSOE_PARTS[:place], new, *ENTSOE_PARTS[place + 1 :])
            with contextlib.suppress(entsoe_xml.DocumentError):
                told = entsoe_xml.parsed(generation(parts))
                assert isinstance(told, entsoe_xml.MarketDocument)
                for start, _, value in told.series[0].intervals:
                    assert math.isfinite(value)
                    start.astimezone(UTC)


READ: dict[str, tuple[Callable[[Any], DecodedRows], Any]] = {
    "electricity_maps": (electricity_maps, EM_BODY),
    "watttime": (watttime, WT_BODY),
}


def require_harmless(read: Callable[[Any], DecodedRows], body: Any) -> None:
    """Read a body: only errors of the tree may leave, and every point is an intensity."""
    with contextlib.suppress(WattmeshError):
        told = batch(
            read(body),
            signal=Signal(provider="p", zone="Z"),
            step=timedelta(minutes=5),
            now=NOW,
        )
        assert all(0 < point.g_per_kwh <= 2000 for point in told.points)
        assert all(point.issued_at <= NOW for point in told.points)


@pytest.mark.parametrize("name", READ)
def test_every_part_may_be_of_another_form(name: str) -> None:
    """Each part of an answer in turn is replaced: an error of the tree or a sentence, no other."""
    read, body = READ[name]
    for path in places(body):
        for new in NEW:
            require_harmless(read, spoilt(body, path, new))


@pytest.mark.parametrize("name", READ)
@given(data=st.data())
def test_two_parts_may_be_anything(name: str, data: st.DataObject) -> None:
    """Two parts of an answer replaced by anything: no other error leaves the reader."""
    read, body = READ[name]
    for _ in range(2):
        body = spoilt(body, data.draw(st.sampled_from(places(body))), data.draw(junk))
    require_harmless(read, body)


@pytest.mark.parametrize("name", READ)
def test_the_whole_answer_is_read(name: str) -> None:
    """Sabotaged twin: unspoilt, the same bodies give their row."""
    read, body = READ[name]
    assert len(read(body).rows) == 1


@given(st.binary(max_size=50) | junk.map(lambda each: json.dumps(each).encode()))
def test_any_refusal_is_one_error(body: bytes) -> None:
    """Whatever an error body holds, every provider's reading of it is one sentence."""
    verdicts: tuple[Callable[[ErrorAnswer], Any] | None, ...] = (
        None,
        electricity_maps_answers.verdict,
        watttime_answers.verdict,
        watttime_answers.login_verdict,
    )
    for status in (400, 401, 403, 404, 422, 429, 500):
        for verdict in verdicts:
            answer = ErrorAnswer(status=status, content_type="", body=body)
            told = classified(answer, "http://x", verdict, NONE)
            assert isinstance(told, WattmeshError)
            assert "\n" not in str(told)


def test_a_deep_answer_is_no_recursion_error() -> None:
    """A hundred thousand brackets are words like any others."""
    answer = ErrorAnswer(status=400, content_type="", body=b"[" * 100_000)
    told = classified(answer, "http://x", None, NONE)
    assert len(str(told)) < 300
