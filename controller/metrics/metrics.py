"""The figures for Prometheus: absolute values from the journal, so counters survive restarts.

Invariant: a scrape waits for the journal half a second at most: a loop of its own reads the sums
when a scrape asks, and while the journal does not answer the last known ones are served and
`wattmesh_journal_up` is 0. No sample carries a time of its own (that would break staleness).
"""

import logging
import threading
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

import wattmesh
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.metrics.budgets import budget_metrics
from wattmesh.controller.metrics.caps import cap_metrics
from wattmesh.controller.metrics.figures import FigureReader, Figures
from wattmesh.controller.metrics.ledger import ledger_metrics
from wattmesh.controller.metrics.nodes import node_metrics
from wattmesh.controller.metrics.planner import plan_metrics
from wattmesh.controller.metrics.points import point_metrics
from wattmesh.controller.metrics.runs import run_metrics
from wattmesh.controller.metrics.scrapes import ScrapeServer
from wattmesh.controller.metrics.signals import carbon_metrics
from wattmesh.controller.metrics.storage import storage_metrics
from wattmesh.controller.process.loops import Loop
from wattmesh.controller.process.scheduler import Jobs

log = logging.getLogger(__name__)

PATIENCE_S = 0.5
"""How long a scrape waits for fresh sums."""

IDLE_S = 600.0
"""Sums are read this often even if nobody scrapes, so that the first scrape has some."""


class FiguresCollector(Collector):
    """Turns the newest figures and the loop facts into metrics, at each scrape."""

    def __init__(self, loop_facts: LoopFacts, jobs: Jobs, newest: Callable[[], Figures]) -> None:
        """Take the sources; `newest` gives the journal's sums, fresh or last known."""
        self._loop_facts = loop_facts
        self._jobs = jobs
        self._newest = newest

    def collect(self) -> Iterator[Metric]:
        """Give every metric."""
        figures = self._newest()
        yield from self._daemon()
        yield from self._loops()
        yield from node_metrics(self._loop_facts)
        yield from storage_metrics(self._loop_facts.settings.journal.url)
        yield from self._loop_facts.exporter.collect()
        yield from carbon_metrics(self._loop_facts, figures)
        yield from ledger_metrics(figures, self._loop_facts.settings.site.energy_boundary)
        yield from run_metrics(self._loop_facts, figures)
        yield from point_metrics(self._loop_facts, figures)
        yield from budget_metrics(self._loop_facts)
        yield from cap_metrics(self._loop_facts)
        yield from plan_metrics(self._loop_facts)

    def describe(self) -> tuple[Metric, ...]:
        """Promise nothing at registration: collecting needs a running daemon."""
        return ()

    def _daemon(self) -> Iterator[Metric]:
        loop_facts = self._loop_facts
        mode = loop_facts.settings.mode.value
        yield InfoMetricFamily(
            "wattmesh_build",
            "Version and mode of this daemon.",
            value={"version": wattmesh.__version__, "mode": mode},
        )
        up = GaugeMetricFamily("wattmesh_journal_up", "1 while the journal takes writes.")
        up.add_metric([], float(loop_facts.outage is None))
        yield up
        leading = GaugeMetricFamily("wattmesh_leader", "1 while this daemon leads.")
        leading.add_metric([], float(loop_facts.leading))
        yield leading
        trouble = GaugeMetricFamily(
            "wattmesh_trouble", "Sentences in `wattmesh status` that need a human."
        )
        status = loop_facts.newest_status
        trouble.add_metric([], float(len(status.trouble) if status else 0))
        yield trouble
        alone = CounterMetricFamily(
            "wattmesh_run_failures",
            "Times that a part of a cycle failed for one run alone; that run was held.",
        )
        alone.add_metric([], float(loop_facts.isolation.count))
        yield alone
        pue = GaugeMetricFamily(
            "wattmesh_pue_ratio",
            "Factor by which joules are multiplied before they are priced; 1 within the boundary "
            "`it`.",
        )
        pue.add_metric([], loop_facts.settings.site.pue_milli() / 1000)
        yield pue

    def _loops(self) -> Iterator[Metric]:
        took = GaugeMetricFamily(
            "wattmesh_loop_turn_seconds", "Duration of the newest turn.", labels=["loop"]
        )
        age = GaugeMetricFamily(
            "wattmesh_loop_progress_age_seconds",
            "Seconds since a turn last ended without a bug; before that, since the start.",
            labels=["loop"],
        )
        turns = CounterMetricFamily(
            "wattmesh_loop_turns",
            "Turns since the start, by how they ended.",
            labels=["loop", "outcome"],
        )
        now_s = self._loop_facts.clock.monotonic()
        for name, read in self._loop_facts.loops.items():
            state = read()
            if state.last_took_s is not None:
                took.add_metric([name], state.last_took_s)
            # Without a value before the first turn ends, one that never ends would alert nobody.
            since_s = state.last_progress_s or self._loop_facts.started_s
            age.add_metric([name], now_s - since_s)
            ended_well = state.turns - state.failures - state.bugs
            turns.add_metric([name, "done"], ended_well)
            turns.add_metric([name, "failed"], state.failures)
            turns.add_metric([name, "bug"], state.bugs)
            turns.add_metric([name, "overrun"], state.overruns)
        jobs = CounterMetricFamily(
            "wattmesh_job_runs",
            "Scheduled jobs since the start, by outcome: done, failed, missed (too late), skipped "
            "(busy).",
            labels=["job", "outcome"],
        )
        for total in self._jobs.totals():
            jobs.add_metric([total.job, total.outcome], total.count)
        yield from (took, age, turns, jobs)


class MetricsServer:
    """Serves /metrics, and keeps its figures fresh; does nothing when there is no address."""

    def __init__(
        self, listen: tuple[str, int] | None, journal: Journal, loop_facts: LoopFacts, jobs: Jobs
    ) -> None:
        """Prepare; nothing listens before `start`."""
        self._listen = listen
        self._reader = FigureReader(journal, loop_facts)
        self._collector = FiguresCollector(loop_facts, jobs, self._newest)
        self._refresh = Loop("figures", IDLE_S, self._read, loop_facts.clock)
        if listen is not None:  # a bug in reading the sums is told, for they stand still then
            loop_facts.loops["figures"] = lambda: self._refresh.state
        self._figures = Figures()
        self._fresh = threading.Event()
        self._server: ScrapeServer | None = None

    @property
    def port(self) -> int | None:
        """The port that was bound; None when it is off."""
        return self._server.server_port if self._server else None

    def start(self) -> None:
        """Listen.

        Raises:
            FixInput: the address cannot be bound.
        """
        if self._listen is None:
            return
        self._server = ScrapeServer.started(self._listen, "metrics.listen", self._collector)
        self._refresh.start()

    def stop(self) -> None:
        """Stop listening."""
        self._refresh.stop(1.0)
        if self._server is not None:
            self._server.stop()

    def _newest(self) -> Figures:
        """Ask for fresh sums, wait a moment, and give what there is."""
        self._fresh.clear()
        self._refresh.wake()
        self._fresh.wait(PATIENCE_S)
        return self._figures

    def _read(self) -> None:
        """Read the journal's sums.

        Raises:
            JournalUnavailable: the last known ones stand.
        """
        try:
            self._figures = self._reader.read()
        finally:
            self._fresh.set()
