"""The GPUs of a node as its agent tells them on its page of metrics.

Invariant: a reading's time is when the page was read; a value that is missing or no number is
unknown.
"""

import math
import time
from collections.abc import Sequence

import requests
from prometheus_client.parser import text_string_to_metric_families

from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.readings import PowerReading, Quality, utc_now

PAGE = "http://127.0.0.1:9466/metrics"
ENERGY, POWER = "wattmesh_gpu_energy_joules_total", "wattmesh_gpu_power_watts"
LIMIT_S = 5.0
BOOKED_S = 1.0
"""The agent counts joules once a second (its default), so a page that is read sooner repeats it."""


class AgentPage:
    """The agent's metrics as a `PowerSource`."""

    def __init__(self, url: str = "") -> None:
        """Read `url`; "" is the agent of this machine."""
        self._url = url or PAGE
        self._known: list[str] = []

    @property
    def name(self) -> str:
        """The source's name on screens and in ledger rows."""
        return "agent"

    def gpu_uuids(self) -> Sequence[str]:
        """List the devices of the newest page."""
        return list(self._known)

    def read(self) -> Sequence[PowerReading]:
        """Read the page once.

        Raises:
            SourceUnavailable: no agent answers there, or it tells of no GPU.
        """
        try:
            answer = requests.get(self._url, timeout=LIMIT_S)
            answer.raise_for_status()
            found = page_readings(answer.text, time.monotonic())
        except (requests.RequestException, ValueError) as error:
            raise SourceUnavailable(
                f"no agent's metrics at {self._url} ({error}); is wattmesh-agent running?"
            ) from error
        if not found:
            raise SourceUnavailable(f"the agent at {self._url} tells of no GPU")
        self._known = [each.gpu_uuid for each in found]
        return found


def page_readings(text: str, now_s: float) -> list[PowerReading]:
    """Decode a page of metrics. Pure but for the wall clock."""
    energy_j: dict[str, float] = {}
    power_w: dict[str, float] = {}
    simulated = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            gpu = sample.labels.get("gpu_uuid", "")
            if not gpu or not math.isfinite(sample.value) or sample.value < 0:
                continue
            if sample.name == ENERGY:
                energy_j[gpu] = sample.value
            elif sample.name == POWER and sample.labels.get("window", "instant") == "instant":
                power_w[gpu] = sample.value
            if "simulated" in sample.labels.get("quality", ""):
                simulated.add(gpu)
    return [
        PowerReading(
            gpu_uuid=gpu,
            at=utc_now(),
            monotonic_s=now_s,
            power_w=power_w.get(gpu),
            energy_mj=round(1000 * energy_j[gpu]) if gpu in energy_j else None,
            clock_mhz=None,
            power_limit_w=None,
            source="agent",
            every_s=BOOKED_S,
            quality=Quality.SIMULATED if gpu in simulated else Quality.MEASURED,
        )
        for gpu in sorted(energy_j.keys() | power_w.keys())
    ]
