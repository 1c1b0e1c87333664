"""The accounts: joules become grams, and the baseline is kept beside the run.

`price` brings both ledgers up to now and may be called at any time; a call that finds nothing new
writes nothing. It reads only what can have changed: joules booked since the last call, slots of
which a further intensity was stored, however old they are, and slots whose price is not final yet
(docs/carbon-accounting.md; what a slot is priced with: slot_prices.py).

Invariant: a slot without a trusted intensity has no grams (NULL), never zero; a better intensity
replaces a weaker one in both scenarios in one transaction, and what was reported first stays
beside; a price once given is replaced only by a better one of the signal it is kept in.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from wattmesh.controller.accounting.baseline_ledger import (
    BASELINE,
    BEST_SINGLE,
    UNPRICED,
    BaselineLedger,
)
from wattmesh.controller.accounting.unread import BoardLimits, Unread
from wattmesh.controller.journal.energy.ledger import EmissionRow, Intensity
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.signals.slot_prices import Price, Rank, SlotPrices, Tariff, rank_of
from wattmesh.policies.accounting.baseline import SlotKind, price_ug
from wattmesh.telemetry.carbon import Series, Signal
from wattmesh.telemetry.energy.ledger import EnergyRow, SlotGrid
from wattmesh.telemetry.readings import Quality

__all__ = ["ACTUAL", "BASELINE", "BEST_SINGLE", "UNPRICED", "Accounts"]

ACTUAL = "actual"
LATE = timedelta(hours=48)
"""How long after a slot another process may book joules of it without a restart of the daemon."""

STUCK_AGAIN = timedelta(hours=1)
"""How often old slots without any price are looked at; few of them ever get one."""

MOST_IDS = 500
"""Rows of another writer may become visible out of order, so this many ids are read again."""

MOST_ROWS = 20_000
"""Rows of one transaction; a slot is never split over two."""

MICROSECOND = timedelta(microseconds=1)

Key = tuple[str, str, datetime, str]
"""Run, GPU, slot start, line."""

Slot = tuple[datetime, datetime]


class Accounts:
    """Both ledgers of every run, in one accounting signal.

    Keep one instance: it remembers up to when everything was priced. The first call of a new one,
    and the one after a failure, look at every slot.
    """

    def __init__(
        self,
        journal: Journal,
        signal: Signal,
        grid: SlotGrid,
        pue_milli: int = 1000,
        tariff: Tariff | None = None,
        *,
        limits: BoardLimits = dict,
    ) -> None:
        """Keep the journal, the accounting signal, and the slots that follow its intervals.

        Args:
            journal: both ledgers, and the intensities.
            signal: what rows are priced in from now on.
            grid: its slots, for those that the ledger does not have yet.
            pue_milli: joules of the facility for 1000 measured ones, for rows priced from now on;
                1000 where the energy boundary is the machines themselves.
            tariff: its fallbacks, and how its series is cut; default none, and as the slots.
            limits: the most that boards can draw, for time that nobody reads.
        """
        series = Series(interval_s=grid.interval_s, origin=grid.origin, cadence_s=grid.interval_s)
        self._journal = journal
        self._signal = str(signal)
        self._grid = grid
        self._pue_milli = pue_milli
        self._tariff = tariff or Tariff(signal=signal, series=series)
        self._priced_to: datetime | None = None
        self._seen: frozenset[int] = frozenset()
        self._seen_to = 0
        self._stuck_at: datetime | None = None
        self._open: dict[Slot, dict[str, Price | None]] = {}
        self._prices: SlotPrices | None = None
        self._used: dict[Slot, Intensity | None] = {}
        self._settled: dict[str, tuple[datetime | None, int]] = {}
        self._unread = Unread(journal, limits)

    def price(self, now: datetime, *, settling: bool = True) -> None:
        """Bring both ledgers up to `now`.

        Args:
            now: the wall clock.
            settling: whether the clock is trusted; if not, no slot gets its final estimate by it.

        Raises:
            JournalUnavailable: the next cycle brings them up to date.
        """
        priced_to, self._priced_to = self._priced_to, None
        self._grid = self._journal.ledger_slots.on(self._grid, now, afresh=priced_to is None)
        self._unread.book(now, self._grid)
        since = None
        if priced_to is not None:
            since = self._grid.slot(min(now, priced_to) - LATE)[0]
            since = min(since, self._journal.ledger.booked_since() or since)
        self._prices = SlotPrices(self._journal, self._tariff, now, settling=settling)
        self._used = {}
        with self._journal.database.one_state():
            stale = self._stale_slots(now, everything=since is None)
            self._emit(stale, since)
        scenarios = BaselineLedger(self._journal, self._grid, self._signal, self._priced)
        closed = self._journal.ledger.closed_runs()
        failed: list[Exception] = []
        for run in self._journal.runs.all(now):
            if run.run in closed:
                continue
            try:
                self._update_scenarios(scenarios, run, now, anew=since is None)
            except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
                error.add_note(f"while the baseline of run {run.run} ({run.name}) was computed")
                failed.append(error)
        self._priced_to = now
        if failed:  # one run's bad history must not stop the books of the others
            raise failed[0]

    def _update_scenarios(
        self, scenarios: BaselineLedger, run: RunRow, now: datetime, *, anew: bool
    ) -> None:
        if self._settled.get(run.run) == (run.finished_at, run.tokens):
            return
        with self._journal.database.one_state():
            more = scenarios.update(run, now, anew=anew)
        if not more:
            self._settled[run.run] = (run.finished_at, run.tokens)

    def _stale_slots(self, now: datetime, *, everything: bool) -> set[datetime]:
        """Give the starts of slots that may get a better price than they have."""
        if everything:
            self._open.clear()
            newest = self._journal.carbon.newest_id()
            self._remember_as_read(
                {each.id for each in self._journal.carbon.changes(newest - MOST_IDS)}
            )
            used = self._journal.ledger.intensities()
            stale = {each.slot_start for each in used if self._could_be_priced_better(each)}
            for each in used:
                if each.slot_start not in stale:
                    self._keep_or_drop_open(each)
            return stale
        stale = {start for start, _ in self._changed_open(now)}
        touched = self._touched(now)
        if touched:
            used = self._journal.ledger.intensities(touched)
            stale |= {each.slot_start for each in used if self._could_be_priced_better(each)}
        return stale

    def _touched(self, now: datetime) -> set[datetime]:
        """Give the slots of which a further intensity was stored since the last call."""
        changes = self._journal.carbon.changes(self._seen_to - MOST_IDS)
        slots = set[datetime]()
        for change in changes:
            if change.id not in self._seen and change.start <= now:
                parts = self._grid.parts(change.start, min(change.end, now))
                slots |= {self._grid.slot(at)[0] for at, _ in parts} | {change.start}
        self._remember_as_read({each.id for each in changes})
        return slots

    def _remember_as_read(self, ids: Collection[int]) -> None:
        self._seen_to = max((self._seen_to, *ids))
        known = {*self._seen, *ids}
        self._seen = frozenset(each for each in known if each > self._seen_to - MOST_IDS)

    def _changed_open(self, now: datetime) -> Iterator[Slot]:
        """Give the slots whose price was not final and is a different one now."""
        stuck_before = now - 2 * self._tariff.settled_after
        again = self._stuck_at is None or now - self._stuck_at >= STUCK_AGAIN
        if again:
            self._stuck_at = now
        for (start, end), homes in self._open.items():
            if end < stuck_before and not again:
                continue
            for home, held in homes.items():
                price = self._best_price(home, start, end, held.rank if held else None)
                if price is not None and price != held:
                    yield start, end
                    break

    def _best_price(
        self, signal: str, start: datetime, end: datetime, above: Rank | None
    ) -> Price | None:
        assert self._prices is not None  # `price` made it
        return self._prices.best(signal, start, end, above)

    def _could_be_priced_better(self, used: Intensity) -> bool:
        held = _held(used)
        home = self._home(used)
        price = self._best_price(home, used.slot_start, used.slot_end, held.rank if held else None)
        return price is not None and _better(price, held)

    def _keep_or_drop_open(self, row: Intensity | EmissionRow) -> None:
        slot = (row.slot_start, row.slot_end)
        provisional = row.g_milli_per_kwh is None or row.quality == Quality.PROVISIONAL
        if not provisional and slot not in self._open:
            return
        held = _held(row)
        homes = dict(self._open.get(slot, {}))
        homes.pop(self._home(row), None)
        if provisional:
            homes[self._home(row)] = held
        self._open[slot] = homes
        if not homes:
            del self._open[slot]

    def _used_in(self, row: EmissionRow) -> Intensity | None:
        """Give what a slot was priced with before this cycle; None if it had no price."""
        slot = (row.slot_start, row.slot_end)
        if slot not in self._used:
            used = [
                each
                for each in self._journal.ledger.intensities({row.slot_start})
                if each.slot_end == row.slot_end and each.g_milli_per_kwh is not None
            ]
            ranks = [rank_of(each.quality, each.model) for each in used]
            self._used[slot] = used[ranks.index(max(ranks))] if used else None
        return self._used[slot]

    def _home(self, row: Intensity | EmissionRow) -> str:
        """Give the signal that a slot is accounted in: a priced slot keeps its own."""
        return self._signal if row.g_milli_per_kwh is None else row.signal

    def _emit(self, stale: set[datetime], since: datetime | None) -> None:
        """Write every row that is missing or differs from what it should be."""
        ledger = self._journal.ledger
        fresh = [row for row in ledger.unemitted(since, ACTUAL) if row.slot_start not in stale]
        for run in {each.run for each in fresh}:
            self._settled.pop(run, None)  # they may lie in slots that its baseline lacks
        rows = self._actual_rows(fresh)
        for start in sorted(stale):
            rows += self._actual_rows(ledger.energy(start, start + MICROSECOND))
            for scenario in (BASELINE, BEST_SINGLE):
                for held in ledger.emissions(None, start, start + MICROSECOND, scenario):
                    row = self._priced(held, held)
                    rows += [row] if row != held else []
            if len(rows) >= MOST_ROWS:
                ledger.emit(rows)
                rows = []
        if rows:
            ledger.emit(rows)

    def _actual_rows(self, energies: Sequence[EnergyRow]) -> list[EmissionRow]:
        """Price measured joules; give only rows that changed."""
        if not energies:
            return []
        starts = [row.slot_start for row in energies]
        window = (None, min(starts), max(starts) + MICROSECOND, ACTUAL)
        known = {_key(row): row for row in self._journal.ledger.emissions(*window)}
        rows = []
        for energy in energies:
            held = known.get(_key(energy))
            row = self._priced(_actual(energy, self._signal), held)
            if row != held:
                rows.append(row)
        return rows

    def _priced(self, row: EmissionRow, held: EmissionRow | None) -> EmissionRow:
        """Give a row with its price.

        A row that had a price keeps its signal and its PUE, and its price unless a better one is
        known: a change of the settings does not rewrite history. A late row of a slot in which
        others have a price takes theirs: a slot has one price, on both sides of a saving.
        """
        if row.line == SlotKind.AS_RUN:
            return replace(row, quality="")
        priced = held is not None and held.g_milli_per_kwh is not None
        like = held if priced else self._used_in(row)
        before = _held(like) if like is not None else None
        home, pue_milli = self._signal, self._pue_milli
        if like is not None:
            home, pue_milli = like.signal, like.pue_milli
        found = self._best_price(
            home, row.slot_start, row.slot_end, before.rank if before else None
        )
        price = found if found is not None and _better(found, before) else before
        known = row.energy_mj is not None or row.upper_mj > 0
        if price is None or not known:
            row = replace(
                row,
                signal=home,
                stand_in="",
                pue_milli=pue_milli,
                quality=UNPRICED,
                g_milli_per_kwh=None,
                carbon_ug=None,
                upper_ug=None,
                model="",
            )
        else:
            rate = (price.g_milli_per_kwh, pue_milli)
            row = replace(
                row,
                signal=home,
                stand_in=price.signal if price.rank is Rank.FALLBACK else "",
                pue_milli=pue_milli,
                quality=price.quality,
                g_milli_per_kwh=price.g_milli_per_kwh,
                carbon_ug=None if row.energy_mj is None else price_ug(row.energy_mj, *rate),
                upper_ug=price_ug(row.upper_mj, *rate),
                model=price.model,
            )
        row = replace(row, first_carbon_ug=_first(row, held))
        if known:
            self._keep_or_drop_open(row)
        return row


def _actual(energy: EnergyRow, signal: str) -> EmissionRow:
    return EmissionRow(
        scenario=ACTUAL,
        run=energy.run,
        gpu_uuid=energy.gpu_uuid,
        slot_start=energy.slot_start,
        slot_end=energy.slot_end,
        signal=signal,
        quality=UNPRICED,
        energy_mj=energy.energy_mj,
        g_milli_per_kwh=None,
        carbon_ug=None,
        first_carbon_ug=None,
        line=energy.line,
        energy_quality=energy.quality,
        upper_mj=energy.upper_mj,
    )


def _first(row: EmissionRow, held: EmissionRow | None) -> int | None:
    """Give the grams reported first: the joules known then, at their first price.

    Joules that came later count at the price of the day they came, so `carbon_ug` less this is
    exactly what revised intensities changed.
    """
    if held is None or held.first_carbon_ug is None:
        return row.carbon_ug
    if row.g_milli_per_kwh is None or row.carbon_ug is None:
        return held.first_carbon_ug
    before_ug = price_ug(held.energy_mj or 0, row.g_milli_per_kwh, row.pue_milli)
    return held.first_carbon_ug + row.carbon_ug - before_ug


def _held(row: EmissionRow | Intensity) -> Price | None:
    """Give the price that a row has; None if it is unpriced."""
    if row.g_milli_per_kwh is None:
        return None
    return Price(
        signal=row.stand_in or row.signal,
        g_milli_per_kwh=row.g_milli_per_kwh,
        quality=row.quality,
        rank=rank_of(row.quality, row.model),
        model=row.model,
    )


def _better(price: Price, held: Price | None) -> bool:
    """Whether a price replaces the one held: of a higher rank, or a new value of the same rank."""
    if held is None or price.rank > held.rank:
        return True
    if price.rank is Rank.SETTLED or price.rank < held.rank:
        return False
    return price.g_milli_per_kwh != held.g_milli_per_kwh or price.signal != held.signal


def _key(row: EnergyRow | EmissionRow) -> Key:
    return row.run, row.gpu_uuid, row.slot_start, row.line
