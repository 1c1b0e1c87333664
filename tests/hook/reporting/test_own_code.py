"""What a run says that it computes with: its own files, by content, and nothing installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from wattmesh.reconfig.hook.reports import own_code

SCRIPT = """
import json, sys, types, torch
import model
class Lazy(types.ModuleType):
    def __getattr__(self, name):
        raise ImportError(name)
sys.modules["lazy"] = Lazy("lazy")
sys.modules["odd"] = 7
from wattmesh.reconfig.hook.reports import own_code
print(own_code.code_digest(), sorted(each.name for each in own_code._own_files()))
"""


def _ran(folder: Path) -> tuple[str, str]:
    """Run the script in a process of its own; gives its digest, and its own files."""
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=True
    )
    digest, _, names = done.stdout.strip().partition(" ")
    return digest, names


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A script with one module beside it."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "model.py").write_text("LAYERS = 2\n")
    return tmp_path


def test_only_the_jobs_own_files_count_and_a_changed_one_shows(job: Path, tmp_path: Path) -> None:
    """The same in another folder; another with another model. Odd modules break nothing."""
    digest, names = _ran(job)
    assert names == "['model.py', 'script.py']"
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for each in ("script.py", "model.py"):
        (moved / each).write_bytes((job / each).read_bytes())
    assert _ran(moved)[0] == digest
    (moved / "model.py").write_text("LAYERS = 3\n")
    assert _ran(moved)[0] != digest


def test_what_is_not_known_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU there is no model of one, and without a launcher no topology."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    found = own_code.fingerprint(4)
    assert (found.gpu_models, found.nccl, found.topology) == (None, None, None)
    assert found.torch
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert own_code.fingerprint(4).topology == "2 x 2 ranks"
