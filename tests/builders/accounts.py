"""Small facts for tests of the accounts: slots of half an hour that begin at T0."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tests.builders.carbon import intensities
from tests.builders.runs import (
    PLAN,
    T0,
    UID,
    A,
    B,
    after,
    order,
    progress,
    put_order,
    register,
    transition,
)
from wattmesh.controller.accounting.accounts import Accounts
from wattmesh.controller.accounting.saving import Saving, run_saving
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Finish
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.energy.ledger import CounterBaseline, EnergyRow, SlotGrid
from wattmesh.telemetry.readings import Quality

SLOT_S = 30.0
GRID = SlotGrid(origin=T0, interval_s=SLOT_S)
SIGNAL = Signal(provider="csv", zone="GB")
GPUS = ("g0", "g1", "g2", "g3")

__all__ = ["T0", "UID", "A", "B", "after", "progress", "register"]


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
    length = timedelta(seconds=SLOT_S)
    journal.carbon.store(intensities(signal, values, slot(first), length, quality=quality, at=T0))


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


def counters(journal: Journal, at: datetime, skip: Sequence[str] = ()) -> None:
    """Say that everything up to `at` is booked; a GPU is covered from the first time on."""
    journal.ledger.book(
        [],
        [
            CounterBaseline(gpu_uuid=gpu, energy_mj=0, at=at, monotonic_s=0.0, boot_id="b")
            for gpu in GPUS
            if gpu not in skip
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


def trained(journal: Journal, scenario: str = "baseline") -> int:
    """Count the tokens of a scenario."""
    return sum(row.tokens for row in journal.ledger.emissions("r", scenario=scenario))


def saved(journal: Journal, at: datetime | None = None) -> Saving:
    """Give the saving of the only run."""
    row = journal.runs.find("r", at or after(10**6))
    assert row is not None
    return run_saving(journal, row)


def moved(
    journal: Journal,
    epoch: int,
    *,
    begun: datetime,
    ended: datetime,
    to: str = "B",
    switch_id: str = "p1",
    step: int = 120,
) -> None:
    """Switch the run between two moments, as its hook would tell."""
    target = B if to == "B" else A
    made = replace(order(epoch, switch_id=switch_id), point=to, layout=target, not_before_step=step)
    assert put_order(journal, made, now=begun)
    for state, now in ((SwitchState.ANNOUNCED, begun), (SwitchState.CONFIRMED, ended)):
        told = transition(state, epoch=epoch, switch_id=switch_id, step=step, layout=target)
        journal.switches.record(told, owner_uid=UID, now=now)


@dataclass(kw_only=True)
class Life:
    """A run that is lived slot by slot: what it trains and draws, and the accounts behind it.

    Attributes:
        power_w: of each of its GPUs. `rate`: tokens/s. `unread`: GPUs that nobody reads.
        quality: of its joules. `signal`: what the books are kept in.
    """

    journal: Journal
    power_w: float = 400.0
    rate: float = 1000.0
    unread: tuple[str, ...] = ()
    slots: int = 0
    tokens: int = 0
    attempt: int = 1
    gpus: tuple[str, ...] = GPUS
    layout: Layout = A
    quality: str = "measured"
    signal: Signal = SIGNAL

    def begin(self, *, plan: RunPlan = PLAN, tokens_total: int = 10**9) -> None:
        """Register, read by everybody from then on."""
        counters(self.journal, T0, skip=self.unread)
        register(self.journal, plan=plan, tokens_total=tokens_total)
        self.books = accounts(self.journal, self.signal)
        self.books.price(T0)

    def live(self, count: int = 1) -> None:
        """Train for some slots."""
        for _ in range(count):
            self.tokens += round(self.rate * SLOT_S)
            self.slots += 1
            now = slot(self.slots)
            self.report(now)
            each_mj = round(self.power_w * SLOT_S * 1000)
            read = [gpu for gpu in self.gpus if gpu not in self.unread]
            row = energy(self.slots - 1, each_mj, quality=self.quality)
            book(self.journal, *(replace(row, gpu_uuid=gpu) for gpu in read))
            counters(self.journal, now, skip=self.unread)
            self.books.price(now)

    def report(self, now: datetime) -> None:
        """Tell how far it is."""
        progress(
            self.journal,
            now=now,
            tokens=self.tokens,
            seq=self.slots,
            attempt=self.attempt,
            incarnation=f"i{self.attempt}",
            layout=self.layout,
        )
