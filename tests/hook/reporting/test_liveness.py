"""A real daemon and real ranks: long steps, stopped ranks, a daemon killed meanwhile."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders import messages
from tests.daemon.process import DaemonProcess, daemon
from tests.hook.harness import Run, Zygote, until

LIVE_S = 5
SETTINGS = f"live_s = {LIVE_S}"
SENTENCE = "this launch reports no more"


@pytest.fixture
def run(zygote: Zygote, tmp_path: Path, socket_path: Path) -> Iterator[Run]:
    """A run of two ranks that waits for a mark before its sixth step; ended at the end."""
    made = Run(zygote, tmp_path, 2, steps=2000, boundary_every=5, wait_for={"6": "go"})
    yield made.with_daemon(socket_path.parent / "w.sock")
    for number in made.launches:
        zygote.end(number)
        zygote.wait(number)


def line(of: DaemonProcess) -> dict[str, Any]:
    """Give the run's line of the status; {} while there is none."""
    runs: list[dict[str, Any]] = of.status()["runs"]
    return runs[0] if runs else {}


def state(of: DaemonProcess) -> str:
    """Give the run's state."""
    return str(line(of).get("state"))


def another(of: DaemonProcess, attempt: int) -> tuple[int, str]:
    """Introduce another launch of the run, that does not know of the one before."""
    known = line(of)
    body = messages.register(
        run=known["run"], name="tiny", incarnation=f"other-{attempt}", attempt=attempt, step=3
    )
    answer = of.post(f"/v1/runs/{known['run']}/register", body)
    return answer.status, str(answer.body.get("error", ""))


def test_a_step_longer_than_the_limit_outlives_the_daemon(run: Run, socket_path: Path) -> None:
    """Live, decided about, and fenced against a second launch, while Python's lock is kept.

    Then the daemon is killed in the same step: the next one takes it for live, and hears it.
    """
    folder = socket_path.parent
    run.change(keep_lock_s=0.5)

    def long_at_it(of: DaemonProcess) -> bool:
        now = line(of)
        assert now["state"] == "live", now
        assert now["sentence"]
        return bool(now["last_step_s"] > 1.5 * LIVE_S and of.status()["up_s"] > 1.5 * LIVE_S)

    with daemon(folder, SETTINGS) as first:
        run.launch({})
        until(lambda: line(first).get("step") == 5, "five steps")
        until(lambda: line(first)["sentence"], "a decision")
        until(lambda: long_at_it(first), "a step longer than the limit")
        assert line(first)["phase"] == "training"
        assert another(first, 99)[0] == 409
        assert "is alive (heard " in another(first, 99)[1]
        first.stop(signal.SIGKILL)
    with daemon(folder, SETTINGS) as second:
        assert state(second) == "live"
        until(lambda: line(second)["sentence"], "a decision")
        until(lambda: long_at_it(second), "the same step, longer than the limit after the restart")
        assert another(second, 99)[0] == 409
        (run.out / "go").touch()
        until(lambda: line(second)["step"] > 5, "the next step")


def test_a_stopped_launch_is_lost_and_comes_back_unless_its_place_was_taken(
    run: Run, zygote: Zygote, socket_path: Path
) -> None:
    """Fenced off meanwhile, it says so and never reports again, and trains on.

    Nobody beats for who took the place: a daemon that starts anew waits one limit for it, no more.
    """
    folder = socket_path.parent
    run.change(wait_for={}, pace_s=0.05)
    with daemon(folder, SETTINGS) as served:
        run.launch({})
        until(lambda: line(served).get("step", 0) > 0, "a step")
        leader = zygote.pids(run.launches[0], 2)[0]
        os.kill(leader, signal.SIGSTOP)
        until(lambda: state(served) == "lost", "it is lost")
        os.kill(leader, signal.SIGCONT)
        until(lambda: state(served) == "live", "it is back")
        os.kill(leader, signal.SIGSTOP)
        until(lambda: state(served) == "lost", "it is lost again")
        assert another(served, 99) == (200, "")
        os.kill(leader, signal.SIGCONT)
        until(lambda: "this launch reports no more" in run.log(), "it says so")
        steps = len(run.lines())
        until(lambda: len(run.lines()) >= steps + 20, "it trains on")
        assert (line(served)["attempt"], line(served)["step"]) == (99, 3)
    assert run.log().count("this launch reports no more") == 1
