"""What decides touches no clock, no file, no network, no chance: the same in gives the same out."""

import pytest

from tests.laws.sources import Module, calls, imports, modules, parse

PURE = (
    "wattmesh.policies",
    "wattmesh.controller.attach_check.judge",
    "wattmesh.controller.accounting.periods",
    "wattmesh.controller.accounting.report.closed",
    "wattmesh.controller.accounting.report.prices",
    "wattmesh.controller.cycle.states",
    "wattmesh.reconfig.catalogue",
    "wattmesh.reconfig.itinerary",
    "wattmesh.reconfig.layout",
    "wattmesh.reconfig.switch",
    "wattmesh.telemetry.energy.attribution",
    "wattmesh.telemetry.energy.crosscheck",
    "wattmesh.telemetry.desired",
    "wattmesh.telemetry.energy.ledger",
    "wattmesh.telemetry.energy.meter",
    "wattmesh.telemetry.sources.prometheus_answers",
    "wattmesh.telemetry.energy.residual",
    "wattmesh.telemetry.slots",
    "wattmesh.telemetry.sources.stale",
)
"""The rooms and modules that only compute."""

IMPURE_PACKAGES = frozenset(
    {"asyncio", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random", "requests"}
    | {"secrets", "shutil", "signal", "socket", "sqlalchemy", "subprocess", "sys", "tempfile"}
    | {"threading", "time", "torch", "urllib", "uuid"}
)
IMPURE_NAMES = frozenset({"wattmesh.telemetry.readings.utc_now", "wattmesh.durable"})
IMPURE_CALLS = frozenset({"open", "input", "print", "exec", "eval", "__import__"})
CLOCK_METHODS = frozenset({"now", "utcnow", "today"})


def _impurities(module: Module) -> list[str]:
    """List what a module does beyond computing, as sentences."""
    found = [
        f"{module.name} imports {name}"
        for name in imports(module)
        if name.partition(".")[0] in IMPURE_PACKAGES or name in IMPURE_NAMES
    ]
    for line, name, _ in calls(module):
        reads_clock = name.rpartition(".")[2] in CLOCK_METHODS and _is_a_clock(name)
        if name in IMPURE_CALLS or reads_clock:
            found.append(f"{module.name}:{line} calls {name}")
    return found


def _is_a_clock(name: str) -> bool:
    """Tell `datetime.now()` and `date.today()` from a field that is named `now`."""
    return name.rpartition(".")[0].rpartition(".")[2] in {"datetime", "date"}


def _pure_modules() -> list[Module]:
    return [module for module in modules().values() if any(_is_in(module, part) for part in PURE)]


def _is_in(module: Module, part: str) -> bool:
    return f"{module.name}.".startswith(f"{part}.")


def test_pure_modules_only_compute() -> None:
    """No pure module imports or calls anything with an effect."""
    assert [sentence for module in _pure_modules() for sentence in _impurities(module)] == []


def test_something_is_checked() -> None:
    """Every name in the list of pure parts stands for at least one module."""
    pure = _pure_modules()
    assert [part for part in PURE if not any(_is_in(module, part) for module in pure)] == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from time import monotonic",
        "def f():\n    import os",
        "import datetime\nx = datetime.datetime.now(datetime.UTC)",
        "from datetime import datetime\nx = datetime.now()",
        "from datetime import date\nx = date.today()",
        "x = open('file')",
        "import random",
        "from urllib.request import urlopen",
        "import socket",
        "import requests",
        "from wattmesh.telemetry.readings import utc_now",
        "from wattmesh import durable",
    ],
)
def test_effects_are_caught(source: str) -> None:
    """Sabotaged twin: each kind of effect is found in a module that has it."""
    assert _impurities(parse("wattmesh.policies.spoilt", source))


def test_arguments_named_now_are_fine() -> None:
    """The law forbids reading a clock, not being told the time."""
    source = "def f(observation): return observation.now - observation.now.replace(hour=0)"
    assert _impurities(parse("wattmesh.policies.fine", source)) == []
