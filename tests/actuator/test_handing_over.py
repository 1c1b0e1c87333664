"""Another journal is refused until root hands the node over; then it, and it alone, is obeyed."""

import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.safety.node import DEADLINE_S, Node, kill, stop
from wattmesh.errors import Fenced, InputInvalid
from wattmesh.telemetry.actuator.journal import decode
from wattmesh.telemetry.desired import Applied


@pytest.fixture
def node() -> Iterator[Node]:
    """A node whose actuator answers."""
    with Node() as made:
        made.job()
        made.start()
        yield made


def wished(node: Node, journal: str, epoch: int) -> Applied:
    """Wish nothing of this node, as who leads another journal."""
    desired = replace(node.desired(), journal=journal, epoch=epoch)
    return node.client.apply(desired, {})


def run(node: Node, command: str) -> subprocess.CompletedProcess[str]:
    """Run a printed command, with this node's settings."""
    words = command.replace("/etc/wattmesh/wattmesh.toml", str(node.config)).split()
    assert words.pop(0) == "wattmesh"
    return subprocess.run(
        [sys.executable, "-m", "wattmesh.controller.cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


def test_a_new_journal_is_obeyed_once_root_says_so_and_the_old_one_never_again(node: Node) -> None:
    """Over restarts of the actuator too; an operator's cap of the old one stands to its end."""
    node.epoch, old, new = 7, node.journal, str(uuid.uuid4())
    node.start_agent()
    node.wish(*node.economy(lease_s=2.0), node.duty())
    node.until(lambda: node.lowered(cap=500.0) or node.truths()[0].requested_limit_w == 450.0)

    for epoch in (1, 7, 8, 500):
        with pytest.raises(Fenced, match="this node obeys journal") as refused:
            wished(node, new, epoch)
    assert old in str(refused.value)
    printed = re.search("`(.*)`", str(refused.value))
    assert printed is not None
    assert printed[1].endswith(f" --obey {new}:500")
    assert node.client.state().journal == old

    done = run(node, printed[1].replace(":500", ":1"))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"obeys journal {new} from epoch 1 on, and no other" in done.stdout
    kill(node.agent)
    node.until(node.only_duty)
    wished(node, new, 1)
    for epoch in (1, 8, 2000):
        with pytest.raises(Fenced, match=f"obeys journal {new}"):
            wished(node, old, epoch)
    kill(node.actuator)
    node.start()
    assert (node.client.state().journal, node.client.state().epoch) == (new, 1)
    with pytest.raises(Fenced):
        wished(node, old, 9)
    wished(node, new, 2)
    assert node.only_duty()  # it does not know of the cap, and does not lift it
    node.journal, node.epoch = new, 2
    node.client.apply(node.desired(node.duty(cap=600.0)), {})
    node.until(lambda: node.only_duty(600.0))  # its own word on that GPU counts
    wished(node, new, 2)
    node.until(node.free)


def test_an_actuator_that_does_not_run_is_handed_over_by_its_journal(node: Node) -> None:
    """A fleet has nodes that are down: the same command, before their next start."""
    wished(node, node.journal, 40_000)  # the first that is heard is believed
    stop(node.actuator)
    new = str(uuid.uuid4())
    for _ in range(2):
        assert (
            run(
                node,
                f"wattmesh actuator --config CONFIG --obey {new}:5".replace(
                    "CONFIG", str(node.config)
                ),
            ).returncode
            == 0
        )
    node.start()
    with pytest.raises(Fenced, match="epoch 4 of the wish is older than 5"):
        wished(node, new, 4)
    with pytest.raises(Fenced, match=f"--obey {new}:40000"):
        wished(node, new, 40_000)  # far above what root said: say so, then
    assert run(node, f"wattmesh actuator --config {node.config} --obey {new}:40000").returncode == 0
    assert wished(node, new, 40_000).epoch == 40_000


def test_what_is_no_journal_and_a_damaged_file_are_refused(node: Node) -> None:
    """Each in one sentence, with nothing changed; what is damaged is given back first."""
    wished(node, node.journal, 3)
    for target in (
        "",
        "mine",
        f"{node.journal}:x",
        f"{node.journal}:-1",
        f"{node.journal}:{2**31}",
    ):
        done = run(node, f"wattmesh actuator --config {node.config} --obey={target}")
        assert done.returncode == 2, done
        assert done.stderr.count("\n") == 1
    with pytest.raises(InputInvalid):
        node.client.obey("", 0)
    assert node.client.state().journal == node.journal
    stop(node.actuator)
    path = node.folder / "journal"
    path.write_bytes(b"x" * 100)
    done = run(node, f"wattmesh actuator --config {node.config} --obey {node.journal}:3")
    assert done.returncode == 1
    assert "is damaged: start the actuator" in done.stderr
    assert path.read_bytes() == b"x" * 100


def test_a_node_from_before_identities_takes_the_journal_of_its_controller(node: Node) -> None:
    """An upgrade hands nothing over by hand: the epochs go on, and the first identity is kept."""
    wished(node, "", 7)
    with pytest.raises(Fenced, match="older than 7"):
        wished(node, node.journal, 6)
    wished(node, node.journal, 7)
    with pytest.raises(Fenced, match="too old to name its journal"):
        wished(node, "", 8)


def test_a_cap_from_before_there_was_a_longest_term_is_cut_to_it(node: Node) -> None:
    """What was locked until year 9999 under an older version ends, whatever its journal says."""
    stop(node.actuator)
    whole = node.config.read_text()
    node.config.write_text(whole + "obligation_days = 366\n")
    node.start()
    node.client.apply(node.desired(node.duty(seconds=300 * 86_400.0)), {})
    for _ in range(2):
        stop(node.actuator)
        node.config.write_text(whole + "obligation_days = 10\n")
        node.start()
        (lease,) = decode((node.folder / "journal").read_bytes()).heard.leases.values()
        assert 9.9 < lease.left_s / 86_400.0 <= 10.0
    node.until(node.only_duty)
