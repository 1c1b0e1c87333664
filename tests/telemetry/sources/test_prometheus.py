"""Exporters' figures through Prometheus: units, ages, blanks, and a server that misbehaves."""

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from tests.telemetry.sources.prometheus_server import Prometheus, prometheus
from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.readings import PowerReading
from wattmesh.telemetry.sources.prometheus import PrometheusSource
from wattmesh.telemetry.sources.prometheus_answers import EXPORTERS
from wattmesh.telemetry.sources.prometheus_answers import newest as decode

ENERGY, POWER = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_POWER_USAGE"
GPU = {"UUID": "GPU-a", "Hostname": "n1", "gpu": "0"}


@pytest.fixture
def server() -> Iterator[Prometheus]:
    """A server without series."""
    with prometheus() as running:
        yield running


@pytest.fixture
def opened() -> Iterator[Callable[..., PrometheusSource]]:
    """Make sources that ask at every reading, and close them in the end."""
    made: list[PrometheusSource] = []

    def make(url: str, exporter: str = "dcgm", selector: str = "") -> PrometheusSource:
        made.append(PrometheusSource(url, exporter, selector, every_s=0.0))
        return made[-1]

    yield make
    for each in made:
        each.close()


Opened = Callable[..., PrometheusSource]


def only(source: PrometheusSource) -> PowerReading:
    """Give the one reading there is."""
    (reading,) = within(source)
    return reading


def within(source: PrometheusSource) -> list[PowerReading]:
    """Read, until the server has answered."""
    until_s = time.monotonic() + 20
    while True:
        try:
            return list(source.read())
        except SourceUnavailable as error:
            if "not answered yet" not in str(error) or time.monotonic() > until_s:
                raise


def test_dcgm_counts_in_millijoules_and_is_as_old_as_its_scrape(
    server: Prometheus, opened: Opened
) -> None:
    """The counter is taken as it is, and the moment is that of the scrape, not of the query."""
    server.scrape(ENERGY, GPU, (34, 1000), (19, 2000), (4, 3000))
    server.scrape(POWER, GPU, (34, 90), (19, 91), (4, 92.5))
    reading = only(opened(server.url))
    assert (reading.gpu_uuid, reading.energy_mj, reading.power_w) == ("GPU-a", 3000, 92.5)
    assert reading.source == "prometheus-dcgm"
    assert abs(reading.every_s - 15) < 0.1
    assert 1.5 < time.monotonic() - reading.monotonic_s < 30


@pytest.mark.parametrize(
    ("exporter", "names", "labels"),
    [
        (
            "kepler",
            ("kepler_node_gpu_joules_total", "kepler_node_gpu_watts"),
            {"gpu_uuid": "GPU-a", "node_name": "n1"},
        ),
        (
            "wattmesh",
            ("wattmesh_gpu_energy_joules_total", "wattmesh_gpu_power_watts"),
            {"gpu_uuid": "GPU-a", "window": "instant"},
        ),
    ],
)
def test_joules_of_other_exporters_become_millijoules(
    server: Prometheus,
    opened: Opened,
    exporter: str,
    names: tuple[str, str],
    labels: dict[str, str],
) -> None:
    """Each exporter has its names and units."""
    energy, power = names
    server.scrape(energy, labels, (2, 12.345))
    server.scrape(power, labels, (2, 300))
    server.scrape(power, {**labels, "gpu_uuid": "GPU-b", "window": "average"}, (2, 300))
    readings = {each.gpu_uuid: each for each in within(opened(server.url, exporter))}
    assert (readings["GPU-a"].energy_mj, readings["GPU-a"].power_w) == (12_345, 300.0)
    assert ("GPU-b" in readings) == (exporter == "kepler")


@pytest.mark.parametrize(
    "blank", ["9223372036854775792", "140737488355328", "NaN", "+Inf", "-1", "9.223372036854778e18"]
)
def test_a_blank_is_no_energy(server: Prometheus, opened: Opened, blank: str) -> None:
    """DCGM's blanks and nonsense are unknown; the power beside them stands."""
    server.scrape(ENERGY, GPU, (2, blank))
    server.scrape(POWER, GPU, (2, 100))
    reading = only(opened(server.url))
    assert (reading.energy_mj, reading.power_w) == (None, 100.0)


def test_a_blank_power_is_no_power(server: Prometheus, opened: Opened) -> None:
    """Neither DCGM's 32 bit blank nor a petawatt is a power."""
    server.scrape(ENERGY, GPU, (2, 5))
    server.scrape(POWER, GPU, (2, 2147483632))
    assert only(opened(server.url)).power_w is None


def test_a_series_that_is_scraped_no_more_is_not_told(server: Prometheus, opened: Opened) -> None:
    """A sample that is older than two and a half of its intervals is not now."""
    server.scrape(ENERGY, GPU, (120, 1), (110, 2), (100, 3))
    server.scrape(ENERGY, {**GPU, "UUID": "GPU-b"}, (12, 1), (2, 2))
    assert only(opened(server.url)).gpu_uuid == "GPU-b"


def test_instances_of_one_board_are_read_once_and_never_summed(
    server: Prometheus, opened: Opened
) -> None:
    """dcgm-exporter shows the whole board's energy for every MIG instance."""
    for instance in ("1", "2", "3"):
        server.scrape(ENERGY, {**GPU, "GPU_I_ID": instance}, (2, 7000))
    reading = only(opened(server.url))
    assert (reading.energy_mj, reading.shared) == (7000, "mig")


def test_both_spellings_of_the_host_and_any_order_are_fine(
    server: Prometheus, opened: Opened
) -> None:
    """A board that two jobs scrape is read once, from the same series each time."""
    server.scrape(ENERGY, {"UUID": "GPU-a", "hostname": "n1", "job": "z"}, (2, 9))
    server.scrape(ENERGY, {"UUID": "GPU-a", "Hostname": "n1", "job": "a"}, (2, 8))
    source = opened(server.url)
    first = only(source).energy_mj
    server.series.reverse()
    assert only(source).energy_mj == first


def test_the_selector_narrows_the_query(server: Prometheus, opened: Opened) -> None:
    """More matchers go into the query as they stand."""
    server.scrape(ENERGY, {**GPU, "cluster": "a"}, (2, 1))
    server.scrape(ENERGY, {**GPU, "UUID": "GPU-b", "cluster": "b"}, (2, 1))
    assert only(opened(server.url, "dcgm", 'cluster="b"')).gpu_uuid == "GPU-b"
    assert 'cluster="b"' in server.asked[-1]


def test_a_server_whose_clock_is_off_is_read_all_the_same(
    server: Prometheus, opened: Opened
) -> None:
    """Ages are by the server's own clock, so a wrong clock here or there makes none wrong."""
    server.ahead_s = 7200
    server.scrape(ENERGY, GPU, (17, 1), (2, 2))
    age_s = time.monotonic() - only(opened(server.url)).monotonic_s
    assert 0 <= age_s < 30


def test_moments_do_not_jump_with_the_seconds_of_the_servers_clock(
    server: Prometheus, opened: Opened
) -> None:
    """A sample that is told again has the moment it had, to the digit."""
    server.scrape(ENERGY, GPU, (17, 1), (2, 2))
    frozen = server.answer(f'{{__name__=~"{ENERGY}|{POWER}"}}[150s]')
    server.answer = lambda query: frozen  # type: ignore[method-assign]
    source = opened(server.url)
    first = only(source).monotonic_s
    assert {only(source).monotonic_s for _ in range(20)} == {first}


def test_a_slow_server_stalls_nothing_and_its_late_answer_is_used(
    server: Prometheus, opened: Opened
) -> None:
    """A reading ends without the answer; a later one has it."""
    server.scrape(ENERGY, GPU, (2, 5))
    server.gate.clear()
    source = opened(server.url)
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="not answered yet"):
            source.read()
    assert len(server.asked) == 1
    server.gate.set()
    assert only(source).energy_mj == 5


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, b"upstream is away", "503 and no JSON"),
        (200, b"<html>", "no JSON"),
        (200, b"", "no JSON"),
        (200, b'{"status":"error","error":"query timed out"}', "query timed out"),
        (200, b'{"status":"success","data":{"resultType":"vector","result":[]}}', "a vector came"),
        (
            200,
            b'{"status":"success","data":{"resultType":"matrix","result":[{}]}}',
            "not understood",
        ),
        (200, b'{"status":"success"}', "not understood"),
        (200, b"[1,2]", "no answer to a query"),
        (200, b'{"status":"success","data":{"resultType":"matrix","result":[]}}', "no live series"),
        (
            200,
            b'{"status":"success","data":{"resultType":"matrix","result":'
            b'[{"metric":{},"values":[[1,"x"]]}]}}',
            "not understood",
        ),
    ],
)
def test_nonsense_is_said_and_never_read(
    server: Prometheus, opened: Opened, status: int, body: bytes, said: str
) -> None:
    """Whatever comes instead of an answer ends in one sentence."""
    server.status, server.body = status, body
    with pytest.raises(SourceUnavailable, match=said):
        within(opened(server.url))


def test_a_redirect_is_not_followed(server: Prometheus, opened: Opened) -> None:
    """Nobody sends us elsewhere."""
    server.status, server.body, server.location = 302, b"", "http://127.0.0.1:1/"
    with pytest.raises(SourceUnavailable, match="302"):
        within(opened(server.url))


def test_no_server_says_so_and_figures_stay_until_they_are_old(opened: Opened) -> None:
    """A server that goes away leaves its last figures for a while, each with its own age."""
    with prometheus() as server:
        server.scrape(ENERGY, GPU, (2, 5))
        source = opened(server.url)
        first = only(source)
    assert only(source) == first
    source._newest = []
    with pytest.raises(SourceUnavailable, match="does not answer"):
        within(source)


MOST_BYTES_PER_BYTE, THOUSANDS = 12, 2_000


@pytest.mark.parametrize("exporter", ["dcgm", "kepler"])
def test_thousands_of_gpus_are_read_to_the_millijoule_in_bounded_memory(
    server: Prometheus, opened: Opened, exporter: str
) -> None:
    """Each with its own counter and power; what is held meanwhile is in proportion to the bytes."""
    names, now_s = EXPORTERS[exporter], server.now_s
    results = [
        {
            "metric": {
                "__name__": name,
                names.uuid_labels[0]: f"GPU-{number:08x}",
                "instance": f"n{number // 8}:9400",
            },
            "values": [[now_s - 20.0, "0"], [now_s - 5.0, str(newest)]],
        }
        for number in range(THOUSANDS)
        for name, newest in ((names.energy, 1_000_000 + number), (names.power, 300 + number % 400))
    ]
    told = {"status": "success", "data": {"resultType": "matrix", "result": results}}
    server.body = json.dumps(told).encode()
    tracemalloc.start()
    found = decode(json.loads(server.body), names, now_s)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == THOUSANDS
    assert peak < MOST_BYTES_PER_BYTE * len(server.body)
    server.ahead_s = now_s - time.time()  # the samples are as new as they were, however slow we are
    readings = within(opened(server.url, exporter))
    scale = int(names.mj_per_unit)
    expected = {
        f"GPU-{number:08x}": ((1_000_000 + number) * scale, 300.0 + number % 400)
        for number in range(THOUSANDS)
    }
    assert {each.gpu_uuid: (each.energy_mj, each.power_w) for each in readings} == expected
