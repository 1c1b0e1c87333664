"""What a daemon loads to read power."""

import subprocess
import sys

SCRIPT = """
import sys
import wattmesh.controller.daemon.__main__, wattmesh.controller.daemon.wiring
from wattmesh.controller.daemon.power import power_source
from wattmesh.controller.settings.model import PowerSection, Settings
assert power_source(Settings()) is None
print(sorted({"pynvml", "requests"} & set(sys.modules)))
power_source(Settings(power=PowerSection(source="nvml")))
print(sorted({"pynvml", "requests"} & set(sys.modules)))
"""


def test_nvml_s_binding_is_loaded_only_where_gpus_are_read() -> None:
    """A controller without GPUs of its own never loads it; one with them loads nothing else."""
    said = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    assert said.splitlines() == ["[]", "['pynvml']"]
