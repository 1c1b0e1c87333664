"""Runs that nobody touches, drawn at random: at their submitted point all their life.

Catalogues are wrong by up to a factor of two, power changes from slot to slot, launches die of
things we did not do and go back to a checkpoint, GPUs go dark, deliveries and prices come late, the
daemon starts anew.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from hypothesis import strategies as st

from tests.accounting.worlds.cuts import Cuts, any_cuts, recut
from tests.accounting.worlds.site import LAYOUTS, Sight, Site, Sites, Told
from tests.accounting.worlds.world import Span, Stay, Way, World

SLOT_LENGTHS = (30, 300, 1800, 3600)
FACTORS = st.sampled_from((0.5, 0.7, 1.0, 1.3, 2.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Untouched:
    """One such life.

    Attributes:
        looks: when the run reports; the books are brought up to date some seconds later (`lags`).
        anew: looks at which the daemon starts anew.
        untold: slots of which the price comes `late_slots` later. `revised`: slots told anew at
            the end. `withdrawn`: looks at which an order is made, and taken back.
    """

    world: World
    sights: dict[str, Sight]
    told: Told
    looks: tuple[int, ...]
    lags: tuple[int, ...]
    anew: frozenset[int]
    untold: frozenset[int]
    late_slots: int
    revised: frozenset[int]
    withdrawn: frozenset[int]
    limits: bool
    cuts: Cuts


@dataclass(slots=True)
class Seen:
    """What a property saw.

    Attributes:
        told: savings that were told. `untold`: those that were not, by reason.
        most_ug: the largest, either way.
    """

    runs: int = 0
    told: int = 0
    untold: Counter[str] = field(default_factory=Counter)
    most_ug: int = 0
    worlds: Counter[str] = field(default_factory=Counter)


@st.composite
def untouched(draw: st.DrawFn) -> Untouched:
    """Draw a life."""
    dice = random.Random(draw(st.integers(0, 2**32)))
    slot_s = draw(st.sampled_from(SLOT_LENGTHS))
    slots = draw(st.integers(2, 6))
    start = draw(st.integers(0, slot_s - 1))
    end = slots * slot_s + dice.randrange(1, slot_s)
    gpus = tuple(f"g{number}" for number in range(draw(st.integers(1, 3))))
    breaks = _breaks(dice, start, end, draw(st.integers(0, 2)))
    stays = _stays(dice, gpus, (start, end), slot_s, breaks)
    rate = dice.randrange(1, 5_000)
    before = draw(st.sampled_from((0, 0, rate * 1000)))
    way = Way(tokens_per_s=rate, power_mw=dict.fromkeys(gpus, 300_000))
    world = World(
        ways={"A": way},
        stays=stays,
        slot_s=slot_s,
        prices=[dice.randrange(20_000, 900_000) for _ in range(slots + 40)],
        finishes=draw(st.booleans()),
        before=before,
    )
    world = replace(world, lost=_lost(dice, world, breaks))
    told = Told(
        tokens_per_s={"A": rate * draw(FACTORS), "B": rate * 0.6},
        power_w={"A": 300 * len(gpus) * draw(FACTORS), "B": 100.0},
        gpus={"A": LAYOUTS["A"].world_size, "B": LAYOUTS["B"].world_size},
        switch_s=float(draw(st.sampled_from((0, 60, 600)))),
        deadline_s=draw(st.sampled_from((None, 1e9))),
    )
    looks = tuple(sorted({dice.randrange(start, end) for _ in range(2 * slots + 2)} | {end}))
    numbers = range(len(looks))

    def some(share: float) -> frozenset[int]:
        return frozenset(number for number in numbers if dice.random() < share)

    return Untouched(
        world=world,
        sights={gpu: _sight(draw, dice, start, end) for gpu in gpus},
        told=told,
        looks=looks,
        lags=tuple(dice.choice((0, 0, 0, 2, 9, 40)) for _ in numbers),
        anew=some(0.2),
        untold=frozenset(slot for slot in range(slots + 1) if dice.random() < 0.2),
        late_slots=dice.randrange(1, 4),
        revised=frozenset(slot for slot in range(slots + 1) if dice.random() < 0.3),
        withdrawn=some(0.1),
        limits=draw(st.booleans()),
        cuts=draw(any_cuts(slot_s)),
    )


def _breaks(dice: random.Random, start: int, end: int, count: int) -> list[Span]:
    """Give spans in which no launch lives, not of our making."""
    moments = sorted(dice.sample(range(start + 1, end), min(2 * count, end - start - 1)))
    return list(zip(moments[::2], moments[1::2], strict=False))


def _lost(dice: random.Random, world: World, breaks: list[Span]) -> dict[int, int]:
    """Say which launches go back to a checkpoint, and how far; it may be older than the first."""
    lost: dict[int, int] = {}
    for _, back in breaks:
        if dice.random() < 0.6:
            there = replace(world, lost=lost).tokens(back)
            lost[back] = dice.randrange(there + 1)
    return lost


def _stays(
    dice: random.Random, gpus: Sequence[str], life: Span, slot_s: int, breaks: Sequence[Span]
) -> list[Stay]:
    """Cut the life at slots, where power changes, and at breaks."""
    start, end = life
    borders = {start, end, *(each for span in breaks for each in span)}
    borders |= {at for at in range(0, end, slot_s) if start < at}
    moments = sorted(borders)
    stays = []
    for begin, stop in pairwise(moments):
        away = any(first <= begin < last for first, last in breaks)
        stays.append(
            Stay(
                start=begin,
                end=stop,
                at="" if away else "A",
                lives=not away,
                ours=False,
                power_mw={gpu: dice.randrange(50_000, 700_000) for gpu in gpus},
            )
        )
    return stays


def _sight(draw: st.DrawFn, dice: random.Random, start: int, end: int) -> Sight:
    """Say how far a GPU is read: well, mostly."""
    one, other = sorted(dice.randrange(start, end) for _ in range(2))
    kind = draw(
        st.sampled_from(
            ("well", "well", "well", "never", "late", "dies", "back", "lost", "blind", "lagging")
        )
    )
    kinds = {
        "well": Sight(since=0),
        "never": Sight(since=None),
        "late": Sight(since=one),
        "dies": Sight(since=0, silent=((one, 10**9),)),
        "back": Sight(since=0, silent=((one, other),)),
        "lost": Sight(since=0, silent=((one, other),), counted=False),
        "blind": Sight(since=0, blind=((one, other),)),
        "lagging": Sight(since=0, late=dice.choice((5, 45, 500, 4000))),
    }
    return kinds[kind]


def live(sites: Sites, life: Untouched, seen: Seen) -> Site:
    """Live through it; at every look the saving is exactly 0, or not told."""
    world, kept = life.world, life.cuts.told
    limits = dict.fromkeys(world.gpus, 700.0) if life.limits else {}
    site = sites.site(world, life.sights, life.told, limits=limits, cut=life.cuts.first)
    slots = range(len(world.prices) - 30)
    waiting = {slot: (slot + life.late_slots) * world.slot_s for slot in life.untold}
    site.tell_prices([slot for slot in slots if slot not in waiting], world.start)
    site.deliver(world.start)
    site.begin(world.start, world.tokens(world.start))
    starts = {each.start for each in world.stays if each.lives} - {world.start}
    fresh = {at for at in starts if not world.stay(at - 1).lives}
    seen.runs += 1
    moments = _moments(life, fresh)
    for number, (at, following) in enumerate(pairwise([*moments, world.end + max(life.lags)])):
        site.deliver(at)
        told = [slot for slot, when in waiting.items() if when <= at]
        site.tell_prices(told, at)
        for slot in told:
            del waiting[slot]
        _say(life, site, at, number, fresh)
        if number in life.anew:
            site.restart()
        if life.cuts.then and number == life.cuts.at:
            recut(site, life.cuts.then, at)
            kept = True
        later = min(at + life.lags[number % len(life.lags)], following)
        site.deliver(later)
        if kept:
            site.price(later)
            judge(site, later, seen)
    later = world.end
    for again in range(3):
        later += world.slot_s + 61
        site.tell_prices([*waiting] if again == 0 else [], later)
        site.tell_prices(sorted(life.revised) if again == 1 else [], later, factor=2)
        site.deliver(later)
        site.price(later)
        judge(site, later, seen)
    return site


def _say(life: Untouched, site: Site, at: int, number: int, fresh: set[int]) -> None:
    """Say what a run says at a look."""
    world = life.world
    if at in fresh:
        site.begin(at, world.tokens(at))
    elif at == world.end:
        site.finish(at) if world.finishes else site.report(at)
    elif world.stay(at).lives:
        site.report(at)
        if number in life.withdrawn:
            site.order(at, "B")
            site.withdraw(at)


def _moments(life: Untouched, fresh: set[int]) -> list[int]:
    """Give when anything is said: looks, launches, and the last word before each break."""
    world = life.world
    last = {each.start for each in world.stays if not each.lives}
    return sorted({*life.looks, *fresh, *last} - {world.start})


def judge(site: Site, at: int, seen: Seen) -> None:
    """Hold one look: exactly 0 at both ends of the band, or nothing and why."""
    found = site.saving(at)
    if found.saved_ug is None:
        assert found.high_ug is None
        assert found.why
        seen.untold[found.why] += 1
        return
    seen.told += 1
    seen.most_ug = max(seen.most_ug, abs(found.saved_ug), abs(found.high_ug or 0))
    assert (found.saved_ug, found.high_ug) == (0, 0), f"{at} s: {found}"
