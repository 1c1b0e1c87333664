"""The accounts: joules become grams, and the baseline is kept beside the run.

`price` brings both ledgers up to now and may be called as often as one likes; a call that finds
nothing new writes nothing. It reads what can have changed only: joules that were booked since, and
slots whose intensity became known or was revised (docs/carbon-accounting.md).

Invariant: a slot without a believed intensity has no grams (NULL), never zero; a measured intensity
replaces a provisional one in both scenarios in one transaction, and what was reported first stays
beside; a price once given is replaced only by a better one of the same signal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.ledger import EmissionRow, Intensity
from wattmesh.controller.journal.runs import RunRow
from wattmesh.controller.reckoning import BASELINE, UNPRICED, Reckoner
from wattmesh.policies.baseline import price_ug
from wattmesh.telemetry.carbon import CarbonPoint, Signal
from wattmesh.telemetry.ledger import EnergyRow, SlotGrid
from wattmesh.telemetry.readings import Quality

__all__ = ["ACTUAL", "BASELINE", "UNPRICED", "Accounts"]

ACTUAL = "actual"
RESTATED = timedelta(hours=48)
"""How long after a slot its intensity may be revised and late joules of it be booked."""

MICROSECOND = timedelta(microseconds=1)
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)

Key = tuple[str, str, datetime, str]
"""Run, GPU, slot start, line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The best known intensity of a slot."""

    g_milli_per_kwh: int
    quality: str


class Accounts:
    """Both ledgers of every run, in one accounting signal.

    Keep one: it remembers up to when everything was priced. The first call of a new one, and the
    one after a failure, looks further back: the first at every slot there is.
    """

    def __init__(
        self, journal: Journal, signal: Signal, grid: SlotGrid, pue_milli: int = 1000
    ) -> None:
        """Keep the journal, the accounting signal, and the slots that follow its intervals.

        Args:
            journal: both ledgers, and the intensities.
            signal: what rows are priced in from now on.
            grid: its slots.
            pue_milli: joules of the facility for 1000 measured ones, for rows priced from now on;
                1000 where the energy boundary is the machines themselves.
        """
        self._journal = journal
        self._signal = str(signal)
        self._grid = grid
        self._pue_milli = pue_milli
        self._priced_to: datetime | None = None
        self._prices: dict[str, Mapping[datetime, Price]] = {}
        self._settled: dict[str, tuple[datetime | None, int]] = {}

    def price(self, now: datetime) -> None:
        """Bring both ledgers up to `now`.

        Raises:
            JournalUnavailable: the next turn brings them up to date.
        """
        since, self._prices = self._since(now), {}
        self._prices[self._signal] = self._read_prices(self._signal, since)
        reckoner = Reckoner(self._journal, self._grid, self._signal, self._priced)
        reckoned = [self._reckon(reckoner, run, now) for run in self._journal.runs.all(now)]
        rows = self._stale_rows(since)
        if rows:
            self._journal.ledger.emit(rows)
        # Rows of slots whose prices were not read: the next call looks at all there are.
        unread = since is not None and any(each < since for each in reckoned)
        self._priced_to = None if unread else now

    def _reckon(self, reckoner: Reckoner, run: RunRow, now: datetime) -> datetime:
        """Bring a run's baseline up to `now`; give from when on that was done."""
        if self._settled.get(run.run) == (run.finished_at, run.tokens):
            return now
        since = reckoner.reckon(run, now)
        if since is None and run.finished_at is not None:
            self._settled[run.run] = (run.finished_at, run.tokens)
        return since or now

    def _since(self, now: datetime) -> datetime | None:
        """Give the first slot that may have changed since the call before; None: any may have."""
        if self._priced_to is None:
            return None
        return self._grid.slot(min(now, self._priced_to) - RESTATED)[0]

    def _read_prices(self, signal: str, since: datetime | None) -> Mapping[datetime, Price]:
        """Give the price of every slot from `since` that lies within one interval."""
        # An hour before: an interval that is longer than a slot begins before it.
        start = since - timedelta(hours=1) if since else BEGINNING
        end = datetime.max.replace(tzinfo=UTC)
        prices = {}
        for point in self._journal.carbon.observed(Signal.parse(signal), start, end):
            for at, _ in self._grid.parts(point.start, point.end):
                slot_start, slot_end = self._grid.slot(at)
                if point.start <= slot_start and slot_end <= point.end:
                    prices[slot_start] = _price(point)
        return prices

    def _best(self, signal: str, slot_start: datetime) -> Price | None:
        """Give the price of a slot in the signal it is kept in."""
        if signal not in self._prices:
            self._prices[signal] = self._read_prices(signal, None)
        return self._prices[signal].get(slot_start)

    def _stale_rows(self, since: datetime | None) -> list[EmissionRow]:
        """Give every row that is not as it should be, as it should be."""
        slots = {
            each.slot_start
            for each in self._journal.ledger.intensities(since)
            if self._differs(each)
        }
        energies = {_key(row): row for row in self._journal.ledger.unemitted(since, ACTUAL)}
        if slots:
            for energy in self._journal.ledger.energy(min(slots), max(slots) + MICROSECOND):
                if energy.slot_start in slots:
                    energies[_key(energy)] = energy
        rows = self._actual_rows(list(energies.values()))
        if slots:
            window = (None, min(slots), max(slots) + MICROSECOND, BASELINE)
            for held in self._journal.ledger.emissions(*window):
                if held.slot_start in slots:
                    row = self._priced(held, held)
                    rows += [row] if row != held else []
        return rows

    def _differs(self, used: Intensity) -> bool:
        """Whether rows priced like this may be priced better now."""
        signal = self._signal if used.g_milli_per_kwh is None else used.signal
        price = self._best(signal, used.slot_start)
        if price is None:
            return False
        if price.g_milli_per_kwh != used.g_milli_per_kwh:
            return True
        as_good = price.quality == Quality.MEASURED and used.quality == Quality.SIMULATED
        return used.quality != price.quality and not as_good

    def _actual_rows(self, energies: Sequence[EnergyRow]) -> list[EmissionRow]:
        """Price what was measured; only rows that changed."""
        if not energies:
            return []
        starts = [row.slot_start for row in energies]
        window = (None, min(starts), max(starts) + MICROSECOND, ACTUAL)
        known = {_key(row): row for row in self._journal.ledger.emissions(*window)}
        rows = []
        for energy in energies:
            held = known.get(_key(energy))
            row = self._priced(_actual(energy, self._signal), held, energy.quality)
            if row != held:
                rows.append(row)
        return rows

    def _priced(
        self, row: EmissionRow, held: EmissionRow | None, energy_quality: str = ""
    ) -> EmissionRow:
        """Give a row with its price; the weaker of the two qualities is the row's.

        A row that had a price keeps its signal and its PUE, and its price where no better one is
        known: a change of the settings rewrites no history.
        """
        if held is not None and held.g_milli_per_kwh is not None:
            row = replace(row, signal=held.signal, pue_milli=held.pue_milli)
        else:
            row = replace(row, signal=self._signal, pue_milli=self._pue_milli)
        price = self._best(row.signal, row.slot_start) or _kept(held)
        if price is None or row.energy_mj is None:
            row = replace(row, quality=UNPRICED, g_milli_per_kwh=None, carbon_ug=None)
        else:
            provisional = price.quality != Quality.MEASURED
            row = replace(
                row,
                quality=price.quality if provisional or not energy_quality else energy_quality,
                g_milli_per_kwh=price.g_milli_per_kwh,
                carbon_ug=price_ug(row.energy_mj, price.g_milli_per_kwh, row.pue_milli),
            )
        return replace(row, first_carbon_ug=_first(row, held))


def _actual(energy: EnergyRow, signal: str) -> EmissionRow:
    """Give the unpriced emission row of an energy row."""
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
    )


def _first(row: EmissionRow, held: EmissionRow | None) -> int | None:
    """Give what was reported first: the first price of the joules known then.

    Joules that came later count at the price of the day they came, so `carbon_ug` less this is
    what revised intensities changed, and nothing else.
    """
    if held is None or held.first_carbon_ug is None:
        return row.carbon_ug
    if row.g_milli_per_kwh is None or row.carbon_ug is None:
        return held.first_carbon_ug
    before_ug = price_ug(held.energy_mj or 0, row.g_milli_per_kwh, row.pue_milli)
    return held.first_carbon_ug + row.carbon_ug - before_ug


def _kept(held: EmissionRow | None) -> Price | None:
    """Give the price that a row has already."""
    if held is None or held.g_milli_per_kwh is None:
        return None
    weak = held.quality in (Quality.PROVISIONAL, Quality.ESTIMATED, Quality.STATIC)
    quality = held.quality if weak else str(Quality.MEASURED)
    return Price(g_milli_per_kwh=held.g_milli_per_kwh, quality=quality)


def _key(row: EnergyRow | EmissionRow) -> Key:
    """Give what makes a row of the actual scenario one."""
    return row.run, row.gpu_uuid, row.slot_start, row.line


def _price(point: CarbonPoint) -> Price:
    """Give the price that a point sets."""
    return Price(g_milli_per_kwh=round(point.g_per_kwh * 1000), quality=str(point.quality))
