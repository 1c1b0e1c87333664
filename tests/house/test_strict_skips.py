"""In CI a skip fails the run, unless the test is marked `gpu`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
IN_A_TEST = "import pytest\ndef test_part_missing():\n    pytest.skip('no such part')\n"
IN_A_MODULE = "import pytest\npytest.skip('no such part', allow_module_level=True)\n"
MARKED_GPU = f"import pytest\npytestmark = pytest.mark.gpu\n{IN_A_TEST}"
EXPECTED_FAILURE = "import pytest\n@pytest.mark.xfail\ndef test_known():\n    assert False\n"


def _exit_status(source: str, folder: Path, *, ci: str, plugin: bool = True) -> int:
    path = folder / "test_sample.py"
    path.write_text(source + "\ndef test_passes():\n    pass\n")
    config = folder / "pytest.ini"
    config.write_text("[pytest]\nmarkers = gpu: needs a GPU\n")
    chosen = ["-p", "tests.strict_skips"] if plugin else []
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", str(config), *chosen, str(path)],
        cwd=REPOSITORY,
        env={**os.environ, "CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.DEVNULL,
        check=False,
    ).returncode


@pytest.mark.parametrize("source", [IN_A_TEST, IN_A_MODULE], ids=["test", "module"])
def test_skip_fails_in_ci(source: str, tmp_path: Path) -> None:
    """A skipped test or module makes pytest fail when CI is set."""
    failing = {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED}
    assert _exit_status(source, tmp_path, ci="1") in failing


@pytest.mark.parametrize("source", [MARKED_GPU, EXPECTED_FAILURE], ids=["gpu", "xfail"])
def test_gpu_may_skip_in_ci(source: str, tmp_path: Path) -> None:
    """A `gpu` test may skip in CI, and an expected failure is no skip."""
    assert _exit_status(source, tmp_path, ci="1") == pytest.ExitCode.OK


@pytest.mark.parametrize("ci", ["", "false"])
def test_skip_is_fine_outside_ci(ci: str, tmp_path: Path) -> None:
    """On a person's machine a missing part is a skip and no more."""
    assert _exit_status(IN_A_TEST, tmp_path, ci=ci) == pytest.ExitCode.OK


def test_without_the_plugin_skips_pass(tmp_path: Path) -> None:
    """Sabotaged twin: without the plugin the same skip goes unnoticed in CI."""
    assert _exit_status(IN_A_TEST, tmp_path, ci="1", plugin=False) == pytest.ExitCode.OK
