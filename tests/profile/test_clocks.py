"""Clocks of a profile, set by a real actuator on fake GPUs under the real binding."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from benchmarks.safety.node import Node
from tests.profile.acting import Act
from tests.profile.test_measuring import JOB, REPOSITORY, A, B, shell
from wattmesh.controller.process.children import wait_for
from wattmesh.controller.profile.job import Candidate, JobPower, PowerKind, ProfileJob
from wattmesh.controller.profile.power.clocks import ActuatorClocks, clock_fault
from wattmesh.controller.profile.profile import Profile, profile
from wattmesh.telemetry.fake_nvml import FOLDER_VARIABLE
from wattmesh.telemetry.fake_nvml.boards import BOARDS, Board
from wattmesh.telemetry.readings import PowerReading, Quality, utc_now

SLOW = Candidate(id="A1", layout=A.layout, clock_mhz=1200)
ACT = Act(
    step_s={"dp2": 0.02, "1 rank": 0.02},
    watts={"dp2": 0.0, "1 rank": 0.0},
    computes=True,
)
BOARD = BOARDS[Board.H100]


@pytest.fixture
def node() -> Iterator[Node]:
    """Two GPUs, and an actuator that sets a clock in one step."""
    with Node() as made:
        for each in made.fake.gpus:
            each.update(0)
        yield made


def job_of(node: Node, **changes: object) -> ProfileJob:
    """A point at the full clock, one at a lower clock, and one of fewer GPUs."""
    power = JobPower(
        kind=PowerKind.NVML,
        library=str(node.fake.library),
        actuator=str(node.folder / "actuator.sock"),
    )
    usual = replace(
        JOB,
        points=(A, SLOW, B),
        power=power,
        warm_switches=False,
        longest_s=60.0,
        silence_limit_s=60.0,
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def profiled(node: Node, job: ProfileJob, told: list[str]) -> Profile:
    """Profile the acting job on the node's GPUs."""

    def launcher(job: ProfileJob, command: Sequence[str]) -> Sequence[str]:
        return ["sh", "-c", f"{FOLDER_VARIABLE}={node.folder / 'gpus'} {shell(ACT)}"]

    return profile(job, node.folder / "p", told.append, launcher=launcher)


def test_a_clock_is_set_measured_and_given_back(node: Node) -> None:
    """Its watts are those of that clock; the points before and after are at the full one."""
    node.start()
    told: list[str] = []
    found = profiled(node, job_of(node), told)
    assert found.progress.refused == {}
    a, slow, b = found.catalogue.points
    full_w, slow_w = BOARD.power_w(1980, 1), BOARD.power_w(1200, 1)
    assert a.power_w == pytest.approx(2 * full_w, rel=0.05)
    assert slow.clock_mhz == 1200
    assert slow.power_w == pytest.approx(2 * slow_w, rel=0.05)
    assert b.power_w == pytest.approx(full_w, rel=0.05)
    node.until(node.free)


def test_a_clock_that_the_board_cannot_keep_is_told_and_not_measured(node: Node) -> None:
    """The power limit holds it below the lock; the other points stand."""
    node.start()
    for each in node.fake.gpus:
        each.out_of_band_cap(300.0)
    fast = replace(SLOW, clock_mhz=1950)
    told: list[str] = []
    found = profiled(node, job_of(node, points=(A, fast), longest_s=3.0), told)
    why = found.progress.refused["A1"]
    assert "by its power limit, below its lock of 1950 MHz" in why
    assert any(why in each and "is left out" in each for each in told)
    assert [each.id for each in found.catalogue.points] == ["A"]
    node.until(node.free)


def test_without_an_actuator_the_other_points_are_measured(node: Node) -> None:
    """Told before the job is started, with what to start; with it, the same call goes on."""
    told: list[str] = []
    first = profiled(node, job_of(node), told)
    why = first.progress.refused["A1"]
    assert "is wattmesh-actuator running" in why
    assert "in mode enforce" in why
    assert why in told[0]
    assert [each.id for each in first.catalogue.points] == ["A", "B"]
    node.config.write_text(node.config.read_text().replace("enforce", "observe"))
    node.start()
    again = profiled(node, job_of(node), told)
    assert "only observes" in again.progress.refused["A1"]
    assert again.progress.points == first.progress.points


KILLED = """\
import sys, time
from wattmesh.controller.profile.power.clocks import ActuatorClocks
with ActuatorClocks(sys.argv[1]) as clocks:
    clocks.ask(sys.argv[2:], 1200)
    time.sleep(3600)
"""


def test_a_profile_that_is_killed_gives_back_by_its_lease(node: Node) -> None:
    """The job computes on, so nothing but the lease's end can tell that nobody measures."""
    node.start()
    node.job()
    gpus = [each.uuid for each in node.fake.gpus]
    node.until(lambda: len(node.client.state().gpus) == 2)
    words = (str(node.folder / "actuator.sock"), *gpus)
    process = subprocess.Popen([sys.executable, "-c", KILLED, *words], cwd=REPOSITORY)
    try:
        node.until(lambda: [each.lock_mhz for each in node.truths()] == [1200, 1200])
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert [each.lock_mhz for each in node.truths()] == [1200, 1200]
    node.until(node.free)


def test_a_stranger_on_the_gpus_is_named_and_nothing_is_locked(node: Node) -> None:
    """The actuator says whose process is in the way; a refused clock is no clock."""
    node.start()
    if os.geteuid() == 0:
        node.job(uid=54_001)
    with ActuatorClocks(str(node.folder / "actuator.sock")) as clocks:
        clocks.ask([node.uuid(0)], 1200)
        wait_for(lambda: bool(clocks.trouble()), limit_s=60, what="The refusal")
        assert not clocks.ready()
        assert "uid 54001, not of 0" in clocks.trouble() or "no process" in clocks.trouble()
    assert node.free()


@pytest.mark.parametrize(
    ("clock_mhz", "reasons", "locked_mhz", "words"),
    [
        (1980, 0, None, ""),
        (1400, 0x4, None, ""),
        (1400, 0x40, None, "throttled itself (hw thermal)"),
        (1200, 0, 1200, ""),
        (1185, 0x4, 1200, ""),
        (1980, 0, 1200, "above its lock"),
        (900, 0x4, 1200, "by its power limit"),
        (900, 0, 1200, "held at 900 MHz, below"),
        (345, 0x1, 1200, ""),
        (None, None, 1200, ""),
    ],
)
def test_what_is_no_reading_at_the_clock_that_was_asked_for(
    clock_mhz: int | None, reasons: int | None, locked_mhz: int | None, words: str
) -> None:
    """Heat counts at any clock, a power limit only below a lock, an idle moment never."""
    mine = PowerReading(
        gpu_uuid="GPU-0",
        at=utc_now(),
        monotonic_s=1.0,
        power_w=500.0,
        energy_mj=1,
        clock_mhz=clock_mhz,
        power_limit_w=None,
        source="nvml",
        quality=Quality.MEASURED,
        reasons=reasons,
    )
    said = clock_fault({"GPU-0": [mine]}, locked_mhz)
    assert bool(said) is bool(words)
    assert words in said
