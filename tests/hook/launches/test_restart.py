"""Switches by restart, in-band stops, and the supervisor that launches again."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.blocks import block
from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import TP2, Run, Zygote, until, worst_difference
from tests.hook.tiny import Fault
from wattmesh.reconfig.launcher.supervisor import EXIT_STOPPED, Supervisor
from wattmesh.reconfig.launcher.torch_agent import end_all_with
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import SwitchMode

Undisturbed = Callable[[int, str], dict[int, float]]

BY_RESTART = [
    SwitchState.ANNOUNCED,
    SwitchState.CHECKPOINTING,
    SwitchState.STOPPING,
    SwitchState.LAUNCHING,
    SwitchState.LOADED,
    SwitchState.VERIFIED,
    SwitchState.CONFIRMED,
]


@pytest.fixture
def run(zygote: Zygote, tmp_path: Path, socket_path: Path) -> Run:
    """A run of two ranks that waits for an order at step 10."""
    return Run(
        zygote,
        tmp_path,
        2,
        steps=15,
        boundary_every=5,
        wait_for={"10": "order-1"},
    ).with_daemon(socket_path)


def by_restart(run: Run, socket_path: Path) -> FakeDaemon:
    """Train the run to its end under a daemon that orders one switch by restart."""
    wish = Wish(layout=TP2, ranks=(0, 1), at=10, mode=SwitchMode.RESTART)
    with FakeDaemon(socket_path, run.out, [wish]) as daemon:
        assert run.supervised() == 0, (run.said, run.log())
    return daemon


def test_a_switch_by_restart(run: Run, socket_path: Path, undisturbed: Undisturbed) -> None:
    """All ranks leave at one step, the next launch begins in the new layout, losses equal."""
    daemon = by_restart(run, socket_path)
    assert len(run.launches) == 2
    assert run.layouts() == ["dp2", "tp2"]
    assert worst_difference(run.losses(), undisturbed(15, "float32")) <= 1e-5
    told = [line.partition("runner ")[2] for line in run.log().splitlines() if "runner " in line]
    assert [line.partition(" at ")[0] for line in told] == ["switched from dp2 to tp2 by restart"]
    assert daemon.states() == BY_RESTART
    assert [each.reason for each in daemon.heard.finishes] == ["restart", "done"]
    evidence = daemon.heard.transitions[-1].evidence
    assert evidence["total_s"] > evidence["save_s"]
    assert not daemon.paces()  # five steps are too few to know the pace
    assert not (run.checkpoints / "next.json").exists()


def test_memory_still_held_turns_a_switch_into_a_restart(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """Where something keeps the old layout alive, old and new are never in memory together."""
    run.change(leak_at=10)
    wish = Wish(layout=TP2, ranks=(0, 1), at=10)
    with FakeDaemon(socket_path, run.out, [wish]) as daemon:
        assert run.supervised() == 0, (run.said, run.log())
    assert run.layouts() == ["dp2", "tp2"]
    assert len(run.launches) == 2
    assert worst_difference(run.losses(), undisturbed(15, "float32")) <= 1e-5
    stopping = next(t for t in daemon.heard.transitions if t.state is SwitchState.STOPPING)
    assert "still held in memory (" in stopping.detail
    assert "held by `self.leaked` in TinyJob.run (" in stopping.detail
    assert stopping.detail in run.log()


@pytest.mark.parametrize(("what", "launches"), [("raise", 2), ("kill", 3)])
def test_a_restart_that_does_not_come_up_goes_back(
    run: Run, socket_path: Path, undisturbed: Undisturbed, what: str, launches: int
) -> None:
    """An error is rolled back in the new launch; a death sends the one after it back."""
    fault = Fault(rank=1, at="rebuild", what=what, after_step=0, layout=TP2.to_dict())
    run.change(fault=fault)
    daemon = by_restart(run, socket_path)
    assert len(run.launches) == launches, run.said
    assert run.layouts() == ["dp2"]
    assert worst_difference(run.losses(), undisturbed(15, "float32")) == 0.0
    assert daemon.states()[-1] is SwitchState.ROLLED_BACK


@pytest.mark.parametrize("how", ["SIGTERM to a rank", "SIGTERM to a parked rank", "the supervisor"])
def test_an_in_band_stop_checkpoints_and_resumes(
    zygote: Zygote, tmp_path: Path, undisturbed: Undisturbed, how: str
) -> None:
    """Asked to stop, a run saves at its next boundary and leaves; later it goes on from there."""
    run = Run(zygote, tmp_path, 3, steps=15, boundary_every=5, wait_for={"8": "go"})
    supervisor = Supervisor(run, run.checkpoints, say=run.said.append)
    asking = threading.Thread(target=ask, args=(run, supervisor, how))
    asking.start()
    assert supervisor.run() == EXIT_STOPPED, (run.said, run.log())
    asking.join()
    assert [line["step"] for line in run.lines()] == list(range(1, 11))
    assert run.supervised() == 0, run.said
    assert worst_difference(run.losses(), undisturbed(15, "float32")) == 0.0


def ask(run: Run, supervisor: Supervisor, how: str) -> None:
    """Ask a run that waits before step 8 to stop, then let it go on."""
    until(lambda: len(run.lines()) >= 7, "step 7")
    if how == "the supervisor":
        supervisor.ask_to_stop()
        until((run.checkpoints / "stop").exists, "the stop file")
    else:
        rank = 2 if "parked" in how else 1
        os.kill(run.zygote.pids(run.launches[0])[rank], signal.SIGTERM)
    if "parked" in how:
        # The parked rank passes the wish on while the others wait.
        until(lambda: "SIGTERM" in run.log(), "the parked rank's word")
    (run.out / "go").touch()


def test_live_gradients_defer_the_boundary(
    zygote: Zygote, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """A save step at which gradients are live waits for the first step after zero_grad."""
    run = Run(zygote, tmp_path, 2, steps=15, boundary_every=5, keep_gradients_at=[10])
    assert run.once() == 0, run.log()
    saved = sorted(path.name for path in run.checkpoints.glob("step-*"))
    assert saved == ["step-00000005", "step-00000011", "step-00000015"]
    assert "gradients are live" in run.log()
    assert set(run.losses()) == set(undisturbed(15, "float32"))


def test_ranks_that_drifted_apart_are_not_saved(zygote: Zygote, tmp_path: Path) -> None:
    """A replica that changed on one rank is found at the next boundary.

    Nobody acts on this run or launches it again, so it trains on.
    """
    run = Run(
        zygote,
        tmp_path,
        2,
        layout=TP2,
        steps=15,
        boundary_every=5,
        fault=Fault(rank=1, at="train", what="drift", after_step=7),
    )
    assert run.once() == 0, run.log()
    assert set(run.losses()) == set(range(1, 16))
    assert "ranks hold different values under the name" in run.log()
    assert "scale" in run.log()
    assert [path.name for path in run.checkpoints.glob("step-*")] == ["step-00000005"]


def test_the_real_launcher_recovers_a_killed_rank(
    zygote: Zygote, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """As docs/attach.md starts it, a rank is killed; it is launched again, and the end is 0."""
    fault = Fault(rank=1, at="agree", what="kill", after_step=7)
    run = Run(zygote, tmp_path, 2, steps=15, boundary_every=5, fault=fault)
    environment = {
        **os.environ,
        "TINY": run.options.to_text(),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    documented = block("docs/attach.md", "Attach a training job", 2).splitlines()[-1]
    ours = {"python": sys.executable, "4": "2", "/shared/llama-8b": str(run.checkpoints)}
    *words, script = documented.split()
    assert script == "train.py"
    command = [*(ours.get(word, word) for word in words), "-m", "tests.hook.tiny"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "training again as dp2 from step 5" in done.stderr
    assert "the run is finished: 1920 tokens trained" in done.stderr
    assert worst_difference(run.losses(), undisturbed(15, "float32")) == 0.0


def test_leftovers_of_a_launch_are_ended_by_their_token() -> None:
    """Only processes that carry the launch's token are ended."""
    sleep = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    processes = [
        subprocess.Popen(
            sleep, env={**os.environ, "WATTMESH_LAUNCH": token}, stdout=subprocess.PIPE
        )
        for token in ("test-token-a", "test-token-b")
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
    mine, other = processes
    assert end_all_with("test-token-a") == 1
    assert mine.wait(10) == -signal.SIGKILL
    assert other.poll() is None
    other.kill()
    other.wait(10)
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()


def test_memory_still_held_without_a_supervisor_keeps_the_layout(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """Where nobody launches the job again, it goes on in the layout that is known to fit."""
    run.change(leak_at=10)
    wish = Wish(layout=TP2, ranks=(0, 1), at=10)
    with FakeDaemon(socket_path, run.out, [wish]) as daemon:
        assert run.once() == 0, run.log()
    assert run.layouts() == ["dp2"]
    assert worst_difference(run.losses(), undisturbed(15, "float32")) == 0.0
    assert daemon.states()[-1] is SwitchState.ROLLED_BACK
    assert "still held in memory" in daemon.heard.transitions[-1].detail


def test_a_finished_run_that_is_launched_again_trains_no_step_more(
    zygote: Zygote, tmp_path: Path
) -> None:
    """It ends at once, in the state it had: a repeated launch must not train past the target."""
    run = Run(zygote, tmp_path, 2, steps=10, boundary_every=5)
    assert run.supervised() == 0, run.said
    before = run.losses()
    assert run.supervised() == 0, run.said
    assert run.losses() == before
