"""Compiles, before a parallel run's workers start, what each of them would compile for itself.

In a fresh clone every worker imports all tests at the same moment: half of what that takes is
pytest's rewriting of their asserts, and five workers would do it five times. Invariant: nothing
depends on it; what is not kept here, a worker makes. Imported by conftest.py, where pytest finds
the hook.
"""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from _pytest.assertion.rewrite import assertstate_key

MODULES = ("wattmesh", "tests", "benchmarks", "examples", "scripts")
"""Folders whose modules tests import."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[object]) -> None:
    """Keep all compiled code, on as many processors as there are, where it may be kept."""
    if len(specs) > 1 and not sys.dont_write_bytecode:
        root = config.rootpath
        given = [root / each.partition("::")[0] for each in config.args]
        keep(config, modules(root), [path for each in given for path in asserting_in(each)])


def modules(root: Path) -> list[Path]:
    """List the modules that are imported as they are; `wattmesh` is folders that it links to."""
    found = (
        Path(folder) / name
        for each in MODULES
        for folder, _, names in os.walk(root / each, followlinks=True)
        for name in names
    )
    return sorted(path for path in found if path.suffix == ".py" and not rewritten(path))


def asserting_in(given: Path) -> list[Path]:
    """List the files of which pytest rewrites the asserts, in a folder or of one file."""
    found = given.rglob("*.py") if given.is_dir() else [given]
    return sorted(path for path in found if rewritten(path))


def rewritten(path: Path) -> bool:
    """Whether pytest rewrites the asserts of a file."""
    return path.name.startswith("test_") or path.name == "conftest.py"


def keep(config: pytest.Config, plain: Iterable[Path], tests: Iterable[Path]) -> None:
    """Keep the compiled code of modules and of tests; each process takes its share."""
    tasks = [*((each, False) for each in plain), *((each, True) for each in tests)]
    count, children = os.cpu_count() or 1, []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            for path, asserts in tasks[number::count]:
                with suppress(Exception):  # a worker meets it again, and tells
                    keep_one(config, path, asserts=asserts)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


def keep_one(config: pytest.Config, path: Path, *, asserts: bool) -> None:
    """Keep the compiled code of one file; `asserts`: as pytest rewrites it."""
    if not asserts:
        SourceFileLoader(path.stem, str(path)).get_code(path.stem)
        return
    kept = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
    if rewrite._read_pyc(path, kept) is None:
        source, code = rewrite._rewrite_test(path, config)
        kept.parent.mkdir(exist_ok=True)
        rewrite._write_pyc(config.stash[assertstate_key], code, source, kept)
