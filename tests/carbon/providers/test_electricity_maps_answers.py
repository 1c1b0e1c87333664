"""What Electricity Maps' answers say, read one by one."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from wattmesh.errors import (
    NoData,
    SandboxData,
    SourceRefused,
    Transient,
    WattmeshError,
    ZoneMismatch,
)
from wattmesh.integrations.carbon.electricity_maps_answers import ZoneQuery, forecast, observed
from wattmesh.telemetry.readings import Quality

NOW = datetime(2026, 11, 20, 12, 10, tzinfo=UTC)
NOON = NOW.replace(minute=0)
HOUR = timedelta(hours=1)
ASKED = ZoneQuery(zone="DE", factor="lifecycle", granularity="hourly")
ROW = {
    "zone": "DE",
    "carbonIntensity": 275,
    "datetime": "2026-11-20T11:00:00.000Z",
    "updatedAt": "2026-11-20T10:51:02.892Z",
    "emissionFactorType": "lifecycle",
    "isEstimated": False,
    "estimationMethod": None,
}


@pytest.mark.parametrize("name", ["history", "data", "forecast"])
def test_the_list_may_have_any_of_its_three_names(name: str) -> None:
    """history, data and forecast hold the same rows."""
    (row,) = observed({"zone": "DE", name: [ROW]}, ASKED, NOW).rows
    assert (row.g_per_kwh, row.quality) == (275.0, Quality.MEASURED)


def test_a_forecast_that_begins_in_the_past_is_cut() -> None:
    """Hours that are over are no forecast any more; the running one still is."""
    hours = [{"carbonIntensity": 300 + i, "datetime": f"2026-11-20T{10 + i}:00Z"} for i in range(4)]
    told = forecast({"zone": "DE", "forecast": hours}, ASKED, NOW)
    assert [row.start for row in told.rows] == [NOON, NOON + HOUR]
    assert {row.quality for row in told.rows} == {Quality.FORECAST}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (["x"], Transient),
        ({"zone": "DE"}, Transient),
        ({"zone": "DE", "data": ["x"]}, Transient),
        ({"zone": "DE", "data": []}, NoData),
        ({"data": [{k: v for k, v in ROW.items() if k != "zone"}]}, ZoneMismatch),
        ({"zone": "DE", "data": [ROW, ROW | {"zone": "FR"}]}, ZoneMismatch),
        ({"zone": "DE", "data": [ROW | {"emissionFactorType": "direct"}]}, SourceRefused),
        ({"zone": "DE", "data": [ROW], "temporalGranularity": "daily"}, SourceRefused),
        ({"zone": "DE", "data": [ROW], "unit": "%"}, SourceRefused),
        ({"zone": "DE", "_disclaimer": "SANDBOX MODE", "data": [ROW]}, SandboxData),
        ({"zone": "DE", "data": [ROW | {"estimationMethod": "SANDBOX_MODE_DATA"}]}, SandboxData),
    ],
)
def test_an_answer_that_is_not_what_was_asked_is_refused_whole(
    body: Any, error: type[WattmeshError]
) -> None:
    """Another zone, factor or granularity, or one sandbox row: nothing of it is used."""
    with pytest.raises(error):
        observed(body, ASKED, NOW)
    with pytest.raises(error):
        forecast(body, ASKED, NOW)


@pytest.mark.parametrize(
    "bad",
    [
        {"carbonIntensity": "275"},
        {"carbonIntensity": True},
        {"datetime": "2026-11-20T11:00:00"},
        {"datetime": 7},
    ],
)
def test_a_row_that_cannot_be_read_is_refused_alone(bad: dict[str, Any]) -> None:
    """A text instead of a number or a time without a zone costs its own row only."""
    told = observed({"zone": "DE", "data": [ROW, ROW | bad]}, ASKED, NOW)
    assert (len(told.rows), len(told.refused)) == (1, 1)


def test_without_is_estimated_nobody_said_that_it_was_measured() -> None:
    """A missing mark is read as an estimate."""
    bare = {name: ROW[name] for name in ("zone", "carbonIntensity", "datetime")}
    (row,) = observed({"zone": "DE", "data": [bare]}, ASKED, NOW).rows
    assert (row.quality, row.issued_at) == (Quality.ESTIMATED, NOON)
