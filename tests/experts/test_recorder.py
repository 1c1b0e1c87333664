"""What a job records of its routing: what routers chose, bounded, and nothing of it is felt."""

import json
import logging
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.utils.checkpoint import (
    checkpoint,
    create_selective_checkpoint_contexts,
)

from tests.experts.recorded_job import (
    BATCH,
    EVERY,
    EXPERTS,
    LAYERS,
    STEPS,
    WIDTH,
    Model,
    Trained,
    train,
)
from tests.experts.standing import Standing
from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.experts.recorder import PARTS, UNSEEN, record_routing
from wattmesh.integrations.pytorch.experts.router import EnergyRouter
from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.recorded_routing import check_recorded

RECORDED = [step + 1 for step in range(EVERY, STEPS - EVERY, EVERY)]
"""The first steps after save steps that another save step follows, not the run's end."""


def recorded(folder: Path) -> Any:
    """The recording of a run, checked."""
    given = json.loads((folder / "routing.json").read_text())
    assert check_recorded(given, "it")[1] == RECORDED[-1]
    return given


def expected(done: Trained, order: list[int], *, tokens: int) -> list[Any]:
    """What should have been recorded: the newest tokens of the first microbatches."""
    stride = -(-BATCH // -(-tokens // PARTS))
    count = min(len(RECORDED), tokens // -(-BATCH // stride))
    steps = RECORDED[-count:]
    return [[row for step in steps for row in done.chosen[step][at][::stride]] for at in order]


def same(one: Trained, other: Trained) -> bool:
    """Whether two trainings are one, bit for bit."""
    return one.losses == other.losses and all(map(torch.equal, one.weights, other.weights))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The training without a recorder."""
    with pytest.MonkeyPatch.context() as patch:
        return train(tmp_path_factory.mktemp("plain"), patch)


@pytest.mark.parametrize("tokens", [40, 9])
def test_it_records_what_routers_chose_in_the_first_microbatch_after_a_save_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: Trained, tokens: int
) -> None:
    """In each layer, the newest tokens and no more than asked for; training is what it is without.

    Sabotaged twin: layers in another order are another recording, and another seed another run.
    """
    done = train(tmp_path, monkeypatch, routers=lambda model: [*model.routers], tokens=tokens)
    found = recorded(tmp_path)
    assert found["experts"] == EXPERTS
    assert found["chosen"] == expected(done, [0, 1, 2], tokens=tokens)
    assert found["chosen"] != expected(done, [1, 0, 2], tokens=tokens)
    assert all(0 < len(each) <= tokens for each in found["chosen"])
    assert same(done, plain)
    if tokens == 40:
        swapped = train(
            tmp_path / "swapped", monkeypatch, routers=lambda model: [*model.routers][::-1], seed=4
        )
        assert recorded(tmp_path / "swapped")["chosen"] == expected(swapped, [2, 1, 0], tokens=4096)
        assert not same(swapped, plain)


def layers_again(model: Model, x: torch.Tensor, how: str) -> torch.Tensor:
    """A forward pass whose layers are computed again in the backward pass."""
    words: dict[str, Any] = {"use_reentrant": how == "reentrant"}
    if how == "selective":
        words["context_fn"] = partial(create_selective_checkpoint_contexts, [*OURS])
    x = x.requires_grad_()
    for at in range(LAYERS):
        x = checkpoint(model.layer, at, x, **words)
    return x


OURS = (torch.ops.aten.clone.default, torch.ops.aten.slice.Tensor)
"""Operators with which a choice is kept: a mode that saves their results must not see them."""


def gradients(how: str, folder: Path, *, record: bool) -> list[torch.Tensor]:
    """Train two microbatches, recorded or not; give the gradients."""
    torch.manual_seed(3)
    model = Model()
    session = Standing(folder, Layout(), *model.routers)
    if record:
        record_routing(session, lambda state: cast(Any, state.modules))
    session.save_step()
    chosen: list[Any] = []
    for _ in range(2):
        loss = layers_again(model, torch.randn(BATCH, WIDTH), how).square().mean()
        chosen = chosen or [model.chosen[at].tolist() for at in range(LAYERS)]
        torch.autograd.backward(loss)
    session.position.step += 1
    session.save_step()
    if record:
        assert json.loads(session.routing_file.read_text())["chosen"] == chosen
    return [each.grad for each in model.parameters() if each.grad is not None]


@pytest.mark.parametrize("how", ["plain", "reentrant", "selective"])
def test_recomputation_is_not_recorded_twice_and_not_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Also where a mode saves results of operators. Sabotaged twin: one that sees ours, too."""
    without = gradients(how, tmp_path, record=False)
    assert all(map(torch.equal, without, gradients(how, tmp_path, record=True)))
    if how == "selective":
        monkeypatch.setattr(torch_compat, "no_modes", nullcontext)
        with pytest.raises((RuntimeError, AssertionError)):
            assert all(map(torch.equal, without, gradients(how, tmp_path, record=True)))


def test_a_compiled_model_is_not_recorded_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Compiled before, it leaves out the hooks; compiled while they are there, they do nothing."""
    torch.manual_seed(3)
    for early in (True, False):
        model = Model()
        session = Standing(tmp_path, Layout(), *model.routers)
        compiled = torch.compile(model, backend="eager")
        record_routing(session, lambda state: cast(Any, state.modules))
        if early:
            compiled(torch.randn(BATCH, WIDTH))
        for _ in range(3):
            session.save_step()
            compiled(torch.randn(BATCH, WIDTH)).sum().backward()
            session.position.step += 1
        assert not session.routing_file.exists()
        assert caplog.text.count(UNSEEN) == 1
        caplog.clear()


def router(experts: int = 4) -> EnergyRouter:
    """One router."""
    return EnergyRouter(4, experts, 2)


@pytest.mark.parametrize(
    ("layout", "routers", "sentence"),
    [
        (Layout(pp=2), [router()], "no rank of a pipeline has all layers"),
        (Layout(), [], "this model has no router"),
        (Layout(), [router(4), router(5)], "layers of different numbers of experts"),
        (Layout(), [router(), router()], ""),
    ],
)
def test_what_cannot_be_recorded_is_one_sentence_and_no_file(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    layout: Layout,
    routers: list[EnergyRouter],
    sentence: str,
) -> None:
    """The last one is the twin, which can."""
    session = Standing(tmp_path, layout, *routers)
    record_routing(session, lambda state: cast(Any, state.modules))
    session.train(5)
    assert caplog.text.count("WARNING") == bool(sentence)
    assert sentence in caplog.text
    assert session.routing_file.exists() == (not sentence)


def test_no_error_of_ours_reaches_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder that is gone, routers that cannot be listed: a warning; what is mended is used."""
    session = Standing(tmp_path / "gone", Layout(), router())
    broken = [True]

    def listed(state: Any) -> Any:
        if broken:
            raise KeyError("no such layer")
        return state.modules

    record_routing(session, listed)
    session.train()
    assert "expert routing is not recorded: 'no such layer'" in caplog.text
    broken.clear()
    session.train()
    session.train()
    assert "No such file or directory" in caplog.text
    (tmp_path / "gone").mkdir()
    session.train()
    assert session.routing_file.exists()


def test_only_the_leader_records_and_only_calls_that_train(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Other ranks, and a validation without gradients, leave no file; nor does a step not taken."""
    session = Standing(tmp_path, Layout(), router())
    record_routing(session, lambda state: cast(Any, state.modules))
    session.leads = False
    session.train(3)
    session.leads = True
    with torch.no_grad():
        session.train(1)
    session.save_step()
    assert not session.routing_file.exists()
    caplog.clear()
    session.save_step()
    assert caplog.text == ""


def test_once_there_are_enough_tokens_it_waits(tmp_path: Path) -> None:
    """No further recording within `every_s`, and no hook meanwhile; at once where that is 0."""
    for every_s, newest in ((1e9, 4), (0.0, 10)):
        session = Standing(tmp_path, Layout(), router())
        record_routing(session, lambda state: cast(Any, state.modules), tokens=16, every_s=every_s)
        session.train(11)
        assert json.loads(session.routing_file.read_text())["recorded"]["step"] == newest
        hooks = session.state.modules[0]._forward_hooks
        assert len(hooks) == 0


@pytest.mark.parametrize("tokens", [0, 3, -1, 65537, 4.5, True, None])
def test_another_number_of_tokens_is_refused(tmp_path: Path, tokens: Any) -> None:
    """At the statement."""
    with pytest.raises(InputInvalid, match="is not between 4 and 65536"):
        record_routing(Standing(tmp_path, Layout()), lambda _: [], tokens=tokens)


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "wattmesh.integrations.pytorch.experts.recorder")
