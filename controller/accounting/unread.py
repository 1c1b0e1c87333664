"""Books the time of GPUs that runs held and nobody read; removes it when it was read after all.

It reads who held what and what was covered; the rule is telemetry/energy/unobserved.py. Invariant:
rows are absolute: a cycle that is repeated, also after a crash, changes nothing.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from wattmesh.controller.journal.energy.coverage import Key
from wattmesh.controller.journal.journal import Journal
from wattmesh.reconfig.layout import Layout
from wattmesh.telemetry.energy.attribution import is_gpu
from wattmesh.telemetry.energy.ledger import EnergyRow, SlotGrid
from wattmesh.telemetry.energy.meter import UNKNOWN_LIMIT_W
from wattmesh.telemetry.energy.unobserved import Holding, Limits, PowerBound, rows

RECENT = timedelta(hours=48)
"""Launches that ended longer ago are examined once, when a process starts, and then only while they
have unread time, which a node may still deliver.
"""

NEVER = datetime(1970, 1, 1, tzinfo=UTC)

BoardLimits = Callable[[], Mapping[str, float]]
"""Returns the power limits of boards in watts, as far as they are known."""


class Unread:
    """Keeps the rows of unread time up to date."""

    def __init__(self, journal: Journal, limits: BoardLimits) -> None:
        """Keep the journal, and the function that returns the boards' limits."""
        self._journal = journal
        self._limits = limits
        self._since = NEVER

    def book(self, now: datetime, grid: SlotGrid) -> None:
        """Bring the rows of unread time up to `now`.

        Args:
            now: the wall clock.
            grid: slots of the ledger.

        Raises:
            JournalUnavailable: the next cycle does it.
        """
        with self._journal.database.one_state():
            longer, gone = self._changed(now, grid)
        if longer or gone:
            self._journal.coverage.book(longer, gone)
        self._since = now - RECENT

    def _changed(self, now: datetime, grid: SlotGrid) -> tuple[list[EnergyRow], list[Key]]:
        """Give rows to be written, and keys of those of time that was read after all."""
        coverage = self._journal.coverage
        heard = {
            row.run: None if row.state == "live" else row.last_seen_at
            for row in self._journal.runs.all(now)
        }
        holdings = [
            self._with_gpus_found_by_joules(each)
            for each in coverage.holdings(self._since, now, heard)
        ]
        held = coverage.unread(holdings)
        covered, limits = coverage.covered(), Limits(by_gpu=self._limits())
        found = rows(holdings, covered, grid, limits, now)
        if found and not limits.by_gpu:
            limits = Limits(by_gpu={}, by_run=self._drawn({row.run for row in found}, holdings))
            found = rows(holdings, covered, grid, limits, now)
        wanted = {(row.gpu_uuid, row.run, row.slot_start): row for row in found}
        wanted = {
            key: raised(row, held.get(key), measured=not limits.by_gpu)
            for key, row in wanted.items()
        }
        longer = [
            row
            for key, row in wanted.items()
            if key not in held
            or held[key].unobserved_ms != row.unobserved_ms
            or held[key].upper_mj != row.upper_mj
        ]
        return longer, [key for key in held if key not in wanted]

    def _with_gpus_found_by_joules(self, holding: Holding) -> Holding:
        if not holding.unknown:
            return holding
        booked = self._journal.by_slot.devices_read(holding.run, holding.start, holding.end)
        return holding.with_gpus_read({each for each in booked if is_gpu(each)})

    def _drawn(
        self, dark: Collection[str], holdings: Iterable[Holding]
    ) -> dict[str, tuple[PowerBound, ...]]:
        """Give the measured draw of GPUs by run, for runs with unread time; "": of any run."""
        runs = {each.run for each in holdings if each.run} if "" in dark else dark
        found = {run: drawn(self._journal, run) for run in sorted(runs)}
        most_w = max((each.power_w for every in found.values() for each in every), default=0.0)
        return found | {"": (PowerBound(start=NEVER, power_w=most_w),)}


def drawn(journal: Journal, run: str) -> tuple[PowerBound, ...]:
    """Give the most that a GPU of a run drew, for each of its stays; 0 at points never measured.

    Only whole slots count: of one stay and one launch, completely read, in which the run trained
    and had trained at that point before. So slots in which it loaded, compiled or began are out.
    """
    stays, launches = journal.stays.of(run), journal.stays.launches(run)
    ends = [each.at for each in stays[1:]]
    most_w, powers_w = 0.0, journal.coverage.largest_w(run)
    known = set[tuple[Layout, int | None]]()
    for before, mark in pairwise(journal.ledger.token_marks(run)):
        slot = (mark.slot_start, mark.slot_end)
        number = bisect_right(stays, slot[0], key=lambda each: each.at) - 1
        if slot not in powers_w or number < 0:
            continue
        stay, end = stays[number], (*ends, slot[1])[number]
        begun = stay.at <= before.at and stay.tokens < before.tokens
        lived = any(each.start < before.at and slot[1] <= each.end for each in launches)
        whole = not stay.switching and slot[1] <= end
        if whole and lived and begun and before.tokens < mark.tokens:
            most_w = max(most_w, powers_w[slot])
            known.add((stay.layout, stay.clock_mhz))
    return tuple(
        PowerBound(start=each.at, power_w=most_w if (each.layout, each.clock_mhz) in known else 0.0)
        for each in stays
    )


def raised(row: EnergyRow, held: EnergyRow | None, *, measured: bool) -> EnergyRow:
    """Give a row with the bound that its time had already, where that is higher.

    A bound is only ever raised: a power cap that comes later bounds nothing before it. The one
    exception is the default bound: what its run was measured to draw at the same point replaces it.

    Args:
        row: of this cycle.
        held: as it is booked; None: not yet.
        measured: no board reports a limit, so the row's bound is measured and not a cap.
    """
    if held is None:
        return row
    default_mj = -(-round(1000 * UNKNOWN_LIMIT_W) * held.unobserved_ms // 1000)
    if measured and held.upper_mj >= default_mj:
        return row
    more_ms = row.unobserved_ms - held.unobserved_ms
    if more_ms < 0:  # some of it was read after all
        before_mj = held.upper_mj * row.unobserved_ms // held.unobserved_ms
    else:
        before_mj = held.upper_mj + row.upper_mj * more_ms // row.unobserved_ms
    return replace(row, upper_mj=max(row.upper_mj, before_mj))
