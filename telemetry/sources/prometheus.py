"""GPUs that an exporter measures, through the HTTP API of a Prometheus server.

Invariant: no reading waits for the server. A slow answer is used when it comes; until then the last
samples are returned again with their own times, and the ledger ignores what it has booked.

Interface: https://prometheus.io/docs/prometheus/latest/querying/api/
"""

import json
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import requests
from urllib3.exceptions import HTTPError

from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.deadline import Worker
from wattmesh.telemetry.readings import PowerReading, Quality
from wattmesh.telemetry.sources.prometheus_answers import (
    EXPORTERS,
    Exporter,
    ScrapedSample,
    newest,
    query,
)

WINDOW_S = 150
"""Range of the query: at least two samples of a series that is scraped once a minute."""

EVERY_S = 5.0
"""Seconds between two queries; nothing is scraped more often."""

CONNECT_S, ANSWER_S = 3.0, 10.0
WAIT_S = 0.3
MOST_BYTES = 64 << 20
CLOCK_STEP_S = 2.0
"""The server gives its time in whole seconds. A shift this large against our monotonic clock is a
step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """One decoded answer. `server_s`: the server's clock at our monotonic time `at_s`."""

    scraped: list[ScrapedSample]
    server_s: float
    at_s: float


class PrometheusSource:
    """An exporter's GPUs (`PowerSource`). One thread calls it; close it after use."""

    def __init__(
        self,
        url: str,
        exporter: str,
        selector: str = "",
        *,
        every_s: float = EVERY_S,
    ) -> None:
        """Prepare; the first reading queries.

        Args:
            url: base URL of the server, e.g. "http://prometheus:9090".
            exporter: a key of `EXPORTERS`.
            selector: more label matchers, e.g. 'cluster="a"'.
            every_s: seconds between two queries.
        """
        self._url = url.rstrip("/")
        self._exporter: Exporter = EXPORTERS[exporter]
        self._name = f"prometheus-{exporter}"
        self._query = query(self._exporter, selector, WINDOW_S)
        self._every_s = every_s
        self._ahead_s: float | None = None  # offset of the server's clock from our monotonic clock
        self._worker = Worker(self._name)
        self._asked: Future[_Answer] | None = None
        self._next_s = 0.0
        self._newest: list[ScrapedSample] = []
        self._trouble = f"{url} has not answered yet"

    @property
    def name(self) -> str:
        """The source's name on screens and in ledger rows."""
        return self._name

    def gpu_uuids(self) -> Sequence[str]:
        """List the devices of the newest answer."""
        return [each.gpu_uuid for each in self._newest]

    def read(self) -> Sequence[PowerReading]:
        """Return the newest values of every device, with the time they were scraped.

        Raises:
            SourceUnavailable: no server, no answer, a malformed one, or no live series.
        """
        now_s = time.monotonic()
        if self._asked is None and now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            self._asked = self._worker.begin(self._fetch)
        if self._asked is not None:
            wait([self._asked], WAIT_S)
            if self._asked.done():
                self._take(self._asked)
                self._asked = None
        readings = [self._reading(each) for each in self._newest]
        if not readings:
            raise SourceUnavailable(self._trouble)
        return readings

    def close(self) -> None:
        """End the worker thread."""
        self._worker.close()

    def _take(self, asked: "Future[_Answer]") -> None:
        """Use an answer; without one, samples older than `WINDOW_S` are dropped."""
        try:
            answer = asked.result()
        except SourceUnavailable as error:
            self._trouble = str(error)
            oldest_s = time.monotonic() + (self._ahead_s or 0.0) - WINDOW_S
            self._newest = [each for each in self._newest if each.at_s >= oldest_s]
            return
        ahead_s = answer.server_s - answer.at_s
        if self._ahead_s is None or abs(ahead_s - self._ahead_s) > CLOCK_STEP_S:
            self._ahead_s = ahead_s
        self._newest, self._trouble = answer.scraped, ""
        if not self._newest:
            self._trouble = (
                f"{self._url} has no live series for {self._query}; is the exporter scraped, "
                "and power.prometheus.selector right?"
            )

    def _reading(self, scraped: ScrapedSample) -> PowerReading:
        return PowerReading(
            gpu_uuid=scraped.gpu_uuid,
            at=datetime.fromtimestamp(scraped.at_s, UTC),
            monotonic_s=scraped.at_s - (self._ahead_s or 0.0),
            power_w=scraped.power_w,
            energy_mj=scraped.energy_mj,
            clock_mhz=None,
            power_limit_w=None,
            source=self._name,
            quality=Quality.MEASURED,
            shared=scraped.shared,
            every_s=scraped.every_s,
        )

    def _fetch(self) -> _Answer:
        before_s = time.monotonic()
        try:
            with requests.get(
                f"{self._url}/api/v1/query",
                params={"query": self._query},
                timeout=(CONNECT_S, ANSWER_S),
                allow_redirects=False,
                stream=True,
            ) as response:
                at_s = (before_s + time.monotonic()) / 2
                server_s = _server_s(response)
                body = _body(response)
        except (requests.RequestException, HTTPError, OSError) as error:
            raise SourceUnavailable(f"{self._url} does not answer: {error}"[:300]) from None
        return _Answer(scraped=newest(body, self._exporter, server_s), server_s=server_s, at_s=at_s)


def _server_s(response: requests.Response) -> float:
    """The server's own time, so that an error of our clock does not change any age."""
    try:
        return parsedate_to_datetime(response.headers["Date"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return time.time()


def _body(response: requests.Response) -> Any:
    """Read the JSON of an answer; Prometheus reports query errors as JSON too.

    Raises:
        SourceUnavailable: it is too large or not JSON.
    """
    body = response.raw.read(MOST_BYTES + 1, decode_content=True)
    if len(body) > MOST_BYTES:
        raise SourceUnavailable(
            f"{response.url} answered more than {MOST_BYTES >> 20} MiB; narrow it down with "
            "power.prometheus.selector"
        )
    try:
        return json.loads(body)
    except ValueError:
        raise SourceUnavailable(
            f"{response.url} answered {response.status_code} and no JSON; is it Prometheus?"[:300]
        ) from None
