"""Imports run one way, never in a circle, and only to packages that pyproject.toml declares."""

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from typing import Any

import pytest

from tests.laws import import_law
from tests.laws.sources import REPOSITORY, Module, graph, imports, modules, parse

HOOK_MAY_IMPORT = {"torch", "numpy", "pynvml", "xxhash", "safetensors", "wattmesh"}
HOOK_ROOMS = ("wattmesh.reconfig", *import_law.EVERYBODY)


def test_directions() -> None:
    """Every import of the package runs in a direction that the design allows."""
    assert import_law.broken(graph()) == []


@pytest.mark.parametrize(
    ("importer", "target"),
    [
        ("wattmesh.telemetry.readings", "wattmesh.controller.cycle.cycle"),
        ("wattmesh.telemetry.readings", "wattmesh.reconfig.layout"),
        ("wattmesh.reconfig.layout", "wattmesh.telemetry.readings"),
        ("wattmesh.migrations.upgrade", "wattmesh.controller.journal.database.tables"),
        ("wattmesh.policies.rules.decide", "wattmesh.telemetry.energy.ledger"),
        ("wattmesh.policies.rules.decide", "wattmesh.reconfig.wire.messages"),
        ("wattmesh.policies.rules.decide", "wattmesh.integrations.carbon.neso"),
        ("wattmesh.integrations.torchrun", "wattmesh.policies.rules.decide"),
        ("wattmesh.integrations.torchrun", "wattmesh.integrations.carbon.neso"),
        ("wattmesh.integrations.torchrun", "wattmesh.controller.daemon.wiring"),
    ],
)
def test_forbidden_directions_are_caught(importer: str, target: str) -> None:
    """Sabotaged twin: one forbidden import added to the real graph is named."""
    real = graph()
    assert target in real, f"{target} is gone: name another module in this twin"
    spoilt = {**real, importer: real[importer] | {target}}
    room = importer.split(".")[1]
    assert import_law.broken(spoilt) == [f"{importer} imports {target}, which {room} may not"]


def _imported() -> dict[str, frozenset[str]]:
    return {name: frozenset(imports(module)) for name, module in modules().items()}


def test_what_only_uses_us_is_imported_by_nobody() -> None:
    """The demo, its trainer and the local grid server can be taken away: no part needs them."""
    assert import_law.of_what_stands_apart(_imported()) == []


@pytest.mark.parametrize(
    ("importer", "target"),
    [
        ("wattmesh.controller.daemon.wiring", "examples.demo.plan.DemoPlan"),
        ("wattmesh.controller.cli.tree", "examples.demo.run"),
        ("wattmesh.controller.cli.tree", "wattmesh.shipped.examples.demo.plan"),
        ("wattmesh.integrations.torchrun", "examples"),
        ("wattmesh.controller.signals.poller", "wattmesh.integrations.carbon.grid_server.Fault"),
        ("wattmesh.integrations.carbon.neso", "wattmesh.integrations.carbon.grid_server"),
    ],
)
def test_a_use_of_what_stands_apart_is_caught(importer: str, target: str) -> None:
    """Sabotaged twin: one such import added to the real ones is named."""
    real = _imported()
    spoilt = {**real, importer: real[importer] | {target}}
    (sentence,) = import_law.of_what_stands_apart(spoilt)
    assert sentence == f"{importer} imports {target}, which stands apart"


def test_no_circles() -> None:
    """No module imports itself back through others, imports inside functions included."""
    rooms = {name: targets for name, targets in graph().items() if name != "wattmesh"}
    assert import_law.circles(rooms) == []


def test_circle_is_caught() -> None:
    """Sabotaged twin: one import back makes a circle that is named."""
    spoilt = dict(graph())
    spoilt["wattmesh.errors"] |= {"wattmesh.policies.rules.decide"}
    spoilt["wattmesh.policies.rules.decide"] |= {"wattmesh.errors"}
    assert any("wattmesh.errors" in circle for circle in import_law.circles(spoilt))


def test_no_circles_of_packages() -> None:
    """No folder imports itself back through others, whichever of its modules do."""
    assert import_law.circles(import_law.by_package(graph())) == []


def test_a_circle_of_packages_is_caught() -> None:
    """Sabotaged twin: two folders of which other modules import each other."""
    spoilt = dict(graph())
    spoilt["wattmesh.policies.forecast.skill"] |= {"wattmesh.policies.planner.mpc"}
    assert import_law.circles(spoilt) == []
    (circle,) = import_law.circles(import_law.by_package(spoilt))
    assert {"wattmesh.policies.forecast", "wattmesh.policies.planner"} <= set(circle.split(" <-> "))


def _declared(*extras: str) -> set[str]:
    """Name the import packages that pyproject.toml asks for, of the base and of `extras`."""
    project: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    names = {_plain(re.split(r"[\[<>=!~ ]", requirement)[0]) for requirement in wanted}
    return {
        package
        for package, distributions in packages_distributions().items()
        if names & {_plain(name) for name in distributions}
    }


def _plain(distribution: str) -> str:
    return distribution.lower().replace("_", "-")


def _outside(module: Module) -> set[str]:
    tops = {name.partition(".")[0] for name in imports(module)}
    return tops - set(sys.stdlib_module_names)


ADAPTED = {
    "wattmesh.controller.cli.services.demo": {"examples"},
    "wattmesh.integrations.pytorch.huggingface.sharding": {"transformers"},
    "wattmesh.integrations.pytorch.huggingface.trainer_refusals": {"transformers"},
    "wattmesh.integrations.pytorch.huggingface.trainer_session": {"transformers"},
    "wattmesh.integrations.pytorch.accelerate": {"accelerate"},
    "wattmesh.integrations.pytorch.accelerate_runtime": {"accelerate"},
    "wattmesh.integrations.lightning.loops": {"pytorch_lightning"},
    "wattmesh.integrations.lightning.results": {"pytorch_lightning"},
    "wattmesh.integrations.torchtitan.configuration": {"torchtitan"},
    "wattmesh.integrations.torchtitan.training": {"torchtitan"},
}
"""What a module finds by itself: an adapter, which only who has what it adapts imports; `wattmesh
demo`, which knows where its example is. Both say so where it is missing."""


def test_outside_packages_are_declared() -> None:
    """Every outside package that we import is one that pyproject.toml asks for by name."""
    allowed = _declared("daemon") | HOOK_MAY_IMPORT
    undeclared = {
        name: _outside(module) - allowed - ADAPTED.get(name, set())
        for name, module in modules().items()
    }
    assert {name: packages for name, packages in undeclared.items() if packages} == {}


def test_undeclared_package_is_caught() -> None:
    """Sabotaged twin: a package that is installed but asked for by nobody is not allowed."""
    assert _outside(parse("wattmesh.x", "from idna import encode")) - _declared("daemon") == {
        "idna"
    }


def _outside_of_hook(start: str) -> dict[str, set[str]]:
    loaded = import_law.closure(start, graph())
    return {name: _outside(modules()[name]) - HOOK_MAY_IMPORT for name in loaded}


def test_hook_imports() -> None:
    """The hook and all of ours that it reaches import what its users are told, and no more."""
    too_much = {
        name: extra
        for start in ("session", "observed")
        for name, extra in _outside_of_hook(f"wattmesh.reconfig.hook.{start}").items()
    }
    assert {name: extra for name, extra in too_much.items() if extra} == {}


def test_hook_rooms() -> None:
    """The hook reaches no room but its own."""
    loaded = import_law.closure("wattmesh.reconfig.hook.session", graph())
    assert {name for name in loaded if not name.startswith(HOOK_ROOMS)} <= {"wattmesh"}


def test_daemon_is_no_hook() -> None:
    """Sabotaged twin: measured by the hook's rule, the daemon imports far too much."""
    outside = set().union(*_outside_of_hook("wattmesh.controller.daemon.wiring").values())
    assert {"sqlalchemy", "apscheduler"} <= outside
