"""Whatever JSON a provider answers, reading it ends in rows or in an error of the tree."""

import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.errors import WattmeshError
from wattmesh.integrations.carbon import electricity_maps_answers, watttime_answers
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
