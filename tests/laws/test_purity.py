"""What decides touches no clock, no file, no network, no chance: the same in gives the same out.

Checked are the modules whose docstring says `Pure`, all modules of a package that says so (but the
one that it names in "Pure but for `x.py`"), and those listed here.
"""

import ast
import re

import pytest

from tests.laws.sources import Module, dotted, imports, modules, parse

PURE = (
    "wattmesh.policies",
    "wattmesh.controller.attach_check.judge",
    "wattmesh.controller.accounting.budgets.periods",
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
"""Rooms and modules that only compute, whatever their docstrings say."""

SAYS_PURE = re.compile(r"\bPure\b(?: but for `(\w+)\.py`)?")
"""As a sentence says it of its own module; a map says `(pure)` of another."""

IMPURE_PACKAGES = frozenset(
    {"asyncio", "codecs", "concurrent", "ctypes", "fcntl", "fileinput", "getpass", "glob", "grp"}
    | {"http", "httpx", "importlib", "io", "linecache", "logging", "mmap", "multiprocessing"}
    | {"os", "pathlib", "pkgutil", "platform", "psutil", "pwd", "pynvml", "random", "requests"}
    | {"resource", "runpy", "secrets", "select", "selectors", "shutil", "signal", "socket"}
    | {"sqlalchemy", "sqlite3", "ssl", "subprocess", "sys", "tempfile", "threading", "time"}
    | {"torch", "urllib", "uuid"}
)
IMPURE_NAMES = (
    *("wattmesh.telemetry.readings.utc_now", "wattmesh.durable"),
    *("numpy.random", "numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "numpy.fromfile"),
    *("numpy.memmap", "numpy.save", "numpy.savetxt", "numpy.savez", "numpy.savez_compressed"),
)
"""Modules and functions that have an effect; with them, what is in them."""
PURE_NAMES = ("io.StringIO", "sqlalchemy.exc", "sys.float_info", "urllib.parse")
"""What only computes, of packages that do more."""
SEEDED = "numpy.random.default_rng"
"""With a seed it gives the same numbers each time; without one, others."""
IMPURE_CALLS = frozenset({"open", "input", "print", "exec", "eval", "__import__"})
CLOCK_METHODS = frozenset({"now", "utcnow", "today"})


def _impurities(module: Module) -> list[str]:
    """List what a module does beyond computing, as sentences."""
    found = [f"{module.name} imports {name}" for name in imports(module) if _has_an_effect(name)]
    behind = _imported_as(module)
    inner = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(module.tree):
        name = _resolved(node, behind)
        if isinstance(node, ast.Call):
            unseeded = name == SEEDED and not (node.args or node.keywords)
            impure = name in IMPURE_CALLS or _reads_a_clock(name) or unseeded
        else:
            whole = isinstance(node, ast.Attribute) and id(node) not in inner
            impure = whole and name != SEEDED and _is_in_any(name, IMPURE_NAMES)
        if impure:
            found.append(f"{module.name}:{getattr(node, 'lineno', 0)} uses {name}")
    return found


def _has_an_effect(name: str) -> bool:
    package = name.partition(".")[0] in IMPURE_PACKAGES and not _is_in_any(name, PURE_NAMES)
    return package or _is_in_any(name, IMPURE_NAMES)


def _is_in_any(name: str, parts: tuple[str, ...]) -> bool:
    return any(_is_in(name, part) for part in parts)


def _is_in(name: str, part: str) -> bool:
    return f"{name}.".startswith(f"{part}.")


def _imported_as(module: Module) -> dict[str, str]:
    """Give the dotted name behind each name that an import statement makes."""
    behind: dict[str, str] = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            behind |= {each.asname: each.name for each in node.names if each.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            behind |= {
                each.asname or each.name: f"{node.module}.{each.name}" for each in node.names
            }
    return behind


def _resolved(node: ast.AST, behind: dict[str, str]) -> str:
    """Write what is called or looked up, under the name it was imported from."""
    if isinstance(node, ast.Call):
        node = node.func
    if not isinstance(node, ast.expr):
        return ""
    first, dot, rest = dotted(node).partition(".")
    return f"{behind.get(first, first)}{dot}{rest}"


def _reads_a_clock(name: str) -> bool:
    """Tell `datetime.now()` and `date.today()` from a field that is named `now`."""
    owner, _, method = name.rpartition(".")
    return method in CLOCK_METHODS and owner.rpartition(".")[2] in {"datetime", "date"}


def _pure_modules() -> list[Module]:
    parts, spared = list(PURE), set()
    for name, module in modules().items():
        if said := _says_pure(module):
            parts.append(name)
            spared.add(f"{name}.{said[1]}")
    found = (module for name, module in modules().items() if _is_in_any(name, tuple(parts)))
    return [module for module in found if module.name not in spared]


def _says_pure(module: Module) -> re.Match[str] | None:
    return SAYS_PURE.search(ast.get_docstring(module.tree) or "")


def test_pure_modules_only_compute() -> None:
    """No pure module imports or calls anything with an effect."""
    assert [sentence for module in _pure_modules() for sentence in _impurities(module)] == []


def test_something_is_checked() -> None:
    """Every name in the list of pure parts stands for at least one module."""
    assert [part for part in PURE if not any(_is_in(name, part) for name in modules())] == []


@pytest.mark.parametrize(
    ("docstring", "pure"),
    [
        ("Check an address. Pure.", True),
        ("Compare states.\n\nPure: arrays in, verdict out.", True),
        ("The map:\n    states.py  what is legal (pure)", False),
        ("Purely descriptive.", False),
    ],
)
def test_a_module_that_says_pure_is_checked(docstring: str, pure: bool) -> None:
    """Who writes `Pure` into a docstring has it checked, and nobody must add it to a list."""
    assert bool(_says_pure(parse("wattmesh.spoilt", f'"""{docstring}"""'))) is pure


def test_modules_of_every_room_that_say_pure_are_checked() -> None:
    """Such modules are found where they lie, and below a package that says so, all of its own."""
    checked = {module.name for module in _pure_modules()}
    assert {name for name, module in modules().items() if _says_pure(module)} <= checked
    assert {
        "wattmesh.controller.settings.web_address",
        "wattmesh.telemetry.actuator.rules.leases",
        "wattmesh.reconfig.universal.index.cover",
        "wattmesh.quantities",
    } <= checked
    assert "wattmesh.reconfig.universal.index.declared" not in checked


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
        "from datetime import datetime as dt\nx = dt.now()",
        "import datetime as d\nx = d.date.today()",
        "import numpy as np\nx = np.random.default_rng()",
        "import numpy as np\nx = np.loadtxt",
        "import numpy\nx = numpy.load('file')",
        "from numpy.random import default_rng",
        "from numpy import random",
        "import glob",
        "import codecs",
        "import importlib",
        "from urllib import request",
    ],
)
def test_effects_are_caught(source: str) -> None:
    """Sabotaged twin: each kind of effect is found in a module that has it."""
    assert _impurities(parse("wattmesh.policies.spoilt", source))


@pytest.mark.parametrize(
    "source",
    [
        "from urllib.parse import urlsplit",
        "from urllib import parse",
        "import numpy as np\nx = np.random.default_rng(7)",
        "from sys import float_info",
    ],
)
def test_what_only_computes_is_fine(source: str) -> None:
    """Of a package that does more, the part that only computes is allowed; so is a seeded one."""
    assert _impurities(parse("wattmesh.policies.fine", source)) == []


def test_arguments_named_now_are_fine() -> None:
    """The law forbids reading a clock, not being told the time."""
    source = "def f(observation): return observation.now - observation.now.replace(hour=0)"
    assert _impurities(parse("wattmesh.policies.fine", source)) == []
