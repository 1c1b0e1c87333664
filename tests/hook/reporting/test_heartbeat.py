"""The hook says by itself that a launch lives, and at what, whatever else goes on."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import ONE, Run, Zygote, until
from tests.hook.reporting.test_daemon_client import PROGRESS, RUN, STEP, client
from wattmesh.reconfig.client.heartbeat import MOST_OFTEN_S, MOST_RARELY_S, Heartbeats
from wattmesh.reconfig.launch.failures.deadlines import Deadlines, Phase
from wattmesh.reconfig.launch.launch_phase import run_phase
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.link import DaemonLink
from wattmesh.reconfig.wire.messages import HEARTBEAT_S, RunPhase

OFTEN_S = 0.25


class Jammed(FakeDaemon):
    """A daemon that takes no reports: it refuses them for later, or does not answer them."""

    hangs = False

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Answer all but reports."""
        if path.endswith(("/transitions", "/progress")):
            if self.hangs:
                time.sleep(30)
            return 503, b'{"error": "later"}'
        return super().answer(method, path, body)


@pytest.mark.parametrize("hangs", [False, True])
def test_heartbeats_go_through_while_reports_pile_up(
    tmp_path: Path, socket_path: Path, *, hangs: bool
) -> None:
    """A backlog that nobody takes holds up reports, and not the word that the launch lives."""
    with Jammed(socket_path, tmp_path, []) as daemon:
        daemon.heartbeat_s, daemon.hangs = OFTEN_S, hangs
        speaking = client(socket_path, tmp_path / "outbox")
        until(lambda: daemon.heard.registers, "registered")
        for _ in range(100):
            speaking.transition(STEP)
            speaking.progress(PROGRESS)
        until(lambda: len(daemon.heard.heartbeats) >= 8, "eight heartbeats")
        assert daemon.heard.transitions == []
        speaking.close(0.1)
    beat = daemon.heard.heartbeats[-1]
    assert (beat.run, beat.incarnation, beat.attempt) == (RUN, "one", 1)


class Fencing(FakeDaemon):
    """A daemon that knows a newer launch, and says so to heartbeats; or knows no heartbeats."""

    status, kind = 409, "fenced"

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Answer heartbeats in its own way."""
        if path.endswith("/heartbeat"):
            super().answer(method, path, body)
            said = "it was ended with `wattmesh retire`"
            return self.status, json.dumps({"error": said, "kind": self.kind}).encode()
        return super().answer(method, path, body)


def test_a_launch_whose_heartbeat_is_fenced_off_never_reports_again(
    tmp_path: Path, socket_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once, beats no more and reports nothing; training is not touched."""
    with Fencing(socket_path, tmp_path, []) as daemon:
        daemon.heartbeat_s = OFTEN_S
        speaking = client(socket_path, tmp_path / "outbox")
        until(lambda: "reports no more" in caplog.text, "the sentence")
        speaking.progress(PROGRESS)
        speaking.transition(STEP)
        speaking.close(1.0)
    assert caplog.text.count("reports no more") == 1
    assert "ended with `wattmesh retire`" in caplog.text
    assert "newer" not in caplog.text  # which of the reasons there are is the daemon's to say
    assert (daemon.heard.progress, daemon.heard.transitions) == ([], [])
    assert len(daemon.heard.heartbeats) == 1


def test_a_daemon_that_knows_no_heartbeats_changes_nothing(
    tmp_path: Path, socket_path: Path
) -> None:
    """The twin: another refusal is no fence, and reports go on."""
    with Fencing(socket_path, tmp_path, []) as daemon:
        daemon.heartbeat_s = OFTEN_S
        daemon.status, daemon.kind = 404, "not_found"
        speaking = client(socket_path, tmp_path / "outbox")
        until(lambda: len(daemon.heard.heartbeats) >= 2, "two heartbeats")
        speaking.progress(replace(PROGRESS, step=7))
        until(lambda: daemon.heard.progress, "progress")
        speaking.close(1.0)
    assert len(daemon.heard.registers) == 1


@pytest.mark.parametrize(
    ("asked", "every_s"),
    [
        (2.0, 2.0),
        (0.0, HEARTBEAT_S),
        (-1.0, HEARTBEAT_S),
        (float("nan"), HEARTBEAT_S),
        ("often", HEARTBEAT_S),
        (1e-9, MOST_OFTEN_S),
        (1e9, MOST_RARELY_S),
    ],
)
def test_a_daemon_can_ask_for_any_sensible_rhythm(asked: object, every_s: float) -> None:
    """And no answer makes the hook beat without a pause, or never."""
    beats = Heartbeats(DaemonLink("/nowhere"), lambda: None, lambda answer: None)
    beats.pace({"heartbeat_s": asked})
    assert beats._every_s == every_s


@pytest.mark.parametrize(
    ("phase", "first", "moving", "said"),
    [
        (Phase.WAKE, True, False, RunPhase.STARTING),
        (Phase.REBUILD, True, True, RunPhase.STARTING),
        (Phase.AGREE, True, True, RunPhase.STARTING),
        (Phase.TRAIN, False, False, RunPhase.TRAINING),
        (Phase.AGREE, False, False, RunPhase.CHECKPOINTING),
        (Phase.SAVE, False, False, RunPhase.CHECKPOINTING),
        (Phase.TEARDOWN, False, False, RunPhase.SWITCHING),
        (Phase.VERIFY, False, True, RunPhase.SWITCHING),
        (Phase.AGREE, False, True, RunPhase.SWITCHING),
        (Phase.PARKED, False, False, RunPhase.PARKED),
    ],
)
def test_a_ranks_phase_in_the_words_of_a_run(
    phase: Phase, *, first: bool, moving: bool, said: RunPhase
) -> None:
    """What is done for a generation that does not train yet is starting, or switching."""
    assert run_phase(phase, first=first, moving=moving) is said


def test_an_evaluation_of_an_hour_outlives_nobodys_deadline() -> None:
    """The watchdog ends what hangs, and an hour between two steps is no hang."""
    assert Deadlines().of(Phase.TRAIN) > 3600


def test_a_parked_rank_0_tells_the_phase_of_who_trains(
    zygote: Zygote, tmp_path: Path, socket_path: Path
) -> None:
    """The heartbeat is the launch's: parked is rank 0 alone."""
    run = Run(
        zygote,
        tmp_path,
        2,
        steps=15,
        boundary_every=5,
        wait_for={"5": "order-1", "8": "go"},
        deadlines={"train_s": 30.0},
    ).with_daemon(socket_path)
    with FakeDaemon(socket_path, run.out, [Wish(layout=ONE, ranks=(1,), at=5)]) as daemon:
        daemon.heartbeat_s = OFTEN_S
        run.launch({})
        until(lambda: SwitchState.CONFIRMED in daemon.states(), "rank 0 is parked")
        told = len(daemon.heard.heartbeats)
        until(lambda: len(daemon.heard.heartbeats) >= told + 6, "heartbeats of a long step")
        phases = {beat.phase for beat in daemon.heard.heartbeats[told + 2 :]}
        (run.out / "go").touch()
        assert zygote.wait(run.launches[0]) == 0, run.log()
    assert phases == {"training"}
