"""Killed at any moment: a reader sees the old or the new, never a part, and the next try works."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LEFT = {
    "virtual": ("absent", "unverified"),
    "physical": ("absent", "verified"),
    "record": ("unverified", "verified"),
    "prune": ("verified", "no checkpoint", "absent"),
}
"""What may be seen after a kill, in the order of time."""


@pytest.mark.parametrize("name", LEFT)
def test_killed_before_every_call_into_the_file_system(name: str, tmp_path: Path) -> None:
    """Old until one moment, new from then on; both are seen, and nothing else."""
    command = [sys.executable, "-m", "tests.universal.convert.killed", name, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert len(seen) > 10
    assert set(seen) == set(LEFT[name])
    assert [LEFT[name].index(each) for each in seen] == sorted(
        LEFT[name].index(each) for each in seen
    )
