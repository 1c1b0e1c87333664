"""Whatever dies at whatever instant of an in-memory switch, the run goes on from old or from new.

The kill matrix: every rank of the launch is killed at once, in each phase and at each instant at
which the durable checkpoint is still being written behind training. Nothing of the staged copy may
be needed, nothing of it may be left, and the state that training resumes with is bit for bit that
of a run that nothing happened to. That one rank dies is `test_faults.py`; here, while it writes.
Then the same on two hosts, which hold a part of the copy each, and of which one is lost.
"""

import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import DP2, DP4, PATIENT, TP2, Run, Zygote, short, worst_difference
from tests.hook.tiny import Fault
from wattmesh.reconfig.checkpoint.checkpoint import read_whole
from wattmesh.reconfig.switch import SwitchState

Undisturbed = Callable[[int, str], dict[int, float]]

STEPS, EVERY, SWITCH_AT = 12, 5, 10
OLD, NEW = SWITCH_AT - EVERY, SWITCH_AT
AT_ONCE = 2
PATIENCE_S = 300.0

KILLED_ALL = {
    "agree": OLD,
    "save": OLD,
    "teardown": OLD,
    "rebuild_after_mesh": OLD,
    "load": OLD,
    "verify": OLD,
    "behind_before": OLD,
    "behind_written": OLD,
    "behind_named": NEW,
}
"""Where every rank dies, and the step of the checkpoint that the next launch resumes from."""

BEHIND = ("behind", "host")
"""How phases begin in which the new layout trains already."""

IN_NEW_LAYOUT = ("load", "verify", "rebuild_after_mesh")


@pytest.fixture(scope="module")
def untouched(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The state's digest at both save steps of a run that nothing happened to."""
    run = Run(zygote, tmp_path_factory.mktemp("untouched"), 2, steps=NEW, boundary_every=EVERY)
    assert run.once() == 0, run.log()
    return {step: _digest(run, step) for step in (OLD, NEW)}


def killed(
    zygote: Zygote, folder: Path, what: str, phase: str, *, hosts: bool = False, rank: int = 0
) -> tuple[str, Run, tuple[SwitchState, ...]]:
    """Train a run to its end that is hurt in `phase` of its switch at step 10.

    `hosts`: it has two ranks on each of two hosts, and switches to one of each.
    """
    layout = TP2.to_dict() if phase in IN_NEW_LAYOUT else None
    fault = Fault(rank=rank, at=phase, what=what, after_step=SWITCH_AT, layout=layout)
    to = (1, 2) if hosts else (0, 1)
    with tempfile.TemporaryDirectory(prefix="wm") as near:
        socket = Path(near) / "d.sock"
        run = Run(
            zygote,
            folder / f"{what}-{phase}",
            4 if hosts else 2,
            layout=DP4 if hosts else DP2,
            steps=STEPS,
            boundary_every=EVERY,
            wait_for={str(SWITCH_AT): "order-1"},
            deadlines=short(),
        ).with_daemon(socket)
        run.change(fault=fault)
        run.later = PATIENT
        run.hosts = [(2, 2)] if hosts else []
        with FakeDaemon(socket, run.out, [Wish(layout=TP2, ranks=to, at=SWITCH_AT)]) as daemon:
            assert run.supervised() == 0, (phase, run.said, run.log())
        if hosts and phase not in ("agree", "save"):
            told = [str(each.evidence.get("checkpoint")) for each in daemon.heard.transitions]
            assert any(each.startswith("in the memory of 2 hosts") for each in told), told
        return phase, run, tuple(daemon.states())


@pytest.mark.parametrize(
    ("what", "resumed_at"),
    [("kill_all", KILLED_ALL), ("kill", {"behind_written": OLD})],
    ids=["the whole launch", "the rank that writes"],
)
def test_a_kill_at_any_instant_leaves_the_old_or_the_new(
    zygote: Zygote,
    tmp_path: Path,
    untouched: Mapping[int, str],
    undisturbed: Undisturbed,
    *,
    what: str,
    resumed_at: Mapping[str, int],
) -> None:
    """The next launch resumes at the last verified checkpoint, in the layout that wrote it.

    At most one interval is lost, with what was trained until the checkpoint of the switch has its
    name, and none of it from then on.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(partial(killed, zygote, tmp_path, what), resumed_at))
    for phase, run, states in outcomes:
        print(f"\n{what} in {phase}: {states[-1:]}", end="")
        _resumed(run, phase, resumed_at[phase], "dp2")
        at = resumed_at[phase]
        assert _digest(run, at) == untouched[at], phase
        # Every step of the old layout is trained again bit for bit, whatever was half done.
        worst = worst_difference(run.losses(), undisturbed(STEPS, "float32"))
        assert worst <= (1e-5 if at == NEW else 0.0), phase


def _resumed(run: Run, phase: str, at: int, layout: str) -> None:
    """The second launch went on from step `at` in the old layout, and everything is whole."""
    assert len(run.launches) == 2, (phase, run.said)
    before = [line["step"] for line in run.lines() if line["attempt"] == 1]
    after = [line["step"] for line in run.lines() if line["attempt"] == 2]
    lost = max(before) - (after[0] - 1)
    print(f" resumed at {after[0] - 1}, {lost} steps lost")
    assert after[0] - 1 == at, (phase, run.log())
    # While the copy is written behind training, steps are trained that a busy disk can lose.
    assert lost <= (STEPS - at if phase.startswith(BEHIND) else EVERY), phase
    assert {line["layout"] for line in run.lines() if line["attempt"] == 2} == {layout}, phase
    assert not list(run.checkpoints.glob(".*staging")), phase
    assert read_whole(run.checkpoints / f"step-{NEW:08d}").step == NEW, phase


ON_HOSTS = [
    *(
        ("kill_host", 2, phase, OLD)
        for phase in ("save", "teardown", "load", "verify", "host_before", "host_written")
    ),
    ("kill_host", 1, "behind_written", OLD),
    ("kill_host", 1, "behind_named", NEW),
    ("kill", 2, "load", OLD),
    ("kill", 2, "host_before", OLD),
    ("kill_all", 2, "load", OLD),
    ("kill_all", 2, "host_written", OLD),
    ("damage", 2, "rebuild_after_mesh", OLD),
]
"""What happens to which rank in which phase, and the step that the next launch resumes from.

Ranks 1 and 2 train in the new layout, each on its own host; rank 1 leads it.
"""


def test_whatever_is_lost_of_two_hosts_leaves_the_old_or_the_new(
    zygote: Zygote, tmp_path: Path
) -> None:
    """One rank, one host or all of them, or a byte on the way: a launch later it trains on."""

    def hurt(case: tuple[str, int, str, int]) -> Run:
        what, rank, phase, _ = case
        return killed(zygote, tmp_path, what, phase, hosts=True, rank=rank)[1]

    never = Run(zygote, tmp_path / "never", 4, layout=DP4, steps=STEPS, boundary_every=EVERY)
    assert never.once() == 0, never.log()
    with ThreadPoolExecutor(2 * AT_ONCE) as pool:  # which mostly wait for what is lost
        runs = list(pool.map(hurt, ON_HOSTS))
    for (what, rank, phase, at), run in zip(ON_HOSTS, runs, strict=True):
        print(f"\n{what} of rank {rank} in {phase}:", end="")
        _resumed(run, phase, at, "dp4")
        assert _digest(run, at) == _digest(never, at), phase
        assert worst_difference(run.losses(), never.losses()) <= (1e-5 if at == NEW else 0.0), phase
        if what == "damage":
            assert "has changed: " in run.log()
            assert "differs from the digest taken when it was staged" in run.log()


def test_a_host_that_cannot_write_its_part_undoes_nothing(zygote: Zygote, tmp_path: Path) -> None:
    """The switch stands, the checkpoint before stays, and the leader says which host it was."""
    fault = Fault(rank=2, at="host_before", what="raise", after_step=SWITCH_AT)
    with tempfile.TemporaryDirectory(prefix="wm") as near:
        socket = Path(near) / "d.sock"
        run = Run(
            zygote,
            tmp_path,
            4,
            layout=DP4,
            steps=20,
            boundary_every=EVERY,
            wait_for={str(SWITCH_AT): "order-1"},
            deadlines=PATIENT,
            fault=fault,
        ).with_daemon(socket)
        run.hosts = [(2, 2)]
        with FakeDaemon(socket, run.out, [Wish(layout=TP2, ranks=(2, 1), at=SWITCH_AT)]) as daemon:
            assert run.once(PATIENCE_S) == 0, run.log()
    assert daemon.states()[-1] is SwitchState.CONFIRMED
    assert run.layouts() == ["dp4", "tp2"]
    assert "host-1 could not write its part: RuntimeError: the test broke rank 2" in run.log()
    kept = sorted(each.name for each in run.checkpoints.glob("step-*"))
    assert kept == ["step-00000005", "step-00000015", "step-00000020"]
    assert not list(run.checkpoints.glob(".*staging"))


def test_without_shared_memory_the_copy_is_in_files(
    zygote: Zygote, tmp_path: Path, socket_path: Path
) -> None:
    """Where a rank gets none, the switch goes through the page cache, and its evidence says why."""
    run = Run(
        zygote,
        tmp_path,
        2,
        layout=DP2,
        steps=STEPS,
        boundary_every=EVERY,
        wait_for={str(SWITCH_AT): "order-1"},
        no_shared_memory=True,
    ).with_daemon(socket_path)
    wish = Wish(layout=TP2, ranks=(0, 1), at=SWITCH_AT)
    with FakeDaemon(socket_path, run.out, [wish]) as daemon:
        assert run.once(PATIENCE_S) == 0, run.log()
    evidence = daemon.heard.transitions[-1].evidence
    assert daemon.states()[-1] is SwitchState.CONFIRMED
    assert evidence["checkpoint"].startswith("in the page cache (0 MB of shared memory cannot be")
    assert evidence["digest_before"] == evidence["digest_after"]


def test_a_restart_in_place_of_a_switch_leaves_the_parts_of_both_hosts_on_the_disk(
    zygote: Zygote, tmp_path: Path, socket_path: Path
) -> None:
    """Memory of the old layout stays held: each host writes its part before the launch ends."""
    run = Run(
        zygote,
        tmp_path,
        4,
        layout=DP4,
        steps=STEPS,
        boundary_every=EVERY,
        wait_for={str(SWITCH_AT): "order-1"},
        deadlines=PATIENT,
        leak_at=SWITCH_AT,
    ).with_daemon(socket_path)
    run.hosts = [(2, 2)]
    with FakeDaemon(socket_path, run.out, [Wish(layout=TP2, ranks=(2, 1), at=SWITCH_AT)]) as daemon:
        assert run.supervised() == 0, (run.said, run.log())
    assert run.layouts() == ["dp4", "tp2"]
    assert [line["step"] for line in run.lines()] == list(range(1, STEPS + 1))
    stopping = next(t for t in daemon.heard.transitions if t.state is SwitchState.STOPPING)
    assert "still held in memory (" in stopping.detail
    assert read_whole(run.checkpoints / f"step-{NEW:08d}").step == NEW
    assert "in the memory of 2 hosts" in str(daemon.heard.transitions[-1].evidence["checkpoint"])


def _digest(run: Run, step: int) -> str:
    """The logical digest of a checkpoint, every byte of which was compared."""
    return read_whole(run.checkpoints / f"step-{step:08d}").digest
