"""A daemon that is absent, slow or mad changes nothing; reports arrive once and in order."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tests.hook.daemon import SLOW_S, FakeDaemon, Misbehaving, Wish
from tests.hook.harness import DP2, TP2, Run, Zygote, until, worst_difference
from tests.hook.switches.test_switch import GOOD
from wattmesh.reconfig.fingerprint import COMPUTES_WITH
from wattmesh.reconfig.gpus.allocated_gpus import UNKNOWN
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import GPUS_UNKNOWN, Transition

Undisturbed = Callable[[int, str], dict[int, float]]
MISDEEDS = (
    ("slow",),
    ("garbage", "not_json", "list", "wrong_types"),
    ("errors", "refuses", "unknown"),
)
"""What a daemon does wrong in turn, call by call."""


def new_run(zygote: Zygote, folder: Path, socket_path: Path, **options: object) -> Run:
    """A run of two ranks that looks for a daemon at `socket_path`."""
    run = Run(zygote, folder, 2, steps=15, boundary_every=5, **options)
    return run.with_daemon(socket_path)


def test_an_absent_daemon_changes_nothing(
    zygote: Zygote, tmp_path: Path, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """Same losses; the end of the launch is told to a daemon that comes later, once.

    So is what it cannot find out about the GPUs of its Slurm job.
    """
    run = new_run(zygote, tmp_path, socket_path)
    assert run.once() == 0, run.log()
    assert worst_difference(run.losses(), undisturbed(15, "float32")) == 0.0
    kept = [json.loads(path.read_text()) for path in (run.checkpoints / "outbox").iterdir()]
    assert [each["kind"] for each in kept] == ["finish"]
    run.change(steps=20)
    run.environment |= {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "all", "SLURM_JOB_NUM_NODES": "1"}
    with FakeDaemon(socket_path, run.out, []) as daemon:
        assert run.once() == 0, run.log()
    unknown = f"{GPUS_UNKNOWN}{UNKNOWN}: SLURM_JOB_GPUS is no list of numbers"
    assert unknown in daemon.heard.registers[0].capabilities
    assert daemon.heard.registers[0].allocated == ()
    first, second = daemon.heard.finishes
    assert (first.attempt, first.step, second.attempt, second.step) == (1, 15, 2, 20)
    assert daemon.heard.registers[0].supersedes == first.incarnation
    said = [each for each in daemon.heard.registers[0].capabilities if COMPUTES_WITH in each]
    assert any(each.startswith(f"{COMPUTES_WITH}torch: ") for each in said)
    assert any(each.startswith(f"{COMPUTES_WITH}code_digest: ") for each in said)
    assert list((run.checkpoints / "outbox").iterdir()) == []


def test_a_mad_daemon_changes_nothing(
    zygote: Zygote, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Minutes per answer, garbage, refusals: same losses, and training does not wait."""
    expected = undisturbed(15, "float32")
    with ThreadPoolExecutor(len(MISDEEDS)) as pool:
        runs = list(pool.map(partial(endure, zygote, tmp_path), MISDEEDS))
    for how, run in zip(MISDEEDS, runs, strict=True):
        assert worst_difference(run.losses(), expected) == 0.0, how
        assert run.layouts() == ["dp2"], how
        lines = run.lines()
        assert lines[-1]["at"] - lines[0]["at"] < SLOW_S, how


def endure(zygote: Zygote, folder: Path, how: tuple[str, ...]) -> Run:
    """Train a run beside a daemon that misbehaves; it must be asked, and must not matter."""
    short = folder / how[0]
    short.mkdir()
    socket_path = short / "s"
    run = new_run(zygote, short, socket_path, wait_for={"12": "endured"})
    with Misbehaving(socket_path, how) as daemon:
        run.launch({})
        until(lambda: daemon.calls >= 2 * len(how), "it was asked")
        (run.out / "endured").touch()
        assert zygote.wait(run.launches[0]) == 0, run.log()
    return run


def test_void_orders_are_not_taken(
    zygote: Zygote, tmp_path: Path, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """Late, foreign or impossible orders leave the run in its layout, without a transition."""
    wishes = [
        Wish(layout=TP2, ranks=(0, 1), at=5, late_by=3),
        Wish(layout=TP2, ranks=(0, 1), at=10, attempt=7),
        Wish(layout=TP2, ranks=(0, 1), at=15, run="not-this-one"),
        Wish(layout=TP2, ranks=(0, 5), at=20),
    ]
    waits = {str(5 * n): f"order-{n}" for n in range(1, 5)}
    run = new_run(zygote, tmp_path, socket_path, wait_for=waits)
    run.change(steps=25)
    with FakeDaemon(socket_path, run.out, wishes) as daemon:
        assert run.once() == 0, run.log()
    assert run.layouts() == ["dp2"]
    assert daemon.states() == []
    assert worst_difference(run.losses(), undisturbed(25, "float32")) == 0.0
    for reason in ("past its last step 2", "for attempt 7", "for run not-this-one", "rank 5"):
        assert reason in run.log()


def test_an_order_given_twice_or_from_an_older_epoch_acts_once(
    zygote: Zygote, tmp_path: Path, socket_path: Path
) -> None:
    """The same plan again, and a later plan of an older leader, change nothing more."""
    wishes = [
        Wish(layout=TP2, ranks=(0, 1), at=5, switch_id="one", epoch=3),
        Wish(layout=TP2, ranks=(1, 0), at=10, switch_id="one", epoch=3),
        Wish(layout=TP2, ranks=(1, 0), at=15, switch_id="two", epoch=2),
    ]
    waits = {"5": "order-1", "10": "order-2", "15": "order-3"}
    run = new_run(zygote, tmp_path, socket_path, wait_for=waits)
    run.change(steps=20)
    with FakeDaemon(socket_path, run.out, wishes) as daemon:
        assert run.once() == 0, run.log()
    assert run.layouts() == ["dp2", "tp2"]
    assert {tuple(line["ranks"]) for line in run.lines()} == {(0, 1)}
    assert {each.switch_id for each in daemon.heard.transitions} == {"one"}
    assert len(daemon.states("one")) == len(set(daemon.states("one")))


def test_a_launch_behind_the_journal_claims_a_higher_attempt(
    zygote: Zygote, tmp_path: Path, socket_path: Path
) -> None:
    """After a folder was restored from a backup, attempts rise until the daemon accepts one."""
    wish = Wish(layout=TP2, ranks=(0, 1), at=10)
    run = new_run(zygote, tmp_path, socket_path, wait_for={"10": "order-1"})
    with FakeDaemon(socket_path, run.out, [wish]) as daemon:
        daemon.refuse_below_attempt = 4
        assert run.once() == 0, run.log()
    assert daemon.heard.registers[-1].attempt == 4
    assert {each.attempt for each in daemon.heard.transitions} == {4}
    assert run.layouts() == ["dp2", "tp2"]
    assert daemon.heard.finishes[0].attempt == 4


class Dying(FakeDaemon):
    """A daemon that is gone, in the middle of its answer, once it hears of one state."""

    dies_at = SwitchState.REBUILDING
    dead = False

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Answer until that state is told."""
        self.dead = self.dead or body.get("state") == self.dies_at
        if self.dead:
            raise BrokenPipeError("this daemon has died")
        return super().answer(method, path, body)


class Hasty(FakeDaemon):
    """A daemon that gives its next order while the switch of the one before is under way."""

    def _follow(self, transition: Transition) -> None:
        super()._follow(transition)
        if transition.state is SwitchState.ANNOUNCED:
            self._open = None


def test_a_daemon_that_dies_during_a_switch_is_told_the_rest_when_it_is_back(
    zygote: Zygote, tmp_path: Path, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """The switch needs nobody to finish; what was not acknowledged arrives later, in order."""
    run = new_run(zygote, tmp_path, socket_path, wait_for={"10": "order-1", "13": "back"})
    with Dying(socket_path, run.out, [Wish(layout=TP2, ranks=(0, 1), at=10)]):
        run.launch({})
        until(lambda: len(run.lines()) >= 12, "training goes on after the switch")
    socket_path.unlink()
    with FakeDaemon(socket_path, run.out, []) as daemon:
        # A launch that ends keeps on disk what it could not send in time.
        until(lambda: SwitchState.CONFIRMED in daemon.states(), "the rest was told")
        (run.out / "back").touch()
        assert zygote.wait(run.launches[0]) == 0, run.log()
    assert run.layouts() == ["dp2", "tp2"]
    assert worst_difference(run.losses(), undisturbed(15, "float32")) <= 1e-5
    assert daemon.states() == GOOD[GOOD.index(SwitchState.REBUILDING) :]


def test_an_order_that_arrives_during_a_switch_waits_for_its_end(
    zygote: Zygote, tmp_path: Path, socket_path: Path, undisturbed: Undisturbed
) -> None:
    """Two orders race; each is carried out once, whole, and on every rank the same."""
    wishes = [Wish(layout=TP2, ranks=(1, 0), at=5), Wish(layout=DP2, ranks=(1, 0), at=10)]
    run = new_run(zygote, tmp_path, socket_path, wait_for={"5": "order-1", "10": "order-2"})
    with Hasty(socket_path, run.out, wishes) as daemon:
        assert run.once() == 0, run.log()
    assert run.layouts() == ["dp2", "tp2", "dp2"]
    assert worst_difference(run.losses(), undisturbed(15, "float32")) <= 1e-5
    assert daemon.states() == GOOD * 2
