"""What is private of torch is named in one module, found late, and missed in a sentence."""

import ast
import re
from types import SimpleNamespace

import pytest
import torch

from tests.laws.sources import REPOSITORY
from wattmesh.errors import InputInvalid
from wattmesh.reconfig import torch_compat

ROOMS = (REPOSITORY / "reconfig", REPOSITORY / "integrations" / "pytorch")
HERE = ROOMS[0] / "torch_compat.py"
OURS = {"self", "cls", "os", "sys"}
"""Names whose private parts are not torch's; nor are those of classes that are called by name."""


def is_private(name: str) -> bool:
    """Whether a name says that it is not for others."""
    return name.startswith("_") and not name.endswith("__")


def private_parts(text: str) -> list[str]:
    """List what a module imports or takes of others that they call private."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            names = [*(node.module or "").split("."), *(each.name for each in node.names)]
            found += [f"{node.module}: {name}" for name in names if is_private(name)]
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            if of not in OURS and not of[:1].isupper() and not is_own(node.value):
                found.append(f"{ast.unparse(node)}")
    return found


def is_own(value: ast.expr) -> bool:
    """Whether an expression is a part of ours, or what a class inherits."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id.startswith("_")


def test_only_one_module_names_what_is_private_of_torch() -> None:
    """In both rooms; a torch that changes is met in one place."""
    found = {
        str(path.relative_to(REPOSITORY)): parts
        for room in ROOMS
        for path in room.rglob("*.py")
        if path != HERE and (parts := private_parts(path.read_text("utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "from torch.distributed.tensor._utils import compute_local_shape_and_global_offset",
        "from torch.optim.optimizer import _global_optimizer_pre_hooks",
        "module._buffers['x'] = 1",
        "dist.distributed_c10d._world.pg_map",
        "torch._foreach_mul_(shards, 0.5)",
    ],
)
def test_what_is_named_elsewhere_is_caught(line: str) -> None:
    """The sabotaged twins: what these modules named before."""
    assert private_parts(f"import torch\n{line}") != []
    assert private_parts("self._mine = Own._table\nx.__dict__\nsuper()._run()") == []


def test_it_imports_nothing_of_torch() -> None:
    """So that a torch which lacks something breaks no import."""
    tree = ast.parse(HERE.read_text("utf-8"))
    imported = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [node for node in imported if "torch" in ast.unparse(node)]


def test_what_is_missing_is_told_by_name_and_only_when_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sentence names the part, this torch, and the one that is tested."""
    module = "torch.distributed.checkpoint._traverse"
    monkeypatch.delattr(f"{module}.set_element")
    with pytest.raises(InputInvalid, match=rf"torch {torch.__version__[:4]}.* has no {module}"):
        torch_compat.set_element({}, ("a",), 1)
    with pytest.raises(InputInvalid, match=r"SimpleNamespace\._buffers.* torch 2\.11 to 2\.13"):
        torch_compat.buffers(SimpleNamespace())


def test_the_docs_name_the_range_that_is_tested() -> None:
    """At least three minor versions; the newest is pinned, the older ones are the target's."""
    (major, oldest), (_, newest) = (
        map(int, each.split(".")) for each in (torch_compat.OLDEST, torch_compat.NEWEST)
    )
    assert newest - oldest >= 2
    pinned = (REPOSITORY / "constraints.txt").read_text("utf-8")
    assert f"\ntorch=={torch_compat.NEWEST}." in pinned
    script = (REPOSITORY / "scripts" / "torch-versions").read_text("utf-8")
    (given,) = re.findall(r"\|\| set -- (.*)", script)
    older = [f"{major}.{minor}" for minor in range(oldest, newest)]
    assert [each.rpartition(".")[0] for each in given.split()] == older
    for page in ("README.md", "docs/install.md", "docs/attach.md"):
        text = (REPOSITORY / page).read_text("utf-8")
        assert f"torch {torch_compat.OLDEST} to {torch_compat.NEWEST}" in " ".join(text.split()), (
            page
        )


def test_this_torch_is_in_the_range_and_has_every_part() -> None:
    """Whatever is looked up by module and name, of the version that this test runs with."""
    minor = int(torch.__version__.split(".")[1])
    oldest, newest = (int(each[2:]) for each in (torch_compat.OLDEST, torch_compat.NEWEST))
    assert oldest <= minor <= newest
    calls = [
        node for node in ast.walk(ast.parse(HERE.read_text("utf-8"))) if isinstance(node, ast.Call)
    ]
    parts = [
        (str(each.args[0].value), str(each.args[1].value))
        for each in calls
        if isinstance(each.func, ast.Name) and each.func.id == "find"
        if isinstance(each.args[0], ast.Constant) and isinstance(each.args[1], ast.Constant)
    ]
    assert len(parts) >= 10
    for module, name in parts:
        torch_compat.find(module, name)
