"""The saving of one run, from its slots: the baseline at as many tokens, less what was spent.

Invariant: whole micrograms, equal work, one signal. A saving is a band where some of the run was
unobserved, and its headline is the lower end; it is None, with the reason, while it is not known; a
run of which nothing was read has none (docs/carbon-accounting.md).
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from wattmesh.controller.accounting.accounts import ACTUAL, BASELINE, BEST_SINGLE
from wattmesh.controller.accounting.constant_pue import pues, slots_at, unclaimed_at
from wattmesh.controller.accounting.scopes import MIXED, fewer_spare, gpus_read, mixed_launches
from wattmesh.controller.accounting.spread import SlotSpread, bounded
from wattmesh.controller.accounting.unclaimed import Unclaimed, unclaimed_ug
from wattmesh.controller.journal.energy.scenario_slots import ScenarioSlot
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.journal.runs.stays import LaunchRow
from wattmesh.policies.accounting.baseline import (
    BEHIND,
    NO_PRICE,
    OTHER_SCOPE,
    UNCALIBRATED,
    Difference,
    Slot,
    SlotKind,
    difference,
)
from wattmesh.telemetry.energy.ledger import Span, together
from wattmesh.telemetry.readings import flags_of

MOST_LOOKS = 5
NOTHING_READ = "none of its GPUs was ever read"
UNKNOWN_GPUS = "which GPUs its ranks use is not known"
EARLIER_VERSION = "it began under an earlier version, which did not note where it was"
NO_BASELINE = "it has no catalogue, so no baseline"
OVERLAP = "the length of slots was changed within a slot, whose parts cannot all be compared"
SPLIT_DARK = "some energy that the split rests on was not read"
SPLIT_PUES = "the PUE in the settings was changed during it"
SINGLE_BEHIND = "the best single point has not trained as many tokens yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What a run saved.

    Attributes:
        tokens: trained since the run first registered, as of the newest mark.
        actual_ug: the run's own grams, of joules that were read and have a price.
        upper_ug: the most emitted beyond that while nobody measured; None: not known.
        reference_ug: the baseline's at as many tokens; None while it is not known.
        saved_ug, high_ug: the band; equal where nothing of the difference was unobserved. None
            while it is not known: `why` says why.
        better_point_ug: of `saved_ug`, what the best single point would have saved;
            `carbon_aware_ug`: the rest. None where not known: `split_why`. They add up exactly.
        pue_note: why spent and saved do not add up, where the settings had several PUEs; "" else.
        signals: what its grams are accounted in; a saving has one.
        flags: estimated, provisional, simulated: what any joule or intensity in it is.
    """

    tokens: int = 0
    actual_ug: int = 0
    upper_ug: int | None = 0
    reference_ug: int | None = None
    saved_ug: int | None = None
    high_ug: int | None = None
    why: str = ""
    better_point_ug: int | None = None
    carbon_aware_ug: int | None = None
    split_why: str = ""
    signals: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    pue_note: str = ""

    @property
    def settled(self) -> bool:
        """Whether the saving is known."""
        return self.saved_ug is not None

    def to_json(self) -> dict[str, Any]:
        """Give the JSON object that is stored for when the slots are gone."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Saving":
        """Read back what `to_json` gave."""
        tuples = {name: tuple(data.get(name, ())) for name in ("signals", "flags")}
        return cls(**{**data, **tuples})


def trained(journal: Journal, run: RunRow) -> int:
    """Give the tokens a run trained since it first registered, as of its newest mark."""
    first = journal.ledger.first_mark(run.run)
    newest = journal.ledger.newest_marks(run.run)
    return newest[-1].tokens - first.tokens if first and newest else 0


def run_saving(
    journal: Journal, run: RunRow, closed: Mapping[str, Mapping[str, Any]] | None = None
) -> Saving:
    """Compute a run's saving; for a closed run, give the stored one.

    Args:
        journal: the ledger.
        run: whose saving.
        closed: the figures of closed runs, if the caller has read them already.

    Raises:
        JournalUnavailable: the journal does not answer.
    """
    kept = (journal.ledger.closed_runs() if closed is None else closed).get(run.run)
    if kept is not None:
        return Saving.from_json(kept)
    slots, tokens = _at_one_mark(journal, run)
    launches = journal.stays.launches(run.run)
    beyond = unclaimed_ug(journal, launches)
    known = _all_known(journal, run, launches)
    starts = [each.start for each in launches]
    doubt = _not_from_the_first(journal, run) or fewer_spare(launches)
    if not doubt and any(each.hosts for each in slots):
        doubt = mixed_launches(journal, run, launches)

    def saving_of(slots: Sequence[ScenarioSlot], beyond: Mapping[Span, Unclaimed]) -> Saving:
        slots = _with_unclaimed(slots, beyond)
        return saving(
            slots, tokens, baseline=run.baseline, known=known, launches=starts, doubt=doubt
        )

    found, several = saving_of(slots, beyond), pues(slots, beyond.values())
    if len(several) < 2 or not found.settled:
        return found
    return least(
        found, {pue: saving_of(slots_at(slots, pue), unclaimed_at(beyond, pue)) for pue in several}
    )


def _not_from_the_first(journal: Journal, run: RunRow) -> str:
    """Say that the run's first place is unknown; "" when it is known."""
    first, stays = journal.ledger.first_mark(run.run), journal.stays.of(run.run)
    noted = first is not None and stays and stays[0].at <= first.at
    return "" if noted else EARLIER_VERSION


def least(found: Saving, by_pue: Mapping[int, Saving]) -> Saving:
    """Bound a saving within which the PUE was changed: that change must not count as saved.

    Args:
        found: the saving with the PUE that each slot had; settled.
        by_pue: the saving with one of these PUEs, in thousandths, in all slots.
    """
    ways = {f"with {pue / 1000:g} all the time": told for pue, told in by_pue.items()}
    ways["with each in its time"] = found
    low = min(ways, key=lambda way: ways[way].saved_ug or 0)
    high = max(ways, key=lambda way: ways[way].high_ug or 0)
    if found.better_point_ug is not None:
        found = _with(found, better_point_ug=None, carbon_aware_ug=None, split_why=SPLIT_PUES)
    if ways[low].saved_ug == ways[high].high_ug:
        return found  # the same with any PUE, as for a run that was never changed
    several = " and ".join(f"{pue / 1000:g}" for pue in sorted(by_pue))
    return _with(
        found,
        saved_ug=ways[low].saved_ug,
        high_ug=ways[high].high_ug,
        reference_ug=ways[low].reference_ug,
        pue_note=f"the PUE was changed during it ({several}), which is no saving: baseline and "
        f"saving are {low}, their upper end {high}; what was spent counts each PUE in its time",
    )


def _all_known(journal: Journal, run: RunRow, launches: Sequence[LaunchRow]) -> bool:
    """Whether the GPUs of all ranks of all launches are known, by name or by their joules."""
    for each in launches:
        if each.gpus and all(each.gpus):
            continue
        if gpus_read(journal, run, each) < max(1, len(each.gpus) or run.world_size):
            return False
    return bool(launches)


def _with_unclaimed(
    slots: Sequence[ScenarioSlot], beyond: Mapping[Span, Unclaimed]
) -> tuple[ScenarioSlot, ...]:
    """Add to a run's upper bound the joules of its GPUs that were booked to nobody."""
    if not beyond:
        return tuple(slots)
    there = {_span(each) for each in slots if each.scenario == ACTUAL}
    missing = [
        ScenarioSlot(
            slot_start=start,
            slot_end=end,
            scenario=ACTUAL,
            kind="",
            tokens=0,
            carbon_ug=0,
            upper_ug=0,
            read=False,
            hosts=0,
            signals=frozenset(),
            qualities=frozenset(),
        )
        for start, end in beyond.keys() - there
    ]
    found = []
    for each in sorted((*slots, *missing), key=lambda slot: (*_span(slot), slot.scenario)):
        nobodys = beyond.get(_span(each)) if each.scenario == ACTUAL else None
        more_ug = nobodys.carbon_ug if nobodys else 0
        known = each.upper_ug is not None and more_ug is not None
        upper_ug = (each.upper_ug or 0) + (more_ug or 0) if known else None
        found.append(replace(each, upper_ug=upper_ug))
    return tuple(found)


def _at_one_mark(journal: Journal, run: RunRow) -> tuple[tuple[ScenarioSlot, ...], int]:
    """Read slots and tokens of the same cycle of the accounts, which may be writing meanwhile."""
    tokens = trained(journal, run)
    for _ in range(MOST_LOOKS):
        slots, before = journal.by_slot.scenarios(run.run), tokens
        tokens = trained(journal, run)
        if tokens == before:
            break
    return slots, tokens


def saving(
    slots: Sequence[ScenarioSlot],
    tokens: int,
    *,
    baseline: str,
    known: bool,
    launches: Sequence[datetime] = (),
    doubt: str = "",
) -> Saving:
    """Compute a saving. Pure.

    Args:
        slots: of every scenario, in time order.
        tokens: trained by the run.
        baseline: its submitted point; "" for none.
        known: the GPUs of all its ranks are known.
        launches: when each of its launches began, in time order.
        doubt: a reason not in these slots why there is no saving; "" where there is none.
    """
    own = [each for each in slots if each.scenario == ACTUAL]
    spent = Saving(
        tokens=tokens,
        actual_ug=sum(each.carbon_ug or 0 for each in own),
        upper_ug=_sum(each.upper_ug for each in own) if known else None,
        signals=tuple(sorted({name for each in slots for name in each.signals})),
        flags=flags_of(*(word for each in slots for word in each.qualities)),
    )
    why = _untold(own, spent.signals, baseline=baseline, known=known)
    why = why or doubt or _mixed(own, launches) or _overlaps(slots)
    kinds = {each.kind for each in slots if each.scenario == BASELINE}
    if not why and not kinds <= {SlotKind.AS_RUN, SlotKind.MODELLED, SlotKind.ASSUMED}:
        why = EARLIER_VERSION
    if why:
        return _with(spent, why=why)
    found = difference(_paired(slots, BASELINE), tokens)
    if found.low_ug is None:
        return _with(spent, why=found.why)
    spent = _with(
        spent,
        reference_ug=found.reference_ug,
        saved_ug=found.low_ug,
        high_ug=found.high_ug,
    )
    return _split_saving(spent, found, difference(_paired(slots, BEST_SINGLE), tokens), slots)


def _untold(
    own: Sequence[ScenarioSlot], signals: Sequence[str], *, baseline: str, known: bool
) -> str:
    """Say why there can be no saving, whatever the numbers; "" when there can."""
    if not baseline:
        return NO_BASELINE
    if not known:
        return UNKNOWN_GPUS
    if not any(each.read for each in own):
        return NOTHING_READ
    if len(signals) > 1:
        return f"its grams are in {len(signals)} signals, which are never added"
    return ""


def _span(slot: ScenarioSlot) -> Span:
    return slot.slot_start, slot.slot_end


def _overlaps(slots: Sequence[ScenarioSlot]) -> str:
    """Say that slots of different kinds overlap in a scenario; "" where none do."""
    for group in together(slots, _span):
        kinds = {(each.scenario, each.kind) for each in group}
        if len(kinds) > len({scenario for scenario, _ in kinds}):
            return OVERLAP
    return ""


def _mixed(own: Sequence[ScenarioSlot], launches: Sequence[datetime]) -> str:
    """Say that processors were read in some slots and not in others; "" where they were not.

    Another launch may be on other nodes. A slot in which a launch began may have meters of both
    launches, so it is not compared.
    """
    read = [each for each in own if each.read]
    with_host = sum(each.hosts > 0 for each in read)
    fewer = False
    by_launch = groupby(read, key=lambda each: bisect_right(launches, each.slot_start))
    for _, group in by_launch:
        slots = list(group)
        fewer = fewer or len({each.hosts for each in (slots[:-1] or slots)}) > 1
    if fewer:
        return MIXED
    if 0 < with_host < len(read):
        return (
            f"processors and memory were read in {with_host} of its {len(read)} slots only, so its "
            "joules do not contain the same throughout"
        )
    return ""


def _split_saving(
    spent: Saving, found: Difference, single: Difference, slots: Sequence[ScenarioSlot]
) -> Saving:
    assert found.low_ug is not None  # `saving` has checked
    if not any(each.scenario == BEST_SINGLE for each in slots):
        return _with(spent, split_why="no best single point was chosen when it registered")
    if found.reference_ug is None or single.reference_ug is None:
        why = {BEHIND: SINGLE_BEHIND, UNCALIBRATED: OTHER_SCOPE}.get(single.why, single.why)
        return _with(spent, split_why=why or NO_PRICE)
    if found.dark or single.dark:
        return _with(spent, split_why=SPLIT_DARK)
    better_ug = found.reference_ug - single.reference_ug
    return _with(spent, better_point_ug=better_ug, carbon_aware_ug=found.low_ug - better_ug)


def _with(spent: Saving, **changes: Any) -> Saving:
    values = {name: getattr(spent, name) for name in Saving.__dataclass_fields__}
    return Saving(**{**values, **changes})


def _sum(parts: Any) -> int | None:
    """Sum the parts; None where one is None."""
    values = list(parts)
    return None if any(each is None for each in values) else sum(values)


def _paired(slots: Sequence[ScenarioSlot], scenario: str) -> list[Slot]:
    """Pair a scenario's slots with the run's own, in time order.

    Where the length of slots was changed within a slot, all that overlaps is compared as one slot.
    """
    found, laid = list[Slot](), list[SlotSpread]()
    for group in together(slots, _span):
        own = [each for each in group if each.scenario == ACTUAL]
        other = [each for each in group if each.scenario == scenario]
        kinds = {each.kind for each in other}
        found.append(
            Slot(
                tokens=sum(each.tokens for each in other),
                carbon_ug=_sum(each.carbon_ug for each in other),
                upper_ug=_sum(each.upper_ug for each in other),
                own_ug=_sum(each.carbon_ug for each in own),
                own_upper_ug=_sum(each.upper_ug for each in own),
                as_run=kinds == {SlotKind.AS_RUN},
                settled=SlotKind.ASSUMED not in kinds,
            )
        )
        laid.append(
            SlotSpread(
                energy_mj=sum(each.spread_mj for each in own),
                carbon_ug=sum(each.spread_ug for each in own),
                rates=tuple(each.rate for each in own if each.spread_mj),
            )
        )
    return bounded(found, laid)
