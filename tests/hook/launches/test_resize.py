"""Another size: a run leaves once its next launch and a way back are held, and goes back by it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import DP2, DP4, Run, Zygote, worst_difference
from tests.hook.launches.test_sleep import left_nothing
from tests.hook.tiny import Fault
from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher.contract import HeldLaunch, HeldState, NextLaunch
from wattmesh.reconfig.launcher.supervisor import EXIT_STOPPED
from wattmesh.reconfig.launcher.way_back import way_back
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import SwitchMode

Undisturbed = Callable[[int, str], dict[int, float]]

LEFT = [SwitchState.ANNOUNCED, SwitchState.CHECKPOINTING, SwitchState.STOPPING]
STOOD = [
    SwitchState.LAUNCHING,
    SwitchState.LOADED,
    SwitchState.VERIFIED,
    SwitchState.CONFIRMED,
]
MOVED = Wish(layout=DP2, ranks=(0, 1), at=10, mode=SwitchMode.RESIZE)


class Queue:
    """A scheduler that holds launches, and starts what the test lets it start."""

    def __init__(self, most: int = 9) -> None:
        """Hold at most so many."""
        self.most = most
        self.held: dict[str, NextLaunch] = {}
        self.gone: set[str] = set()

    def find(self, key: str) -> HeldLaunch | None:
        """Find a launch."""
        if key not in self.held:
            return None
        state = HeldState.WITHDRAWN if key in self.gone else HeldState.HELD
        return HeldLaunch(key=key, name=f"job of {self.held[key].ranks}", state=state)

    def hold(self, following: NextLaunch) -> HeldLaunch:
        """Hold one more."""
        if len(self.waiting) >= self.most:
            raise InputInvalid("the user has too many jobs")
        self.held.setdefault(following.key, following)
        found = self.find(following.key)
        assert found is not None
        return found

    def withdraw(self, key: str) -> bool:
        """Let it never begin."""
        self.gone.add(key)
        return True

    def begin_now(self, key: str) -> HeldLaunch:
        """Nobody asks for this here."""
        raise NotImplementedError

    @property
    def waiting(self) -> list[NextLaunch]:
        """What is held."""
        return [each for key, each in self.held.items() if key not in self.gone]

    def start(self, ranks: int) -> int:
        """Start the launch of so many ranks: all others are withdrawn."""
        assert ranks in [each.ranks for each in self.waiting]
        self.gone |= self.held.keys()
        return ranks


@pytest.fixture
def run(zygote: Zygote, tmp_path: Path, socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run of four ranks that waits for an order at step 10."""
    monkeypatch.setenv("WATTMESH_URL", f"unix://{socket_path}")
    return Run(
        zygote, tmp_path, 4, layout=DP4, steps=15, boundary_every=5, wait_for={"10": "order-1"}
    ).with_daemon(socket_path)


def job(run: Run, queue: Queue) -> int:
    """Be one job of the run."""
    return run.supervised(queue=queue, resizes=True, ranks=run.nproc)


def leave(run: Run, queue: Queue) -> None:
    """Train until the run leaves for two ranks; the next launch waits for no order."""
    assert job(run, queue) == EXIT_STOPPED, (
        run.said,
        run.log(),
    )
    run.change(wait_for={})


def next_job(run: Run, queue: Queue, ranks: int) -> int:
    """Be the job that the scheduler starts."""
    run.nproc = queue.start(ranks)
    return job(run, queue)


def test_a_run_leaves_with_a_way_back_and_does_without_it(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """The way back begins only after the time that the order leaves the new size."""
    queue, began = Queue(), datetime.now(UTC)
    with FakeDaemon(socket_path, run.out, [MOVED]) as daemon:
        leave(run, queue)
        back, ordered = queue.waiting
        assert (back.ranks, ordered.ranks, ordered.begins_at) == (4, 2, None)
        assert back.begins_at is not None
        assert back.begins_at >= began + timedelta(hours=1)
        assert next_job(run, queue, 2) == 0, (run.said, run.log())
    assert len(run.layouts()) == 2
    assert daemon.states() == LEFT + STOOD
    left, _ = daemon.heard.finishes
    assert (left.reason, left.held_as) == ("restart", "job of 2, or job of 4")
    assert left.wakes_at == back.begins_at.isoformat()
    assert worst_difference(run.losses(), undisturbed(15, "float32")) <= 1e-5
    assert left_nothing(run)


def test_a_size_that_never_begins_is_given_up_for_the_one_before(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """The scheduler starts the way back: it trains on as before, and says that it went back."""
    queue = Queue()
    with FakeDaemon(socket_path, run.out, [MOVED]) as daemon:
        leave(run, queue)
        assert next_job(run, queue, 4) == 0, (run.said, run.log())
    assert len(run.layouts()) == 1
    assert daemon.states() == [*LEFT, SwitchState.ROLLED_BACK]
    assert [each.world_size for each in daemon.heard.registers] == [4, 4]
    assert worst_difference(run.losses(), undisturbed(15, "float32")) <= 1e-5
    assert left_nothing(run)


def test_a_size_that_does_not_come_up_goes_back_by_a_submission(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """Two ranks cannot train the layout of four, so the job has the old size held, and ends."""
    run.change(fault=Fault(rank=1, at="rebuild", what="raise", after_step=0, layout=DP2.to_dict()))
    queue = Queue()
    with FakeDaemon(socket_path, run.out, [MOVED]) as daemon:
        leave(run, queue)
        assert next_job(run, queue, 2) == EXIT_STOPPED, (run.said, run.log())
        assert len(run.launches) == 2
        assert [(each.ranks, each.begins_at) for each in queue.waiting] == [(4, None)]
        assert next_job(run, queue, 4) == 0, (run.said, run.log())
    assert daemon.states()[-1] is SwitchState.ROLLED_BACK
    assert run.layouts() == run.layouts()[:1]
    assert worst_difference(run.losses(), undisturbed(15, "float32")) <= 1e-5
    assert left_nothing(run)


def test_a_job_that_is_started_again_before_the_way_back_asks_for_it_again(
    run: Run, socket_path: Path
) -> None:
    """As where its node was lost after it had asked: it starts no rank, and holds a new launch."""
    run.change(fault=Fault(rank=1, at="rebuild", what="raise", after_step=0, layout=DP2.to_dict()))
    queue = Queue()
    with FakeDaemon(socket_path, run.out, [MOVED]):
        leave(run, queue)
        assert next_job(run, queue, 2) == EXIT_STOPPED
        (first,) = queue.waiting
        queue.gone.add(first.key)  # as the book does when a job of the run begins
        assert job(run, queue) == EXIT_STOPPED
    assert len(run.launches) == 2
    (second,) = queue.waiting
    assert (second.ranks, second.key != first.key) == (4, True)


def test_without_a_way_back_nobody_leaves(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """A scheduler that takes one job more, not two, takes none: the run trains on."""
    queue = Queue(most=1)
    with FakeDaemon(socket_path, run.out, [MOVED]) as daemon:
        assert job(run, queue) == 0, (
            run.said,
            run.log(),
        )
    assert len(run.launches) == 1
    assert queue.waiting == []
    assert daemon.states()[-1] is SwitchState.ROLLED_BACK
    assert "too many jobs" in daemon.heard.transitions[-1].detail
    assert worst_difference(run.losses(), undisturbed(15, "float32")) <= 1e-5
    assert left_nothing(run)


def request(folder: RunFolder, *, tries: int, before: int, old: Layout, new: Layout) -> None:
    """Leave a request for another size in a run folder."""
    folder.path.mkdir(exist_ok=True)
    note = {
        "plan": "p",
        "epoch": 1,
        "point": "B",
        "old_layout": old.to_dict(),
        "old_ranks": list(range(old.world_size)),
        "began_s": 0.0,
        "boot": "",
    }
    folder.ask_next(
        checkpoint="step-00000010",
        layout=new,
        ranks=range(new.world_size),
        probe=1.0,
        switch=note,
        resized_from=before,
    )
    text = folder.next_file.read_text()
    folder.next_file.write_text(text.replace('"tries": 0', f'"tries": {tries}'))


@pytest.mark.parametrize(
    ("facts", "given_up", "ranks"),
    [
        ({"tries": 0}, False, None),  # it may still come up
        ({"tries": 1}, False, 4),
        ({"tries": 0}, True, 4),
        ({"tries": 1, "before": 0}, False, None),  # a restart in one size
        ({"tries": 1, "before": 2, "old": DP2, "new": DP4}, False, None),  # it trains on here
        ({"tries": 0, "before": 2, "old": DP2, "new": DP4}, True, 2),
        ({"tries": 1, "before": 2}, True, None),  # a launch of the size before
    ],
)
def test_the_way_back_is_taken_where_nothing_else_trains_on(
    tmp_path: Path, facts: dict[str, Any], given_up: bool, ranks: int | None
) -> None:
    """Not while what was ordered may come up, nor where the old layout fits the new launch."""
    folder = RunFolder(tmp_path / "run")
    known: dict[str, Any] = {"before": 4, "old": DP4, "new": DP2, **facts}
    request(folder, **known)
    way = way_back(folder, known["new"].world_size, given_up=given_up)
    assert (way.ranks if way else None) == ranks
    folder.next_file.write_text("{")
    assert way_back(folder, 2, given_up=given_up) is None


def test_a_launcher_that_holds_no_way_back_is_asked_until_a_stop(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch that cannot train on does not try another layout: it says why, and gives up."""
    monkeypatch.setattr("wattmesh.reconfig.launcher.supervisor.BACK_S", -1.0)
    request(RunFolder(run.checkpoints), tries=1, before=4, old=DP4, new=DP2)
    with pytest.raises(SourceUnavailable, match="no launch of 4 ranks is held"):
        run.supervised(queue=Queue(most=0), resizes=True, ranks=2)
    assert run.launches == []
    assert any("the user has too many jobs" in each for each in run.said)
