"""A clock from the decision to the board: daemon, agent and actuator, each a process of its own."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent.nodes import AGENTS, Node, books, node
from tests.builders import messages
from tests.daemon.process import Answer, DaemonProcess, ask, daemon
from tests.daemon.waiting import wait_for
from wattmesh.reconfig.layout import Layout

LAYOUT = Layout(dp_shard=2)
SLOW_MHZ = 1200


class Site:
    """One daemon, one node with two GPUs, its agent and its actuator, and a run on both GPUs."""

    def __init__(self, running: DaemonProcess, one: Node) -> None:
        """Start agent and actuator, and register the run through the agent."""
        self.daemon, self.node = running, one
        self.sequence = 0
        self.actuator = one.start_actuator()
        one.start()
        self.job = one.job(0, 1)
        for gpu in one.gpus.gpus:
            gpu.draw(None)
            gpu.load(1.0)

    def register(self) -> None:
        """Let the run introduce itself, owner and GPUs attested by the agent."""
        message = messages.register(
            gpus=tuple(gpu.uuid for gpu in self.node.gpus.gpus),
            layout=LAYOUT,
            ranks=(0, 1),
            world_size=2,
            tokens_total=1_000_000_000,
        )
        path = f"/v1/runs/{messages.RUN}/register"
        answer = ask(self.node.relay, "POST", path, message)
        assert answer.status == 200, answer.body

    def report(self) -> None:
        """Let the run say that it trains."""
        self.sequence += 1
        message = messages.progress(
            seq=self.sequence, step=self.sequence, layout=LAYOUT, ranks=(0, 1)
        )
        path = f"/v1/runs/{messages.RUN}/progress"
        assert ask(self.node.relay, "POST", path, message).status == 200

    def order(self, point: str) -> None:
        """Let an operator order a point."""
        answer = self.try_order(point)
        assert answer.status == 200, answer.body

    def try_order(self, point: str) -> Answer:
        """Let an operator try to order a point."""
        return self.daemon.post(
            f"/v1/runs/{messages.RUN}/switch", {"point": point, "reason": "test"}
        )

    def wait_locks(self, clock_mhz: int | None, *, reporting: bool = True) -> None:
        """Wait until every board has this lock."""

        def there() -> bool:
            if reporting:
                self.report()
            return self.node.locks() == {clock_mhz}

        wait_for(there, f"a lock of {clock_mhz} MHz", 60.0)


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """Bring a whole site up: the run trains, and its GPUs can be set."""
    (folder / "llama.toml").write_text(messages.CLOCKED_CATALOGUE)
    runs = '[runs."llama-8b"]\ncatalogue = "llama.toml"\n'
    with (
        daemon(folder, AGENTS + runs) as running,
        books(running) as ledger,
        node(folder, "n1", f"unix://{folder}/w.sock") as one,
    ):
        made = Site(running, one)
        ledger.wait_known(one)
        made.register()
        made.report()
        yield made


def test_an_ordered_clock_reaches_the_boards_and_a_freeze_gives_them_back(tmp_path: Path) -> None:
    """Intent in the journal, wish to the agent, lock on the board; and all the way back."""
    with site(tmp_path) as here:
        here.order("S")
        here.wait_locks(SLOW_MHZ)
        line = here.daemon.status()["runs"][0]
        assert (line["point"], line["clock_mhz"]) == ("S", SLOW_MHZ)
        assert here.daemon.post("/v1/freeze", {"run": "llama-8b", "reason": "look"}).status == 200
        here.wait_locks(None)
        assert here.daemon.status()["runs"][0]["clock_mhz"] == 1980


@pytest.mark.parametrize("part", ["daemon", "agent", "actuator"])
def test_a_part_that_dies_and_comes_back_keeps_the_clock_it_may(tmp_path: Path, part: str) -> None:
    """Economy leases outlive a restart of the daemon or the agent; a new actuator hears again."""
    with site(tmp_path) as here:
        here.order("S")
        here.wait_locks(SLOW_MHZ)
        if part == "daemon":
            # What stands, stands: its agent goes on only while somebody wishes.
            here.daemon.stop(signal.SIGKILL)
            assert here.node.locks() == {SLOW_MHZ}
            with daemon(tmp_path, text=here.daemon.settings.read_text()) as again:
                here.daemon = again
                here.wait_locks(SLOW_MHZ)
                here.order("A")
                here.wait_locks(None)  # the highest clock is the baseline: nothing is held for it
        elif part == "agent":
            here.node.end(signal.SIGKILL)
            assert here.node.locks() == {SLOW_MHZ}
            here.node.start()
            here.wait_locks(SLOW_MHZ)
        else:
            os.kill(here.actuator.pid, signal.SIGKILL)
            here.actuator.wait()
            # Its start gives back what it found; then it hears what is wished. A wish that lapsed
            # while nobody answered on the node is ordered again.
            here.actuator = here.node.start_actuator()

            def heard() -> bool:
                here.report()
                if here.daemon.status()["runs"][0]["clock_mhz"] != SLOW_MHZ:
                    here.try_order("S")
                return here.node.locks() == {SLOW_MHZ}

            wait_for(heard, "a lock by the new actuator", 60.0)


def test_a_job_that_ends_frees_its_gpus_though_nobody_tells_the_daemon(tmp_path: Path) -> None:
    """The node sees that no process is left."""
    with site(tmp_path) as here:
        here.order("S")
        here.wait_locks(SLOW_MHZ)
        here.job.kill()
        here.job.wait()
        here.wait_locks(None, reporting=False)
