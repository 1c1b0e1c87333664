"""GPUs as the agent's page of metrics tells them, over a real local HTTP server."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from wattmesh.controller.profile.power.agent_page import BOOKED_S, AgentPage, page_readings
from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.energy.burst import figure
from wattmesh.telemetry.readings import Quality

PAGE = """
# TYPE wattmesh_gpu_info gauge
wattmesh_gpu_info{gpu_uuid="GPU-a",node="n1",source="nvml",quality="measured",shared=""} 1.0
wattmesh_gpu_info{gpu_uuid="GPU-b",node="n1",source="nvml",quality="simulated",shared=""} 1.0
# TYPE wattmesh_gpu_energy_joules counter
wattmesh_gpu_energy_joules_total{gpu_uuid="GPU-a"} 1234.5
wattmesh_gpu_energy_joules_total{gpu_uuid="GPU-b"} 7.0
# TYPE wattmesh_gpu_power_watts gauge
wattmesh_gpu_power_watts{gpu_uuid="GPU-a",window="instant"} 300.0
wattmesh_gpu_power_watts{gpu_uuid="GPU-a",window="average"} 290.0
wattmesh_gpu_power_watts{gpu_uuid="GPU-b",window="instant"} NaN
"""


@contextmanager
def served(page: Callable[[], str]) -> Iterator[str]:
    """Serve a page; gives its address."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = page()
            self.send_response(200 if text else 503)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_joules_watts_and_their_quality_are_read() -> None:
    """The instant power, not the mean; a power that is no number is unknown, never zero."""
    with served(lambda: PAGE) as url:
        source = AgentPage(url)
        first, second = source.read()
    assert list(source.gpu_uuids()) == ["GPU-a", "GPU-b"]
    assert (first.energy_mj, first.power_w, first.quality) == (1_234_500, 300.0, Quality.MEASURED)
    assert (second.energy_mj, second.power_w, second.quality) == (7000, None, Quality.SIMULATED)


def test_a_counter_that_stands_still_for_a_second_is_no_stale_one() -> None:
    """The agent counts once a second; two pages of one second tell the same."""
    text = (
        'wattmesh_gpu_power_watts{{gpu_uuid="GPU-a",window="instant"}} 300.0\n'
        'wattmesh_gpu_energy_joules_total{{gpu_uuid="GPU-a"}} {}\n'
    )
    at_s = [0.95 * each for each in range(30)]
    made = [page_readings(text.format(300 * int(each)), each)[0] for each in at_s]
    found = figure(made, 2.0, 22.0, update_s=BOOKED_S)
    assert found.energy_j == pytest.approx(300 * 20, abs=300)
    assert found.quality == Quality.MEASURED
    sooner = [replace(each, every_s=0.0) for each in made]
    assert figure(sooner, 2.0, 22.0, update_s=BOOKED_S).quality == Quality.ESTIMATED


@pytest.mark.parametrize("text", ["", "# nothing\n", "wattmesh_gpu_power_watts{", "up 1.0\n"])
def test_a_page_without_gpus_is_no_power(text: str) -> None:
    """Another service's page, or a torn one, is a sentence with the address."""
    with served(lambda: text) as url, pytest.raises(SourceUnavailable, match=url):
        AgentPage(url).read()


def test_nobody_there_is_a_sentence() -> None:
    """A port on which nothing listens."""
    with pytest.raises(SourceUnavailable, match="is wattmesh-agent running"):
        AgentPage("http://127.0.0.1:9/metrics").read()


def test_negative_joules_are_no_reading() -> None:
    """The sabotaged twin of a page."""
    assert page_readings('wattmesh_gpu_energy_joules_total{gpu_uuid="GPU-a"} -1\n', 0.0) == []
