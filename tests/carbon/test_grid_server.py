"""The local grid server answers in the documented forms, ripens, and misbehaves when told to.

The forms below are the documented bodies, written down here a second time. Requests go through the
standard library's client, not through ours.
"""

import base64
import http.client
import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from tests.carbon.clock import Clock
from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.grid_server import (
    Fault,
    GridServer,
    Measure,
    ServedProvider,
    SimulatedGrid,
)
from wattmesh.integrations.carbon.grid_server.__main__ import _words, main, settings_lines
from wattmesh.integrations.carbon.reading import trace

HOUR = timedelta(hours=1)
NOW = datetime(2026, 8, 25, 14, 10, tzinfo=UTC)
KEY = {"auth-token": "key"}
G_PER_POUND = 453.59237


@pytest.fixture
def clock() -> Clock:
    """A clock at the usual time."""
    return Clock(NOW)


@pytest.fixture
def server(clock: Clock) -> Iterator[GridServer]:
    """A server that runs."""
    with GridServer(clock=clock).serving() as serving:
        yield serving


class Answer:
    """What came back: status, headers, and the body as JSON where it is."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        """Read the body."""
        self.status, self.headers, self.text = status, headers, body.decode()
        try:
            self.json = json.loads(body)
        except ValueError:
            self.json = None


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Do not."""


def ask(url: str, headers: dict[str, str] | None = None, body: Any = None) -> Answer:
    """Send one request."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers or {})
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=10) as reply:
            return Answer(reply.status, reply.headers, reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers, error.read())


def em(server: GridServer, path: str, **headers: str) -> Answer:
    """Ask Electricity Maps."""
    return ask(f"{server.base('electricity_maps')}/carbon-intensity/{path}", headers or KEY)


def bearer(server: GridServer) -> dict[str, str]:
    """Log in at WattTime."""
    basic = base64.b64encode(b"user:password").decode()
    token = ask(server.base("watttime") + "/login", {"Authorization": f"Basic {basic}"}).json
    return {"Authorization": f"Bearer {token['token']}"}


def wt(server: GridServer, path: str, headers: dict[str, str]) -> Answer:
    """Ask WattTime about one region."""
    joint = "&" if "?" in path else "?"
    url = f"{server.base('watttime')}/v3/{path}{joint}region=CAISO_NORTH"
    return ask(url if "signal_type" in url else url + "&signal_type=co2_moer", headers)


def eia(server: GridServer, more: str = "") -> Answer:
    """Ask EIA about one authority."""
    return ask(
        f"{server.base('eia930')}/electricity/rto/fuel-type-data/data/?api_key=K&frequency=hourly"
        f"&data[0]=value&facets[respondent][]=CISO{more}"
    )


def test_electricity_maps_rows_have_the_documented_fields(server: GridServer) -> None:
    """Latest, history and past-range agree field by field; v3 answers like v4."""
    documented = {
        "zone": str,
        "carbonIntensity": int,
        "datetime": str,
        "updatedAt": str,
        "createdAt": str,
        "emissionFactorType": str,
        "isEstimated": bool,
        "estimationMethod": str,
        "temporalGranularity": str,
        "flowTraced": bool,
    }
    latest = em(server, "latest?zone=DE").json
    assert {name: type(value) for name, value in latest.items()} == documented
    assert latest["datetime"] == "2026-08-25T14:00:00.000Z"
    history = em(server, "history?zone=DE").json
    assert set(history) == {"zone", "history", "temporalGranularity"}
    assert len(history["history"]) == 24
    assert history["history"][-1] == latest
    span = "past-range?zone=DE&start=2026-08-25T00:00:00Z&end=2026-08-25T03:00:00Z"
    assert em(server, span).json["data"] == history["history"][9:12]
    assert history["history"][0]["estimationMethod"] is None
    old = ask(f"{server.url}/electricity_maps/v3/carbon-intensity/latest?zone=DE", KEY)
    assert old.json == latest


def test_electricity_maps_forecast_and_five_minutes(server: GridServer) -> None:
    """A forecast reaches its horizon; a finer granularity gives more rows."""
    forecast = em(server, "forecast?zone=DE&horizonHours=72").json
    assert set(forecast) == {"zone", "forecast", "updatedAt", "temporalGranularity"}
    assert len(forecast["forecast"]) == 72
    assert set(forecast["forecast"][0]) == {"carbonIntensity", "datetime"}
    fine = em(server, "history?zone=DE&temporalGranularity=5_minutes").json["history"]
    assert [row["datetime"][14:16] for row in fine[-3:]] == ["00", "05", "10"]
    assert em(server, "forecast?zone=DE&horizonHours=31").status == 400
    long = "past-range?zone=DE&start=2026-08-01T00:00:00Z&end=2026-08-12T00:00:00Z"
    assert em(server, long).json["status"] == "error"


def test_electricity_maps_refuses_and_guesses_as_the_real_one_does(server: GridServer) -> None:
    """No key is 401; an unknown zone is another zone's answer unless that is switched off."""
    latest = f"{server.base('electricity_maps')}/carbon-intensity/latest"
    assert "error" in ask(f"{latest}?zone=DE").json
    assert em(server, "latest?zone=Atlantis").json["zone"] == "DE"
    assert em(server, "latest?zone=Atlantis&disableCallerLookup=true").status == 400
    zones = ask(server.base("electricity_maps") + "/zones", KEY).json
    assert "carbon-intensity/forecast" in zones["DE"]["access"]
    sandbox = em(server, "history?zone=DE", **{"auth-token": "sandbox-1"})
    assert sandbox.status == 200
    assert {row["estimationMethod"] for row in sandbox.json["history"]} == {"SANDBOX_MODE_DATA"}


def test_a_value_ripens_from_estimate_to_truth(server: GridServer, clock: Clock) -> None:
    """Estimated within two hours, measured until thirty, then the truth for ever."""
    start = datetime(2026, 8, 25, 14, tzinfo=UTC)
    truth = server.grid.truth("DE", start, measure=Measure.LIFECYCLE)
    span = f"past-range?zone=DE&start={start:%Y-%m-%dT%H:%MZ}&end={start + HOUR:%Y-%m-%dT%H:%MZ}"
    seen = []
    for age_h in (0.5, 4, 31, 300):
        clock.now = start + HOUR + age_h * HOUR
        (row,) = em(server, span).json["data"]
        seen.append((row["carbonIntensity"], row["isEstimated"]))
    assert [estimated for _, estimated in seen] == [True, False, False, False]
    assert seen[2][0] == seen[3][0] == truth
    assert len({value for value, _ in seen}) == 3
    assert abs(seen[0][0] / truth - 1) < 0.16
    assert abs(seen[1][0] / truth - 1) < 0.05


def test_watttime_answers_in_its_forms(server: GridServer) -> None:
    """Forecast, old forecasts, history, index, access and region have the documented fields."""
    headers = bearer(server)
    forecast = wt(server, "forecast?horizon_hours=1", headers).json
    assert len(forecast["data"]) == 12
    assert forecast["data"][0]["point_time"] == "2026-08-25T14:10:00+00:00"
    assert set(forecast["meta"]) == {
        "data_point_period_seconds",
        "region",
        "warnings",
        "signal_type",
        "model",
        "units",
        "generated_at_period_seconds",
        "generated_at",
    }
    assert len(wt(server, "forecast?horizon_hours=0", headers).json["data"]) == 1
    day = "start=2026-08-24T00:00Z&end=2026-08-24T02:00Z"
    past = wt(server, f"historical?{day}", headers).json
    assert len(past["data"]) == 25
    assert set(past["data"][0]) == {"point_time", "value", "last_updated", "imputed_data_used"}
    old = wt(server, f"forecast/historical?{day}&horizon_hours=1", headers).json["data"]
    assert [len(each["forecast"]) for each in old] == [12, 12, 12]
    assert wt(server, "signal-index", headers).json["meta"]["units"] == "percentile"
    access = wt(server, "my-access", headers).json["signal_types"]
    assert {each["signal_type"] for each in access} == {"co2_moer", "co2_aoer"}
    assert wt(server, "region-from-loc?latitude=38&longitude=-121", headers).json["region"]
    assert wt(server, "region-from-loc?latitude=0&longitude=0", headers).status == 404
    assert (
        wt(server, "historical?start=2026-08-24T00:00&end=2026-08-24T01:00", headers).status == 400
    )
    average = wt(server, f"historical?{day}&signal_type=co2_aoer", headers).json
    grams = [round(row["value"] * G_PER_POUND / 1000) for row in average["data"]]
    starts = [datetime(2026, 8, 24, hour, tzinfo=UTC) for hour in range(3)]
    assert grams == pytest.approx([server.grid.truth("CAISO_NORTH", at) for at in starts], rel=0.05)
    assert wt(server, "forecast?signal_type=co2_aoer", headers).status == 403


def test_a_watttime_token_lives_half_an_hour(server: GridServer, clock: Clock) -> None:
    """After thirty minutes it is 401; a new login mends it; a bad login is an HTML page."""
    headers = bearer(server)
    clock.now += timedelta(minutes=29)
    assert wt(server, "forecast?horizon_hours=0", headers).status == 200
    clock.now += timedelta(minutes=1)
    assert wt(server, "forecast?horizon_hours=0", headers).status == 401
    assert wt(server, "forecast?horizon_hours=0", bearer(server)).status == 200
    bad = ask(server.base("watttime") + "/login")
    assert (bad.status, bad.text[:6]) == (403, "<html>")


def test_neso_tells_actuals_of_the_past_only(server: GridServer) -> None:
    """Half hours that are not over have no actual; regional ones never; the first lies before."""
    rows = ask(server.base("neso") + "/intensity/2026-08-25T13:00Z/2026-08-25T15:00Z").json["data"]
    assert [row["from"] for row in rows] == [
        f"2026-08-25T{each}Z" for each in ("12:30", "13:00", "13:30", "14:00", "14:30")
    ]
    assert [row["intensity"]["actual"] is None for row in rows] == [False] * 3 + [True] * 2
    assert set(rows[0]["intensity"]) == {"forecast", "actual", "index"}
    for path, count in (("intensity", 1), ("intensity/date/2026-08-24", 48)):
        assert len(ask(f"{server.base('neso')}/{path}").json["data"]) == count
    ahead = ask(server.base("neso") + "/intensity/2026-08-25T14:10Z/fw48h").json["data"]
    assert ahead[-1]["to"] == "2026-08-27T14:30Z"
    regional = "/regional/intensity/2026-08-25T14:10Z/fw24h/regionid/3"
    (place,) = ask(server.base("neso") + regional).json["data"]
    assert (place["regionid"], set(place["data"][0]["intensity"])) == (3, {"forecast", "index"})
    (place,) = ask(server.base("neso") + regional.replace("regionid/3", "postcode/RG10")).json[
        "data"
    ]
    assert place["postcode"] == "RG10"
    assert ask(server.base("neso") + "/intensity/2026-08-01T00:00Z/2026-08-25T00:00Z").status == 400


def test_eia_pages_hour_ending_strings_that_mix_to_the_truth(server: GridServer) -> None:
    """Pages join to the whole; the mix of an hour gives the intensity of the hour before it."""
    span = "&start=2026-08-21T00&end=2026-08-21T05"
    whole = eia(server, span).json["response"]
    assert (whole["total"], len(whole["data"])) == ("48", 48)
    pages = [eia(server, f"{span}&offset={at}&length=20").json for at in (0, 20, 40)]
    assert [row for page in pages for row in page["response"]["data"]] == whole["data"]
    mwh = {
        row["fueltype"]: int(row["value"])
        for row in whole["data"]
        if row["period"] == "2026-08-21T05"
    }
    grams = (760 * mwh["COL"] + 370 * mwh["NG"]) / sum(mwh.values())
    assert grams == pytest.approx(
        server.grid.truth("CISO", datetime(2026, 8, 21, 4, tzinfo=UTC)), 2e-3
    )
    newest = eia(server, "&sort[0][direction]=desc&length=1").json["response"]["data"][0]
    assert newest["period"] == "2026-08-25T08"
    assert ask(server.base("eia930") + "/electricity/rto/fuel-type-data/data/").status == 403


STATUS = {
    Fault.SERVER_ERROR: 500,
    Fault.RATE_LIMITED: 429,
    Fault.RATE_LIMITED_DATE: 429,
    Fault.REDIRECT: 302,
    Fault.UNAUTHORIZED: 401,
    Fault.FORBIDDEN_TEXT: 403,
    Fault.FORBIDDEN_HTML: 403,
    Fault.INVALID_SCOPE: 403,
    Fault.BAD_REQUEST: 400,
    Fault.NO_DATA: 404,
}


def test_eia_and_neso_tell_what_is_forecast_in_their_forms(server: GridServer) -> None:
    """Demand and its forecast beside each other; half hours in CKAN's form, and its refusals."""
    query = "api_key=k&frequency=hourly&data[0]=value&facets[respondent][]=PJM&start=2026-08-25T08"
    told = ask(f"{server.base('eia930')}/electricity/rto/region-data/data/?{query}").json
    rows = told["response"]["data"]
    assert {row["type"] for row in rows} == {"D", "DF"}
    assert rows[0] | {"value": ""} == {
        "period": "2026-08-25T08",
        "respondent": "PJM",
        "respondent-name": "PJM (invented)",
        "type": "D",
        "type-name": "Demand",
        "value": "",
        "value-units": "megawatthours",
    }
    # At ten past ten in the East: today is told to its end, tomorrow from six in the evening on.
    assert max(row["period"] for row in rows if row["type"] == "DF") == "2026-08-26T04"
    assert max(row["period"] for row in rows if row["type"] == "D") == "2026-08-25T08"
    action = f"{server.base('neso')}/api/3/action"
    resource = ask(f"{action}/package_show?id=day-ahead-wind-forecast").json["result"]["resources"]
    sql = (
        f'SELECT * FROM "{resource[1]["id"]}" WHERE "Datetime_GMT" >= \'2026-08-24T23:00:00\' '
        'AND "Datetime_GMT" < \'2026-08-25T00:00:00\' ORDER BY "Datetime_GMT" LIMIT 10'
    )
    found = ask(f"{action}/datastore_search_sql?{urlencode({'sql': sql})}").json
    assert found["success"]
    assert found["result"]["sql"] == sql
    first, second = found["result"]["records"]
    assert first | {"Incentive_forecast": 0} == {
        "Datetime_GMT": "2026-08-24T23:00:00",
        "Date": "2026-08-25",
        "Settlement_period": 1,
        "Capacity": 25000,
        "Incentive_forecast": 0,
        "Forecast_Timestamp": "2026-08-25T08:45:00",
    }
    assert second["Settlement_period"] == 2
    for wrong, status in ((sql.replace(resource[1]["id"], "0" * 36), 404), ("DROP TABLE x", 409)):
        refused = ask(f"{action}/datastore_search_sql?{urlencode({'sql': wrong})}")
        assert (refused.status, refused.json["success"]) == (status, False)
    assert ask(f"{action}/package_show?id=other").status == 404
    assert ask(f"{action}/group_list").status == 400


@pytest.mark.parametrize(("fault", "status"), STATUS.items())
def test_a_fault_that_is_a_status(server: GridServer, fault: Fault, status: int) -> None:
    """It spoils as many answers as it is told to, of that provider alone."""
    server.fail(fault, provider="electricity_maps", times=2)
    assert [em(server, "latest?zone=DE").status for _ in range(3)] == [status, status, 200]
    server.fail(fault, provider="watttime")
    assert ask(server.base("neso") + "/intensity").status == 200


def test_retry_after_comes_in_seconds_or_as_a_date(server: GridServer) -> None:
    """Both forms say the same wait."""
    server.fail(Fault.RATE_LIMITED, provider="neso", times=1, retry_after_s=90)
    server.fail(Fault.RATE_LIMITED_DATE, provider="neso", times=1, retry_after_s=90)
    replies = [ask(server.base("neso") + "/intensity").headers for _ in range(2)]
    said = [each["Retry-After"] for each in replies]
    assert replies[0]["Date"] == "Tue, 25 Aug 2026 14:10:00 GMT"
    assert said == ["90", "Tue, 25 Aug 2026 14:11:30 GMT"]


def test_faults_of_the_line(server: GridServer) -> None:
    """A closed connection, half a body, a redirect, a hang and a drip reach the client as such."""
    url = server.base("neso") + "/intensity"
    for fault, error in (
        (Fault.CLOSED, http.client.RemoteDisconnected),
        (Fault.TRUNCATED, http.client.IncompleteRead),
        (Fault.HANG, TimeoutError),
    ):
        server.fail(fault, provider="neso", times=1)
        with pytest.raises(error):
            urllib.request.urlopen(url, timeout=0.2).read()
    server.fail(Fault.HUGE, provider="neso", times=1)
    with urllib.request.urlopen(url, timeout=5) as reply:
        assert int(reply.headers["Content-Length"]) > 64 << 20
    server.fail(Fault.DRIP_HEADERS, provider="neso", times=1)
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=5) as line:
        line.sendall(b"GET /neso/intensity HTTP/1.1\r\nHost: here\r\n\r\n")
        seen = b"".join(line.recv(64) for _ in range(4))
    assert b"X-Slow" in seen
    assert b"\r\n\r\n" not in seen
    server.fail(Fault.DRIP, provider="neso", times=1)
    with urllib.request.urlopen(url, timeout=5) as reply:
        assert reply.read(3) == b'{"d'


def test_faults_of_single_intervals(server: GridServer) -> None:
    """Gap, null, zero and revision hit the intervals they are about, and no other."""
    start = datetime(2026, 8, 25, 3, tzinfo=UTC)
    before = {row["datetime"]: row for row in em(server, "history?zone=DE").json["history"]}
    at = "2026-08-25T03:00:00.000Z"
    seen = {}
    for fault in (Fault.GAP, Fault.NULL, Fault.ZERO, Fault.REVISED):
        server.mend()
        server.fail(fault, zone="DE", about=(start, start + HOUR))
        rows = {row["datetime"]: row for row in em(server, "history?zone=DE").json["history"]}
        seen[fault] = rows.pop(at, {}).get("carbonIntensity", "missing")
        assert rows == {key: row for key, row in before.items() if key != at}
    value = before[at]["carbonIntensity"]
    assert seen == {
        Fault.GAP: "missing",
        Fault.NULL: None,
        Fault.ZERO: 0,
        Fault.REVISED: round(1.2 * value),
    }


def test_faults_of_watttime(server: GridServer) -> None:
    """Each shows where the documentation says, and a void token is void once."""
    headers = bearer(server)
    server.fail(Fault.TOKEN_EXPIRED, provider="watttime")
    assert wt(server, "forecast", headers).status == 401
    assert wt(server, "forecast", headers).status == 401
    headers = bearer(server)
    plain = wt(server, "forecast?horizon_hours=0", headers).json["meta"]
    for fault in (Fault.WARNINGS, Fault.MODEL_CHANGED, Fault.PERCENTILE, Fault.WRONG_ZONE):
        server.fail(fault, provider="watttime")
    spoiled = wt(server, "forecast?horizon_hours=0", headers).json["meta"]
    changed = {name for name in plain if plain[name] != spoiled[name]}
    assert changed == {"warnings", "model", "units", "region"}
    server.fail(Fault.IMPUTED, provider="watttime")
    day = "historical?start=2026-08-24T00:00Z&end=2026-08-24T00:05Z"
    assert all(row["imputed_data_used"] for row in wt(server, day, headers).json["data"])


def test_faults_of_the_others(server: GridServer) -> None:
    """EIA's numbers and fuels, NESO's early first, Electricity Maps' zone and optional fields."""
    for fault in (Fault.NUMBERS, Fault.NEW_FUEL, Fault.MISSING_FUEL):
        server.fail(fault, provider="eia930")
    rows = eia(server, "&start=2026-08-21T00&end=2026-08-21T00").json["response"]["data"]
    assert {type(row["value"]) for row in rows} == {int}
    assert {row["fueltype"] for row in rows} == {
        *("COL", "NUC", "OIL", "OTH", "SUN", "WAT", "WND", "XXX")
    }
    server.fail(Fault.EARLY_FIRST, provider="neso")
    server.fail(Fault.WITHOUT_ACTUAL, provider="neso")
    rows = ask(server.base("neso") + "/intensity/2026-08-24T13:00Z/2026-08-24T15:00Z").json["data"]
    assert rows[0]["from"] == "2026-08-24T12:00Z"
    assert {row["intensity"]["actual"] for row in rows} == {None}
    for fault in (Fault.WRONG_ZONE, Fault.MISSING_OPTIONALS, Fault.UPDATED_EARLY):
        server.fail(fault, provider="electricity_maps")
    row = em(server, "latest?zone=DE&disableCallerLookup=true").json
    assert row["zone"] != "DE"
    assert "createdAt" not in row
    assert row["updatedAt"] < row["datetime"]


def test_a_provider_dies_at_a_moment_and_comes_back(server: GridServer, clock: Clock) -> None:
    """`during` is the server's own time, half-open."""
    server.fail(Fault.SERVER_ERROR, during=(NOW + HOUR, NOW + 2 * HOUR))
    statuses = []
    for hours in (0.0, 1.0, 1.9, 2.0):
        clock.now = NOW + hours * HOUR
        statuses.append(ask(server.base("neso") + "/intensity").status)
    assert statuses == [200, 500, 500, 200]


def test_faults_are_switched_over_http_and_requests_counted(server: GridServer) -> None:
    """The control address switches, lists, refuses nonsense, and is not counted itself."""
    control = server.url + "/control/faults"
    told = ask(control, body={"fault": "no-data", "provider": "http_json", "times": 1}).json
    assert told["faults"][0]["fault"] == "no-data"
    statuses = [ask(server.base("http_json") + "/now/DE").status for _ in range(2)]
    assert statuses == [404, 200]
    for nonsense in (
        {"fault": "nonsense"},
        {"fault": "sandbox", "provider": "neso"},
        {"fault": "hang", "times": 0},
        {"fault": "hang", "during": ["2026-08-25T00:00", None]},
        {"what": "hang"},
        ["hang"],
    ):
        assert ask(control, body=nonsense).status == 400
    ask(control, body={"fault": "hang", "provider": "neso"})
    delete = urllib.request.Request(control, method="DELETE")
    with urllib.request.urlopen(delete, timeout=10) as reply:
        assert json.loads(reply.read()) == {"faults": []}
    assert ask(server.url + "/control/asked").json == {"asked": {"http_json": 2}}
    assert server.count(ServedProvider.HTTP_JSON, "now") == 2
    assert server.asked[0].at == NOW


def test_a_fault_that_a_provider_cannot_have_is_refused() -> None:
    """So that a test that means another one is not silently green."""
    with pytest.raises(InputInvalid, match="only eia930"):
        GridServer().fail(Fault.NEW_FUEL, provider="neso")
    with pytest.raises(InputInvalid, match="no provider 'nesso'"):
        GridServer().fail(Fault.HANG, provider="nesso")


def test_two_servers_agree_and_zones_differ() -> None:
    """The truth is a function of zone, time and measure; a day has its sun, and noon is cleaner."""
    first, second = SimulatedGrid(), SimulatedGrid()
    hours = [datetime(2026, 6, 1, tzinfo=UTC) + i * HOUR for i in range(24 * 7)]
    series = [first.truth("US-CAL-CISO", at) for at in hours]
    assert series == [second.truth("US-CAL-CISO", at) for at in hours]
    assert series != [first.truth("DE", at) for at in hours]
    noon, night = (series[at::24] for at in (20, 8))
    assert sum(noon) < 0.7 * sum(night)
    assert all(value > 0 for value in series)


def test_the_command_line_reads_faults_and_traces(tmp_path: Path) -> None:
    """Words become rules; a trace brings its zone and its values."""
    words = _words().parse_args(["--fault", "watttime:token-expired", "--fault", "neso:gap:3"])
    assert [(each.fault, each.service, each.times) for each in words.fault] == [
        (Fault.TOKEN_EXPIRED, ServedProvider.WATTTIME, None),
        (Fault.GAP, ServedProvider.NESO, 3),
    ]
    for wrong in ("--fault=nonsense", "--listen=8099", "--clock=yesterday"):
        with pytest.raises(SystemExit):
            _words().parse_args([wrong])
    path = tmp_path / "mine.csv"
    path.write_text(
        "zone,timestamp_utc,carbon_intensity_gco2eq_per_kwh,kind,emission_factor_type\n"
        "MINE,2026-01-01T00:00:00Z,100,average,lifecycle\n"
        "MINE,2026-01-01T01:00:00Z,200,average,lifecycle\n"
    )
    grid = SimulatedGrid(traces=(trace.load(path),))
    at = datetime(2026, 8, 1, 1, tzinfo=UTC)
    assert grid.truth("MINE", at, measure=Measure.LIFECYCLE) == 200
    assert grid.truth("MINE", at, 2 * HOUR, Measure.LIFECYCLE) == 150
    assert "neso" in settings_lines(GridServer(url="http://x"))


def test_every_fault_is_in_its_page() -> None:
    """A fault that nobody can look up is not finished."""
    page = (Path(__file__).parents[2] / "docs" / "grid-server.md").read_text("utf-8")
    assert [each for each in Fault if f"`{each}`" not in page] == []
    assert [each for each in ServedProvider if f"`{each}`" not in page] == []


def test_the_server_runs_from_a_shell_until_it_is_asked_to_end() -> None:
    """It prints where each provider answers, begins with its faults, and ends by SIGTERM with 0."""
    module = "wattmesh.integrations.carbon.grid_server"
    words = ["--listen", "127.0.0.1:0", "--fault", "neso:no-data:1", "--clock", "2026-08-25T14:10Z"]
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(len(ServedProvider) + 2)]
        neso = next(line.split('"')[1] for line in lines if line.startswith("neso"))
        assert [ask(neso + "/intensity").status for _ in range(2)] == [404, 200]
        (row,) = ask(neso + "/intensity").json["data"]
        assert row["from"] == "2026-08-25T14:00Z"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_an_address_in_use_is_said_in_one_line(
    server: GridServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, and no traceback."""
    assert main(["--listen", server.url.removeprefix("http://")]) == 1
    assert "Traceback" not in capsys.readouterr().err
