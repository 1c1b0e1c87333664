"""A parallel run makes nothing twice that is made once, and begins with the longest folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spread import groups, turn

REPOSITORY = Path(__file__).resolve().parents[2]
MODULE = """\
import os
import pytest

@pytest.fixture(scope="{scope}")
def costly():
    with open({made!r}, "a") as file:
        file.write(str(os.getpid()) + "\\n")

@pytest.mark.parametrize("number", range(8))
def test_uses_it(costly: None, number: int) -> None:
    pass
"""


def _workers_that_made_it(folder: Path, scope: str, *, ours: bool = True) -> int:
    """Run eight tests that share a fixture on two workers; on how many was it made."""
    tests = folder / "tests"
    tests.mkdir()
    made = folder / "made"
    (tests / "test_sample.py").write_text(MODULE.format(scope=scope, made=str(made)))
    (folder / "pytest.ini").write_text("[pytest]\n")
    plugins = ["-p", "xdist", *(["-p", "tests.spread"] if ours else [])]
    kind = "loadscope" if ours else "load"
    distribution = ["-n", "2", "--dist", kind, "--no-loadscope-reorder"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, *distribution, "tests"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    return len(set(made.read_text().split()))


@pytest.mark.parametrize("scope", ["module", "session"])
def test_what_is_made_once_is_made_on_one_worker(scope: str, tmp_path: Path) -> None:
    """Eight tests on two workers share one fixture, and one worker makes it."""
    assert _workers_that_made_it(tmp_path, scope) == 1


def test_without_the_groups_each_worker_makes_its_own(tmp_path: Path) -> None:
    """Sabotaged twin: handed out one by one, both workers make it."""
    assert _workers_that_made_it(tmp_path, "session", ours=False) == 2


LINKED = ("a/test_1", "a/test_3", "a/test_4", "a/below/test_9")


def fixture(scope: str, name: str) -> str:
    """Source of a fixture."""
    return f'@pytest.fixture(scope="{scope}")\ndef {name}() -> int:\n    return 1\n'


def test_files_are_grouped_by_what_is_made_once() -> None:
    """A session's fixture links files of its folder and below; a module's holds its own file."""
    texts = {
        "tests/a/conftest.py": fixture("session", "runs") + fixture("session", "zygote"),
        "tests/a/test_1.py": "def test(runs: int): ...",
        "tests/a/test_2.py": "def test(zygote: int): ...",
        "tests/a/test_3.py": fixture("session", "more") + "def test(more: int, runs: int): ...",
        "tests/a/test_4.py": "def test(more: int): ...",
        "tests/a/below/test_9.py": "def test(runs: int): ...",
        "tests/ab/test_8.py": "def test(runs: int): ...",
        "tests/b/test_7.py": "def test(runs: int): ...",
        "tests/b/test_5.py": fixture("module", "demo") + "def test(demo: int): ...",
        "tests/b/test_6.py": fixture("function", "mine") + "def test(mine: int, demo: int): ...",
    }
    # Not `ab`, whose name only begins alike.
    linked = {f"tests/{name}.py": "more" for name in LINKED}
    assert groups(texts) == {**linked, "tests/b/test_5.py": "tests/b/test_5.py"}


def test_what_is_dear_here_is_grouped() -> None:
    """The demo, and everything over real DeepSpeed checkpoints, each run on one worker."""
    files = (REPOSITORY / "tests").rglob("*.py")
    found = groups({str(each.relative_to(REPOSITORY)): each.read_text() for each in files})
    assert "tests/demo/test_whole.py" in found
    users = [path for path in found if "deepspeed_runs: " in (REPOSITORY / path).read_text()]
    assert len(users) > 2
    assert len({found[path] for path in users}) == 1
    assert "tests/hook/launches/test_faults.py" not in found


def test_long_folders_go_first() -> None:
    """The demo is begun before the laws, whatever the order of the files."""
    assert turn("tests/demo/test_whole.py") < turn("tests/hook/switches/test_switch.py")
    assert turn("tests/hook/switches/test_switch.py") < turn("tests/laws/test_purity.py")
    assert turn("tests/test_anything.py") == turn("tests/laws/test_purity.py")
