"""scripts/setup installs once, again when pins change, and says in a sentence what it lacks."""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PIP = """import pathlib, sys
log = pathlib.Path({log!r})
log.write_text((log.read_text() if log.exists() else "") + " ".join(sys.argv[1:]) + "\\n")
sys.exit({status})
"""


class Checkout:
    """A checkout with the script, its two inputs, and a `.venv` whose pip only takes notes."""

    def __init__(self, folder: Path) -> None:
        """Copy what the script reads and looks at."""
        self.folder = folder
        self.log = folder / "pip.log"
        for name in ("scripts/setup", "pyproject.toml", "constraints.txt"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
        shutil.copytree(
            REPOSITORY / "wattmesh",
            folder / "wattmesh",
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )

    def make_venv(self, *, pip_status: int = 0) -> None:
        """Make the environment; its pip ends with `pip_status`."""
        venv.create(self.folder / ".venv", with_pip=False, symlinks=True)
        (packages,) = self.folder.glob(".venv/lib/python*/site-packages")
        (packages / "pip").mkdir(exist_ok=True)
        text = PIP.format(log=str(self.log), status=pip_status)
        # Two of one size within a second are one to Python's bytecode.
        shutil.rmtree(packages / "pip" / "__pycache__", ignore_errors=True)
        (packages / "pip" / "__main__.py").write_text(text)

    def setup(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the script."""
        return subprocess.run(
            [str(self.folder / "scripts" / "setup")],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def pip_calls(self) -> list[str]:
        """Give what pip was asked since the last time."""
        calls = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return calls


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A checkout without an environment."""
    return Checkout(tmp_path)


def test_installs_once(checkout: Checkout) -> None:
    """The first run installs the pinned versions and this checkout; the second does nothing."""
    checkout.make_venv()
    assert checkout.setup().returncode == 0
    backend, project, titan = checkout.pip_calls()
    assert backend.endswith("-c constraints.txt setuptools")
    extras = ".[daemon,deepspeed,torchtitan,huggingface,lightning,megatron,trackers,dev]"
    assert project.endswith(f"--no-build-isolation --editable {extras}")
    assert titan.endswith("--no-deps torchtitan")
    assert checkout.setup().returncode == 0
    assert checkout.pip_calls() == []


@pytest.mark.parametrize("name", ["constraints.txt", "pyproject.toml"])
def test_changed_pins_install_again(checkout: Checkout, name: str) -> None:
    """A change in either file is noticed."""
    checkout.make_venv()
    checkout.setup()
    checkout.pip_calls()
    with (checkout.folder / name).open("a") as file:
        file.write("# changed\n")
    assert checkout.setup().returncode == 0
    assert len(checkout.pip_calls()) == 3


def test_failed_install_is_tried_again(checkout: Checkout) -> None:
    """When pip fails, so does the script, and the next run does not believe the half-made one."""
    checkout.make_venv(pip_status=1)
    assert checkout.setup().returncode == 1
    checkout.make_venv()
    checkout.pip_calls()
    assert checkout.setup().returncode == 0
    assert len(checkout.pip_calls()) == 3


QUICK = "WATTMESH_QUICK_PYTHON"


def test_pythons_of_tests_collect_less_garbage_and_no_others(checkout: Checkout) -> None:
    """Set up anew or long ago, .venv knows the variable that tests set, and is as ever without."""
    checkout.make_venv()
    python = str(checkout.folder / ".venv" / "bin" / "python")
    ask = [python, "-c", "import gc; print(gc.get_threshold()[0])"]
    usual = {name: value for name, value in os.environ.items() if name != QUICK}

    def threshold(**environment: str) -> int:
        return int(subprocess.check_output(ask, env=usual | environment, text=True))

    ordinary = threshold(**{QUICK: "1"})
    for _ in ("anew", "long ago"):
        assert checkout.setup().returncode == 0
        assert threshold() == ordinary < threshold(**{QUICK: "1"})
        (pth,) = checkout.folder.glob(".venv/lib/python*/site-packages/quick_python.pth")
        pth.unlink()
    assert threshold(**{QUICK: "1"}) == ordinary
    assert os.environ[QUICK]


def _tools(folder: Path, **scripts: str) -> str:
    """Make a PATH with a few programs of the system and the given ones."""
    folder.mkdir()
    for name in ("dirname", "cat", "sh", "env"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    for name, text in scripts.items():
        path = folder / name.replace("_", ".")
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return str(folder)


def test_no_python(checkout: Checkout) -> None:
    """Without a Python that we support, one sentence says which ones those are."""
    done = checkout.setup(PATH=_tools(checkout.folder / "bin"))
    assert done.returncode == 1
    assert done.stderr == (
        "setup: no Python 3.11, 3.12 or 3.13 found on PATH: install one, then run this again\n"
    )


def test_no_venv_module(checkout: Checkout) -> None:
    """Without Python's venv module and without root, one sentence names the package."""
    # A Python that has everything but `ensurepip`, as Debian ships it.
    python = f'case "$2" in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"'
    path = _tools(checkout.folder / "bin", python3_11=python, id="echo 1000")
    done = checkout.setup(PATH=path)
    version = "{}.{}".format(*sys.version_info[:2])
    assert done.returncode == 1
    assert done.stderr == (
        "setup: Python's venv module is missing: "
        f"install the package python{version}-venv, then run this again\n"
    )


def test_every_target_sets_up() -> None:
    """Each `make` target that runs Python does its own set-up first."""
    rules = re.findall(
        r"^(\w+):(.*)\n((?:\t.*\n)*)", (REPOSITORY / "Makefile").read_text(), re.MULTILINE
    )
    runs_python = {name: needs for name, needs, recipe in rules if _uses_venv(recipe)}
    assert [name for name, needs in runs_python.items() if "setup" not in needs.split()] == []
    assert {"demo", "test", "lint", "bench", "docs"} <= {name for name, _, _ in rules}


def _uses_venv(recipe: str) -> bool:
    return "$(PYTHON)" in recipe or ".venv/bin/" in recipe


def test_ci_runs_lint_test_and_audit() -> None:
    """CI calls `make lint` and `make test` at once, with skips made failures, and `make audit`."""
    script = REPOSITORY / ".ci" / "run"
    lines = script.read_text().splitlines()
    assert lines[-2:] == ["export CI=1", "make -j2 lint test audit"]
    assert os.access(script, os.X_OK)
