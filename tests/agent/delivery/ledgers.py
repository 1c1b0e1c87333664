"""What an outbox and a controller hold, added up; and a controller that takes batches once."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.telemetry.energy.delivery import EnergyBatch
from wattmesh.telemetry.energy.ledger import CounterBaseline, EnergyRow

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
SLOT = timedelta(minutes=30)


def row(index: int = 0, **changes: Any) -> EnergyRow:
    """Give a row of the half hour `index`."""
    values: dict[str, Any] = {
        "gpu_uuid": "G0",
        "run": "run-1",
        "incarnation": "inc-1",
        "slot_start": T0 + index * SLOT,
        "slot_end": T0 + (index + 1) * SLOT,
        "energy_mj": 1000,
        "unobserved_ms": 0,
        "upper_mj": 0,
        "source": "nvml",
        "quality": "measured",
        "line": "run",
    }
    return EnergyRow(**values | changes)


def counter(energy_mj: int, gpu: str = "G0", **changes: Any) -> CounterBaseline:
    """Give a baseline."""
    values: dict[str, Any] = {"at": T0, "monotonic_s": 50.0, "boot_id": "boot-1"}
    return CounterBaseline(gpu_uuid=gpu, energy_mj=energy_mj, **values | changes)


Amounts = tuple[int, int, int]


def amounts(rows: Iterable[EnergyRow]) -> Amounts:
    """Add up joules, unobserved time and upper bounds."""
    known = list(rows)
    return (
        sum(each.energy_mj or 0 for each in known),
        sum(each.unobserved_ms for each in known),
        sum(each.upper_mj for each in known),
    )


class Controller:
    """Adds batches up, each (node, boot_id, seq) once."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.rows: list[EnergyRow] = []
        self.baselines: dict[str, CounterBaseline] = {}
        self.newest: dict[tuple[str, str], int] = {}

    def take(self, batch: EnergyBatch) -> bool:
        """Add a batch; False when it was there before."""
        key = (batch.node, batch.boot_id)
        if batch.seq <= self.newest.get(key, -1):
            return False
        self.newest[key] = batch.seq
        self.rows += batch.rows
        self.baselines |= {each.gpu_uuid: each for each in batch.baselines}
        return True
