"""What a job trains with, kind by kind: each comes back from a checkpoint as it was, or is refused.

Each has its sabotaged twin: a build that leaves the thing out, or a load that changes it, must give
another digest, which is what ends a switch.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.attach.keeping import digest_of, through_a_checkpoint
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state.carried import buffers_of, check_buffers, problem
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all

pytestmark = pytest.mark.usefixtures("one_rank")

WIDTH = 4


class Net(nn.Module):
    """An embedding tied to the head, a frozen layer, fp8-like scaling and a router's state."""

    def __init__(self) -> None:
        """Make it, every value different from the model made before."""
        super().__init__()
        self.embed = nn.Embedding(6, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.head = nn.Linear(WIDTH, 6, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("amax_history", torch.rand(3, 2))
        self.register_buffer("scale", torch.rand((), dtype=torch.float64))
        self.register_buffer("expert_bias", torch.randn(5))
        self.register_buffer("tokens_per_expert", torch.randint(1, 1000, (5,)))

    def forward(self, x_B: torch.Tensor) -> torch.Tensor:
        """Give logits."""
        y_BV: torch.Tensor = self.head(self.frozen(self.embed(x_B)))
        return y_BV


def build() -> State:
    """A model with an optimizer, as `build` of a job gives it."""
    net = Net()
    optimizer = torch.optim.AdamW([net.embed.weight], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    return State(
        modules=[net], optimizers=[optimizer], extra={"schedule": scheduler, "scaler": scaler}
    )


def train(state: State, steps: int = 3) -> State:
    """Train a few steps, with scaler and schedule."""
    (net,), (optimizer,) = state.modules, state.optimizers
    scaler, scheduler = _parts(state)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(net(torch.arange(6)), torch.arange(6).roll(1))
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
    return state


def _parts(state: State) -> tuple[torch.amp.GradScaler, torch.optim.lr_scheduler.StepLR]:
    scaler, scheduler = state.extra["scaler"], state.extra["schedule"]
    assert isinstance(scaler, torch.amp.GradScaler)
    assert isinstance(scheduler, torch.optim.lr_scheduler.StepLR)
    return scaler, scheduler


@pytest.fixture
def pair(tmp_path: Path) -> tuple[State, State]:
    """A state that was trained, and another that was built afresh and loaded from it."""
    torch.manual_seed(1)
    first, second = train(build()), build()
    digest = through_a_checkpoint(tmp_path, first, second)
    assert digest_of(second) == digest
    return first, second


def test_a_scheduler_goes_on_where_it_was(pair: tuple[State, State]) -> None:
    """Its counter, and the learning rate that the optimizer steps with."""
    first, second = pair
    assert _parts(first)[1].last_epoch == _parts(second)[1].last_epoch == 3
    rates = [[state.optimizers[0].param_groups[0]["lr"] for state in pair]]
    for state in pair:
        train(state, 1)
    rates.append([state.optimizers[0].param_groups[0]["lr"] for state in pair])
    assert rates == [[pytest.approx(0.01)] * 2, [pytest.approx(0.001)] * 2]


def test_a_gradient_scaler_goes_on_where_it_was(pair: tuple[State, State]) -> None:
    """Scale and growth counter; the next growth falls on the same step."""
    scales = [_parts(state)[0].get_scale() for state in pair]
    assert scales == [2.0**11, 2.0**11]
    states = [_parts(state)[0].state_dict() for state in pair]
    assert states[0] == states[1]


@pytest.mark.parametrize("name", ["amax_history", "scale", "expert_bias", "tokens_per_expert"])
def test_buffers_come_back_to_the_bit(pair: tuple[State, State], name: str) -> None:
    """fp8's amax and scale, a router's bias and counters: of their own shape and dtype."""
    one, other = (state.modules[0].get_buffer(name) for state in pair)
    assert one.dtype == other.dtype
    assert torch.equal(one, other)


def test_a_frozen_parameter_needs_no_optimizer(pair: tuple[State, State]) -> None:
    """It comes back, still frozen, and nobody invented moments for it."""
    first, second = pair
    frozen = second.modules[0].get_parameter("frozen.weight")
    assert torch.equal(frozen, first.modules[0].get_parameter("frozen.weight"))
    assert not frozen.requires_grad
    assert not [key for key in name_all(second).tensors if "state.frozen" in key]


def test_tied_embeddings_stay_tied(pair: tuple[State, State]) -> None:
    """One parameter under two names, before and after, and after another step."""
    net = train(pair[1], 1).modules[0]
    assert net.get_parameter("head.weight") is net.get_parameter("embed.weight")
    names = name_all(pair[1]).tensors
    assert torch.equal(names["model.head.weight"], names["model.embed.weight"])


def test_the_next_steps_are_the_same(pair: tuple[State, State]) -> None:
    """All of it together: two more steps give the same bits."""
    assert digest_of(train(pair[0], 2)) == digest_of(train(pair[1], 2))


def _lose_moments(state: State) -> None:
    for slots in state.optimizers[0].state.values():
        slots["exp_avg"].zero_()


def _touch(name: str) -> Callable[[State], Any]:
    return lambda state: state.modules[0].get_buffer(name).view(-1)[0].add_(1)


SABOTAGES: dict[str, Callable[[State], Any]] = {
    "schedule": lambda state: _parts(state)[1].step(),
    "scaler": lambda state: _parts(state)[0].load_state_dict(build().extra["scaler"].state_dict()),
    "amax": _touch("amax_history"),
    "counters": _touch("tokens_per_expert"),
    "frozen": lambda state: state.modules[0].get_parameter("frozen.bias").add_(1),
    "tied": lambda state: state.modules[0].get_parameter("head.weight")[0].add_(1),
    "moments": _lose_moments,
}


@pytest.mark.parametrize("what", SABOTAGES)
def test_a_state_that_came_back_changed_has_another_digest(
    pair: tuple[State, State], what: str
) -> None:
    """The sabotaged twins: what a switch compares tells them all."""
    before = digest_of(pair[1])
    with torch.no_grad():
        SABOTAGES[what](pair[1])
    assert digest_of(pair[1]) != before


def test_a_trainable_parameter_without_an_optimizer_is_refused() -> None:
    """Its moments would be missing, and nobody would notice."""
    state = build()
    state.modules[0].get_parameter("frozen.weight").requires_grad_(True)
    with pytest.raises(InputInvalid, match=r"'frozen.weight' is trainable but in no parameter"):
        name_all(state)


class Counting(torch.optim.SGD):
    """Keeps a number of its own beside its slots, as Lookahead and D-adaptation do."""

    def __init__(self, parameters: Any) -> None:
        """Begin."""
        super().__init__(parameters, lr=0.1)
        self.k = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Let the rate fall by the count."""
        super().step(closure)
        self.k += 1
        for group in self.param_groups:
            group["lr"] = 0.1 / (1 + self.k)

    def state_dict(self) -> dict[str, Any]:
        """Tell it."""
        return {**super().state_dict(), "k": self.k}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it back."""
        self.k = state_dict["k"]
        super().load_state_dict({key: each for key, each in state_dict.items() if key != "k"})


class Deaf(Counting):
    """Tells it, and does not take it back."""

    load_state_dict = torch.optim.SGD.load_state_dict


class Keeping(Counting):
    """Keeps a tensor of its own."""

    def state_dict(self) -> dict[str, Any]:
        """Tell it."""
        return {**super().state_dict(), "k": torch.ones(3)}


def of(kind: type[Counting]) -> State:
    """A fresh state with such an optimizer."""
    torch.manual_seed(3)
    net = nn.Linear(WIDTH, 2)
    return State(modules=[net], optimizers=[kind(net.parameters())])


def stepped(state: State, steps: int) -> list[float]:
    """Train so many steps; gives the losses."""
    losses = []
    for _ in range(steps):
        loss = state.modules[0](torch.ones(1, WIDTH)).square().sum()
        torch.autograd.backward(loss)
        state.optimizers[0].step()
        state.optimizers[0].zero_grad()
        losses.append(float(loss.detach()))
    return losses


def test_what_an_optimizer_keeps_under_a_key_of_its_own_is_carried(tmp_path: Path) -> None:
    """Training goes on to the bit; twin: another count is another digest."""
    first, second = of(Counting), of(Counting)
    stepped(first, 3)
    digest = through_a_checkpoint(tmp_path, first, second)
    assert digest_of(second) == digest
    assert stepped(second, 3) == stepped(first, 3)
    other = of(Counting)
    through_a_checkpoint(tmp_path / "again", second, other)
    assert isinstance(other.optimizers[0], Counting)
    other.optimizers[0].k += 1
    assert digest_of(other) != digest_of(second)


@pytest.mark.parametrize(
    ("kind", "words"),
    [(Deaf, "Deaf keeps 'k' in its state_dict, and"), (Keeping, "'k' of Keeping is a tensor")],
)
def test_what_it_would_not_take_back_is_refused_at_attach(kind: type[Counting], words: str) -> None:
    """By name, before the first step."""
    assert words in problem(of(kind), Layout())


class Queue(nn.Module):
    """A buffer that grows, and one that is made by the first step."""

    def __init__(self) -> None:
        """Begin empty."""
        super().__init__()
        self.register_buffer("queue", torch.zeros(0, WIDTH))
        self.register_buffer("mean", None)
        self.register_buffer("seen", torch.zeros(0), persistent=False)


@pytest.mark.parametrize(("name", "words"), [("queue", r"\(0, 4\)"), ("mean", "not there")])
def test_a_buffer_that_has_grown_is_refused_at_the_save_by_name(name: str, words: str) -> None:
    """Not at the load, when training is lost; one that is not saved may grow."""
    net = Queue()
    state = State(modules=[net], optimizers=[])
    built = buffers_of(state)
    net.seen = torch.zeros(5)
    check_buffers(state, built)
    setattr(net, name, torch.ones(2, WIDTH))
    with pytest.raises(InputInvalid, match=f"the buffer '{name}' is .* and was .*{words}"):
        check_buffers(state, built)
