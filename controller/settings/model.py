"""Every key of the settings file: its type, its default, and what it means.

The descriptions are the manual: `wattmesh settings sample` and the reference page print them.
Invariant: secrets are never in the file itself; a key that needs one names a file that only its
owner can read.
"""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from wattmesh.controller.journal.database.sqlite_url import sqlite_url
from wattmesh.controller.settings.carbon import CarbonSection
from wattmesh.controller.settings.section import File, Section, Time
from wattmesh.policies.decision import Mode, PolicySettings
from wattmesh.reconfig.catalogue import Equivalence
from wattmesh.telemetry.actuator.settings import MOST_DAYS, OPERATORS

TEN_YEARS_S = 10 * 365 * 86_400.0


def state_folder() -> Path:
    """Where the daemon keeps what must survive: what systemd gives, else /var/lib/wattmesh."""
    return Path(os.environ.get("STATE_DIRECTORY", "/var/lib/wattmesh").split(":")[0])


def runtime_folder() -> Path:
    """Where the socket stands: what systemd gives, else /run/wattmesh."""
    return Path(os.environ.get("RUNTIME_DIRECTORY", "/run/wattmesh").split(":")[0])


class JournalSection(Section):
    """Where everything that must survive is kept."""

    url: str = Field(default_factory=lambda: sqlite_url(state_folder() / "journal.db"))
    """Database: `sqlite:////path/journal.db` (a local disk; write `%25` for a `%` in the path, and
    `%3F` for a `?`), or `postgresql+psycopg://user@host/name`."""
    password_file: File | None = Field(default=None, examples=["/etc/wattmesh/journal.password"])
    """File with the database password, readable by its owner only (mode 0600)."""
    retention_days: int = Field(default=90, ge=2, le=36_500)
    """Days that single ledger slots, reports and decisions are kept; sums are kept for ever."""
    lost_days: float = Field(default=7.0, gt=0, le=365)
    """Days after which a run that is not heard any more is ended; its rows stay, and it goes on
    when it is heard again."""
    trust_clock: bool = False
    """Whether to delete, close and settle although the kernel calls the wall clock unsynchronised:
    only where something that it does not know of keeps the clock."""


class ApiSection(Section):
    """The HTTP interface for jobs and people on this machine."""

    socket: File = Field(default_factory=lambda: runtime_folder() / "wattmesh.sock")
    """Unix socket that jobs and the command line talk to; created with mode 0660."""
    group: str = Field(default="", examples=["wattmesh-jobs"])
    """Unix group whose members may connect (the owners of jobs); default the operators' group. It
    is neither that group nor the actuator's."""
    runs_per_user: int = Field(default=256, ge=1, le=100_000)
    """Most runs of one user that have not ended. One more ends the user's longest silent one, and
    is refused where none is silent."""
    waits_per_user: int = Field(default=64, ge=1, le=1000)
    """Most calls of one user, or of one node's agent, that wait for news at the same time."""
    operators_group: str = OPERATORS
    """Unix group whose members may act on runs of other owners, freeze and thaw everything."""
    listen: str = Field(default="", examples=["0.0.0.0:9465"])
    """Address for the agents of other nodes as host:port (TLS, and a token of each node's own); ""
    for none."""
    tls_certificate: File | None = Field(default=None, examples=["/etc/wattmesh/tls.pem"])
    """Certificate chain for `listen`."""
    tls_key: File | None = Field(default=None, examples=["/etc/wattmesh/tls.key"])
    """Its key, readable by its owner only (mode 0600)."""
    agents_token_file: File | None = Field(default=None, examples=["/etc/wattmesh/agent.token"])
    """File with one token that opens for every node (mode 0600): the way over for sites that have
    shared one. Leave it out, and each node has its own (`wattmesh nodes token make NODE`)."""


class MetricsSection(Section):
    """The read-only figures for Prometheus."""

    listen: str = "127.0.0.1:9464"
    """Address of /metrics as host:port; port 0 takes any free one, "" turns it off."""


class LoopsSection(Section):
    """How often the daemon looks and decides (monotonic time)."""

    cycle_s: float = Field(default=5.0, gt=0, le=60)
    """Seconds between two control cycles."""
    sample_s: float = Field(default=1.0, gt=0, le=60)
    """Seconds between two power samples."""
    lease_s: float = Field(default=10.0, gt=0, le=60)
    """Seconds that leadership outlives its holder; renewed three times as often."""
    live_s: float = Field(default=30.0, ge=2, le=600)
    """Seconds without a heartbeat after which a run is lost and another launch of it is let in; its
    hook is asked for one six times as often. Raise it where jobs hold Python's lock for longer."""


class PrometheusSection(Section):
    """Power or energy that an exporter measures already, asked for by query."""

    url: str = Field(examples=["http://prometheus.example:9090"], pattern="^https?://.+$")
    """Address of the Prometheus server."""
    exporter: Literal["dcgm", "kepler", "wattmesh"] = Field(examples=["dcgm"])
    """Whose series: says their names, their units and which label is the GPU."""
    selector: str = Field(default="", examples=['cluster="a"'])
    """More label matchers, put into every query."""


class StaticPowerSection(Section):
    """What a device is assumed to draw where nothing measures it; every figure says `estimated`."""

    gpu_power_w: float = Field(gt=0, le=5000, examples=[500.0])
    """Watts of one GPU."""
    gpu_uuids: tuple[str, ...] = Field(examples=[("GPU-8f2c...",)], min_length=1, strict=False)
    """The GPUs it stands for."""


class PowerSection(Section):
    """Where power readings come from. Several may be named: the best one per device counts."""

    source: Literal["none", "nvml", "agents"] = "none"
    """`none` (only what `prometheus` and `static` name), `nvml` (the GPUs of this machine), or
    `agents` (those of the nodes that `wattmesh agent` runs on)."""
    library: File | None = Field(default=None, examples=["/usr/lib/libnvidia-ml.so.1"])
    """nvml: another library than the driver's own, e.g. the fake one of
    `python -m wattmesh.telemetry.fake_nvml`; every figure of fake GPUs is marked `simulated`."""
    rapl: bool = False
    """nvml: read the processors' energy counters too (Linux powercap; needs the right to)."""
    prometheus: PrometheusSection | None = None
    """A Prometheus server to ask for devices that nothing else reads."""
    static: StaticPowerSection | None = None
    """Assumed power of devices that nothing else reads."""


class AgentSection(Section):
    """`wattmesh agent`: what reads and obeys on one GPU node."""

    node: str = Field(default="", examples=["n17"])
    """Name of this node; default its host name."""
    controller: str = Field(
        default="", examples=["https://head-1:9465", "unix:///run/wattmesh/wattmesh.sock"]
    )
    """Address of the daemon; default its socket on this machine (api.socket)."""
    token_file: File | None = Field(default=None, examples=["/etc/wattmesh/agent.token"])
    """File with this node's token for an https address, readable by its owner only (mode 0600), or
    `credential:NAME` of the service manager."""
    ca_file: File | None = Field(default=None, examples=["/etc/wattmesh/ca.pem"])
    """Certificates to trust instead of the system's."""
    outbox: File = Field(default_factory=lambda: state_folder() / "agent.db")
    """Where what is not yet delivered waits."""
    outbox_mib: int = Field(default=64, ge=1, le=4096)
    """Most MiB it may take; beyond, slots are joined, so that no joule is lost."""
    deliver_s: float = Field(default=10.0, gt=0, le=300)
    """Seconds between two deliveries."""
    metrics: str = "127.0.0.1:9466"
    """Address of the agent's own /metrics as host:port; "" turns it off."""
    relay: File | None = Field(default=None, examples=["/run/wattmesh/agent.sock"])
    """Unix socket on which jobs of this node reach the daemon through the agent."""


class ActuatorSection(Section):
    """`wattmesh actuator`: the one part that may change a GPU, on the node it runs on."""

    mode: Literal["observe", "dry-run", "enforce"] = "observe"
    """`observe` (refuses all), `dry-run` (says what it would do), `enforce`."""
    socket: File = Path("/run/wattmesh-actuator/actuator.sock")
    """Unix socket (mode 0660) that the agent talks to."""
    group: str = Field(default="wattmesh-actuator", examples=["wattmesh-actuator"])
    """Unix group whose members may connect, and look: the agent's user and nobody else. It is
    neither the job owners' group nor the operators'."""
    agent: str = Field(default="wattmesh", examples=["wattmesh"])
    """User (name or uid) that the agent runs as: nobody but that one and root may wish anything."""
    journal: File = Path("/var/lib/wattmesh-actuator/journal")
    """Where it writes what it found before it changes anything."""
    library: File | None = Field(default=None, examples=["/usr/lib/libnvidia-ml.so.1"])
    """Another NVML library than the driver's own."""
    baseline_lock_mhz: int | None = Field(default=None, gt=0, examples=[1980])
    """SM clock that GPUs are locked to when nobody wishes anything; default none: reset. NVML
    cannot tell which lock it found."""
    cap_floor_share: float = Field(default=0.5, gt=0, le=1)
    """No cap is set below this share of the board's default limit."""
    write_every_s: float = Field(default=60.0, ge=0, le=TEN_YEARS_S)
    """Least seconds between two economy writes to one GPU."""
    step_share: float = Field(default=0.1, gt=0, le=1)
    """Most that one economy write, or one step back up, changes: share of the board's range."""
    boards: tuple[str, ...] = Field(default=(), strict=False)
    """Board names that may be changed besides those that wattmesh knows."""
    obligation_days: float = Field(default=31.0, gt=0, le=MOST_DAYS)
    """Longest days that an operator's cap may last; one that is to last longer is refused."""


class PolicySection(Section):
    """The operator's limits on automatic switching."""

    dwell_s: float = Field(default=4 * 3600.0, ge=0, le=TEN_YEARS_S)
    """Least seconds between two layout changes of one run."""
    clock_dwell_s: float = Field(default=900.0, ge=0, le=TEN_YEARS_S)
    """Least seconds between two clock changes of one run."""
    gain_factor: float = Field(default=2.0, ge=1)
    """A switch must save at least this many times what it costs."""
    guard_margin: float = Field(default=0.02, ge=0, lt=1)
    """Share of speed that the deadline guard keeps in reserve."""
    max_switches_per_day: int = Field(default=6, ge=0)
    """Most layout switches of one run in 24 hours."""
    failed_limit: int = Field(default=2, ge=1)
    """Failed switches in a row after which a run is frozen and a human called."""
    equivalence: tuple[Literal["exact", "numerical", "statistical"], ...] = Field(
        default=("exact", "numerical"), strict=False
    )
    """Classes of points that may be switched to: exact, numerical, statistical."""
    sla_throughput_share: float | None = Field(default=None, gt=0, lt=1, examples=[0.5])
    """Service level: share of its fastest point's speed that plans keep a run at on average over
    every `sla_window_s`, where cap and deadline leave a way. Default: none."""
    sla_window_s: float = Field(default=86_400.0, ge=3600.0, le=TEN_YEARS_S)
    """Seconds over which the service level is an average."""
    switch_timeout_s: float = Field(default=600.0, gt=0, le=TEN_YEARS_S)
    """Seconds after which a switch that was not confirmed counts as failed."""
    failed_switch_s: float | None = Field(default=None, gt=0, le=TEN_YEARS_S, examples=[300.0])
    """Longest seconds until a run trains again after a switch that failed, rollback and restart
    included; the deadline guard reckons with them. Default: switch_timeout_s."""

    def limits(self) -> PolicySettings:
        """Give the part that the pure policy reads."""
        return PolicySettings(
            dwell_s=self.dwell_s,
            clock_dwell_s=self.clock_dwell_s,
            gain_factor=self.gain_factor,
            guard_margin=self.guard_margin,
            max_switches_per_day=self.max_switches_per_day,
            failed_limit=self.failed_limit,
            failed_switch_s=self.failed_switch_s or self.switch_timeout_s,
            equivalence=tuple(Equivalence(each) for each in self.equivalence),
            sla_throughput_share=self.sla_throughput_share or 0.0,
            sla_window_s=self.sla_window_s,
        )


class MarketSection(Section):
    """A market-based factor for reports: a contract, certificates, or the residual mix."""

    label: str = Field(examples=["wind contract, guarantees of origin"], min_length=1)
    """What it is; reports name it."""
    g_per_kwh: float = Field(ge=0, examples=[0.0])
    """Grams of CO2 for each kilowatt-hour that it covers."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Share of all energy that it covers; what none covers stays unpriced."""
    starts: Time = Field(examples=["2026-01-01T00:00:00Z"])
    """From when on; slots that begin in it are covered."""
    ends: Time = Field(examples=["2027-01-01T00:00:00Z"])
    """Until when, half-open."""


class SiteSection(Section):
    """What is true of this place."""

    timezone: str = "UTC"
    """Time zone in which budget days and months begin, e.g. Europe/London."""
    energy_boundary: Literal["it", "facility"] = "it"
    """`it`: GPUs and hosts; `facility`: the same times `pue`."""
    pue: float = Field(default=1.0, ge=1, le=3)
    """Power usage effectiveness; read only when energy_boundary is `facility`."""
    market_based: tuple[MarketSection, ...] = Field(default=(), strict=False)
    """Market-based factors, shown in reports in lines of their own and netted with nothing."""

    def pue_milli(self) -> int:
        """Give the joules of the boundary for 1000 measured ones."""
        return round(self.pue * 1000) if self.energy_boundary == "facility" else 1000


class RunSection(Section):
    """What the operator says about one run, by its name."""

    catalogue: File | None = Field(default=None, examples=["/etc/wattmesh/llama-8b.toml"])
    """Catalogue of its operating points, as `wattmesh configs profile` writes it."""
    owner: str = Field(default="", examples=["1000"])
    """User (name or uid) to whom the name belongs: nobody else registers a run of it. Default:
    whoever registered one first."""
    baseline: str = Field(default="", examples=["A"])
    """Point the run was submitted at; default the catalogue's reference."""
    deadline: Time | None = Field(default=None, examples=["2026-12-01T00:00:00Z"])
    """When it must be done."""
    deadline_after_s: float | None = Field(default=None, gt=0, le=TEN_YEARS_S, examples=[864000.0])
    """Seconds after its first registration by which it must be done, ten years at most; or give
    `deadline`."""


class BudgetSection(Section):
    """Grams that may be spent in one period; exceeding alerts, it never stops a run."""

    grams: float = Field(gt=0, examples=[9.0e6])
    """Grams of CO2 in one period."""
    period: Literal["day", "week", "month", "year"] = Field(default="month")
    """day | week | month | year, in the site's time zone."""


class Settings(Section):
    """The whole file, and nothing else: what a reader sees in it is what holds."""

    mode: Annotated[Mode, Field(strict=False)] = Mode.OBSERVE
    """How far wattmesh goes: observe (measure), advise (say what it would do), act."""
    journal: JournalSection = Field(default_factory=JournalSection)
    api: ApiSection = Field(default_factory=ApiSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    loops: LoopsSection = Field(default_factory=LoopsSection)
    power: PowerSection = Field(default_factory=PowerSection)
    agent: AgentSection = Field(default_factory=AgentSection)
    actuator: ActuatorSection = Field(default_factory=ActuatorSection)
    carbon: CarbonSection | None = None
    policy: PolicySection = Field(default_factory=PolicySection)
    site: SiteSection = Field(default_factory=SiteSection)
    runs: dict[str, RunSection] = Field(default_factory=dict)
    budget: dict[str, BudgetSection] = Field(default_factory=dict)
