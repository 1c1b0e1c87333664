"""Sleep: a run leaves once its next launch is held, and wakes by its alarm, an order or a doubt."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.daemon.waiting import wait_for
from tests.hook.checkpoints.test_checkpoints import flip
from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import DP2, DP4, TP2, Run, Zygote, worst_difference
from tests.hook.tiny import Fault
from wattmesh.errors import SourceUnavailable
from wattmesh.reconfig.hook.launching.sleep import bounded
from wattmesh.reconfig.launcher.contract import HeldLaunch, HeldState, NextLaunch
from wattmesh.reconfig.launcher.own_clock import OwnClock
from wattmesh.reconfig.launcher.supervisor import EXIT_REFUSED, EXIT_STOPPED
from wattmesh.reconfig.switch import REFUSED, SwitchState
from wattmesh.reconfig.wire.messages import SUSPENDS, Order, SwitchMode

Undisturbed = Callable[[int, str], dict[int, float]]

FELL_ASLEEP = [
    SwitchState.ANNOUNCED,
    SwitchState.CHECKPOINTING,
    SwitchState.STOPPING,
    SwitchState.CONFIRMED,
]
WOKE = [
    SwitchState.LAUNCHING,
    SwitchState.LOADED,
    SwitchState.VERIFIED,
    SwitchState.CONFIRMED,
]
HOUR_S = 3600.0


def sleep(wakes_in_s: float) -> Wish:
    """Order sleep at step 10."""
    return Wish(layout=DP2, ranks=(0, 1), at=10, mode=SwitchMode.SUSPEND, wakes_in_s=wakes_in_s)


@pytest.fixture
def run(zygote: Zygote, tmp_path: Path, socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of two ranks that waits for an order at step 10; its supervisor asks the daemon too."""
    monkeypatch.setenv("WATTMESH_URL", f"unix://{socket_path}")
    return Run(
        zygote, tmp_path, 2, steps=15, boundary_every=5, wait_for={"10": "order-1"}
    ).with_daemon(socket_path)


def left_nothing(run: Run) -> bool:
    """Say whether nothing of the sleep is left in the run folder."""
    names = ("hold.json", "held.json", "asleep.json", "next.json", "switch.json")
    return not [each for each in names if (run.checkpoints / each).exists()]


def test_an_alarm_wakes_a_run_whose_daemon_is_gone(
    run: Run, socket_path: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor starts the next launch by its own clock; the losses are those of no sleep."""
    daemon = FakeDaemon(socket_path, run.out, [sleep(2.0)])
    with daemon:
        whole = run.launch

        def launch(environment: dict[str, str]) -> object:
            gone = f"unix://{socket_path}.gone"
            monkeypatch.setenv("WATTMESH_URL", gone)
            if run.launches:  # the daemon is killed while the run sleeps
                run.environment["WATTMESH_URL"] = gone
            return whole(environment)

        run.launch = launch  # type: ignore[method-assign,assignment]
        assert run.supervised() == 0, (run.said, run.log())
    assert len(run.launches) == 2
    assert worst_difference(run.losses(), undisturbed(15, "float32")) == 0
    assert daemon.states() == FELL_ASLEEP
    assert SUSPENDS in daemon.heard.registers[0].capabilities
    (finish,) = daemon.heard.finishes
    assert (finish.reason, finish.step) == ("suspended", 10)
    assert finish.held_as.startswith("the supervisor of pid ")
    assert finish.wakes_at is not None
    assert left_nothing(run)


def test_an_order_wakes_a_run_in_another_layout(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """The next launch proves the ordered layout and reports it, an hour before the alarm."""
    wake = Wish(layout=TP2, ranks=(0, 1), at=10, mode=SwitchMode.RESUME)
    with FakeDaemon(socket_path, run.out, [sleep(HOUR_S), wake]) as daemon:
        assert run.supervised() == 0, (run.said, run.log())
    assert run.layouts() == ["dp2", "tp2"]
    assert worst_difference(run.losses(), undisturbed(15, "float32")) <= 1e-5
    assert daemon.states() == FELL_ASLEEP + WOKE
    assert [each.reason for each in daemon.heard.finishes] == ["suspended", "done"]
    assert left_nothing(run)


def test_a_layout_that_does_not_wake_goes_back(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """The launch after the one that failed trains on where the run fell asleep."""
    run.change(fault=Fault(rank=1, at="rebuild", what="raise", after_step=0, layout=TP2.to_dict()))
    wake = Wish(layout=TP2, ranks=(0, 1), at=10, mode=SwitchMode.RESUME)
    with FakeDaemon(socket_path, run.out, [sleep(HOUR_S), wake]) as daemon:
        assert run.supervised() == 0, (run.said, run.log())
    assert run.layouts() == ["dp2"]
    assert worst_difference(run.losses(), undisturbed(15, "float32")) == 0
    assert daemon.states()[-1] is SwitchState.ROLLED_BACK
    assert left_nothing(run)


class Unwilling(OwnClock):
    """A launcher that does not answer when it is to hold a launch."""

    def hold(self, following: NextLaunch) -> HeldLaunch:
        """Fail."""
        raise SourceUnavailable("the launcher did not answer")


def test_a_run_without_an_alarm_trains_on(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """What is not held is not left: the order ends in a rollback that names the launcher."""
    with FakeDaemon(socket_path, run.out, [sleep(HOUR_S)]) as daemon:
        assert run.supervised(queue=Unwilling()) == 0, (run.said, run.log())
    assert len(run.launches) == 1
    assert worst_difference(run.losses(), undisturbed(15, "float32")) == 0
    assert daemon.states()[-1] is SwitchState.ROLLED_BACK
    told = "not asleep: the launcher did not answer"
    assert daemon.heard.transitions[-1].detail.startswith(told)
    assert daemon.heard.transitions[-1].evidence[REFUSED] == "the launcher did not answer"
    assert left_nothing(run)


class Silent(OwnClock):
    """A launcher whose answer never reaches the run folder."""

    def hold(self, following: NextLaunch) -> HeldLaunch:
        """Hold it, and hang for as long as the run is willing to wait."""
        held = super().hold(following)
        wait_for(lambda: not self.asked.exists(), "the run's patience to end")
        return held

    asked: Path


def test_a_launcher_that_says_nothing_lets_nobody_leave(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """After `hold_s` the order ends, the run trains on, and what was held is withdrawn."""
    run.change(deadlines={**run.options.deadlines, "hold_s": 0.5})
    queue = Silent()
    queue.asked = run.checkpoints / "hold.json"
    with FakeDaemon(socket_path, run.out, [sleep(HOUR_S)]) as daemon:
        assert run.supervised(queue=queue) == 0, (run.said, run.log())
    assert len(run.launches) == 1
    assert worst_difference(run.losses(), undisturbed(15, "float32")) == 0
    assert daemon.states()[-1] is SwitchState.ROLLED_BACK
    told = "not asleep: the launcher did not say within 0.5 s"
    assert daemon.heard.transitions[-1].detail.startswith(told)
    assert queue.find(daemon.heard.transitions[0].switch_id) is None
    assert not (run.checkpoints / "asleep.json").exists()


def test_a_checkpoint_that_is_damaged_meanwhile_is_passed_over(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """It wakes from the one before, loudly, and trains the steps between again."""
    whole = run.launch

    def launch(environment: dict[str, str]) -> object:
        if run.launches:
            flip(run.checkpoints / "step-00000010" / "data-0-0.safetensors")
            run.change(wait_for={})
        return whole(environment)

    run.launch = launch  # type: ignore[method-assign,assignment]
    with FakeDaemon(socket_path, run.out, [sleep(2.0)]):
        assert run.supervised() == 0, (run.said, run.log())
    assert [each["step"] for each in run.lines()] == [*range(1, 11), *range(6, 16)]
    assert worst_difference(run.losses(), undisturbed(15, "float32")) == 0
    assert "It is passed over" in run.log()
    assert left_nothing(run)


def test_a_launch_by_hand_is_the_only_one(run: Run, socket_path: Path) -> None:
    """The supervisor sees that the run is awake; what it starts is refused while that launch lives.

    Neither trains a step twice.
    """
    ends: list[int] = []
    with FakeDaemon(socket_path, run.out, [sleep(HOUR_S)]) as daemon:
        thread = threading.Thread(target=lambda: ends.append(run.supervised()), daemon=True)
        thread.start()
        wait_for(lambda: daemon.heard.finishes, "the sleep")
        wait_for(lambda: run.zygote.status(run.launches[0]) == 0, "its launch to have left")
        run.change(wait_for={"13": "go-on"})
        by_hand = run.zygote.start(2, {**run.environment, "TINY": run.options.to_text()}, run.out)
        thread.join(60.0)
        assert ends == [EXIT_REFUSED], (run.said, run.log())
        (run.out / "go-on").touch()
        assert run.zygote.wait(by_hand) == 0, run.log()
    assert [each["step"] for each in run.lines()] == list(range(1, 16))
    assert left_nothing(run)


def test_a_run_whose_other_size_is_not_held_trains_on(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """It stays as it is, and nothing is left that a later launch would take for an order."""
    wish = Wish(layout=DP4, ranks=(0, 1, 2, 3), at=10, mode=SwitchMode.RESIZE)
    with FakeDaemon(socket_path, run.out, [wish]) as daemon:
        assert run.supervised(queue=Unwilling(), resizes=True) == 0, (run.said, run.log())
    assert len(run.launches) == 1
    assert worst_difference(run.losses(), undisturbed(15, "float32")) == 0
    assert daemon.states()[-1] is SwitchState.ROLLED_BACK
    told = "still dp2: the launcher did not answer"
    assert daemon.heard.transitions[-1].detail.startswith(told)
    assert daemon.heard.transitions[-1].evidence[REFUSED] == "the launcher did not answer"
    assert left_nothing(run)


def test_a_supervisor_leaves_what_a_launcher_starts(run: Run, socket_path: Path) -> None:
    """It ends, and starts no launch of its own; the one that follows trains to the end."""
    queue = OwnClock()  # as a launcher that starts what it holds
    with FakeDaemon(socket_path, run.out, [sleep(HOUR_S)]) as daemon:
        assert run.supervised(queue=queue) == EXIT_STOPPED, (run.said, run.log())
        assert len(run.launches) == 1
        held = queue.find(daemon.heard.transitions[0].switch_id)
        assert held is not None
        assert held.state is HeldState.HELD
        run.change(wait_for={})
        assert run.supervised(queue=queue) == 0, (run.said, run.log())
    assert run.losses().keys() == set(range(1, 16))
    assert [each.reason for each in daemon.heard.finishes] == ["suspended", "done"]
    assert left_nothing(run)


@pytest.mark.parametrize(
    ("ahead_h", "sleeps_h", "wakes_h"), [(2.0, 2.0, 2.0), (26.0, 2.0, 2.0), (-22.0, 2.0, -22.0)]
)
def test_a_daemon_whose_clock_is_wrong_makes_nobody_sleep_longer(
    ahead_h: float, sleeps_h: float, wakes_h: float
) -> None:
    """A day ahead of the job's host, its time to wake is a day late there; behind, it is past."""
    now = datetime(2026, 11, 24, 3, tzinfo=UTC)
    order = Order(
        switch_id="p",
        epoch=1,
        run="r",
        attempt=1,
        point="paused",
        layout=DP2,
        ranks=(0, 1),
        not_before_step=1,
        valid_until_step=2,
        mode=SwitchMode.SUSPEND,
        wakes_at=(now + timedelta(hours=ahead_h)).isoformat(),
        sleeps_s=3600.0 * sleeps_h,
    )
    held = bounded(order, now)
    assert held.wakes_at == (now + timedelta(hours=wakes_h)).isoformat()
    assert bounded(replace(order, sleeps_s=0.0), now).wakes_at == order.wakes_at


@pytest.mark.parametrize(("ahead_s", "due"), [(-1.0, True), (0.0, True), (HOUR_S, False)])
def test_the_own_clock_is_due_in_time(ahead_s: float, due: bool) -> None:
    """A time that has passed is due, and so is one that was withdrawn or asked for now."""
    clock = OwnClock()
    begins_at = datetime.now(UTC) + timedelta(seconds=ahead_s)
    following = NextLaunch(key="a", run="r", ranks=2, begins_at=begins_at)
    assert clock.hold(following) == clock.hold(following)
    assert clock.due() is due
    clock.begin_now("a")
    assert clock.due()
    clock.hold(NextLaunch(key="b", run="r", ranks=2, begins_at=begins_at))
    assert clock.withdraw("b")
    assert clock.due()
    assert clock.find("b") is None


def test_a_wall_clock_that_is_set_back_wakes_it_all_the_same() -> None:
    """The seconds that were left when it was asked are enough, whatever the wall clock says."""
    wall = [datetime(2026, 11, 24, 3, tzinfo=UTC)]
    clock = OwnClock(lambda: wall[0])
    begins_at = wall[0] + timedelta(seconds=0.05)
    clock.hold(NextLaunch(key="a", run="r", ranks=2, begins_at=begins_at))
    assert not clock.due()
    wall[0] -= timedelta(days=1)
    wait_for(clock.due, "the alarm")
