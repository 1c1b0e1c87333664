"""What workers of a parallel run import is compiled once, before they start."""

import sys
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests.compiled_once import asserting_in, keep, modules

REPOSITORY = Path(__file__).resolve().parents[2]


def kept(path: Path) -> bool:
    """Whether a worker finds the asserts of a file rewritten, as the file is now."""
    found = rewrite.get_cache_dir(path) / (path.stem + rewrite.PYC_TAIL)
    return rewrite._read_pyc(path, found) is not None


def test_a_worker_finds_everything_compiled(
    pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules as Python keeps them, tests as pytest does; what has changed since is made again."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    plain, test, broken = (tmp_path / name for name in ("a.py", "test_b.py", "test_c.py"))
    plain.write_text("A = 1\n")
    test.write_text("def test() -> None:\n    assert 1\n")
    broken.write_text("def test(:\n")
    keep(pytestconfig, [plain], [broken, test])
    assert Path(cache_from_source(str(plain))).exists()
    assert kept(test)
    assert not kept(broken)
    test.write_text("def test() -> None:\n    assert 2\n")
    assert not kept(test)  # a twin: the old code is not taken for the new
    keep(pytestconfig, [], [test])
    assert kept(test)


def test_all_tests_and_modules_are_among_them() -> None:
    """Of every folder that tests import from."""
    found, tests = modules(REPOSITORY), asserting_in(REPOSITORY / "tests")
    assert REPOSITORY / "wattmesh" / "controller" / "daemon" / "__init__.py" in found
    assert REPOSITORY / "tests" / "spread.py" in found
    assert Path(__file__).resolve() in tests
    assert not {*found} & {*tests}
