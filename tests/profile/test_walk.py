"""The walk: one order at a time over a real Unix socket, the next only after the last has ended."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from wattmesh.controller.profile.job import Candidate, ProfileJob
from wattmesh.controller.profile.launch import run_walk
from wattmesh.controller.profile.walk import ProfileWalk, WalkServer
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.link import DaemonLink
from wattmesh.reconfig.wire.messages import Order, Orders, Progress, Register, Transition

POINTS = (
    Candidate(id="A", layout=Layout(dp_shard=4)),
    Candidate(id="B", layout=Layout(dp_shard=2)),
    Candidate(id="C", layout=Layout(tp=2)),
)
JOB = ProfileJob(
    name="job",
    directory=Path(),
    command=(),
    processes=4,
    reference="A",
    points=POINTS,
    tokens_per_step=1,
    every=3,
    intervals=2,
)
RUN = "6d1c9d0e-0000-4000-8000-000000000001"
REGISTER = Register(
    run=RUN,
    name="job",
    incarnation="i",
    attempt=7,
    layout=POINTS[0].layout,
    ranks=(0, 1, 2, 3),
    world_size=4,
)


def progress(step: int) -> Progress:
    """Report a step of a job that stayed at A."""
    return Progress(
        run=RUN,
        incarnation="i",
        attempt=7,
        seq=step,
        step=step,
        samples=step,
        tokens=step,
        tokens_per_s=1.0,
        loss=1.0,
        layout=POINTS[0].layout,
        ranks=(0, 1, 2, 3),
    )


class Served:
    """A walk, the way to it, and what it told."""

    def __init__(self, path: Path, walk: Sequence[Candidate] = JOB.walk) -> None:
        """Serve a fresh walk at `path`."""
        self.told: list[str] = []
        self.walk = ProfileWalk(walk, self.told.append, steps_each=JOB.steps_per_point)
        self.server = WalkServer(path, self.walk)
        self.link = DaemonLink(str(path))

    def post(self, kind: str, message: Register | Transition | Progress) -> int:
        """Post one message, and give the status."""
        return self.link.call("POST", f"/v1/runs/{RUN}/{kind}", message.to_json(), 5).status

    def order(self) -> Order | None:
        """Ask for the newest order."""
        return Orders.from_json(
            self.link.call("GET", f"/v1/runs/{RUN}/order?wait=1", None, 5).body
        ).order

    def end(self, order: Order, state: SwitchState, *, step: int, detail: str = "") -> None:
        """Report the end of a switch."""
        transition = Transition(
            run=RUN,
            incarnation="i",
            attempt=7,
            switch_id=order.switch_id,
            epoch=order.epoch,
            state=state,
            step=step,
            elapsed_s=1.0,
            detail=detail,
        )
        assert self.post("transitions", transition) == 200


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Give a served walk."""
    served = Served(tmp_path / "s")
    with served.server:
        yield served


def test_a_job_is_walked_through_every_layout_in_turn(served: Served) -> None:
    """Each order opens when the last has ended, a segment after where that began."""
    assert served.order() is None
    assert served.post("register", REGISTER) == 200
    first = served.order()
    assert first is not None
    assert (first.point, first.ranks, first.not_before_step, first.attempt) == ("B", (0, 1), 6, 7)
    # However fast it trains: an order that grew void would leave it where it is, for ever.
    assert first.valid_until_step > 1 << 30
    served.end(first, SwitchState.LOADED, step=9)
    assert served.order() == first
    served.end(first, SwitchState.CONFIRMED, step=9)
    second = served.order()
    assert second is not None
    assert (second.point, second.not_before_step) == ("C", 15)
    served.end(first, SwitchState.CONFIRMED, step=9)
    assert served.order() == second
    served.end(second, SwitchState.CONFIRMED, step=15)
    assert served.order() is None
    assert served.walk.started == {"A": 0, "B": 9, "C": 15}
    assert [words.split()[0] for words in served.told] == ["A", "B", "C"]


def test_a_layout_that_is_not_reached_is_passed_over_with_its_reason(served: Served) -> None:
    """A switch that was rolled back does not end the walk."""
    served.post("register", REGISTER)
    first = served.order()
    assert first is not None
    served.end(first, SwitchState.ROLLED_BACK, step=6, detail="the probe moved")
    second = served.order()
    assert second is not None
    assert second.point == "C"
    assert served.walk.refused == {"B": "the probe moved"}


def test_a_job_that_stayed_is_not_ordered_to_go_back_to_where_it_is(tmp_path: Path) -> None:
    """It would take no such order, and the walk there and back would wait for it in vain."""
    served = Served(tmp_path / "s", walk=(POINTS[0], POINTS[1], POINTS[0]))
    with served.server:
        served.post("register", REGISTER)
        first = served.order()
        assert first is not None
        served.end(first, SwitchState.ROLLED_BACK, step=6, detail="the probe moved")
        assert served.order() is None
        for step, over in ((11, False), (12, True)):
            served.post("progress", progress(step))
            assert served.walk.over is over
    assert served.walk.refused == {"B": "the probe moved"}


def test_a_job_that_begins_elsewhere_is_refused(served: Served) -> None:
    """The reference and the command must agree; the answer says which is which."""
    wrong = replace(REGISTER, layout=Layout(tp=4))
    answer = served.link.call("POST", "/v1/runs/{RUN}/register", wrong.to_json(), 5)
    assert answer.status == 400
    assert "its reference A is dp4" in answer.body["error"]


@pytest.mark.parametrize("body", [{}, {"plan": 3}, {"layout": "tp2"}])
def test_nonsense_is_answered_in_words(served: Served, body: dict[str, object]) -> None:
    """A message that misses fields is a 400, and the walk goes on."""
    for kind in ("register", "progress", "transitions"):
        assert served.link.call("POST", f"/v1/runs/{RUN}/{kind}", body, 5).status == 400
    assert served.link.call("POST", "/v1/runs/{RUN}/finish", body, 5).status == 200


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian.py"], "can't open file"),
        (["-m", "trian"], "No module named trian"),
        (["-c", "import argparse; argparse.ArgumentParser('t').parse_args(['-x'])"], "t: error: "),
    ],
)
def test_a_command_that_python_cannot_start_is_told_in_its_own_words(
    tmp_path: Path, words: list[str], said: str
) -> None:
    """Not in torchrun's, which raises an error of its own about every child that failed."""
    torchrun = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
    script = f'"$@"; status=$?; echo "{torchrun}"; exit $status'
    start = ("sh", "-c", script, "sh", sys.executable, *words)
    job = replace(JOB, directory=tmp_path)
    told: list[str] = []
    end = run_walk(
        job,
        ProfileWalk(job.walk, told.append),
        tmp_path / "launch",
        launcher=lambda _job, _command: start,
    )
    assert said in end.sentence
    assert torchrun not in end.sentence
