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
from wattmesh.controller.settings.demand_response import DemandResponseSection
from wattmesh.controller.settings.section import File, Section, Time
from wattmesh.policies.decision import Mode, PolicySettings, Sleep
from wattmesh.policies.powercap.triggers import DemandSource
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
    """The database that keeps everything that must survive."""

    url: str = Field(default_factory=lambda: sqlite_url(state_folder() / "journal.db"))
    """Database: `sqlite:////path/journal.db` (a local disk; write `%25` for a `%` in the path, and
    `%3F` for a `?`), or `postgresql+psycopg://user@host/name`."""
    password_file: File | None = Field(default=None, examples=["/etc/wattmesh/journal.password"])
    """File with the database password, readable by its owner only (mode 0600)."""
    retention_days: int = Field(default=90, ge=2, le=36_500)
    """Days for which single ledger slots, reports and decisions are kept. Their sums are kept for
    ever."""
    lost_days: float = Field(default=7.0, gt=0, le=365)
    """Days without a sign of life after which a run is ended. Its rows stay, and it goes on when it
    is heard again."""
    trust_clock: bool = False
    """Set it to true only where something that the kernel does not know of keeps the wall clock,
    such as the host of a virtual machine. Months are then closed, savings settled and old rows
    deleted although the kernel calls the clock unsynchronised."""


class ApiSection(Section):
    """The HTTP interface for jobs and people on this machine."""

    socket: File = Field(default_factory=lambda: runtime_folder() / "wattmesh.sock")
    """Unix socket on which jobs and the command line reach the daemon; it is created with mode
    0660."""
    group: str = Field(default="", examples=["wattmesh-jobs"])
    """Unix group whose members (the owners of jobs) may connect to the socket. If it is not set,
    the operators' group may connect. If it is set, it must differ from the operators' and the
    actuator's group."""
    runs_per_user: int = Field(default=256, ge=1, le=100_000)
    """Most runs of one user that have not ended. One more run ends the longest silent run of that
    user; it is refused if none is silent."""
    waits_per_user: int = Field(default=64, ge=1, le=1000)
    """Most calls of one user, or of one node's agent, that may wait for news at the same time."""
    operators_group: str = OPERATORS
    """Unix group whose members may act on the runs of others, and may freeze and thaw
    everything."""
    listen: str = Field(default="", examples=["0.0.0.0:9465"])
    """Address for the agents of other nodes, as host:port. It is served with TLS, and each node
    shows a token of its own. "" turns it off."""
    tls_certificate: File | None = Field(default=None, examples=["/etc/wattmesh/tls.pem"])
    """File with the certificate chain for `listen`."""
    tls_key: File | None = Field(default=None, examples=["/etc/wattmesh/tls.key"])
    """File with the private key of that certificate, readable by its owner only (mode 0600)."""
    agents_token_file: File | None = Field(default=None, examples=["/etc/wattmesh/agent.token"])
    """File with one token that the agents of all nodes share (mode 0600). It is for sites that have
    not yet given each node its own: make those with `wattmesh nodes token make NODE`, then remove
    this key."""


class MetricsSection(Section):
    """The read-only metrics for Prometheus."""

    listen: str = "127.0.0.1:9464"
    """Address of /metrics as host:port. Port 0 takes any free port; "" turns it off."""


class LoopsSection(Section):
    """How often the daemon observes and decides, in monotonic time."""

    cycle_s: float = Field(default=5.0, gt=0, le=60)
    """Seconds between two control cycles."""
    sample_s: float = Field(default=1.0, gt=0, le=60)
    """Seconds between two power samples."""
    lease_s: float = Field(default=10.0, gt=0, le=60)
    """Seconds after which another daemon may take the lead from one that is silent. The leader
    renews its lease three times as often."""
    live_s: float = Field(default=30.0, ge=2, le=600)
    """Seconds without a heartbeat after which a run counts as lost and another launch of it may
    register. Its hook sends six heartbeats in that time. Raise it where jobs hold Python's global
    interpreter lock for longer."""
    waking_s: float = Field(default=900.0, ge=10, le=TEN_YEARS_S)
    """Seconds after its alarm within which a run that slept must have registered its next launch;
    then it is lost and a human is called. Raise it by the usual wait in your scheduler's queue."""


class PrometheusSection(Section):
    """Power or energy that an exporter measures already and a Prometheus server keeps."""

    url: str = Field(examples=["http://prometheus.example:9090"], pattern="^https?://.+$")
    """Address of the Prometheus server."""
    exporter: Literal["dcgm", "kepler", "wattmesh"] = Field(examples=["dcgm"])
    """Exporter whose metrics are read. It decides their names, their units and the label that names
    the GPU."""
    selector: str = Field(default="", examples=['cluster="a"'])
    """Further label matchers, added to every query."""


class StaticPowerSection(Section):
    """Assumed power of devices that nothing measures; figures made from it say `estimated`."""

    gpu_power_w: float = Field(gt=0, le=5000, examples=[500.0])
    """Assumed power of one GPU, watts."""
    gpu_uuids: tuple[str, ...] = Field(examples=[("GPU-8f2c...",)], min_length=1, strict=False)
    """UUIDs of the GPUs that are assumed to draw this power."""


class NodeMeterSection(Section):
    """The node's own power meter, read through its management controller (BMC)."""

    protocol: Literal["redfish", "ipmi"] = Field(examples=["redfish"])
    """`redfish` (HTTPS), or `ipmi` (the program ipmitool, by DCMI)."""
    address: str = Field(default="", examples=["https://n17-bmc"])
    """redfish: address of the controller. ipmi: its host name; "" asks this node's own, through
    /dev/ipmi0."""
    username: str = Field(default="", examples=["wattmesh"], max_length=64)
    """Account of the controller. It needs to read, and nothing else."""
    password_file: File | None = Field(default=None, examples=["/etc/wattmesh/bmc.password"])
    """File with its password, readable by its owner only (mode 0600), or `credential:NAME`."""
    ca_file: File | None = Field(default=None, examples=["/etc/wattmesh/bmc-ca.pem"])
    """redfish: file with the certificates to trust instead of the system's."""
    chassis: tuple[str, ...] = Field(
        default=(), max_length=16, strict=False, examples=[("System.Embedded.1",)]
    )
    """redfish: names of the chassis that are the whole node together; default: the only one that
    tells a power."""


class PowerSection(Section):
    """Where power readings come from. If several sources read one device, the best one counts."""

    source: Literal["none", "nvml", "amd", "agents"] = "none"
    """`none` (only what `prometheus` and `static` name), `nvml` (the NVIDIA GPUs of this machine),
    `amd` (its AMD GPUs, by AMD SMI), or `agents` (the GPUs of all nodes on which `wattmesh agent`
    runs; on such a node it means nvml, so one with AMD GPUs says `amd`)."""
    library: File | None = Field(default=None, examples=["/usr/lib/libnvidia-ml.so.1"])
    """nvml: library to load instead of the driver's own, e.g. the fake one of `python -m
    wattmesh.telemetry.fake_nvml`. Every figure of fake GPUs is marked `simulated`."""
    rapl: bool = False
    """nvml, amd, agents: also read the processors' energy counters (Linux powercap). The daemon's
    user must be allowed to read them."""
    node_meter: NodeMeterSection | None = None
    """nvml, amd, agents: the node's own meter. What it shows beyond GPUs, processors and memory is
    told in metrics, and is in no ledger row."""
    prometheus: PrometheusSection | None = None
    """A Prometheus server to ask for devices that nothing else reads."""
    static: StaticPowerSection | None = None
    """Assumed power of devices that nothing else reads."""


class AgentSection(Section):
    """`wattmesh agent`: measures one GPU node, and asks its actuator for clocks and caps."""

    node: str = Field(default="", examples=["n17"])
    """Name of this node; default: its host name."""
    controller: str = Field(
        default="", examples=["https://head-1:9465", "unix:///run/wattmesh/wattmesh.sock"]
    )
    """Address of the daemon; default: its socket on this machine (api.socket)."""
    standbys: tuple[str, ...] = Field(
        default=(), max_length=8, strict=False, examples=[["https://head-2:9465"]]
    )
    """Addresses of further daemons on the same journal. They are asked in turn while the one that
    took the newest call stands by or does not answer. One token is good for all of them."""
    token_file: File | None = Field(default=None, examples=["/etc/wattmesh/agent.token"])
    """File with this node's token, needed for an https address and readable by its owner only (mode
    0600), or `credential:NAME` for a credential of the service manager."""
    ca_file: File | None = Field(default=None, examples=["/etc/wattmesh/ca.pem"])
    """File with the certificates to trust instead of the system's."""
    outbox: File = Field(default_factory=lambda: state_folder() / "agent.db")
    """File that keeps ledger rows until they are delivered to the daemon."""
    outbox_mib: int = Field(default=64, ge=1, le=4096)
    """Most MiB that this file may take. When it is full, neighbouring slots are joined: time gets
    coarser, and no joule is lost."""
    deliver_s: float = Field(default=10.0, gt=0, le=300)
    """Seconds between two deliveries to the daemon."""
    metrics: str = "127.0.0.1:9466"
    """Address of the agent's own /metrics as host:port; "" turns it off."""
    relay: File | None = Field(default=None, examples=["/run/wattmesh/agent.sock"])
    """Unix socket on which the jobs of this node reach the daemon through the agent."""


class ActuatorSection(Section):
    """`wattmesh actuator`: the one part that may change the GPUs of its node."""

    mode: Literal["observe", "dry-run", "enforce"] = "observe"
    """`observe` (refuses every change), `dry-run` (says what it would change),
    `enforce` (changes clocks and caps)."""
    socket: File = Path("/run/wattmesh-actuator/actuator.sock")
    """Unix socket (mode 0660) on which the agent reaches the actuator."""
    group: str = Field(default="wattmesh-actuator", examples=["wattmesh-actuator"])
    """Unix group whose members may connect and read the state of the GPUs. Only the agent's user
    belongs in it. It must differ from the job owners' and the operators' group."""
    agent: str = Field(default="wattmesh", examples=["wattmesh"])
    """User (name or uid) that the agent runs as. Only this user and root may ask for clocks and
    caps."""
    journal: File = Path("/var/lib/wattmesh-actuator/journal")
    """File in which the actuator notes what it found on a GPU before it changes anything."""
    library: File | None = Field(default=None, examples=["/usr/lib/libnvidia-ml.so.1"])
    """NVML library to load instead of the driver's own."""
    baseline_lock_mhz: int | None = Field(default=None, gt=0, examples=[1980])
    """SM clock in MHz that GPUs are locked to while nobody asks for another. If it is not set, the
    lock is reset: NVML cannot tell which lock it found."""
    cap_floor_share: float = Field(default=0.5, gt=0, le=1)
    """Lowest cap that may be set, as a share of the board's default limit."""
    write_every_s: float = Field(default=60.0, ge=0, le=TEN_YEARS_S)
    """Least seconds between two writes to one GPU that only save energy (economy leases)."""
    step_share: float = Field(default=0.1, gt=0, le=1)
    """Most that one such write, or one step back up, may change a clock or a cap, as a share of the
    board's range."""
    boards: tuple[str, ...] = Field(default=(), strict=False)
    """Names of boards that may be changed in addition to those that wattmesh knows."""
    obligation_days: float = Field(default=31.0, gt=0, le=MOST_DAYS)
    """Most days that a power cap may last. A longer one is refused."""


class PolicySection(Section):
    """The operator's limits on automatic switching."""

    dwell_s: float = Field(default=4 * 3600.0, ge=0, le=TEN_YEARS_S)
    """Least seconds between two layout changes of one run."""
    clock_dwell_s: float = Field(default=900.0, ge=0, le=TEN_YEARS_S)
    """Least seconds between two clock changes of one run."""
    gain_factor: float = Field(default=2.0, ge=1)
    """A switch must save more than this many times the grams that it costs."""
    guard_margin: float = Field(default=0.02, ge=0, lt=1)
    """Share of a run's speed that the deadline guard keeps in reserve."""
    max_switches_per_day: int = Field(default=6, ge=0)
    """Most layout switches of one run within 24 hours, sleep and wake included."""
    sleep: Literal["never", "measured", "assumed"] = "never"
    """Whether a plan may stop a run for dirty hours (its launcher must hold its next launch, as
    `python -m wattmesh.integrations.torchrun` does): `never`; `measured`: where the run itself, or
    its catalogue for the pair, says how long it takes to stop and to start; `assumed`: also where
    only `switch.layout_s` of its catalogue says so."""
    longest_sleep_s: float = Field(default=24 * 3600.0, ge=1, le=31 * 86_400.0)
    """Most seconds that one order lets a run sleep. Its launcher starts it again then, whether or
    not any daemon lives."""
    failed_limit: int = Field(default=2, ge=1)
    """Failed switches in a row after which a run is frozen and a human is called."""
    equivalence: tuple[Literal["exact", "numerical", "statistical"], ...] = Field(
        default=("exact", "numerical"), strict=False
    )
    """Classes of points that a run may be switched to: exact, numerical, statistical."""
    proof_days: float = Field(default=90.0, ge=0, le=36_500)
    """Days for which the proof of a point holds (`configs validate`). A point whose proof was older
    when a run began is stale, and the run is not switched to it. 0: forever. A point without a date
    is never stale by age."""
    catalogue_alarm: float = Field(default=0.1, gt=0, lt=1)
    """Share by which the measured speed or power of a point may differ from its catalogue's before
    `wattmesh status` asks to profile it again. The alarm ends within half of it."""
    sla_throughput_share: float | None = Field(default=None, gt=0, lt=1, examples=[0.5])
    """Service level: least average speed over every `sla_window_s` that plans keep, as a share of
    the speed at the run's fastest point. A power cap and a deadline come first. Default: none."""
    sla_window_s: float = Field(default=86_400.0, ge=3600.0, le=TEN_YEARS_S)
    """Seconds over which the service level averages the speed."""
    switch_timeout_s: float = Field(default=600.0, gt=0, le=TEN_YEARS_S)
    """Seconds after which an unconfirmed switch counts as failed."""
    failed_switch_s: float | None = Field(default=None, gt=0, le=TEN_YEARS_S, examples=[300.0])
    """Most seconds from the start of a switch that fails until the run trains again, rollback and
    restart included. The deadline guard counts on it. Default: switch_timeout_s."""

    def limits(self) -> PolicySettings:
        """Give the part that the pure policy reads."""
        return PolicySettings(
            dwell_s=self.dwell_s,
            clock_dwell_s=self.clock_dwell_s,
            gain_factor=self.gain_factor,
            guard_margin=self.guard_margin,
            max_switches_per_day=self.max_switches_per_day,
            sleep=Sleep(self.sleep),
            longest_sleep_s=self.longest_sleep_s,
            failed_limit=self.failed_limit,
            failed_switch_s=self.failed_switch_s or self.switch_timeout_s,
            equivalence=tuple(Equivalence(each) for each in self.equivalence),
            proof_days=self.proof_days,
            sla_throughput_share=self.sla_throughput_share or 0.0,
            sla_window_s=self.sla_window_s,
        )


class MarketSection(Section):
    """A market-based factor for reports: a contract, certificates, or the residual mix."""

    label: str = Field(examples=["wind contract, guarantees of origin"], min_length=1)
    """Name of the contract, certificates or mix in reports."""
    g_per_kwh: float = Field(ge=0, examples=[0.0])
    """Grams of CO2 per kilowatt-hour that it covers."""
    share: float = Field(default=1.0, gt=0, le=1)
    """Share of all energy that it covers. Energy that nothing covers stays without a price."""
    starts: Time = Field(examples=["2026-01-01T00:00:00Z"])
    """Time from which it counts: it covers the slots that begin at or after it."""
    ends: Time = Field(examples=["2027-01-01T00:00:00Z"])
    """Time until which it counts: a slot that begins at this time is not covered."""


class SiteSection(Section):
    """Facts about this site."""

    timezone: str = "UTC"
    """Time zone in which budget days and months begin, e.g. Europe/London."""
    energy_boundary: Literal["it", "facility"] = "it"
    """What the joules cover: `it` (GPUs and hosts, as measured) or `facility` (the same, multiplied
    by `pue`)."""
    pue: float = Field(default=1.0, ge=1, le=3)
    """Power usage effectiveness; read only when energy_boundary is `facility`."""
    market_based: tuple[MarketSection, ...] = Field(default=(), strict=False)
    """Market-based factors, shown in reports in lines of their own and netted with nothing."""

    def pue_milli(self) -> int:
        """Give the joules of the boundary for 1000 measured ones."""
        return round(self.pue * 1000) if self.energy_boundary == "facility" else 1000


class RunSection(Section):
    """Facts about one run, by its name."""

    catalogue: File | None = Field(default=None, examples=["/etc/wattmesh/llama-8b.toml"])
    """File with the catalogue of its operating points, as `wattmesh configs profile` writes it."""
    owner: str = Field(default="", examples=["1000"])
    """User (name or uid) who owns the name: nobody else may register a run under it. Default: the
    user who registered one first."""
    baseline: str = Field(default="", examples=["A"])
    """Id of the point that the run was submitted at; default: the catalogue's reference."""
    deadline: Time | None = Field(default=None, examples=["2026-12-01T00:00:00Z"])
    """Time by which the run must be done."""
    deadline_after_s: float | None = Field(default=None, gt=0, le=TEN_YEARS_S, examples=[864000.0])
    """Seconds from its first registration by which the run must be done, at most ten years. Set
    this or `deadline`."""
    expert_sweep: File | None = Field(default=None, examples=["/etc/wattmesh/sweep.json"])
    """File with what an offline sweep measured of its GPUs, as `wattmesh experts costs` reads it:
    where learning what an expert-token costs begins."""
    expert_strength: float = Field(default=0.0, ge=0.0, le=8.0, examples=[0.1])
    """How far its routers may lean towards cheap GPUs, in mode act. It changes what the run trains;
    0: not at all. The job must ask for it too (`expert_costs` of `attach`)."""
    expert_control: bool = Field(default=False)
    """Let wattmesh move the strength between 0 and `expert_strength` by the carbon price, within
    limits and with paired probes of the job (`paired` of `session.count_expert_tokens`)."""
    expert_freeze_at: float = Field(default=0.8, gt=0.0, le=1.0, examples=[0.8])
    """Share of the run's tokens from which on `expert_control` leaves the strength as it is: where
    its learning rate begins to decay."""


class BudgetSection(Section):
    """Grams that may be spent in one period. Spending more alerts; it never stops a run."""

    grams: float = Field(gt=0, examples=[9.0e6])
    """Grams of CO2 that may be spent in one period."""
    period: Literal["day", "week", "month", "year"] = Field(default="month")
    """Length of a period: day, week, month or year, in the site's time zone."""


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
    demand_response: DemandResponseSection | None = None
    runs: dict[str, RunSection] = Field(default_factory=dict)
    budget: dict[str, BudgetSection] = Field(default_factory=dict)

    def demand(self) -> tuple[DemandSource, ...]:
        """Give what demand response follows; nothing where it is not set."""
        if self.demand_response is None:
            return ()
        exogenous = self.carbon.exogenous if self.carbon else ()
        return self.demand_response.sources(self.site.timezone, exogenous)
