"""Switches of ranks that share the GPU, and of a compiled model.

They are a part of their own because a part has eight minutes.
"""

from benchmarks.gpu.chosen import Chosen
from benchmarks.gpu.switch import MORE, measured
from benchmarks.report import Report


def measure(chosen: Chosen) -> Report:
    """Run the cases."""
    return measured(chosen, MORE, "switch_more")
