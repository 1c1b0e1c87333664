"""What really stands in memory: the daemon is light, the command line meets no torch."""

from collections.abc import Iterable

import pytest

from tests.laws import sources
from tests.laws.processes import HEAVY, loaded_after

HOOK_HAS_NO_USE_FOR = {"sqlalchemy", "apscheduler", "starlette", "uvicorn", "typer", "requests"}
HOOK_HAS_NO_USE_FOR |= {"rich", "alembic", "scipy", "matplotlib", "pydantic"}


RUN_BY_OTHERS = ("__main__", "migrations.env")
"""Modules that do their work when they are imported: Alembic runs `env`, Python `__main__`."""


IN_TRAINING = tuple(
    f"wattmesh.integrations.{name}" for name in ("pytorch", "torchtitan", "lightning", "deepspeed")
)
"""Building blocks and adapters that live inside a training process."""


def _import_all(prefix: str) -> str:
    names = sorted(name for name in sources.modules() if name.startswith(prefix))
    names = [name for name in names if not name.startswith(IN_TRAINING)]
    return "\n".join(f"import {name}" for name in names if not name.endswith(RUN_BY_OTHERS))


def test_daemon_is_light() -> None:
    """Importing the daemon loads none of the heavy packages."""
    assert not loaded_after("import wattmesh.controller.daemon") & HEAVY


def test_heavy_import_is_seen() -> None:
    """Sabotaged twin: one heavy import beside the daemon's is found."""
    spoilt = "import wattmesh.controller.daemon.__main__\nimport numpy"
    assert "numpy" in loaded_after(spoilt) & HEAVY


def test_rooms_have_no_torch_and_no_example() -> None:
    """No module loads torch but the hook's, and none the demo, not even the command that starts it.

    What trains in these rooms is left out here.
    """
    rooms = ("controller", "telemetry", "policies", "integrations", "migrations")
    loaded = loaded_after("\n".join(_import_all(f"wattmesh.{room}") for room in rooms))
    assert not loaded & {"torch", "examples"}


def test_the_demo_has_no_torch() -> None:
    """It asks its children what they train; that it is seen is the twin of the test above."""
    beside = f"import sys\nsys.path.insert(0, {str(sources.REPOSITORY)!r})"
    loaded = loaded_after(f"{beside}\nimport examples.demo.run")
    assert "examples" in loaded
    assert "torch" not in loaded


@pytest.mark.parametrize("module", IN_TRAINING)
def test_the_daemon_loads_nothing_that_trains(module: str) -> None:
    """Nobody on the daemon's side imports the modules that the test above leaves out."""
    importers = {name for name, targets in sources.graph().items() if _within(targets, module)}
    assert {name for name in importers if not name.startswith(IN_TRAINING)} == set()


def _within(targets: Iterable[str], module: str) -> bool:
    return any(each == module or each.startswith(f"{module}.") for each in targets)


def test_package_alone_is_light() -> None:
    """`import wattmesh` loads nothing beyond the standard library."""
    assert not loaded_after("import wattmesh") & (HEAVY | HOOK_HAS_NO_USE_FOR)


def test_hook_brings_torch_and_leaves_the_daemon_out() -> None:
    """A training process that touches `wattmesh.attach` holds none of the daemon's packages.

    That it holds torch is the sabotaged twin of the tests above: they could see it.
    """
    loaded = loaded_after("import wattmesh\nwattmesh.attach")
    assert not loaded & HOOK_HAS_NO_USE_FOR
    assert "torch" in loaded
