"""A rank hangs, dies or fails in each phase of a switch: the run goes on, losses equal.

Three ranks: the switch goes from dp2 on ranks 0 and 1 to tp2 on ranks 1 and 2, so that one rank is
parked, one woken, one in both, and global rank 0 stops leading. Each test prints its wall time.
"""

import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import PATIENT, TP2, Run, Zygote, short, until, worst_difference
from tests.hook.tiny import EVERY, Fault
from wattmesh.reconfig.switch import SwitchState

Undisturbed = Callable[[int, str], dict[int, float]]

STEPS = 15
SWITCH_AT = 10
PHASES = ("agree", "save", "rebuild_after_mesh", "load", "verify")
"""And teardown, where the leader is killed; before its rebuild a parked one is."""

AT_ONCE = 2
"""Runs under way at once: most of their time is spent waiting for deadlines."""

DEADLINE_OF = {"rebuild_after_mesh": "rebuild"}
"""The phase whose deadline bounds a place of a fault, where it has another name."""


@pytest.fixture
def run(zygote: Zygote, tmp_path: Path, socket_path: Path) -> Run:
    """A run of three ranks that is ordered to switch at step 10."""
    return new_run(zygote, tmp_path, socket_path)


def new_run(zygote: Zygote, folder: Path, socket_path: Path) -> Run:
    """Prepare a run of three ranks that speaks to the daemon at `socket_path`."""
    return Run(
        zygote,
        folder,
        3,
        steps=STEPS,
        boundary_every=5,
        wait_for={str(SWITCH_AT): "order-1"},
    ).with_daemon(socket_path)


def switched(run: Run, socket_path: Path) -> FakeDaemon:
    """Train the run to its end under a daemon that orders the switch once."""
    wish = Wish(layout=TP2, ranks=(1, 2), at=SWITCH_AT)
    with FakeDaemon(socket_path, run.out, [wish]) as daemon:
        assert run.supervised() == 0, (run.said, run.log())
    return daemon


def wall_s(run: Run, phase: str, what: str) -> float:
    """Seconds from the fault to the first step trained after it."""
    mark = next(run.out.glob("fault-*"))
    hurt_at = float(mark.read_text())
    after = (line for line in run.lines() if line["at"] > hurt_at)
    again = next(line for line in after if line["attempt"] == len(run.launches))
    seconds = float(again["at"]) - hurt_at
    print(f"\n{what} in {phase}: training again after {seconds:.1f} s; {' | '.join(run.said)}")
    return seconds


@pytest.mark.parametrize(
    ("what", "phases"), [("kill", PHASES), ("stop", ("save", "rebuild_after_mesh", "verify"))]
)
def test_a_rank_is_lost_in_each_phase(
    zygote: Zygote,
    tmp_path: Path,
    undisturbed: Undisturbed,
    what: str,
    phases: tuple[str, ...],
) -> None:
    """A killed or stopped rank ends the launch, and the next goes on in the old layout.

    A stopped one is found by the same watchdogs in every phase: it is waited for in three.
    """
    expected = undisturbed(STEPS, "float32")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(partial(lose_a_rank, zygote, tmp_path, what), phases))
    heard = 0
    for phase, (run, daemon) in zip(phases, outcomes, strict=True):
        wall_s(run, phase, what)
        assert len(run.launches) == 2, (phase, run.said)
        late = "past its deadline of 8 s" in run.said[0]
        # A rank ends itself although a busy disk does not take its words in time.
        assert late == (what == "stop") or "no rank said why" in run.said[0], (phase, run.said)
        heard += late
        assert run.layouts() == ["dp2"], phase
        assert worst_difference(run.losses(), expected) == 0.0, phase
        if phase != "agree":
            assert daemon.states()[-1] is SwitchState.ROLLED_BACK, phase
            assert daemon.heard.transitions[-1].attempt == 2
        first, second = daemon.heard.registers
        assert first.supersedes is None
        assert second.supersedes == first.incarnation
    assert (heard > 0) == (what == "stop")


def lose_a_rank(zygote: Zygote, folder: Path, what: str, phase: str) -> tuple[Run, FakeDaemon]:
    """Train a run whose rank 1 is lost in `phase` of its switch."""
    new = phase in ("rebuild", "rebuild_after_mesh", "load", "verify")
    fault = Fault(
        rank=1,
        at=phase,
        what=what,
        after_step=SWITCH_AT,
        layout=TP2.to_dict() if new else None,
    )
    with tempfile.TemporaryDirectory(prefix="wm") as near:
        socket_path = Path(near) / "d.sock"
        run = new_run(zygote, folder / phase, socket_path)
        run.lose(fault, DEADLINE_OF.get(phase, phase))
        return run, switched(run, socket_path)


def test_the_leader_is_killed_while_it_leads(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """Global rank 0 dies with its client; the next launch reports what became of the switch."""
    run.change(fault=Fault(rank=0, at="teardown", what="kill", after_step=SWITCH_AT))
    daemon = switched(run, socket_path)
    wall_s(run, "teardown of the leader", "kill")
    assert worst_difference(run.losses(), undisturbed(STEPS, "float32")) == 0.0
    assert daemon.states()[-1] is SwitchState.ROLLED_BACK


@pytest.mark.parametrize("what", [signal.SIGSTOP, signal.SIGKILL])
def test_a_parked_rank_does_not_wake(
    run: Run, socket_path: Path, undisturbed: Undisturbed, what: signal.Signals
) -> None:
    """A rank lost while parked is missed at once or at the rebuild, and the run restarts."""
    run.change(wait_for={str(SWITCH_AT): "go"}, deadlines=short("rebuild"))
    run.later = PATIENT
    hurt = threading.Thread(target=_lose_parked, args=(run, what))
    hurt.start()
    daemon = switched(run, socket_path)
    hurt.join()
    wall_s(run, "parking", what.name)
    assert len(run.launches) == 2
    assert worst_difference(run.losses(), undisturbed(STEPS, "float32")) == 0.0
    # A killed one may be missed before the switch is begun.
    assert set(daemon.states()[-1:]) <= {SwitchState.ROLLED_BACK}


def _lose_parked(run: Run, what: signal.Signals) -> None:
    """Signal rank 2 once the order has arrived, then let the others reach the boundary."""
    until((run.out / "order-1").exists, "the order was fetched")
    os.kill(run.zygote.pids(run.launches[0])[2], what)
    (run.out / "fault-parked").write_text(str(time.time()))
    (run.out / "go").touch()


@pytest.mark.parametrize("what", ["stop", "hang"])
def test_a_rank_is_lost_between_boundaries(
    zygote: Zygote, tmp_path: Path, undisturbed: Undisturbed, what: str
) -> None:
    """Ordinary training has a deadline too, for ranks that train and ranks that are parked."""
    fault = Fault(rank=1, at="agree", what=what, after_step=7)
    run = Run(zygote, tmp_path, 3, steps=STEPS, boundary_every=5)
    run.lose(fault, "train")
    assert run.supervised() == 0, (run.said, run.log())
    wall_s(run, "training", what)
    assert "past its deadline of 8 s" in run.said[0], run.said
    assert worst_difference(run.losses(), undisturbed(STEPS, "float32")) == 0.0


@pytest.mark.parametrize("phase", ["rebuild_after_mesh", "load", "verify"])
def test_an_error_in_the_new_layout_is_rolled_back_in_place(
    run: Run, socket_path: Path, undisturbed: Undisturbed, phase: str
) -> None:
    """An exception on one rank of the new layout brings all back to the old one, in one launch."""
    run.change(fault=Fault(rank=2, at=phase, what="raise", after_step=0, layout=TP2.to_dict()))
    daemon = switched(run, socket_path)
    wall_s(run, phase, "raise")
    assert len(run.launches) == 1, run.said
    assert run.layouts() == ["dp2"]
    assert worst_difference(run.losses(), undisturbed(STEPS, "float32")) == 0.0
    assert daemon.states()[-2:] == [SwitchState.ROLLING_BACK, SwitchState.ROLLED_BACK]
    assert "the test broke rank 2" in daemon.heard.transitions[-1].detail


def test_a_wrong_probe_is_rolled_back(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """A model that does not give the same loss after a switch never trains in that layout."""
    run.change(fault=Fault(rank=1, at="verify", what="wrong", after_step=0, layout=TP2.to_dict()))
    daemon = switched(run, socket_path)
    assert run.layouts() == ["dp2"]
    assert worst_difference(run.losses(), undisturbed(STEPS, "float32")) == 0.0
    assert daemon.states()[-1] is SwitchState.ROLLED_BACK
    assert "probe" in daemon.heard.transitions[-1].detail


def test_no_switch_begins_where_the_probe_is_no_number(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """Nothing equals it, so no way back could be proven: the run stays where it is, and trains."""
    run.change(fault=Fault(rank=1, at="probe_before", what="nan", after_step=1))
    daemon = switched(run, socket_path)
    assert (len(run.launches), run.layouts()) == (1, ["dp2"]), run.said
    assert worst_difference(run.losses(), undisturbed(STEPS, "float32")) == 0.0
    assert SwitchState.REBUILDING not in daemon.states()
    assert "probe loss is nan before the switch" in daemon.heard.transitions[-1].detail


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (EVERY, r"optim.param_groups.\S+.lr is 1.0, and was saved as 0.01"),
        (2, r"ranks hold different values under the name 'optim.param_groups.*\(lr is "),
    ],
)
def test_another_learning_rate_is_rolled_back(
    run: Run, socket_path: Path, undisturbed: Undisturbed, rank: int, words: str
) -> None:
    """A switch after which the optimizer has other settings, on one rank or all, is taken back."""
    new = TP2.to_dict()
    run.change(fault=Fault(rank=rank, at="load", what="rate", after_step=0, layout=new, repeats=2))
    daemon = switched(run, socket_path)
    assert run.layouts() == ["dp2"]
    assert worst_difference(run.losses(), undisturbed(STEPS, "float32")) == 0.0
    assert daemon.states()[-1] is SwitchState.ROLLED_BACK
    assert re.search(words, daemon.heard.transitions[-1].detail)
    # One line of all ranks' logs together tells it.
    told = [
        line for line in run.log().splitlines() if re.search(r"reconfig\.(?!daemon client)", line)
    ]
    assert len(told) == 1, told
    begins = r"not switched from dp2 to tp2: taken back at step 10 after \S+ s\. Why: "
    assert re.search(begins + ".*" + words + r".*The job goes back to dp2\.$", told[0])


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("damage", r"saved with .*; checkpoint \S*step-\S+: data-1-0.safetensors has changed: "),
        (
            "damage_streams",
            r"random stream .*; checkpoint \S*step-\S+: data-1-0.safetensors has changed: ",
        ),
        ("damage_plan", r"checkpoint \S+staging: data-\d-0.safetensors cannot be read"),
    ],
)
def test_damage_between_save_and_load_is_named(
    run: Run, socket_path: Path, undisturbed: Undisturbed, what: str, words: str
) -> None:
    """The digest, or the stream's hash, shows it; the file is named; an older one is resumed.

    So it is where the way back cannot be opened at all: no human need be called.
    """
    run.change(fault=Fault(rank=1, at="rebuild", what=what, after_step=0, layout=TP2.to_dict()))
    switched(run, socket_path)
    assert len(run.launches) == 2, run.said
    assert run.layouts() == ["dp2"]
    assert worst_difference(run.losses(), undisturbed(STEPS, "float32")) == 0.0
    assert re.search(words, run.log())


def test_a_rollback_that_fails_ends_in_a_restart(
    run: Run, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """When going back fails too, the launch ends and the next one goes on in the old layout."""
    run.change(fault=Fault(rank=1, at="verify", what="raise", after_step=SWITCH_AT, repeats=2))
    daemon = switched(run, socket_path)
    assert len(run.launches) == 2, run.said
    assert run.layouts() == ["dp2"]
    assert worst_difference(run.losses(), undisturbed(STEPS, "float32")) == 0.0
    assert daemon.states()[-1] is SwitchState.ROLLED_BACK
