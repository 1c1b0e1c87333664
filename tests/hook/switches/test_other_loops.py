"""Loops that are not ours: a switch waits until their frames are gone, and they end anywhere."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hook.harness import Zygote
from wattmesh.reconfig.equivalence.script import Script, Turn
from wattmesh.reconfig.hook.session import Session, attach
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state.state import State

JOB = "tests.hook.switches.test_other_loops:rank_in_another_loop"
TWO = Layout(dp_replicate=2)


def build(layout: Layout, ranks: Ranks) -> State:
    """A weight that all ranks train alike."""
    del layout, ranks
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    return State(modules=[model], optimizers=[torch.optim.SGD(model.parameters(), lr=0.1)])


def loop(session: Session, *, may_switch: bool) -> bool:
    """A framework's loop, whose frame holds the model; whether all is trained."""
    (model,), (optimizer,) = session.state.modules, session.state.optimizers
    while session.position.step < 3:
        loss = model(torch.ones(1, 2)).square().sum()
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        session.report(tokens=1, loss=float(loss))
        session.boundary(may_switch=may_switch)
        if session.done or (session.switch_waits and not os.environ.get("DEAF")):
            return False
    return True


def probe(state: State) -> float:
    """The loss of the batch."""
    with torch.no_grad():
        return float(state.modules[0](torch.ones(1, 2)).square().sum())


def rank_in_another_loop() -> int:
    """Train three steps; rank 0 writes how the switch ended, where, and what ended training."""
    rank, folder = int(os.environ["RANK"]), Path(os.environ["FOLDER"])
    orders = Script([Turn(step=2, layout=Layout())])
    with attach(
        "other",
        build=build,
        probe=probe,
        layout=TWO,
        checkpoint_dir=folder / "ck",
        boundary_every=2,
        reporter=orders if rank == 0 else None,
    ) as session:
        while not session.done:
            trained = loop(session, may_switch=bool(os.environ["MAY"]))
            session.boundary(last=trained)
        if rank == 0:
            (_, state, detail), *_ = orders.ends()
            told = [str(state), detail, str(session.generation.layout)]
            ended = [session.outcome, session.position.step]
            (folder / "told").write_text(json.dumps([*told, *ended]))
    return 0


@pytest.mark.parametrize("may", ["", "yes"])
def test_a_switch_waits_until_the_frames_are_gone(zygote: Zygote, tmp_path: Path, may: str) -> None:
    """The sabotaged twin may switch at once, and is taken back: its frame holds the model.

    Both end at a step that is no save step.
    """
    launch = zygote.start(2, {"FOLDER": str(tmp_path), "MAY": may}, tmp_path, JOB)
    status = zygote.wait(launch)
    assert status == 0, [each.read_text() for each in tmp_path.glob("*.log")]
    found: list[Any] = json.loads((tmp_path / "told").read_text())
    state, detail, layout, *ended = found
    assert ended == ["done", 3]
    if may:
        assert (state, layout) == ("rolled_back", str(TWO))
        assert "still held in memory" in detail
    else:
        assert (state, layout) == ("confirmed", str(Layout()))


def test_no_step_is_trained_while_a_switch_waits(zygote: Zygote, tmp_path: Path) -> None:
    """It would be lost: what the switch loads was saved before."""
    environment = {"FOLDER": str(tmp_path), "MAY": "", "DEAF": "yes"}
    assert zygote.wait(zygote.start(2, environment, tmp_path, JOB)) != 0
    logs = "".join(each.read_text() for each in tmp_path.glob("*.log"))
    assert "a switch waits since step 2, and another step was trained" in logs
