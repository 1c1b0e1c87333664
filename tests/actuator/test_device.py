"""What is read of a GPU belongs together, whatever happens while it is read."""

from contextlib import closing
from pathlib import Path
from typing import Any

from wattmesh.telemetry.actuator.device import _Board, _read
from wattmesh.telemetry.fake_nvml import FakeNvml
from wattmesh.telemetry.sources.nvml import BoardLimits, Nvml

BOARD = _Board(name="NVIDIA H100 80GB HBM3", lowest_mhz=210, highest_mhz=1980)


class ReloadedWhileRead:
    """A door to NVML through which the driver is seen to be loaded anew in the middle of a read."""

    def __init__(self, nvml: Nvml, fake: FakeNvml) -> None:
        """Reload once, right after the limits were read, and draw nothing from then on."""
        self._nvml, self._fake, self.reloads = nvml, fake, 0

    def limits(self, uuid: str) -> BoardLimits:
        """Read them, and let the driver be loaded anew."""
        found = self._nvml.limits(uuid)
        if not self.reloads:
            self.reloads += 1
            self._fake.gpu(0).draw(0.0)
            self._fake.reload_driver()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nvml, name)


def test_limits_and_counter_are_of_one_life_of_the_driver(tmp_path: Path) -> None:
    """A limit from before a reload beside a counter from after it would accuse somebody later."""
    with closing(FakeNvml.create(tmp_path / "gpus", gpus=1, update_ms=0)) as fake:
        gpu = fake.gpu(0)
        gpu.draw(600.0)
        with Nvml.open(fake.library) as nvml:
            while nvml.energy_mj(gpu.uuid) < 1000:
                continue
            gpu.foreign_limit(500.0)
            door: Any = ReloadedWhileRead(nvml, fake)
            facts = _read(door, gpu.uuid, BOARD)
    assert door.reloads == 1
    assert facts.requested_w == facts.default_w
    assert facts.energy_mj == 0
