"""One life of one scenario: the daemon lives through it, and what it booked is compared as it goes.

Rows are compared before retention lets them go, month by month, three days after their hours.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from time import monotonic

from benchmarks.year.daemon import Simulated
from benchmarks.year.judge import (
    blind_spans,
    blindly,
    closed_wrongly,
    flattered,
    misheard,
    truth_of,
    unexplained,
    untiled,
)
from benchmarks.year.oracle import Checked, Wrong, check
from benchmarks.year.run import HOUR, Run
from benchmarks.year.scenarios import GPUS, Scenario
from benchmarks.year.world import Cluster, Time
from wattmesh.controller.journal.decisions import DecisionRow
from wattmesh.controller.journal.energy.ledger import EmissionRow
from wattmesh.integrations.carbon.grid_server import GridServer

SETTLED = timedelta(hours=84)
"""So long after its end an hour is compared: final at 30 h, and asked for within a day of that."""

CHUNK = timedelta(days=15)
MOST_DECISIONS = 100_000


@dataclass(slots=True, kw_only=True)
class Life:
    """A scenario that was lived through.

    Attributes:
        checked: both scenarios against the truth.
        failures: other sentences on what is wrong.
        savings: of runs that were moved, held against the truth.
    """

    scenario: Scenario
    simulated: Simulated
    checked: Checked = field(default_factory=Checked)
    failures: list[str] = field(default_factory=list)
    savings: int = 0
    _decisions: dict[tuple[str, datetime, str, str], DecisionRow] = field(default_factory=dict)

    def remember(self) -> None:
        """Keep the decisions, which retention lets go after some months."""
        since = self.now - 2 * CHUNK
        journal = self.simulated.journal
        for row in journal.decisions.list(limit=MOST_DECISIONS, since=since):
            self._decisions[row.run, row.first_at, row.kind, row.target] = row

    @property
    def decisions(self) -> list[DecisionRow]:
        """Every decision of this life."""
        return list(self._decisions.values())

    def rows(self, start: datetime, end: datetime) -> tuple[EmissionRow, ...]:
        """Give the ledger's rows of slots that begin in [start, end)."""
        return self.simulated.journal.ledger.emissions(None, start, end)

    def compare(self, start: datetime, end: datetime) -> None:
        """Compare a span of whole hours with the truth."""
        checked = self.judged(self.rows(start, end), (start, end))
        self.checked.join(checked)

    def judged(self, rows: tuple[EmissionRow, ...], span: tuple[datetime, datetime]) -> Checked:
        """Compare given rows with the truth; tests spoil them first."""
        cluster, grid = self.simulated.cluster, self.simulated.server.grid
        return check(rows, cluster, grid, self.scenario.provider_faults(), span)

    def live(self, until: datetime) -> None:
        """Live up to a moment; the daemon is stopped and started where the scenario says so."""
        down = sorted(each for each in self.scenario.down if self.now <= each[0] < until)
        for start, end in down:
            self.simulated.live(start, self.scenario.step)
            self.simulated = self.simulated.restarted(end, self.scenario.step)
        self.simulated.live(max(until, self.now), self.scenario.step)

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return self.simulated.cluster.time.now

    def judge(self) -> None:
        """Find what else is wrong: holds, periods, closed months."""
        scenario, journal = self.scenario, self.simulated.journal
        decisions = self.decisions
        span = (scenario.start, scenario.end)
        blind = blind_spans(scenario.dead, 2 * scenario.site.poll)
        for run in self.simulated.cluster.runs:
            self.failures += unexplained(decisions, run, span, scenario.step, scenario.down)
        self.failures += misheard(journal, self.simulated.cluster.runs)
        self.failures += blindly(decisions, blind)
        timezone = scenario.site.timezone
        self.failures += untiled(journal, span, timezone)
        cluster, grid = self.simulated.cluster, self.simulated.server.grid
        truth = partial(truth_of, cluster, grid, scenario.provider_faults())
        self.failures += closed_wrongly(journal, truth, span, timezone)
        told, self.savings = self.flattered()
        self.failures += told

    def forgotten(self) -> list[Wrong]:
        """Judge the newest day with dark time again, as if it had not been booked."""
        dark = [each for each in self.simulated.cluster.stretches if each.dark and each.run]
        newest = max(self.checked.price_mg, default=self.scenario.start)
        ends = [each.end for each in dark if each.end <= newest]
        if not ends:
            return []
        end = max(ends).replace(minute=0, second=0) + HOUR
        span = (end - 24 * HOUR, end)
        bright = tuple(
            replace(row, upper_mj=0, upper_ug=0) if row.scenario == "actual" else row
            for row in self.rows(*span)
        )
        return self.judged(bright, span).wrong

    def flattered(self, price_mg: Mapping[datetime, int] | None = None) -> tuple[list[str], int]:
        """Hold the savings of runs whose hours were all compared against the truth.

        Args:
            price_mg: of each hour; tests spoil them.
        """
        cluster = self.simulated.cluster
        prices = price_mg or self.checked.price_mg
        until = max(prices, default=self.scenario.start)
        return flattered(self.simulated.journal, cluster, prices, until)


@contextmanager
def lived(scenario: Scenario, folder: Path, minutes: float = math.inf) -> Iterator[Life]:
    """Live through a scenario in a folder; the daemon's parts stand until the block ends.

    Args:
        scenario: what happens.
        folder: for journal, settings and socket; empty.
        minutes: of this machine's time, after which the scenario ends where it is.
    """
    ends_s = monotonic() + 60 * minutes
    time = Time(scenario.start)
    server = GridServer(clock=lambda: time.now)
    scenario.switch_on(server)
    quiet = (*scenario.silent, *scenario.down)
    cluster = Cluster(
        time=time,
        runs=[Run(job) for job in scenario.jobs],
        gpus=GPUS,
        silent=quiet,
        unread=scenario.unread,
        never=scenario.never_read,
        drift=scenario.drift,
    )
    with server.serving():
        life = Life(scenario=scenario, simulated=Simulated(folder, cluster, server, scenario.site))
        try:
            done = scenario.start
            while time.now < scenario.end and monotonic() < ends_s:
                until = min(scenario.end, time.now + CHUNK)
                life.live(until)
                life.remember()
                until = (time.now - SETTLED).replace(minute=0, second=0)
                if until > done:
                    life.compare(done, until)
                    done = until
            life.scenario = replace(scenario, end=time.now)
            life.judge()
            yield life
        finally:
            life.simulated.close()
