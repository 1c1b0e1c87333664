"""A small site that has everything a dashboard asks for: one daemon, one node, two live runs.

Real daemon, agent and actuator; fake GPUs. The runs report as a hook does. The grid's day passes in
a minute and a half, so that slots close, savings settle, and a plan is followed, with one switch.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.agent.nodes import Node, node
from tests.builders import messages
from tests.daemon.process import SETTINGS, Answer, DaemonProcess, ask, daemon
from tests.daemon.waiting import wait_for
from tests.observability.prometheus import free_port
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import OBSERVED

A, B = messages.A, messages.B
RUN, WATCHED = messages.RUN, "6d1c9d0e-0000-4000-8000-000000000002"
TOKENS = 1_000_000

STEPS = (
    SwitchState.ANNOUNCED,
    SwitchState.CHECKPOINTING,
    SwitchState.REBUILDING,
    SwitchState.LOADED,
    SwitchState.VERIFIED,
    SwitchState.CONFIRMED,
)

MORE = """\
[power]
source = "agents"
[carbon.accounting]
provider = "csv"
zone = "GB"
file = "{folder}/trace.csv"
plays_at = {now}
compress = 900.0
[policy]
dwell_s = 3600.0
[runs.llama-8b]
catalogue = "{folder}/catalogue.toml"
baseline = "A"
deadline_after_s = 3600
[budget.cluster]
grams = 1000.0
"""

CATALOGUE = messages.CATALOGUE.replace("gpus = 2\n", "gpus = 2\nclock_mhz = 1200\n")
"""The smaller layout is run at a lower clock, so that there are locks and leases."""

POWER_W = {A: (400.0, 400.0, 400.0, 400.0), B: (355.0, 355.0, 60.0, 60.0)}
WATCHED_W = 300.0
TOKENS_PER_S = {A: 1000.0, B: 550.0}


@dataclass(slots=True)
class LiveSite:
    """The processes, and what the run has told."""

    daemon: DaemonProcess
    node: Node
    running: ExitStack
    settings: str
    layout: Layout = A
    ranks: tuple[int, ...] = (0, 1, 2, 3)
    reports: int = 0
    tokens: float = 0.0
    told_s: float = field(default_factory=time.monotonic)
    done: set[str] = field(default_factory=set)

    @property
    def ports(self) -> tuple[int, int]:
        """Where daemon and agent serve their metrics."""
        return _port(self.daemon.log), _port(self.node.log)

    def begin(self) -> None:
        """Let both runs register, through their node."""
        gpus = tuple(gpu.uuid for gpu in self.node.gpus.gpus)
        trained = messages.register(gpus=gpus[:4], tokens_total=TOKENS)
        watched = messages.register(
            run=WATCHED,
            name="script",
            incarnation="incarnation-2",
            gpus=gpus[4:],
            ranks=(0,),
            world_size=1,
            layout=Layout(),
            tokens_total=0,
            boundary_every=0,
            capabilities=(OBSERVED,),
        )
        for run, body in ((RUN, trained), (WATCHED, watched)):
            answer = self.call("POST", run, "register", body)
            assert answer.status == 200, answer.body

    def report(self) -> None:
        """Report a step of each run, and follow an order."""
        now_s = time.monotonic()
        self.reports += 1
        self.tokens += TOKENS_PER_S[self.layout] * (now_s - self.told_s)
        self.told_s = now_s
        told = messages.progress(
            seq=self.reports,
            step=10 * self.reports,
            samples=80 * self.reports,
            tokens=round(self.tokens),
            tokens_per_s=TOKENS_PER_S[self.layout],
            layout=self.layout,
            ranks=self.ranks,
        )
        self.call("POST", RUN, "progress", told)
        beside = messages.heartbeat(run=WATCHED, incarnation="incarnation-2")
        self.call("POST", WATCHED, "heartbeat", beside)
        order = self.call("GET", RUN, "order", None)
        if order.status == 200 and order.body.get("order"):
            self.follow(order.body["order"])

    def train(self, until: Callable[[], object], what: str, limit_s: float = 90.0) -> None:
        """Report five times a second until a condition holds."""
        end_s = time.monotonic() + limit_s
        while not until():
            assert time.monotonic() < end_s, f"{what} did not happen: {self.daemon.log[-2000:]}"
            self.report()
            time.sleep(0.2)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Report in the background until the block ends; nobody else reports meanwhile."""
        over = threading.Event()

        def go_on() -> None:
            while not over.wait(0.2):
                self.report()

        reporter = threading.Thread(target=go_on)
        reporter.start()
        try:
            yield
        finally:
            over.set()
            reporter.join(60.0)

    def train_s(self, seconds: float) -> None:
        """Report for some seconds."""
        end_s = time.monotonic() + seconds
        self.train(lambda: time.monotonic() > end_s, "the time to pass")

    def follow(self, order: dict[str, Any]) -> None:
        """Carry an order out, once."""
        if order["plan"] in self.done:
            return
        self.done.add(order["plan"])
        for number, state in enumerate(STEPS):
            step = messages.transition(
                order["plan"],
                order["epoch"],
                state,
                step=10 * self.reports,
                elapsed_s=0.1 * number,
                evidence={"total_s": 0.6},
            )
            answer = self.call("POST", RUN, "transitions", step)
            assert answer.status == 200, answer.body
        self.layout, self.ranks = B, (0, 1)
        self.draw()

    def draw(self) -> None:
        """Let the GPUs draw what the layout does, and the watched script what it does."""
        for gpu, power_w in zip(
            self.node.gpus.gpus, (*POWER_W[self.layout], WATCHED_W), strict=True
        ):
            gpu.draw(power_w)

    def call(self, method: str, run: str, call: str, body: Any) -> Answer:
        """Call the daemon as a job does, through the agent's relay."""
        return ask(self.node.relay, method, f"/v1/runs/{run}/{call}", body)

    def restart(self) -> None:
        """End the daemon in order, and start it again where it was."""
        self.daemon.stop()
        self.running.close()
        self.daemon = self.running.enter_context(daemon(self.daemon.folder, text=self.settings))

    def restart_measured(self) -> None:
        """Start it again once its points are measured: it compares them as it starts.

        On a busy machine a slot is measured later than usual, and the first look finds nothing.
        """
        for _ in range(10):
            self.train_s(6.0)
            self.restart()
            self.train(lambda: self.daemon.status()["cycle"]["age_s"] is not None, "a cycle")
            if any(run["measured"] for run in self.daemon.status()["runs"]):
                return
        raise AssertionError(f"no point is measured: {self.daemon.status()}")

    def ask(self, target: str, **body: Any) -> None:
        """Ask for something as an operator does."""
        answer = self.daemon.post(target, body)
        assert answer.status == 200, answer.body

    def run_through(self) -> None:
        """Train at the submitted point, be switched once, and have a cap."""
        self.train_s(8.0)  # three slots, so that the submitted point is measured
        self.ask("/v1/thaw", run=RUN)  # B takes fewer joules, so the daemon orders it
        self.train(lambda: self.done, "the switch")
        self.restart_measured()
        self.train(lambda: self.daemon.get("/v1/powercap").status == 200, "an answer about caps")
        until = datetime.now(UTC) + timedelta(hours=1)
        self.ask("/v1/powercap", cap_w=3400.0, until=until.isoformat(), reason="a trial")
        self.train_s(4.0)


@contextmanager
def live_site(folder: Path) -> Iterator[LiveSite]:
    """Bring a site up, and let it train at its submitted point."""
    write_site(folder)
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    text = SETTINGS.format(folder=folder, more=MORE.format(folder=folder, now=now))
    # Prometheus finds a daemon that was restarted at the same address.
    text = text.replace("127.0.0.1:0", f"127.0.0.1:{free_port()}")
    with ExitStack() as running, node(folder, "n1", f"unix://{folder}/w.sock", gpus=5) as one:
        first = running.enter_context(daemon(folder, text=text))
        site = LiveSite(daemon=first, node=one, running=running, settings=text)
        site.draw()
        one.start()
        one.start_actuator()
        one.job(0, 1, 2, 3)
        one.job(4)
        wait_for(lambda: first.status()["power"]["gpus"] == 5, "five GPUs to be read", 30.0)
        site.begin()
        site.ask("/v1/freeze", run=RUN, reason="until the submitted point is measured")
        yield site


@contextmanager
def standby(site: LiveSite, port: int) -> Iterator[None]:
    """Run a second daemon on the site's journal, with its metrics at a port."""
    folder = site.daemon.folder / "second"
    folder.mkdir()
    text = re.sub(r'socket = ".+?"', f'socket = "{folder}/w.sock"', site.settings)
    text = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", text)
    with daemon(folder, text=text, migrated=False):
        yield


def write_site(folder: Path) -> None:
    """Write recorded days that last for 45 minutes of tests, and the catalogue."""
    head = (
        "zone,timestamp_utc,carbon_intensity_gco2eq_per_kwh,kind,emission_factor_type,"
        "forecast_gco2_per_kwh"
    )
    rows = [
        f"GB,2023-06-{day:02d}T{hour:02d}:{half}:00Z,{150 + 3 * hour},average,direct,"
        f"{152 + 3 * hour}"
        for day in range(1, 29)
        for hour in range(24)
        for half in ("00", "30")
    ]
    (folder / "trace.csv").write_text("\n".join([head, *rows]) + "\n")
    (folder / "catalogue.toml").write_text(CATALOGUE)


def _port(log: str) -> int:
    return int(re.findall(r"metrics on http://127\.0\.0\.1:(\d+)", log)[-1])
