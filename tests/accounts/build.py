"""Small facts for tests of the accounts: slots of half an hour that begin at T0."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from tests.journal.build import T0, UID, after, progress, register
from wattmesh.controller.books.accounts import Accounts
from wattmesh.controller.journal.journal import Journal
from wattmesh.reconfig.wire import Finish
from wattmesh.telemetry.carbon import CarbonPoint, Signal
from wattmesh.telemetry.ledger import CounterBaseline, EnergyRow, SlotGrid
from wattmesh.telemetry.readings import Quality

SLOT_S = 30.0
GRID = SlotGrid(origin=T0, interval_s=SLOT_S)
SIGNAL = Signal(provider="csv", zone="GB")
GPUS = ("g0", "g1", "g2", "g3")

__all__ = ["T0", "UID", "after", "progress", "register"]


def slot(number: int) -> datetime:
    """Give the start of a slot."""
    return after(number * SLOT_S)


def accounts(journal: Journal, signal: Signal = SIGNAL) -> Accounts:
    """Make the accounts, as a daemon that has just started does."""
    return Accounts(journal, signal, GRID)


def intensity(
    journal: Journal,
    values: Sequence[float],
    *,
    first: int = 0,
    quality: Quality = Quality.MEASURED,
    signal: Signal = SIGNAL,
) -> None:
    """Store the intensities of slots from `first`."""
    journal.carbon.store(
        CarbonPoint(
            signal=signal,
            start=slot(first + number),
            end=slot(first + number + 1),
            g_per_kwh=value,
            quality=quality,
            issued_at=T0,
            fetched_at=T0,
        )
        for number, value in enumerate(values)
    )


def energy(number: int, energy_mj: int | None, **changes: Any) -> EnergyRow:
    """Make the energy row of one GPU in one slot."""
    values: dict[str, Any] = {
        "gpu_uuid": "g0",
        "run": "r",
        "incarnation": "i1",
        "slot_start": slot(number),
        "slot_end": slot(number + 1),
        "energy_mj": energy_mj,
        "unobserved_ms": 0,
        "upper_mj": 0,
        "source": "nvml",
        "quality": "measured",
        "line": "run",
    }
    return EnergyRow(**(values | changes))


def book(journal: Journal, *rows: EnergyRow) -> None:
    """Book rows."""
    journal.ledger.book(rows, [])


def counters(journal: Journal, at: datetime) -> None:
    """Say that everything up to `at` is booked."""
    journal.ledger.book(
        [],
        [
            CounterBaseline(gpu_uuid=gpu, energy_mj=0, at=at, monotonic_s=0.0, boot_id="b")
            for gpu in GPUS
        ],
    )


def finish(journal: Journal, *, now: datetime, tokens: int, **changes: Any) -> None:
    """End the run."""
    values: dict[str, Any] = {
        "run": "r",
        "incarnation": "i1",
        "attempt": 1,
        "step": 1,
        "tokens": tokens,
        "reason": "done",
    }
    journal.runs.finish(Finish(**(values | changes)), owner_uid=UID, now=now)


def trained(journal: Journal) -> int:
    """Count the baseline's tokens."""
    return journal.ledger.trained("r", "baseline")


def seconds(value: timedelta) -> float:
    """Give a length in seconds."""
    return value.total_seconds()
