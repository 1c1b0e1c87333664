"""What is done to a node in each row of the safety matrix (`rows.py`).

Each makes the state on a real node (`safety_node`), takes the part away, and waits until every GPU
is where it must be. It gives the seconds from the moment at which that could be, until it was.
"""

import os
import time
from collections.abc import Callable

from benchmarks.safety.node import RUN, Node, kill, stop
from wattmesh.telemetry.actuator.rules.facts import Reasons
from wattmesh.telemetry.actuator.wire import ProcessClaim

AGED_MJ = 3_000_000
"""More than a counter moves from one look of the actuator to the next."""

LEASE_S = 2.0
"""Short, so that its end can be waited for; what is measured is the time beyond it."""


def _under_economy(node: Node, *, lease_s: float = 60.0) -> None:
    """Bring every GPU under an economy lease for a job that runs."""
    node.start()
    node.start_agent()
    node.wish(*node.economy(lease_s=lease_s))
    node.until(node.lowered)


def _under_both(node: Node, *, seconds: float = 600.0) -> float:
    """Bring GPU 0 under an obligation too; give its end (monotonic seconds)."""
    node.start()
    node.start_agent()
    node.wish(*node.economy(lease_s=60.0), node.duty(seconds=seconds))
    ends_s = time.monotonic() + seconds
    node.until(lambda: node.truths()[0].requested_limit_w == 450 and node.truths()[1].lock_mhz)
    return ends_s


def controller_gone(node: Node) -> float:
    """The controller, its database or the network is gone: nobody wishes anything."""
    node.job()
    _under_economy(node, lease_s=LEASE_S)
    node.silence()
    return node.until(node.free).seconds - LEASE_S


def agent_gone(node: Node) -> float:
    """The agent is killed."""
    node.job()
    _under_economy(node, lease_s=LEASE_S)
    kill(node.agent)
    return node.until(node.free).seconds - LEASE_S


def actuator_gone(node: Node) -> float:
    """The actuator is killed; systemd runs ExecStopPost."""
    node.job()
    _under_economy(node)
    kill(node.actuator)
    return _one_shot(node, node.free)


def actuator_gone_and_back(node: Node) -> float:
    """The actuator is killed, and ExecStopPost with it: its next start gives back."""
    node.job()
    _under_economy(node)
    node.silence()
    kill(node.actuator)
    began = time.monotonic()
    node.start()
    node.until(node.free)
    return time.monotonic() - began


def all_gone(node: Node) -> float:
    """Controller, agent and actuator are killed: `wattmesh restore-all`."""
    node.job()
    _under_both(node)
    node.silence()
    kill(node.agent)
    kill(node.actuator)
    return _one_shot(node, node.only_duty)


def obligation_outlives_all(node: Node) -> float:
    """Everybody is killed under an obligation: it holds, over the actuator's next start too."""
    node.job()
    _under_both(node)
    node.silence()
    kill(node.agent)
    kill(node.actuator)
    if node.truths()[0].requested_limit_w != 450:
        raise AssertionError("the obligation was lifted by a death")
    node.start()
    return node.until(node.only_duty).seconds


def obligation_ends(node: Node) -> float:
    """An obligation's own end comes while nobody is heard."""
    node.job()
    ends_s = _under_both(node, seconds=5.0)
    node.silence()
    kill(node.agent)
    kill(node.actuator)
    node.start()
    node.until(node.free)
    return max(0.0, time.monotonic() - ends_s)


def controller_upgraded(node: Node) -> float:
    """The controller is replaced under an obligation: it is never lifted, economy goes on."""
    node.job()
    _under_both(node)
    node.silence()
    kill(node.agent)
    node.start_agent()
    node.epoch = 2
    node.wish(*node.economy(clock=1005, cap=None), node.duty())
    limits = set()

    def followed() -> bool:
        first, second = node.truths()
        limits.add(first.requested_limit_w)
        return first.lock_mhz == second.lock_mhz == 1005

    waited = node.until(followed).seconds
    if limits != {450.0}:
        raise AssertionError(f"the obligation of 450 W was not kept: {limits}")
    return waited


def job_ends(node: Node) -> float:
    """The run's last process ends, and the controller does not know yet."""
    job = node.job()
    _under_economy(node)
    kill(job)
    return node.until(node.free).seconds


def job_is_requeued(node: Node) -> float:
    """The run's process ends, and another one comes: given back, then lowered again."""
    job = node.job()
    _under_economy(node)
    kill(job)
    waited = node.until(node.free).seconds
    node.job()
    node.until(node.lowered)
    return waited


def job_is_a_zombie(node: Node) -> float:
    """The run's process has ended and nobody reaps it; the driver lists it still."""
    job = node.job()
    for gpu in node.fake.gpus:
        gpu.process(job.pid, lingers=True)
    _under_economy(node)
    job.kill()  # not waited for: it stays a zombie until the node closes
    return node.until(node.free).seconds


def stranger_comes(node: Node) -> float:
    """Another user's process appears on one GPU: all GPUs of the run are given back."""
    job = node.job()
    node.start()
    node.start_agent()
    ours = ProcessClaim(uids=frozenset({os.geteuid()}), pids=frozenset({job.pid}))
    node.wish(*node.economy(lease_s=60), claims={RUN: ours})
    node.until(node.lowered)
    stranger = node.job(gpus=[1])
    waited = node.until(node.free).seconds
    node.until(lambda: f"process {stranger.pid}" in node.trouble())
    return waited


def foreign_limit(node: Node) -> float:
    """Somebody else sets a limit: theirs stays, everything of ours is given back."""
    node.job()
    _under_economy(node)
    # Not between our writing a limit and our reading it back: then it is ours that did not hold.
    node.until(lambda: node.said().count("power limit 500 W (economy for run-1)\n") == 2)
    node.fake.gpus[1].foreign_limit(600)

    def left_alone() -> bool:
        first, second = node.truths()
        return (first.lock_mhz, first.requested_limit_w, second.lock_mhz) == (
            None,
            700,
            None,
        ) and second.requested_limit_w == 600

    waited = node.until(left_alone).seconds
    node.until(lambda: "someone else set the power limit" in node.trouble())
    return waited


def foreign_lock(node: Node) -> float:
    """Somebody else locks a higher clock: it shows under load, and theirs stays."""
    return _foreign_lock(node, 1800, "under our lock of 1200 MHz")


def foreign_lower_lock(node: Node) -> float:
    """Somebody else locks a lower clock, which nothing the driver says explains: theirs stays."""
    return _foreign_lock(node, 600, "for no reason that the driver gives")


def _foreign_lock(node: Node, clock_mhz: int, words: str) -> float:
    """Lock one GPU as another program does; both limits go back, and that lock stays."""
    node.job()
    _under_economy(node)
    node.fake.gpus[1].foreign_lock(clock_mhz)

    def left_alone() -> bool:
        states = [(each.lock_mhz, each.requested_limit_w) for each in node.truths()]
        return states == [(None, 700), (clock_mhz, 700)]

    waited = node.until(left_alone).seconds
    node.until(lambda: words in node.trouble())
    return waited


def gpu_lost(node: Node) -> float:
    """A GPU falls off the bus under a lease, the job ends, the GPU comes back."""
    job = node.job()
    _under_economy(node)
    node.fake.gpus[1].lose()
    node.until(lambda: "does not answer" in node.trouble())
    kill(job)
    node.silence()
    node.until(lambda: node.truths()[0].lock_mhz is None)
    node.fake.gpus[1].come_back()
    return node.until(node.free).seconds


def no_permission(node: Node) -> float:
    """The right to set is taken away: nothing more is set; given back once it is there again."""
    job = node.job()
    _under_economy(node)
    node.fake.permit(False)
    kill(job)
    node.silence()
    node.until(lambda: "setting needs root" in (node.folder / "actuator.log").read_text())
    node.fake.permit(True)
    return node.until(node.free).seconds


def driver_reloaded(node: Node) -> float:
    """The driver is loaded anew under a lease: set again, nobody is blamed; then given back."""
    job = node.job()
    _under_economy(node)
    # A counter that has passed its old value by the next look would hide the reload.
    node.until(lambda: all(each.counter_mj > AGED_MJ for each in node.truths()))
    node.fake.reload_driver()
    waited = node.until(node.lowered).seconds
    kill(job)
    node.until(node.free)
    return waited


def driver_hangs(node: Node) -> float:
    """One GPU's driver calls hang: the others are given back all the same, it when it answers."""
    job = node.job()
    _under_economy(node)
    node.fake.gpus[1].hang(3600)
    kill(job)
    node.silence()
    node.wish()
    node.until(lambda: node.truths()[0].lock_mhz is None)
    node.fake.gpus[1].hang(0)
    return node.until(node.free).seconds


def board_in_trouble(node: Node) -> float:
    """A board defends itself under a lease: kept as it is; given back when the job ends."""
    job = node.job()
    _under_economy(node)
    node.fake.gpus[1].reasons(int(Reasons.HW_THERMAL))
    node.until(lambda: "throttles itself" in node.trouble())
    if not node.lowered():
        raise AssertionError("heat alone changed a clock")
    kill(job)
    return node.until(node.free).seconds


def made_shared(node: Node) -> float:
    """A GPU is cut into MIG instances under a lease: it is no longer ours to set."""
    node.job()
    _under_economy(node)
    node.fake.gpus[1].mig(True)
    return node.until(node.free).seconds


def old_controller(node: Node) -> float:
    """A controller that was replaced wishes on: refused, and its wishes end."""
    node.job()
    node.epoch = 5
    _under_economy(node, lease_s=LEASE_S)
    node.epoch = 4
    node.wish(*node.economy(clock=1005, lease_s=LEASE_S))
    waited = node.until(node.free).seconds - LEASE_S
    node.until(lambda: "epoch 4" in (node.folder / "agent.log").read_text())
    return waited


def stopped_by_hand(node: Node) -> float:
    """The service is stopped: SIGTERM gives nothing back, ExecStopPost does."""
    node.job()
    _under_economy(node)
    stop(node.actuator)
    if not node.lowered():
        raise AssertionError("SIGTERM alone gave something back")
    return _one_shot(node, node.free)


def _one_shot(node: Node, there: Callable[[], bool]) -> float:
    """Run what ExecStopPost runs; say how long the GPUs took."""
    began = time.monotonic()
    done = node.run("--restore")
    if done.returncode:
        raise AssertionError(done.stderr)
    node.until(there)
    return time.monotonic() - began
