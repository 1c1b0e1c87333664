"""Killed anywhere, the actuator leaves nothing that its next start does not give back."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.actuator.dying import SCENARIOS

STRIDE = 13
"""`python -m tests.actuator.dying FOLDER SCENARIO 1` kills at every line; it takes minutes."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed_at_any_line_every_gpu_ends_at_its_baseline_or_under_its_obligation(
    scenario: str,
) -> None:
    """SIGKILL before, in and after every write: the next start, and restore-all, find it all."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.actuator.dying", folder, scenario, str(STRIDE)],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["wrong"] == []
    assert told["lines"] > STRIDE
    assert told["changed"] > 0, "nothing was ever set, so nothing was tested"
