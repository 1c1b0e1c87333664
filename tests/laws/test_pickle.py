"""We execute no pickle: bytes that a checkpoint or a job hands us stay data."""

import ast

import pytest

from tests.laws.sources import Module, calls, imports, modules, parse

UNPICKLING_PACKAGES = frozenset({"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve"})


def _unpickling(module: Module) -> list[str]:
    """List what could execute a pickle, as sentences."""
    found = [
        f"{module.name} imports {name}"
        for name in imports(module)
        if name.partition(".")[0] in UNPICKLING_PACKAGES
    ]
    for line, name, call in calls(module):
        if name == "torch.load" and not _says(call, "weights_only", value=True):
            found.append(f"{module.name}:{line} torch.load without weights_only=True")
        if name in {"numpy.load", "np.load"} and _says(call, "allow_pickle", value=True):
            found.append(f"{module.name}:{line} numpy.load with allow_pickle=True")
    return found


def _says(call: ast.Call, keyword: str, *, value: bool) -> bool:
    return any(
        given.arg == keyword
        and isinstance(given.value, ast.Constant)
        and given.value.value is value
        for given in call.keywords
    )


def test_no_pickle_is_executed() -> None:
    """No module of ours loads a pickle."""
    assert [sentence for module in modules().values() for sentence in _unpickling(module)] == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "def f(data):\n    import dill",
        "import torch\ntorch.load('x')",
        "import torch\ntorch.load('x', weights_only=False)",
        "import torch\nflag = True\ntorch.load('x', weights_only=flag)",
        "import numpy\nnumpy.load('x', allow_pickle=True)",
    ],
)
def test_unpickling_is_caught(source: str) -> None:
    """Sabotaged twin: each way of executing a pickle is found."""
    assert _unpickling(parse("wattmesh.spoilt", source))


def test_weights_only_is_fine() -> None:
    """The restricted reader of torch is allowed: it executes nothing."""
    source = "import torch\ntorch.load('x', weights_only=True)"
    assert _unpickling(parse("wattmesh.fine", source)) == []
