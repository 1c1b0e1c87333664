"""The safety matrix in real processes: whatever vanishes, every GPU ends where it must."""

import pytest

from benchmarks.safety_cases import CASES, Case
from benchmarks.safety_node import Node


@pytest.mark.parametrize("case", CASES, ids=[each.name.replace(" ", "-") for each in CASES])
def test_every_gpu_ends_at_its_baseline_or_under_its_obligation(case: Case) -> None:
    """One row of docs/safety.md: make the state, take the part away, wait for the end."""
    with Node() as node:
        case.run(node)
