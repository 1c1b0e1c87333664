"""What the adapter takes of torchtitan's Trainer is there, in the installed package's source."""

import ast
from pathlib import Path

import pytest
import torchtitan

from wattmesh.integrations import torchtitan as titan
from wattmesh.integrations.torchtitan.training import SPLITTING

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
        "train": ["self"],
        "should_continue_training": ["self"],
        "state_dict": ["self"],
        "load_state_dict": ["self", "state_dict"],
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


@pytest.mark.parametrize("hook", SPLITTING)
def test_the_hooks_that_are_taken_off_are_torchtitan_s(hook: str) -> None:
    """They are found by name: a torchtitan that calls them otherwise fails here."""
    source = (Path(torchtitan.__path__[0]) / "models/common/attention.py").read_text()
    kind, method = hook.split(".")
    body = source[source.index(f"class {kind}(") :]
    assert f"def {method}(" in body
    assert f"(self.{method})" in body
