"""A served interface over a real journal, in this process."""

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.api.stranger import GROUP
from tests.builders import messages
from tests.builders.journals import empty_journal, migrate
from tests.daemon.clocks import SteppedClock
from tests.daemon.process import Answer, ask
from wattmesh.controller.api.request_context import RequestContext
from wattmesh.controller.api.server import ApiServer
from wattmesh.controller.api.transport.sockets import listen
from wattmesh.controller.expert_costs.learner import CostLearner
from wattmesh.controller.expert_costs.reports import TokenReports
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.process.change_signal import ChangeSignal
from wattmesh.controller.process.loops import Loop
from wattmesh.controller.settings.read import Settings, parse
from wattmesh.policies.experts.costs import OfflineSweep
from wattmesh.reconfig import catalogue_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A served interface and everything behind it."""

    folder: Path
    journal: Journal
    loop_facts: LoopFacts
    changes: ChangeSignal
    clock: SteppedClock
    cycle: Loop
    experts: CostLearner
    sweeps: dict[str, OfflineSweep]

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / "w.sock"

    def get(self, target: str, timeout_s: float = 30.0) -> Answer:
        """Read one answer."""
        return ask(self.socket, "GET", target, timeout_s=timeout_s)

    def post(self, target: str, body: Any) -> Answer:
        """Send one message."""
        return ask(self.socket, "POST", target, body)

    def register(self, **changes: Any) -> Answer:
        """Introduce the run."""
        return self.post(f"/v1/runs/{messages.RUN}/register", messages.register(**changes))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach (pytest's own are closed to them)."""
    with tempfile.TemporaryDirectory(prefix="wattmesh-api-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture
def settings(open_folder: Path) -> Settings:
    """Settings in mode act with one run."""
    (open_folder / "catalogue.toml").write_text(messages.CATALOGUE)
    return parse(
        f'mode = "act"\n[journal]\nurl = "sqlite:///{open_folder}/journal.db"\n'
        f'[api]\nsocket = "{open_folder}/w.sock"\ngroup = "{GROUP}"\n'
        f'operators_group = "wattmesh-test-operators"\n'
        '[runs.llama-8b]\ncatalogue = "catalogue.toml"\n',
        where=open_folder / "wattmesh.toml",
    )


@contextmanager
def serving(folder: Path, settings: Settings) -> Iterator[Served]:
    """Serve a journal that has its tables, leading, with a cycle loop that is turned by hand."""
    clock = SteppedClock()
    journal = Journal.open(settings.journal.url)
    loop_facts = LoopFacts(clock=clock.clock, settings=settings, started_s=clock.monotonic_s)
    loop_facts.lead = replace(loop_facts.lead, epoch=journal.leadership.acquire("test", 60.0))
    changes = ChangeSignal()
    cycle = Loop("cycle", 5.0, lambda: None, clock.clock)
    loop_facts.loops["cycle"] = lambda: cycle.state
    catalogue = catalogue_file.load(folder / "catalogue.toml")
    reports, sweeps = TokenReports(), dict[str, OfflineSweep]()
    experts = CostLearner(journal, loop_facts, reports, lambda name: sweeps)
    context = RequestContext(
        journal=journal,
        loop_facts=loop_facts,
        changes=changes,
        plan_for=lambda name: RunPlan(
            catalogue=catalogue, deadline_after_s=5000.0, named=name == "llama-8b"
        ),
        wake=cycle.wake,
        token_reports=reports,
        expert_costs=experts.view,
    )
    server = ApiServer(context, listen(settings.api.socket, GROUP))
    server.start()
    yield Served(
        folder=folder,
        journal=journal,
        loop_facts=loop_facts,
        changes=changes,
        clock=clock,
        cycle=cycle,
        experts=experts,
        sweeps=sweeps,
    )
    assert server.stop()
    journal.close()


@pytest.fixture
def served(open_folder: Path, settings: Settings) -> Iterator[Served]:
    """The interface on a SQLite journal."""
    (open_folder / "journal.db").write_bytes(empty_journal())
    with serving(open_folder, settings) as here:
        yield here


@pytest.fixture
def served_on_each(open_folder: Path, settings: Settings, journal_url: str) -> Iterator[Served]:
    """The interface on SQLite, and on PostgreSQL."""
    migrate(journal_url)
    journal = settings.journal.model_copy(update={"url": journal_url})
    with serving(open_folder, settings.model_copy(update={"journal": journal})) as here:
        yield here


@pytest.fixture
def raw(served: Served) -> Iterator[socket.socket]:
    """A bare connection to the socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20.0)
        client.connect(str(served.socket))
        yield client
