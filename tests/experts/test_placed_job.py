"""Experts of a live job placed anew at save steps: equal training, and old or new when killed."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.process import daemon
from tests.daemon.waiting import wait_for
from tests.experts.placed_job import (
    EVERY,
    EXPERTS,
    LAYERS,
    STEPS_OF,
    at_step,
    header_of_newest,
)
from tests.hook.conftest import socket_path
from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import Run, Zygote
from tests.hook.tiny import Fault
from wattmesh.controller.cli.main import main
from wattmesh.controller.journal.journal import Journal
from wattmesh.reconfig.launch.folder import OUTCOME_VARIABLE
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import SwitchMode

__all__ = ["socket_path"]

EP2 = Layout(dp_shard=2, ep=2)
TP2 = Layout(tp=2)
"""Every expert on both ranks, half of its width on each."""
Placement = tuple[tuple[int, ...], ...]
STEPS = at_step(len(STEPS_OF) + 1) + EVERY


def placements(count: int) -> list[Placement]:
    """Draw placements, each another one than before."""
    draw = random.Random(5)
    return [
        tuple(tuple(draw.sample(range(EXPERTS), EXPERTS)) for _ in range(LAYERS))
        for _ in range(count)
    ]


class PlacedRun(Run):
    """A run of the job; the orders that it waits for are those of its wishes."""

    def __init__(self, zygote: Zygote, folder: Path, layout: Layout, steps: int) -> None:
        """Nothing is launched yet."""
        super().__init__(
            zygote,
            folder,
            layout.world_size,
            layout=layout,
            steps=steps,
            boundary_every=EVERY,
            dtype="float64",
        )
        self.job = "tests.experts.placed_job:main"
        zygote.load("tests.experts.placed_job")

    def ordered(self, socket_path: Path, wishes: Sequence[Wish]) -> FakeDaemon:
        """A daemon that gives these orders, for which the run waits."""
        socket_path.unlink(missing_ok=True)
        for mark in self.out.glob("order-*"):
            mark.unlink()
        self.with_daemon(socket_path)
        self.change(wait_for={str(each.at): f"order-{n}" for n, each in enumerate(wishes, 1)})
        return FakeDaemon(socket_path, self.out, list(wishes))

    def placed(self) -> dict[int, Any]:
        """Where experts lay in each step."""
        text = (self.out / "placed.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        return {line["step"]: tuple(tuple(rows) for rows in line["as"]) for line in lines}


@pytest.fixture(scope="module")
def untouched(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses by step of a run on two ranks to which nothing happened."""
    folder = tmp_path_factory.mktemp("untouched")
    run = PlacedRun(zygote, folder, EP2, STEPS)
    run.change(boundary_every=100)
    assert run.once() == 0, run.log()
    return run.losses()


def test_experts_are_placed_at_save_steps_and_no_bit_of_a_loss_moves(
    zygote: Zygote, tmp_path: Path, socket_path: Path
) -> None:
    """Placed in the switch to another layout, moved back as they lie: the losses of neither."""
    (first,) = placements(1)
    wishes = [
        Wish(layout=TP2, ranks=(0, 1), at=1, placement=first),
        Wish(layout=EP2, ranks=(0, 1), at=2),
    ]
    run = PlacedRun(zygote, tmp_path / "placed", EP2, 4)
    with run.ordered(socket_path, wishes) as daemon:
        assert run.once() == 0, run.log()
    assert daemon.states()[-1] is SwitchState.CONFIRMED, run.log()
    assert daemon.states().count(SwitchState.CONFIRMED) == 2
    assert [run.placed()[step] for step in range(1, 5)] == [(), first, first, first]
    for each in daemon.heard.transitions:
        if each.state is SwitchState.CONFIRMED:
            assert each.evidence["digest_before"] == each.evidence["digest_after"]
    assert header_of_newest(run.checkpoints)["placement"] == [list(rows) for rows in first]
    moved = sum(n != expert for rows in first for n, expert in enumerate(rows))
    assert f"to tp2 with {moved} experts placed anew in place at step 1" in run.log()
    assert "to dp2 ep2 in place at step 2" in run.log()

    plain = PlacedRun(zygote, tmp_path / "plain", EP2, 4)
    with plain.ordered(socket_path, [replace(each, placement=()) for each in wishes]):
        assert plain.once() == 0, plain.log()
    assert run.losses() == plain.losses()
    assert len(set(plain.losses().values())) == 4


def test_killed_at_each_step_of_a_placement_experts_lie_as_before_or_as_ordered(
    zygote: Zygote, tmp_path: Path, socket_path: Path, untouched: dict[int, float]
) -> None:
    """Six launches die, each at another step of its placement; then one goes by restart."""
    kept, *ordered, last = placements(len(STEPS_OF) + 2)
    by_restart = len(STEPS_OF) + 1
    wishes = [
        Wish(layout=EP2, ranks=(0, 1), at=at_step(n), placement=each)
        for n, each in enumerate([kept, *ordered, last])
    ]
    leaves = replace(wishes.pop(), mode=SwitchMode.RESTART)
    run = PlacedRun(zygote, tmp_path / "killed", EP2, STEPS)
    run.environment |= {"KILLED": "yes", OUTCOME_VARIABLE: str(tmp_path / "outcome")}
    run.change(fault=Fault(rank=0, at="", what="kill_all", after_step=0))
    with run.ordered(socket_path, wishes):
        for _ in STEPS_OF:
            assert run.once() != 0, run.log()
            assert header_of_newest(run.checkpoints)["placement"] == [list(each) for each in kept]
    with run.ordered(socket_path, [leaves]) as daemon:
        assert run.once() == 0, run.log()
        assert "the switch from dp2 ep2 to dp2 ep2 goes by restart" in run.log()
        assert run.once() == 0, run.log()
    assert daemon.states()[-1] is SwitchState.CONFIRMED
    assert run.losses() == untouched
    # A step may be trained again: after the kill experts lie as before, in order to its end as new.
    lay = run.placed()
    assert [lay[step] for step in range(1, at_step(0) + 1)] == [()] * at_step(0)
    assert all(lay[step] == kept for step in range(at_step(0) + 1, at_step(by_restart) + 1))
    assert lay[STEPS] == last


def test_a_build_that_does_not_place_as_asked_is_taken_back(
    zygote: Zygote, tmp_path: Path, socket_path: Path, untouched: dict[int, float]
) -> None:
    """What is built otherwise is refused; what is routed or stacked otherwise moves the probe."""
    how = {
        "ignored": "otherwise than Ranks.placement asked",
        "routed by number": "probe",
        "one stack forgotten": "probe",
    }
    wishes = [
        Wish(layout=EP2, ranks=(0, 1), at=EVERY * (n + 1), placement=each)
        for n, each in enumerate(placements(len(how) + 2))
    ]
    twice = tuple((0, *range(EXPERTS - 1)) for _ in range(LAYERS))
    wishes[-1] = Wish(layout=EP2, ranks=(0, 1), at=wishes[-1].at, placement=twice)
    run = PlacedRun(zygote, tmp_path / "wrong", EP2, EVERY * (len(wishes) + 1))
    run.environment["WRONG"] = ",".join(how)
    with run.ordered(socket_path, wishes) as daemon:
        assert run.once() == 0, run.log()
    said = [
        each.detail for each in daemon.heard.transitions if each.state is SwitchState.ROLLED_BACK
    ]
    assert len(said) == len(how), (said, run.log())
    for words, told in zip(how.values(), said, strict=True):
        assert words in told
    assert daemon.states().count(SwitchState.CONFIRMED) == 1
    assert "does not place each of 8 experts once" in run.log()
    assert run.losses() == {step: untouched[step] for step in run.losses()}
    assert len(run.losses()) == EVERY * (len(wishes) + 1)


def test_an_operator_has_the_daemon_place_the_experts_of_a_live_run(
    zygote: Zygote,
    tmp_path: Path,
    untouched: dict[int, float],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`experts place FILE --run RUN`: the real daemon orders what was found, the run does it."""
    file = tmp_path / "routing.json"
    gpu = {"busy_w": 700, "idle_w": 70, "tokens_per_s": 1e5}
    chosen = [[[0, 5, 6], [1, 2, 7], [3, 4, 5]] * 9, [[0, 2, 4], [1, 3, 5], [5, 6, 7]] * 9]
    file.write_text(
        json.dumps(
            {
                "gpus": [gpu | {"name": name, "node": name} for name in "ab"],
                "crossing_j": 0.1,
                "experts": EXPERTS,
                "chosen": chosen,
            }
        )
    )
    run = PlacedRun(zygote, tmp_path, EP2, 5)
    run.with_daemon(tmp_path / "w.sock")
    run.change(wait_for={"2": "go"}, orders_by={"3": 1})
    with daemon(tmp_path, "") as running:
        run.launch({})
        wait_for(
            lambda: [each["step"] for each in running.get("/v1/runs").body["runs"]] == [1],
            "the first step",
            60.0,
        )
        words = ["experts", "place", str(file), "--run", "tiny", "--reason", "less traffic"]
        assert main([*words, "--socket", str(running.socket), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        (run.out / "go").touch()
        assert zygote.wait(run.launches[-1]) == 0, run.log()
        journal = Journal.open(f"sqlite:///{tmp_path / 'journal.db'}")
        (row,) = journal.switches.history()
        wait_for(
            lambda: journal.switches.history()[0].state is SwitchState.CONFIRMED, "its end", 60.0
        )
    assert row.requested_by == "operator"
    assert "less traffic" in row.reason
    found = tuple(tuple(rows) for rows in run.placed()[5])
    assert found == row.order.placement
    assert found != ()
    for layer, rows in enumerate(found):
        assert [told["placement"][layer][expert] for expert in rows] == [0] * 4 + [1] * 4
    assert told["after"]["crossings"] < told["before"]["crossings"]
    assert run.losses() == {step: untouched[step] for step in run.losses()}
    assert len(run.losses()) == 5
