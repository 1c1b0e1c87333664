"""The real daemon under a virtual clock: its parts as wiring.py makes them, their loops by hand.

Journal (SQLite), sampler, cycle, accounts, periods and housekeeping are the daemon's own; carbon
comes from real providers over HTTP from the grid server, whose clock is the same. Runs take the
orders that the daemon wrote and report what became of them. Invariant: nothing is faked but time,
power, training and the grid.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from benchmarks.year.run import BOUNDARY_EVERY, HOUR, STEP_TOKENS, TOKENS_PER_S, Move, Run
from benchmarks.year.world import PUE, Cluster, InventedPower
from wattmesh.controller.daemon.loop_bodies import Housekeeping, PollDuty
from wattmesh.controller.daemon.period_roll import PeriodRoll
from wattmesh.controller.daemon.wiring import Parts, run_plans
from wattmesh.controller.settings.model import Settings
from wattmesh.controller.settings.read import parse
from wattmesh.controller.signals.forecaster import Forecaster, NoForecaster
from wattmesh.controller.signals.grid import grid
from wattmesh.controller.signals.poller import Poller
from wattmesh.errors import WattmeshError
from wattmesh.integrations.carbon.electricity_maps import ElectricityMaps
from wattmesh.integrations.carbon.grid_server import GridServer
from wattmesh.integrations.carbon.http_json import HttpJson
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.integrations.carbon.reading.json_shape import JsonShape
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Finish, Progress, Register, Transition
from wattmesh.telemetry.carbon import Provider, Signal

UID = os.getuid()
SCALE = 1.17
"""What the user says the stand-in's values are to be multiplied with."""

SETTINGS = """\
mode = "act"
[journal]
url = "sqlite:///{folder}/journal.db"
retention_days = {retention_days}
[api]
socket = "{folder}/w.sock"
[metrics]
listen = ""
[loops]
cycle_s = 60
sample_s = 60
lease_s = 60
[site]
timezone = "{timezone}"
energy_boundary = "facility"
pue = {pue}
[[site.market_based]]
label = "invented wind contract"
g_per_kwh = 0.0
share = 0.6
starts = 2026-01-01T00:00:00Z
ends = 2027-01-01T00:00:00Z
[carbon.accounting]
provider = "electricity_maps"
zone = "{zone}"
factor = "{factor}"
key_file = "{folder}/key"
base_url = "{url}/electricity_maps/v4"
{fallback}
[[carbon.report]]
provider = "electricity_maps"
zone = "{zone}"
factor = "{other}"
key_file = "{folder}/key"
base_url = "{url}/electricity_maps/v4"
[budget.cluster]
grams = {grams}
period = "month"
"""

FALLBACK = """\
[[carbon.accounting_fallback]]
provider = "http_json"
zone = "{zone}"
kind = "average"
factor = "direct"
gas = "CO2eq"
scale = {scale}
[carbon.accounting_fallback.http_json]
url = "{url}/http_json/intensity/{{zone}}?hours={{hours}}"
rows = "rows"
unit = "g/kWh"
lag_s = 7200
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What is simulated.

    Attributes:
        poll, price: how often, virtual time.
        lifecycle_from: then the settings are reloaded, with another accounting signal: of the life
            cycle, without a fallback; what has a price keeps it.
    """

    zone: str = "IN-WE"
    timezone: str = "Asia/Kolkata"
    retention_days: int = 90
    grams: float = 1.5e6
    poll: timedelta = HOUR
    price: timedelta = HOUR
    forecast: timedelta = 6 * HOUR
    lifecycle_from: datetime | None = None


@dataclass(slots=True)
class Due:
    """Something done every so often in virtual time. `trouble`: sentences of outside failures."""

    every: timedelta
    work: Callable[[], object]
    next_at: datetime | None = None
    turns: int = 0
    spent_s: float = 0.0
    troubles: list[str] = field(default_factory=list)

    def turn(self, now: datetime) -> None:
        """Do it if it is due; an outside failure is noted, as the scheduler would."""
        if self.next_at is not None and now < self.next_at:
            return
        self.next_at = (self.next_at or now) + self.every
        while self.next_at <= now:
            self.next_at += self.every
        self.turns += 1
        began_s = time.perf_counter()
        try:
            self.work()
        except WattmeshError as error:
            self.troubles.append(str(error))
        self.spent_s += time.perf_counter() - began_s


class Simulated:
    """One daemon in one cluster."""

    def __init__(self, folder: Path, cluster: Cluster, server: GridServer, site: Site) -> None:
        """Build the daemon's parts over a folder and let it lead; the server must be serving."""
        self.cluster, self.site, self.server = cluster, site, server
        (folder / "key").write_text("an-invented-key")
        (folder / "key").chmod(0o600)
        for run in cluster.runs:
            (folder / f"{run.job.name}.toml").write_text(run.job.catalogue)
        self.path = folder / "wattmesh.toml"
        settings = self._settings()
        self.parts = Parts(settings, self.path, cluster.time.clock, InventedPower(cluster))
        self.journal, self.loop_facts = self.parts.journal, self.parts.loop_facts
        self.parts.leases.turn()
        self._said: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._seq = 0
        self._reloaded = self._changed
        self.dues = self._dues()

    @property
    def _changed(self) -> bool:
        """Whether the settings name the other accounting signal."""
        since = self.site.lifecycle_from
        return since is not None and self.cluster.time.now >= since

    def _settings(self) -> Settings:
        """Write the settings as they stand at this moment."""
        site, folder = self.site, self.path.parent
        names = {"url": self.server.url, "zone": site.zone}
        fallback = "" if self._changed else FALLBACK.format(**names, scale=SCALE)
        factors = ("lifecycle", "direct") if self._changed else ("direct", "lifecycle")
        text = SETTINGS.format(
            **names,
            folder=folder,
            fallback=fallback,
            factor=factors[0],
            other=factors[1],
            pue=PUE,
            timezone=site.timezone,
            retention_days=site.retention_days,
            grams=site.grams,
        )
        for job in (each.job for each in self.cluster.runs):
            text += f'[runs.{job.name}]\ncatalogue = "{folder / job.name}.toml"\nbaseline = "A"\n'
            text += f"deadline = {job.deadline:%Y-%m-%dT%H:%M:%SZ}\n"
        self.path.write_text(text)
        return parse(text, where=self.path)

    def _providers(self) -> tuple[Provider, ...]:
        """Open the providers as the settings name them, patient by the scenario's clock."""

        def http(base_url: str) -> JsonHttp:
            monotonic_s = self.cluster.time.monotonic_s
            return JsonHttp(base_url, clock_s=monotonic_s, pause=lambda _: None)

        server, zone = self.server, self.site.zone
        base_url = server.base("electricity_maps")
        direct, lifecycle = (
            ElectricityMaps(zone=zone, key="an-invented-key", factor=each, http=http(base_url))
            for each in ("direct", "lifecycle")
        )
        words = {"kind": "average", "factor": "direct", "gas": "CO2eq"}
        shape = JsonShape(
            url=server.base("http_json") + "/intensity/{zone}?hours={hours}", rows="rows"
        )
        other = HttpJson(
            signal=Signal(provider="http_json", zone=zone, **words),
            shape=shape,
            lag_s=7200,
            http=http(server.url),
        )
        named = grid(self.loop_facts.settings, self.cluster.time.now).providers
        opened = (lifecycle, direct) if self._changed else (direct, other, lifecycle)
        assert [each.signal for each in opened] == [each.signal for each in named]
        return opened

    def _dues(self) -> dict[str, Due]:
        """Give everything that the scheduler and the loops do, but sampler and cycle."""
        dues = self._polls()
        dues["price"] = Due(self.site.price, self.parts.accounts.turn)
        roll = PeriodRoll(self.journal, self.loop_facts)
        dues["periods"] = Due(HOUR, roll.turn)
        dues["retention"] = Due(24 * HOUR, Housekeeping(self.journal, self.loop_facts).turn)
        return dues

    def _polls(self) -> dict[str, Due]:
        """Give the polls of the settings' signals."""
        dues = {}
        wanted = grid(self.loop_facts.settings, self.cluster.time.now).ahead
        for source in self._providers():
            ahead = str(source.signal) in wanted
            poller = Poller(source, self.journal, ahead=ahead)
            own = Forecaster(self.journal, source.signal, source.series)
            forecaster = _Seldom(own, self.site.forecast) if ahead else NoForecaster()
            duty = PollDuty(poller, forecaster, self.loop_facts, lambda: None)
            dues[f"poll {source.signal}"] = Due(self.site.poll, duty.turn)
        return dues

    def live(self, until: datetime, step: timedelta) -> None:
        """Live through the scenario up to `until`."""
        began = self.cluster.time.now
        for now in self.cluster.moments(began, until, step):
            if now > self.cluster.time.now:
                self.cluster.go_on(now)
            self._moment(now)

    def _moment(self, now: datetime) -> None:
        """Do what is due at one moment, in the order in which the daemon's loops would."""
        # The lease is kept by the database's own time: the year's does not count there.
        self.parts.leases.turn()
        if self._changed and not self._reloaded:
            self._reload()
        self.parts.sampler.turn()
        for run in self.cluster.runs:
            self._report(run, now)
        self.parts.cycle.turn()
        for run in self.cluster.runs:
            self._fetch(run, now)
        # Who holds what is known from here on: between two moments nothing changes hands.
        self.parts.sampler.turn()
        for due in self.dues.values():
            due.turn(now)
        if any(now in run.looks() for run in self.cluster.runs):
            self.dues["price"].work()

    def _reload(self) -> None:
        """Reload the settings, which name another accounting signal, as SIGHUP does."""
        self._reloaded = True
        self.parts.reload(self._settings())
        polls = [name for name in self.dues if name.startswith("poll ")]
        for name in polls:
            del self.dues[name]
        self.dues = self._polls() | self.dues

    def _report(self, run: Run, now: datetime) -> None:
        """Let a run introduce itself, report, or end, as its processes would."""
        job = run.job
        launch = 0 if now < job.start else 2 if job.away and now >= job.away[1] else 1
        for number in self._unsaid(run, "launch", launch):
            self._register(run, number + 1, now)
        if launch and not run.holds(now):
            for _ in self._unsaid(run, "finish", 1):
                self._finish(run, launch, now)
        elif run.trains(now) or (job.away and now == job.away[0]):
            self._transitions(run, launch, now)
            self._progress(run, launch, now)
            self._ask(run, now)

    def _unsaid(self, run: Run, what: str, count: int) -> range:
        """Give the numbers of what is to be said for the first time, of so many."""
        before = self._said[run.job.name, what]
        self._said[run.job.name, what] = max(before, count)
        return range(before, count)

    def _ask(self, run: Run, now: datetime) -> None:
        """Ask for a point, as an operator would."""
        asked = [point for when, point in run.job.asked if when <= now]
        for number in self._unsaid(run, "asked", len(asked)):
            self.journal.runs.order_point(
                run.job.name, asked[number], reason="the scenario says so", by="year"
            )

    def _fetch(self, run: Run, now: datetime) -> None:
        """Let a run that may be moved fetch its order, as the hook does."""
        able = run.job.movable and run.trains(now)
        switch = self.journal.switches.open(run.job.name) if able else None
        if switch is not None and switch.state is SwitchState.ORDERED:
            run.take(switch.switch_id, switch.to_point)

    def _transitions(self, run: Run, launch: int, now: datetime) -> None:
        """Report the steps of switches, as a hook would."""
        begin = SwitchState.CHECKPOINTING
        steps = [(each, begin) for each in run.moves if each.at <= now]
        steps += [(each, each.end) for each in run.moves if each.until <= now]
        steps.sort(key=lambda step: (step[0].at, step[1] is not begin))
        for number in self._unsaid(run, "transition", len(steps)):
            self._step(run, launch, *steps[number])

    def _step(self, run: Run, launch: int, move: Move, state: SwitchState) -> None:
        """Report a step of a switch."""
        now, done = self.cluster.time.now, state is not SwitchState.CHECKPOINTING
        took_s = (move.until - move.at).total_seconds()
        message = Transition(
            run=run.job.name,
            incarnation=f"{run.job.name}-{launch}",
            attempt=launch,
            switch_id=move.switch_id,
            epoch=self.loop_facts.lead.epoch or 0,
            state=state,
            step=run.tokens // STEP_TOKENS,
            elapsed_s=took_s if done else 0.0,
            layout=move.layout if done else None,
            ranks=(0, 1),
            evidence={"total_s": took_s} if done else {},
        )
        self.journal.switches.record(message, owner_uid=UID, now=now)

    def _register(self, run: Run, launch: int, now: datetime) -> None:
        """Introduce a launch."""
        job, seeks = run.job, () if run.job.movable else ("fixed_data_parallel",)
        message = Register(
            run=job.name,
            name=job.name,
            incarnation=f"{job.name}-{launch}",
            attempt=launch,
            layout=run.layout_at(now),
            ranks=(0, 1),
            world_size=2,
            gpus=job.gpus,
            tokens=run.tokens,
            tokens_total=job.tokens_total,
            boundary_every=BOUNDARY_EVERY,
            capabilities=("in_place", "parking", *seeks),
            host="invented",
            pid=4711,
        )
        plan = run_plans(self.loop_facts.settings)[job.name]
        epoch = self.loop_facts.lead.epoch or 0
        self.journal.runs.register(message, owner_uid=UID, now=now, epoch=epoch, plan=plan)

    def _progress(self, run: Run, launch: int, now: datetime) -> None:
        """Report where training stands."""
        self._seq += 1
        job, tokens = run.job, run.tokens
        message = Progress(
            run=job.name,
            incarnation=f"{job.name}-{launch}",
            attempt=launch,
            seq=self._seq,
            step=tokens // STEP_TOKENS,
            samples=tokens // 4000,
            tokens=tokens,
            tokens_per_s=float(TOKENS_PER_S[run.layout_at(now)]),
            loss=2.0,
            layout=run.layout_at(now),
            ranks=(0, 1),
            boundary_every=BOUNDARY_EVERY,
            checkpoint_step=tokens // STEP_TOKENS,
        )
        self.journal.runs.progress(message, owner_uid=UID, now=now)

    def _finish(self, run: Run, launch: int, now: datetime) -> None:
        """Say that the last token is trained."""
        job = run.job
        message = Finish(
            run=job.name,
            incarnation=f"{job.name}-{launch}",
            attempt=launch,
            step=job.tokens_total // STEP_TOKENS,
            tokens=job.tokens_total,
            reason="done",
        )
        self.journal.runs.finish(message, owner_uid=UID, now=now)

    def restarted(self, end: datetime, step: timedelta) -> "Simulated":
        """Stop the daemon, let the cluster go on without it, and start another over its journal."""
        self.close()
        for now in self.cluster.moments(self.cluster.time.now, end, step):
            if now > self.cluster.time.now:
                self.cluster.go_on(now)
        after = Simulated(self.path.parent, self.cluster, self.server, self.site)
        after._said, after._seq = self._said, self._seq
        return after

    def close(self) -> None:
        """Let go of everything."""
        self.parts.stop()


class _Seldom(Forecaster):
    """A forecaster that is asked at every poll and works every so often: a year is long."""

    def __init__(self, inner: Forecaster, every: timedelta) -> None:
        """Take who forecasts."""
        self._inner = inner
        self._every = every
        self._due: datetime | None = None

    def turn(self, now: datetime) -> int:
        """Forecast if it is time."""
        if self._due is not None and now < self._due:
            return 0
        self._due = now + self._every
        return self._inner.turn(now)
