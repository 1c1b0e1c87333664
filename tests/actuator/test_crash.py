"""Killed anywhere, the actuator leaves nothing that its next start does not give back."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.actuator.dying import SCENARIOS

STRIDE = 13
"""`python -m tests.actuator.dying FOLDER SCENARIO 1` kills at every line; it takes minutes."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed_at_any_line_every_gpu_ends_at_its_baseline_or_under_its_obligation(
    scenario: str,
) -> None:
    """SIGKILL before, in and after every write: the next start, and restore-all, find it all."""
    told = killed_at_every_line(scenario)
    assert told["wrong"] == []
    assert told["lines"] > STRIDE
    assert told["changed"] > 0, "nothing was ever set, so nothing was tested"


def test_a_journal_that_is_written_after_the_act_is_caught() -> None:
    """The sabotaged twin: what was set but not announced stays, and is seen to stay."""
    assert any("locks stay" in each for each in killed_at_every_line("careless")["wrong"])


def killed_at_every_line(scenario: str) -> dict[str, Any]:
    """Kill a scenario at every `STRIDE`-th line; give what `dying` says of it."""
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
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told
