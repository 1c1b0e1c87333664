"""A process that would run out of open files or threads leaves by restart before it does."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import TP2, Run, Zygote, worst_difference
from wattmesh.reconfig.launch.usage import Budget, Usage, limits, now
from wattmesh.reconfig.switch import SwitchState

Undisturbed = Callable[[int, str], dict[int, float]]


@pytest.fixture
def run(zygote: Zygote, tmp_path: Path, socket_path: Path) -> Run:
    """A run whose rank 1 may open only a few files more when it is ordered to switch."""
    return Run(
        zygote, tmp_path, 2, steps=15, boundary_every=5,
        wait_for={"10": "order-1"}, few_files_at=10,
    ).with_daemon(socket_path)  # fmt: skip


def test_too_few_open_files_turn_a_switch_into_a_restart(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """The next launch has all its files again, and trains in the ordered layout."""
    with FakeDaemon(socket_path, run.out, [Wish(layout=TP2, ranks=(0, 1), at=10)]) as daemon:
        assert run.supervised() == 0, (run.said, run.log())
    assert len(run.launches) == 2, run.said
    assert run.layouts() == ["dp2", "tp2"]
    assert worst_difference(run.losses(), undisturbed(15, "float32")) <= 1e-5
    stopping = next(t for t in daemon.heard.transitions if t.state is SwitchState.STOPPING)
    assert "open files, and this process may have" in stopping.detail
    assert "[group rank 1]" in stopping.detail
    assert daemon.states()[-1] is SwitchState.CONFIRMED


def test_too_few_open_files_without_a_supervisor_keep_the_layout(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """Where nobody launches the job again, nothing is torn down and training goes on."""
    with FakeDaemon(socket_path, run.out, [Wish(layout=TP2, ranks=(0, 1), at=10)]) as daemon:
        assert run.once() == 0, run.log()
    assert run.layouts() == ["dp2"]
    assert worst_difference(run.losses(), undisturbed(15, "float32")) == 0.0
    assert daemon.states()[-1] is SwitchState.ROLLED_BACK
    assert "not begun" in daemon.heard.transitions[-1].detail


def spent(*walk: tuple[str, int, int]) -> Budget:
    """A budget after layouts: name, files before it was built, files while it trained."""
    budget = Budget()
    for key, floor, full in walk:
        budget.begin(key, Usage(files=floor, threads=10))
        budget.settled(Usage(files=full, threads=20))
    return budget


def allowed(files: float) -> Usage:
    """So many files, and any number of threads."""
    return Usage(files=files, threads=float("inf"))


@pytest.mark.parametrize(
    ("key", "files", "fits"),
    [("a", 178, True), ("a", 177, False), ("c", 234, True), ("c", 233, False)],
)
def test_a_known_layout_costs_what_it_cost_and_an_unknown_one_twice_the_dearest(
    key: str, files: int, fits: bool
) -> None:
    """With ten files more left over at each teardown, and a tenth of the limit kept free."""
    budget = spent(("a", 80, 130), ("b", 90, 125), ("a", 100, 150))
    assert (budget.problem(key, allowed(files)) == "") == fits


def test_files_that_stay_after_each_teardown_bring_the_restart_earlier() -> None:
    """The same layouts fit as long as nothing is left behind, and no longer when something is."""
    tight = allowed(180)
    assert spent(("a", 100, 160), ("b", 100, 160)).problem("a", tight) == ""
    assert "open files" in spent(("a", 100, 160), ("b", 115, 175)).problem("a", tight)


def test_nothing_is_foretold_before_anything_was_built() -> None:
    """A budget that knows nothing forbids nothing."""
    assert Budget().problem("a", allowed(1)) == ""


def test_the_limits_of_this_process_are_above_what_it_uses() -> None:
    """Read from the kernel, whatever this machine allows."""
    used = now()
    found = limits(used, 1)
    assert 0 < used.files < found.files
    assert 0 < used.threads <= found.threads
