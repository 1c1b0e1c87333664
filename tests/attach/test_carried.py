"""What no checkpoint can hold is told by name before the first step, and asking changes nothing."""

import json
import tempfile
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.attach.jobs.norm_job import STEPS
from tests.attach.test_optimizers import Stepper
from tests.hook.daemon import FakeDaemon
from tests.hook.harness import Zygote
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state.carried import problem
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all

DP2 = Layout(dp_replicate=2)

Params = Iterable[nn.Parameter]


def net() -> nn.Module:
    """A matrix and a vector, not square."""
    return nn.Linear(6, 4)


def state(
    module: nn.Module | None = None,
    make: Callable[[Params], torch.optim.Optimizer] = torch.optim.AdamW,
    **extra: Any,
) -> State:
    """A fresh state, as `build` gives it."""
    module = module or net()
    return State(modules=[module], optimizers=[make(module.parameters())], extra=extra)


def muon(parameters: Params) -> torch.optim.Optimizer:
    """Muon takes matrices only."""
    return torch.optim.Muon([each for each in parameters if each.dim() == 2])


def matrix() -> nn.Module:
    """No vector."""
    return nn.Linear(6, 4, bias=False)


@pytest.mark.parametrize(
    "make",
    [
        torch.optim.Adadelta,
        torch.optim.Adagrad,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adamax,
        torch.optim.ASGD,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
        torch.optim.SGD,
        lambda parameters: torch.optim.SGD(parameters, momentum=0.9, nesterov=True),
        lambda parameters: torch.optim.AdamW(parameters, amsgrad=True),
        Stepper,
    ],
)
def test_optimizers_that_keep_slots_by_parameter_are_carried(
    make: Callable[[Params], torch.optim.Optimizer],
) -> None:
    """All of torch's that do, and one of a researcher's."""
    assert problem(state(make=make), DP2) == ""


def test_muon_is_carried() -> None:
    """Matrices only."""
    assert problem(state(matrix(), muon), DP2) == ""


def normed(kind: Callable[[int], nn.Module]) -> nn.Module:
    """A layer and a norm."""
    return nn.Sequential(nn.Linear(6, 4), kind(4))


@pytest.mark.parametrize(
    ("module", "layout"),
    [
        (normed(nn.BatchNorm1d), Layout(tp=2)),
        (normed(nn.BatchNorm1d).eval(), DP2),
        (normed(nn.SyncBatchNorm), DP2),
        (normed(lambda width: nn.BatchNorm1d(width, track_running_stats=False)), DP2),
        (normed(nn.LayerNorm), DP2),
    ],
)
def test_norms_whose_statistics_are_one_are_carried(module: nn.Module, layout: Layout) -> None:
    """Of all samples, of none, or frozen."""
    assert problem(state(module), layout) == ""


class Factored(torch.optim.Optimizer):
    """Shampoo's form: a preconditioner for each side."""

    def __init__(self, parameters: Params) -> None:
        """Begin."""
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make what it keeps."""
        for group in self.param_groups:
            for each in group["params"]:
                sides = {str(at): torch.eye(size) for at, size in enumerate(each.shape)}
                self.state[each] = {"step": 1, "preconditioners": sides}


class Historian(Factored):
    """Keeps a list."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make what it keeps."""
        for group in self.param_groups:
            for each in group["params"]:
                self.state[each] = {"history": [1.0, 2.0]}


def with_function(parameters: Params) -> torch.optim.Optimizer:
    """A setting that is a function."""
    return torch.optim.SGD([{"params": list(parameters), "warp": lambda x: x}])


class Broken:
    """A part of the state that says nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Fail."""
        raise NotImplementedError("no state yet")

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take nothing."""


class Warped(torch.optim.lr_scheduler.LRScheduler):
    """A schedule that keeps its function in its state, as the base class does."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin."""
        self.warp = lambda step: 0.5
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        """Give the rates."""
        return [each["lr"] for each in self.optimizer.param_groups]


def scheduled(kind: Callable[[torch.optim.Optimizer], Any]) -> State:
    """A state with a schedule."""
    made = state()
    made.extra["schedule"] = kind(made.optimizers[0])
    return made


def half(step: int) -> float:
    """A factor."""
    return 0.5**step


def with_buffer(buffer: torch.Tensor) -> nn.Module:
    """A layer and a buffer."""
    module = net()
    module.register_buffer("mask", buffer)
    return module


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (state(normed(nn.BatchNorm1d)), r"'1.running_mean' of a BatchNorm1d differs between the 2"),
        (state(make=torch.optim.LBFGS), "LBFGS steps by a closure"),
        (state(make=torch.optim.SparseAdam), "SparseAdam takes sparse gradients only"),
        (
            state(make=torch.optim.Adafactor),
            r"Adafactor keeps rows and columns of 'weight' \('row_v",
        ),
        (state(make=with_function), r"optim.param_groups.weight.warp is a function"),
        (state(average=Broken()), r"State.extra\['average'\] cannot give its state \(NotImpl"),
        (scheduled(Warped), "extra.schedule.warp is a function"),
        (
            state(average=with_buffer(torch.ones(3, dtype=torch.complex64))),
            "'extra.average.mask' is complex; store it with view_as_real",
        ),
        (state(with_buffer(torch.eye(3).to_sparse())), "'mask' is sparse; keep it dense"),
        (state(with_buffer(torch.ones(3, dtype=torch.complex64))), "'model.mask' is complex"),
        (
            state(with_buffer(torch.ones(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))),
            "'mask' is torch.float4_e2m1",
        ),
    ],
)
def test_what_cannot_be_carried_is_told_by_name(made: State, words: str) -> None:
    """Each with what to do, or use, instead."""
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(problem(made, DP2))


def stepped(made: State) -> State:
    """The state after a first step."""
    for each in made.parameters():
        each.grad = torch.ones_like(each)
    made.optimizers[0].step()
    return made


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Factored, "'optim.state.weight.preconditioners.0' is"),
        (Historian, "'optim.state.weight.history' is a list"),
    ],
)
def test_what_another_optimizer_keeps_is_told_at_the_first_save(
    make: Callable[[Params], torch.optim.Optimizer], words: str
) -> None:
    """Before its first step nobody knows, for nothing of it is called."""
    assert problem(state(make=make), DP2) == ""
    with pytest.raises(InputInvalid, match=words):
        name_all(stepped(state(make=make)))


TORCHS = sorted(
    name
    for name, each in vars(torch.optim).items()
    if isinstance(each, type) and each is not torch.optim.Optimizer
)


@pytest.mark.parametrize("name", [each for each in TORCHS if each not in ("LBFGS", "SparseAdam")])
def test_of_each_of_torch_s_optimizers_it_is_known_what_a_save_would_say(name: str) -> None:
    """Asked before a step, and found out after one; a new one of torch's that differs fails here.

    LBFGS and SparseAdam take no plain step; both are refused.
    """
    make: Callable[[Params], torch.optim.Optimizer] = getattr(torch.optim, name)
    said = problem(state(matrix(), make), DP2)
    after = stepped(state(matrix(), make))
    with pytest.raises(InputInvalid) if said else nullcontext():
        name_all(after)


def test_a_schedule_of_a_function_that_build_gives_again_is_carried() -> None:
    """Torch's LambdaLR keeps its place, and leaves the function to who builds it."""
    made = scheduled(lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, half))
    assert problem(made, DP2) == ""


def launch(
    zygote: Zygote, out: Path, kind: str, mode: str = "", **environment: str
) -> tuple[int, list[Any], str, set[str]]:
    """Run the job of `norm_job`; gives status, steps, log and the last trouble that was told."""
    out.mkdir(exist_ok=True)
    environment |= {"OUT": str(out), "KIND": kind}
    with (
        tempfile.TemporaryDirectory(prefix="wm") as short,
        FakeDaemon(Path(short) / "d.sock", out, [], mode=mode) as daemon,
    ):
        environment |= {"WATTMESH_URL": f"unix://{daemon.path}"} if mode else {}
        status = zygote.wait(zygote.start(2, environment, out, "tests.attach.jobs.norm_job:main"))
    log = "".join(path.read_text() for path in out.glob("rank-*.log"))
    lines = (out / "steps.jsonl").read_text() if (out / "steps.jsonl").exists() else ""
    steps = [json.loads(line) for line in lines.splitlines()]
    return status, steps, log, {each.trouble for each in daemon.heard.progress[-1:]}


@pytest.mark.parametrize(
    ("kind", "mode", "trained"),
    [
        ("norm", "act", 0),
        ("norm", "", STEPS),
        ("norm", "observe", STEPS),
        ("late norm", "observe", STEPS),
        ("late norm", "act", 2),
    ],
)
def test_a_run_that_cannot_be_carried_is_refused_or_only_measured(
    zygote: Zygote, tmp_path: Path, kind: str, mode: str, trained: int
) -> None:
    """Where the daemon acts, before the first step; where it observes, or there is none, trained.

    A late one is seen only at the first save step, by the values.
    """
    status, steps, log, told = launch(zygote, tmp_path, kind, mode)
    assert "running_mean'" in log, (status, steps, log)
    assert not list((tmp_path / "ck").glob("step-*"))
    assert [len(steps), status == 0] == [trained, trained == STEPS], log
    if mode == "observe":
        assert len(told) == 1
        assert "running_mean" in told.pop()


@pytest.mark.parametrize("kind", ["amax", "late norm"])
def test_without_a_daemon_what_is_seen_at_a_save_step_ends_nothing(
    zygote: Zygote, tmp_path: Path, kind: str
) -> None:
    """Nothing acts on the run: it is said once, nothing is saved, and weights are the bare ones.

    Sabotaged twin: where the daemon acts, the same job ends at that step.
    """
    status, steps, log, _ = launch(zygote, tmp_path / "attached", kind)
    assert status == 0, log
    assert steps == launch(zygote, tmp_path / "bare", kind, BARE="1")[1]
    assert len(steps) == STEPS
    assert not list((tmp_path / "attached" / "ck").glob("step-*"))
    assert log.count("ranks hold different values under the name 'model.") == 2, log
    if kind == "amax":
        status, steps, _, _ = launch(zygote, tmp_path / "act", kind, "act")
        assert [status == 0, len(steps)] == [False, 2]


class Large(list[nn.Parameter]):
    """As large as the model: not to be copied."""

    copies = 0

    def __deepcopy__(self, memo: Any) -> "Large":
        """Count it."""
        Large.copies += 1
        return self


class Deep(torch.optim.SGD):
    """Holds its parameters beside its groups, so that a copy would step with the real ones."""

    def __init__(self, parameters: Params) -> None:
        """Begin."""
        self.mine = Large(parameters)
        super().__init__(self.mine, lr=0.1)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Change what it holds."""
        with torch.no_grad():
            for each in self.mine:
                each.add_(1)


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adafactor, Deep])
def test_asking_changes_nothing(make: Callable[[Params], torch.optim.Optimizer]) -> None:
    """Parameters, gradients, slots, the step that a schedule has wrapped, and random numbers."""
    made = state(make=make)
    optimizer, before = made.optimizers[0], made.modules[0].state_dict()
    before = {key: each.clone() for key, each in before.items()}
    steps: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: steps.append(1))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    random = torch.get_rng_state()
    problem(made, DP2)
    assert Large.copies == 0
    assert not optimizer.state
    assert not steps
    assert schedule.last_epoch == 0
    assert not getattr(optimizer, "_opt_called", False)
    assert torch.equal(torch.get_rng_state(), random)
    for name, each in made.modules[0].named_parameters():
        assert each.grad is None
        assert torch.equal(each, before[name])
