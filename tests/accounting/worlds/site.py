"""A site in which a world's run lives: a real journal, written as hooks and samplers write it.

Every entry is the product's own: `register`, `progress`, `finish` as the API calls them, orders and
transitions as the cycle and a hook make them, rows and counters as a sampler books them, and
intensities as a poller stores them. Books are read through `run_saving`, `budget` and `audit`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.accounting.worlds.world import Span, Stay, World
from tests.builders.journals import fresh_file
from wattmesh.controller.accounting.accounts import Accounts
from wattmesh.controller.accounting.saving import Saving, run_saving
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan, RunRow
from wattmesh.reconfig.catalogue import (
    Catalogue,
    Equivalence,
    Evidence,
    OperatingPoint,
    PowerScope,
    Release,
    SwitchCost,
)
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Finish, Order, Progress, Register, Transition
from wattmesh.telemetry.carbon import CarbonPoint, Signal
from wattmesh.telemetry.energy.ledger import CounterBaseline, EnergyRow, SlotGrid
from wattmesh.telemetry.readings import Quality

T0 = datetime(2026, 11, 20, 0, tzinfo=UTC)
UID = 1000
SIGNAL = Signal(provider="csv", zone="GB")
LIMIT_MW = 700_000
LAYOUTS = {"A": Layout(dp_shard=2, tp=2), "B": Layout(tp=2), "C": Layout(dp_shard=4)}
TOKENS_TOTAL = 10**12


def moment(at_s: float) -> datetime:
    """Give a moment after T0."""
    return T0 + timedelta(seconds=at_s)


def _memory() -> str | None:
    """Name a folder in memory, where there is one: many short commits."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """How far one GPU is read.

    Attributes:
        since: when it is read first; None: never.
        silent: spans in which its agent is gone: it is delivered afterwards, as far as its counter
            tells (`counted`), or not at all when the span ends with the world.
        blind: spans in which the agent lives and the board does not answer.
        late: seconds by which deliveries lag.
    """

    since: int | None = 0
    silent: Sequence[Span] = ()
    counted: bool = True
    blind: Sequence[Span] = ()
    late: int = 0

    def gone(self, at: int) -> bool:
        """Whether nothing is delivered at a moment."""
        return any(start <= at < end for start, end in self.silent)

    def dark(self, at: int) -> bool:
        """Whether what is drawn at a moment is delivered as unobserved."""
        lost = () if self.counted else self.silent
        return any(start <= at < end for start, end in (*self.blind, *lost))


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What catalogue and settings say; the former may be wrong."""

    tokens_per_s: Mapping[str, float]
    power_w: Mapping[str, float]
    gpus: Mapping[str, int]
    idle_w: float = 0.0
    switch_s: float = 0.0
    deadline_s: float | None = None
    power_scope: PowerScope = PowerScope.GPU
    host_power_w: float | None = None

    def catalogue(self) -> Catalogue:
        """Give it as the daemon freezes it at registration."""
        points = tuple(
            OperatingPoint(
                id=name,
                layout=LAYOUTS[name],
                gpus=self.gpus[name],
                tokens_per_s=rate,
                power_w=self.power_w[name],
                host_power_w=self.host_power_w,
                equivalence=Equivalence.EXACT,
                evidence=Evidence.VALIDATED,
            )
            for name, rate in self.tokens_per_s.items()
        )
        return Catalogue(
            job="llm",
            tokens_total=TOKENS_TOTAL,
            reference="A",
            points=points,
            power_scope=self.power_scope,
            release=Release.HELD,
            idle_power_w_per_gpu=self.idle_w,
            switch=SwitchCost(layout_s=self.switch_s),
        )


@dataclass(slots=True, kw_only=True)
class Site:
    """One journal, one world, and who tells the former of the latter.

    Attributes:
        limits: what boards tell of their power limit: known of all, or of none.
        allocated: GPUs that the scheduler gave the run's job, used or not.
        signal, pue_milli, cut: accounting signal, PUE and slots of the settings; default: a
            slot for each price.
    """

    journal: Journal
    world: World
    sights: Mapping[str, Sight]
    told: Told
    limits: Mapping[str, float] = field(default_factory=dict)
    signal: Signal = SIGNAL
    pue_milli: int = 1000
    cut: SlotGrid | None = None
    run: str = "r"
    gpus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    allocated: tuple[str, ...] = ()
    accounts: Accounts | None = None
    reported: int = 0
    _rows: dict[tuple[str, str, datetime, str], EnergyRow] = field(default_factory=dict)
    _to: dict[str, int] = field(default_factory=dict)
    _attempt: int = 0
    _seq: int = 0
    _plan: int = 0
    _epoch: int = 0
    _open: Order | None = None
    _layout: str = "A"

    @property
    def grid(self) -> SlotGrid:
        """The slots of the ledger, where new ones are cut as the settings say now."""
        settings = self.cut or SlotGrid(origin=T0, interval_s=self.world.slot_s)
        return self.journal.ledger_slots.on(settings, T0)

    def restart(self) -> None:
        """Start the daemon anew: its accounts remember nothing."""
        known = {gpu: self.limits[gpu] for gpu in self.limits}
        self.accounts = Accounts(
            self.journal, self.signal, self.grid, self.pue_milli, limits=lambda: known
        )

    def price(self, at: int) -> None:
        """Bring the books up to date."""
        if self.accounts is None:
            self.restart()
        assert self.accounts is not None
        self.accounts.price(moment(at))

    def row(self, at: int) -> RunRow:
        """Give the run as it stands."""
        found = self.journal.runs.find(self.run, moment(at))
        assert found is not None
        return found

    def saving(self, at: int) -> Saving:
        """Give its saving as the books have it."""
        return run_saving(self.journal, self.row(at))

    # What the hook says.

    def begin(self, at: int, tokens: int, layout: str = "A") -> None:
        """Register a launch."""
        before, self._attempt, self._layout = self._attempt, self._attempt + 1, layout
        gpus = self.gpus.get(layout, self.world.gpus)
        message = Register(
            run=self.run,
            name=self.run,
            incarnation=f"{self.run}{self._attempt}",
            attempt=self._attempt,
            layout=LAYOUTS[layout],
            ranks=tuple(range(LAYOUTS[layout].world_size)),
            world_size=max(len(gpus), LAYOUTS[layout].world_size),
            gpus=gpus,
            allocated=self.allocated,
            tokens=tokens,
            tokens_total=TOKENS_TOTAL,
            boundary_every=10,
            capabilities=("in_place", "parking", "restart"),
            supersedes=f"{self.run}{before}" if before else "",
        )
        plan = RunPlan(
            catalogue=self.told.catalogue(),
            baseline=self.world.submitted,
            deadline_after_s=self.told.deadline_s,
        )
        self.journal.runs.register(message, owner_uid=UID, now=moment(at), epoch=1, plan=plan)
        self.reported = at

    def report(self, at: int, layout: str = "") -> None:
        """Report how far the run is."""
        self._seq += 1
        self._layout = layout or self._layout
        tokens = self.world.tokens(at)
        message = Progress(
            run=self.run,
            incarnation=f"{self.run}{self._attempt}",
            attempt=self._attempt,
            seq=self._seq,
            step=self._seq,
            samples=self._seq,
            tokens=tokens,
            tokens_per_s=1.0,
            loss=2.0,
            layout=LAYOUTS[self._layout],
            ranks=tuple(range(LAYOUTS[self._layout].world_size)),
            boundary_every=10,
        )
        self.journal.runs.progress(message, owner_uid=UID, now=moment(at))
        self.reported = at

    def finish(
        self, at: int, reason: str = "done", wakes: int | None = None, held_as: str = ""
    ) -> None:
        """End the run, or a launch; `wakes`: when one that goes to sleep wakes.

        `held_as`: what holds the next launch.
        """
        message = Finish(
            run=self.run,
            incarnation=f"{self.run}{self._attempt}",
            attempt=self._attempt,
            step=self._seq,
            tokens=self.world.tokens(at),
            reason=reason,
            wakes_at=None if wakes is None else moment(wakes).isoformat(),
            held_as=held_as,
        )
        self.journal.runs.finish(message, owner_uid=UID, now=moment(at))
        self.reported = at

    def order(self, at: int, point: str) -> None:
        """Order a switch, as the cycle does."""
        if not self._epoch:
            self._epoch = self.journal.leadership.acquire("daemon", 1e9) or 0
        self._plan += 1
        self._open = Order(
            switch_id=f"p{self._plan}",
            epoch=self._epoch,
            run=self.run,
            attempt=self._attempt,
            point=point,
            layout=LAYOUTS[point],
            ranks=tuple(range(LAYOUTS[point].world_size)),
            not_before_step=self._seq,
            valid_until_step=self._seq + 10**6,
        )
        assert self.journal.switches.order(
            self._open,
            from_point="A",
            requested_by="policy",
            reason="the grid is dirty.",
            predicted_g=0.5,
            switch_cost_g=0.1,
            now=moment(at),
        )

    def step(self, at: int, state: SwitchState) -> None:
        """Report a step of the open switch, as a hook does."""
        order = self._open
        assert order is not None
        final = state is SwitchState.CONFIRMED
        message = Transition(
            run=self.run,
            incarnation=f"{self.run}{self._attempt}",
            attempt=self._attempt,
            switch_id=order.switch_id,
            epoch=order.epoch,
            state=state,
            step=self._seq,
            elapsed_s=1.0,
            layout=order.layout if final else None,
            ranks=order.ranks,
            evidence={"total_s": 1.5} if final else {},
        )
        self.journal.switches.record(message, owner_uid=UID, now=moment(at))

    def withdraw(self, at: int) -> None:
        """Take an order back that was never begun."""
        self._close(at, SwitchState.ABANDONED)

    def fail(self, at: int) -> None:
        """Give a switch up that broke its launch."""
        self._close(at, SwitchState.FAILED)

    def _close(self, at: int, state: SwitchState) -> None:
        """End the open switch, as the cycle does."""
        assert self._open is not None
        done = self.journal.switches.close(
            self._open.switch_id,
            state,
            detail="not needed any more",
            now=moment(at),
            epoch=self._epoch,
        )
        assert done

    # What the samplers say.

    def covered_to(self, gpu: str) -> int | None:
        """Give up to when a GPU is delivered; None: never."""
        return self._to.get(gpu)

    def deliver(self, at: int) -> None:
        """Book what every GPU was seen to draw, with its counters."""
        rows: dict[tuple[str, str, datetime, str], EnergyRow] = {}
        counters = []
        for gpu in self.world.gpus:
            sight = self.sights[gpu]
            until = at - sight.late
            if sight.since is None or until < sight.since or sight.gone(at):
                continue
            since = self._to.setdefault(gpu, max(sight.since, min(until, sight.since)))
            self._to[gpu] = max(since, until)
            rows |= self._drawn(gpu, since, self._to[gpu])
            counters.append(
                CounterBaseline(
                    gpu_uuid=gpu,
                    energy_mj=0,
                    at=moment(self._to[gpu]),
                    monotonic_s=float(self._to[gpu]),
                    boot_id="b",
                )
            )
        if counters:
            self.journal.ledger.book(rows.values(), counters)

    def _drawn(
        self, gpu: str, since: int, until: int
    ) -> dict[tuple[str, str, datetime, str], EnergyRow]:
        """Give the rows of one GPU that change."""
        sight, changed = self.sights[gpu], dict[tuple[str, str, datetime, str], EnergyRow]()
        more = [each for span in (*sight.silent, *sight.blind) for each in span]
        for start, end in self.world.cuts(since, until, more):
            run, incarnation, line = self._claim(gpu, start)
            slot_start, slot_end = self.grid.slot(moment(start))
            key = (gpu, run, slot_start, line)
            row = self._rows.get(key) or EnergyRow(
                gpu_uuid=gpu,
                run=run,
                incarnation=incarnation,
                slot_start=slot_start,
                slot_end=slot_end,
                energy_mj=None,
                unobserved_ms=0,
                upper_mj=0,
                source="nvml",
                quality="measured",
                line=line,
            )
            if sight.dark(start):
                row = replace(
                    row,
                    unobserved_ms=row.unobserved_ms + 1000 * (end - start),
                    upper_mj=row.upper_mj + LIMIT_MW * (end - start),
                )
            else:
                drawn_mj = self.world.energy_mj(gpu, start, end)
                row = replace(row, energy_mj=(row.energy_mj or 0) + drawn_mj)
            self._rows[key] = changed[key] = row
        return changed

    def _claim(self, gpu: str, at: int) -> tuple[str, str, str]:
        """Say whose a GPU is: run, launch, line."""
        stay = self.world.stay(at)
        if not self.world.start <= at < self.world.end or not stay.lives:
            return "", "", "idle"
        layout = next(
            (each.at or each.to for each in reversed(self._before(at)) if each.at or each.to), "A"
        )
        if gpu not in (*self.gpus.get(layout, self.world.gpus), *self.allocated):
            return "", "", "idle_after_release"
        return self.run, f"{self.run}{max(1, self._attempt)}", "run"

    def _before(self, at: int) -> list[Stay]:
        """Give the stays that began by a moment."""
        return [each for each in self.world.stays if each.start <= at]

    # What the provider says.

    def tell_prices(
        self, slots: Sequence[int], at: int, factor: int = 1, signal: Signal = SIGNAL, many: int = 1
    ) -> None:
        """Store the measured intensities of slots; each holds for so many."""
        prices = self.world.prices
        self.journal.carbon.store(
            CarbonPoint(
                signal=signal,
                start=moment(slot * self.world.slot_s),
                end=moment((slot + many) * self.world.slot_s),
                g_per_kwh=factor * prices[slot] / 1000,
                quality=Quality.MEASURED,
                issued_at=moment(at),
                fetched_at=moment(at),
            )
            for slot in slots
        )


class Sites:
    """Opens a fresh journal for each example."""

    def __enter__(self) -> "Sites":
        """Begin."""
        self._folder = TemporaryDirectory(prefix="wattmesh-books-", dir=_memory())
        self._open: list[Journal] = []
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of all of them."""
        for each in self._open:
            each.close()
        self._folder.cleanup()

    def site(self, world: World, sights: Mapping[str, Sight], told: Told, **more: Any) -> Site:
        """Give a site with an empty journal."""
        path = Path(self._folder.name) / f"{len(self._open)}.db"
        journal = fresh_file(path)
        self._open.append(journal)
        return Site(journal=journal, world=world, sights=sights, told=told, **more)
