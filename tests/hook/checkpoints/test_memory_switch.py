"""Whatever dies at whatever instant of an in-memory switch, the run goes on from old or from new.

The kill matrix: every rank of the launch is killed at once, in each phase and at each instant at
which the durable checkpoint is still being written behind training. Nothing of the staged copy may
be needed, nothing of it may be left, and the state that training resumes with is bit for bit that
of a run that nothing happened to. That one rank dies is `test_faults.py`; here, while it writes.
"""

import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import DP2, PATIENT, TP2, Run, Zygote, worst_difference
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

IN_NEW_LAYOUT = ("load", "verify", "rebuild_after_mesh")


@pytest.fixture(scope="module")
def untouched(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The state's digest at both save steps of a run that nothing happened to."""
    run = Run(zygote, tmp_path_factory.mktemp("untouched"), 2, steps=NEW, boundary_every=EVERY)
    assert run.once() == 0, run.log()
    return {step: _digest(run, step) for step in (OLD, NEW)}


def killed(
    zygote: Zygote, folder: Path, what: str, phase: str
) -> tuple[str, Run, tuple[SwitchState, ...]]:
    """Train a run to its end that is killed in `phase` of its switch at step 10."""
    layout = TP2.to_dict() if phase in IN_NEW_LAYOUT else None
    fault = Fault(rank=0, at=phase, what=what, after_step=SWITCH_AT, layout=layout)
    with tempfile.TemporaryDirectory(prefix="wm") as near:
        socket = Path(near) / "d.sock"
        run = Run(
            zygote,
            folder / phase,
            2,
            steps=STEPS,
            boundary_every=EVERY,
            wait_for={str(SWITCH_AT): "order-1"},
            deadlines=PATIENT,
        ).with_daemon(socket)
        run.change(fault=fault)
        with FakeDaemon(socket, run.out, [Wish(layout=TP2, ranks=(0, 1), at=SWITCH_AT)]) as daemon:
            assert run.supervised() == 0, (phase, run.said, run.log())
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
        assert len(run.launches) == 2, (phase, run.said)
        before = [line["step"] for line in run.lines() if line["attempt"] == 1]
        after = [line["step"] for line in run.lines() if line["attempt"] == 2]
        resumed = after[0] - 1
        lost = max(before) - resumed
        print(f"\n{what} in {phase}: resumed at {resumed}, {lost} steps lost, {states[-1:]}")
        assert resumed == resumed_at[phase], (phase, run.log())
        # While the copy is written behind training, steps are trained that a busy disk can lose.
        assert lost <= (STEPS - resumed if phase.startswith("behind") else EVERY), phase
        assert {line["layout"] for line in run.lines() if line["attempt"] == 2} == {"dp2"}, phase
        assert _digest(run, resumed) == untouched[resumed], phase
        # Every step of the old layout is trained again bit for bit, whatever was half done.
        worst = worst_difference(run.losses(), undisturbed(STEPS, "float32"))
        assert worst <= (1e-5 if resumed == NEW else 0.0), phase
        assert not list(run.checkpoints.glob(".*staging")), phase
        assert read_whole(run.checkpoints / f"step-{NEW:08d}").step == NEW, phase


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


def _digest(run: Run, step: int) -> str:
    """The logical digest of a checkpoint, every byte of which was compared."""
    return read_whole(run.checkpoints / f"step-{step:08d}").digest
