"""What the adapter takes of torchtitan's Trainer is there, in the installed package's source."""

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
import torchtitan
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.config.configs import ParallelismConfig

from tests.hook.harness import Zygote
from wattmesh.integrations import torchtitan as titan
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.position import Position

SOURCE = (Path(torchtitan.__path__[0]) / "trainer.py").read_text()


def trainer_class(source: str) -> ast.ClassDef:
    """The class Trainer in torchtitan's source."""
    found = [each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)]
    return next(each for each in found if each.name == "Trainer")


def missing(source: str) -> list[str]:
    """List what the adapter's Protocol names and the class does not have."""
    node = trainer_class(source)
    has = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    methods = {
        each.name: [arg.arg for arg in each.args.args]
        for each in node.body
        if isinstance(each, ast.FunctionDef)
    }
    wanted = {
        "batch_generator": ["self", "data_iterable"],
        "train_step": ["self", "data_iterator"],
        "init_distributed": ["self"],
    }
    lost = [name for name, args in wanted.items() if methods.get(name) != args]
    return lost + sorted(set(titan.Trainer.__annotations__) - has)


def test_torchtitan_s_trainer_has_what_the_adapter_uses() -> None:
    """Attributes by their annotations, methods by their parameters."""
    assert missing(SOURCE) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def train_step(", "def one_step("),
        ("def init_distributed(self)", "def init_distributed(self, comm)"),
        ("    gc_handler: utils.GarbageCollection\n", ""),
    ],
)
def test_a_trainer_that_changed_would_be_seen(old: str, new: str) -> None:
    """The sabotaged twins."""
    assert old in SOURCE
    assert missing(SOURCE.replace(old, new)) != []


def test_the_real_trainer_takes_its_process_group_from_one_method_only() -> None:
    """So that replacing `init_distributed` is enough."""
    node = trainer_class(SOURCE)
    calls = [
        (method.name, ast.unparse(call.func))
        for method in node.body
        if isinstance(method, ast.FunctionDef)
        for call in ast.walk(method)
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("init_distributed")
    ]
    assert calls == [
        ("__init__", "self.init_distributed"),
        ("init_distributed", "dist_utils.init_distributed"),
    ]


class Base:
    """Stands where torchtitan's Trainer would: builds, and counts what it is asked for."""

    def __init__(self, config: Any) -> None:
        """Build, as far as that goes without kernels."""
        self.config = config
        self.parallel_dims = self.init_distributed()
        self.done: list[str] = []
        self.step = 0
        self.dataloader = [1, 2, 3]
        self.gc_handler = SimpleNamespace(run=lambda step: self.done.append(f"gc {step}"))
        self.optimizers = SimpleNamespace(zero_grad=lambda: self.done.append("zero_grad"))

    def init_distributed(self) -> Any:
        """What the session must not let happen."""
        raise AssertionError("a second process group was made")

    def batch_generator(self, data_iterable: Any) -> Any:
        """Give batches."""
        return iter(data_iterable)

    def train_step(self, data_iterator: Any) -> None:
        """Take one."""
        self.done.append(f"step {self.step} on {next(data_iterator)}")


class Walk:
    """A session that ends after so many steps, and builds anew after one of them."""

    def __init__(self, build: Any, steps: int, anew_after: int) -> None:
        """Begin."""
        self._build, self._steps, self._anew_after = build, steps, anew_after
        self.position = Position()
        self.state = build()

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self.position.step >= self._steps

    def report(self, *, tokens: int, samples: int) -> None:
        """Count."""
        before = self.position
        self.position = Position(
            step=before.step + 1, samples=before.samples + samples, tokens=before.tokens + tokens
        )

    def boundary(self) -> None:
        """Build anew when it is time."""
        if self.position.step == self._anew_after:
            self.state = self._build()


def test_the_loop_trains_with_the_newest_trainer_and_clears_gradients_before_a_boundary() -> None:
    """Torchtitan clears them before a step, which would defer every boundary."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        kind = titan.under_session(Base)
        training = SimpleNamespace(global_batch_size=8, seq_len=16)
        config = SimpleNamespace(
            training=training,
            parallelism=titan.parallelism(Layout(dp_shard=2, tp=2), ParallelismConfig()),
        )
        trainers: list[Any] = []

        def build() -> Any:
            trainers.append(kind(config))
            return SimpleNamespace(parts=SimpleNamespace(trainer=trainers[-1]))

        walk = Walk(build, steps=3, anew_after=2)
        titan.train(walk)  # type: ignore[arg-type]
    finally:
        dist.destroy_process_group()
    assert walk.position == Position(step=3, samples=24, tokens=384)
    assert (trainers[0].parallel_dims.dp_shard, trainers[0].parallel_dims.tp) == (2, 2)
    assert trainers[0].done == [
        "gc 1", "step 1 on 1", "zero_grad", "gc 2", "step 2 on 2", "zero_grad",
    ]  # fmt: skip
    assert trainers[1].done == ["gc 1", "step 1 on 1", "zero_grad"]


def test_the_documented_lines_train_to_the_end(zygote: Zygote, tmp_path: Path) -> None:
    """A real session, one rank: all of `training.steps`, and a checkpoint at every interval."""
    job = "tests.torchtitan.documented:main"
    launch = zygote.start(1, {"REAL": str(tmp_path)}, tmp_path, job)
    status = zygote.wait(launch, 150.0)
    log = (tmp_path / "rank-0.log").read_text()
    assert status == 0, log
    trained = [line for line in log.splitlines() if line.startswith("trained ")]
    assert trained == [f"trained [{n}, {n + 1}]" for n in (1, 3, 5, 7)]
    assert "ended done" in log
    saved = sorted(path.name for path in (tmp_path / "run").glob("step-*"))
    assert saved == ["step-00000002", "step-00000004"]
