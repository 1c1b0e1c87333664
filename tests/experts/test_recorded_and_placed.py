"""`wattmesh experts place RUN`: a real job records, a real daemon orders, two real ranks place."""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.process import DaemonProcess, daemon
from tests.daemon.waiting import wait_for
from tests.experts.placed_job import EXPERTS, LAYERS, header_of_newest
from tests.experts.test_placed_job import EP2, PlacedRun
from tests.hook.harness import Zygote
from wattmesh.controller.cli.main import main
from wattmesh.controller.journal.journal import Journal
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.recorded_routing import write_routing
from wattmesh.reconfig.switch import SwitchState

STEPS, GO, HEARD = 8, 4, 5
"""The job waits for a word before one step, and until it has an order before another one."""


def recorded(zygote: Zygote, folder: Path, records: str) -> PlacedRun:
    """A run whose routers are ours; `records`: whether it records what they choose."""
    run = PlacedRun(zygote, folder, EP2, STEPS)
    run.environment["RECORDED"] = records
    return run


@pytest.fixture(scope="module")
def untouched(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses by step of a run that was neither recorded nor placed."""
    run = recorded(zygote, tmp_path_factory.mktemp("untouched"), "no")
    run.change(boundary_every=100)
    assert run.once() == 0, run.log()
    assert len(set(run.losses().values())) == STEPS
    return run.losses()


class Site:
    """A job that waits in the middle of its training, beside its daemon."""

    def __init__(self, zygote: Zygote, folder: Path, stack: ExitStack) -> None:
        """Train until the job has recorded."""
        self.folder, self._stack = folder, stack
        self.run = recorded(zygote, folder, "yes")
        self.run.with_daemon(folder / "w.sock")
        self.run.change(wait_for={str(GO): "go"}, orders_by={str(HEARD): 1})
        self.daemon = self.begin()
        self.run.launch({})
        self.routing = RunFolder(self.run.checkpoints).routing_file
        wait_for(lambda: len(self.run.lines()) == GO - 1, "the steps before it waits")
        wait_for(lambda: self.newest_step() == GO - 1, "what it had recorded by then")
        gpu = {"busy_w": 700, "idle_w": 70, "tokens_per_s": 1e5}
        self.group(*(gpu | {"name": name, "node": name} for name in "ab"))

    def begin(self) -> DaemonProcess:
        """Start a daemon over the journal."""
        return self._stack.enter_context(daemon(self.folder, ""))

    def newest_step(self) -> int:
        """In which step the newest recorded tokens were trained; 0: nothing is recorded yet."""
        try:
            return int(json.loads(self.routing.read_text())["recorded"]["step"])
        except FileNotFoundError:
            return 0

    def group(self, *gpus: dict[str, Any]) -> None:
        """Write the GPUs of the group."""
        # Few tokens are recorded: nearly any placement is out of balance.
        group = {"gpus": gpus, "crossing_j": 0.1, "tolerance": 1.0}
        (self.folder / "group.json").write_text(json.dumps(group))

    def words(self, *more: str, run: str = "tiny") -> list[str]:
        """The command."""
        folder, gpus = str(self.run.checkpoints), str(self.folder / "group.json")
        words = ["experts", "place", run, "--checkpoint-dir", folder, "--gpus", gpus]
        return [*words, "--socket", str(self.daemon.socket), *more]

    def orders(self) -> tuple[Any, ...]:
        """What the journal has of orders."""
        journal = Journal.open(f"sqlite:///{self.folder / 'journal.db'}")
        try:
            return tuple(journal.switches.history())
        finally:
            journal.close()


@contextmanager
def site(zygote: Zygote, folder: Path) -> Iterator[Site]:
    """One, whose daemons end with it."""
    with ExitStack() as stack:
        yield Site(zygote, folder, stack)


def test_a_run_is_placed_by_its_own_recording_though_the_daemon_is_killed_meanwhile(
    zygote: Zygote,
    tmp_path: Path,
    untouched: dict[int, float],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Dry, refused, ordered, killed, taken at a save step: and no bit of a loss has moved."""
    with site(zygote, tmp_path) as here:
        assert main(here.words("--dry-run", "--json")) == 0
        dry = json.loads(capsys.readouterr().out)
        assert dry["recorded"]["step"] == GO - 1
        assert 0 < dry["recorded"]["tokens"] <= 64
        assert "done" not in dry
        refused(here, capsys)
        assert here.orders() == ()

        assert main(here.words("--reason", "less traffic", "--json")) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["placement"] == dry["placement"]
        assert "place its experts anew at a coming boundary" in told["done"]
        here.daemon.stop(signal.SIGKILL)
        (here.run.out / "go").touch()
        wait_for(lambda: len(here.run.lines()) == HEARD - 1, "a step without a daemon")
        here.daemon = here.begin()
        assert zygote.wait(here.run.launches[-1]) == 0, here.run.log()
        wait_for(lambda: here.orders()[0].state is SwitchState.CONFIRMED, "its end")
        (row,) = here.orders()
        assert (row.requested_by, "less traffic" in row.reason) == ("operator", True)

        lay = here.run.placed()
        placed = row.order.placement
        # It was heard before the daemon died, or of the next one: taken at that save step.
        since = [lay[step] for step in range(1, STEPS + 1)].index(placed)
        assert since in (GO, HEARD)
        assert [lay[step] for step in range(1, STEPS + 1)] == [()] * since + [placed] * (
            STEPS - since
        )
        assert [len(rows) for rows in placed] == [EXPERTS] * LAYERS
        for layer, rows in enumerate(placed):
            half = EXPERTS // 2
            assert [told["placement"][layer][expert] for expert in rows] == [0] * half + [1] * half
        assert header_of_newest(here.run.checkpoints)["placement"] == [
            list(each) for each in placed
        ]
        assert here.run.losses() == untouched
        # What is recorded goes on by number, whichever rows experts lie in.
        assert here.newest_step() > HEARD
        assert main(here.words("--dry-run", "--json")) == 0
        assert json.loads(capsys.readouterr().out)["recorded"]["tokens"] > 0


def refused(here: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Another run's name, folder or recording, a damaged one, another group: one sentence each."""

    def sentence(words: list[str]) -> str:
        assert main(words) == 1
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.count("\n") == 1
        return told.err

    good = here.routing.read_bytes()
    chosen = [[[0, 1, 2]] * 8] * LAYERS
    write_routing(here.routing, run="another", step=3, experts=EXPERTS, chosen=chosen)
    assert "was recorded by the run 'another'" in sentence(here.words("--reason", "x"))
    here.routing.write_bytes(good[:-30])
    assert "is no JSON" in sentence(here.words("--reason", "x"))
    here.routing.write_bytes(good)
    assert "is of the run 'tiny'" in sentence(here.words("--reason", "x", run="other"))
    group = json.loads((here.folder / "group.json").read_text())["gpus"]
    here.group(*(group[0] | {"name": f"g{at}"} for at in range(4)))
    assert "a placement on 4 GPUs" in sentence(here.words("--reason", "x"))
    here.group(*group)
