"""Runs that are moved between points while parts of them are dark, drawn at random.

Speed and watts are constant at each point, so it is plain what was truly saved. The catalogue is
wrong by a common factor; how its points compare is right. Everything is whole seconds, so what
rounding may do is known (`Bounds`).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fractions import Fraction
from itertools import pairwise

from hypothesis import strategies as st

from tests.accounting.worlds.cuts import Cuts, even_cuts, recut
from tests.accounting.worlds.site import LAYOUTS, LIMIT_MW, T0, Sight, Site, Sites, Told, moment
from tests.accounting.worlds.untouched import FACTORS, Seen
from tests.accounting.worlds.world import UG_PER_MJ_MG, Span, Stay, Way, World
from wattmesh.reconfig.switch import SwitchState

GPUS = ("g0", "g1", "g2", "g3")
PATIENT_S = 60
"""So long the newest seconds of a device may be nobody's (docs/carbon-accounting.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """One such life. `reports`: when the run reports, and the books are brought up to date."""

    world: World
    sights: dict[str, Sight]
    told: Told
    reports: tuple[int, ...]
    anew: frozenset[int]
    limits: bool
    cuts: Cuts
    after: int = 0


@st.composite
def switched(
    draw: st.DrawFn, *, dark: bool = True, limits: bool = True, breaks: bool = True
) -> Switched:
    """Draw a life.

    Args:
        draw: hypothesis'.
        dark: parts of it are not read.
        limits: boards tell their limit; else all GPUs are alike, and the submitted point draws the
            most, so that the largest draw that was measured is a bound.
        breaks: launches die, some of them of what we did.
    """
    dice = random.Random(draw(st.integers(0, 2**32)))
    slot_s = draw(st.sampled_from((30, 300, 1800)))
    start = draw(st.sampled_from((0, 1, slot_s // 3, slot_s - 1)))
    ways = _ways(dice, alike=not limits)
    stays = _stays(draw, dice, ways, start=start, slot_s=slot_s, breaks=breaks)
    end = stays[-1].end
    slots = end // slot_s + 1
    cuts = draw(even_cuts(slot_s))
    many = cuts.longest_s // slot_s
    prices = [dice.randrange(20_000, 900_000) for _ in range(4 * slots + 40)]
    world = World(
        ways=ways,
        stays=stays,
        slot_s=slot_s,
        prices=[prices[number // many * many] for number in range(len(prices))],
        finishes=draw(st.booleans()),
    )
    speed, watts = draw(FACTORS), draw(FACTORS)
    idle_w = ways["B"].power_mw["g3"] / 1000 * watts
    told = Told(
        tokens_per_s={name: way.tokens_per_s * speed for name, way in ways.items()},
        power_w={name: _own_w(name, way) * watts for name, way in ways.items()},
        gpus={name: LAYOUTS[name].world_size for name in ways},
        idle_w=idle_w,
        switch_s=float(draw(st.sampled_from((0, 20, 60)))),
        deadline_s=draw(st.sampled_from((None, 1e9))),
    )
    borders = set(range(slot_s, end, slot_s))
    if draw(st.booleans()):
        borders = {at - dice.randrange(0, min(20, slot_s)) for at in borders}
    return Switched(
        world=world,
        sights={gpu: _sight(draw, dice, start, end, slot_s) if dark else Sight() for gpu in GPUS},
        told=told,
        reports=tuple(sorted(at for at in {*borders, end} if at > start)),
        anew=frozenset(number for number in range(40) if dice.random() < 0.15),
        limits=limits,
        cuts=cuts,
        after=draw(st.integers(0, 3)),
    )


def _ways(dice: random.Random, *, alike: bool) -> dict[str, Way]:
    """Say how the points truly do. B uses two of the GPUs, and the others idle."""
    most = {gpu: dice.randrange(300_000, LIMIT_MW) for gpu in GPUS}
    if alike:
        most = dict.fromkeys(GPUS, 600_000)
    idle = dice.randrange(20_000, 90_000)
    two = {gpu: dice.randrange(100_000, 600_000 if alike else LIMIT_MW) for gpu in GPUS[:2]}
    four = {gpu: dice.randrange(100_000, most[gpu] + 1) for gpu in GPUS}
    return {
        "A": Way(tokens_per_s=dice.randrange(100, 3_000), power_mw=most),
        "B": Way(
            tokens_per_s=dice.randrange(100, 3_000),
            power_mw=two | dict.fromkeys(GPUS[2:], idle),
        ),
        "C": Way(tokens_per_s=dice.randrange(100, 3_000), power_mw=four),
    }


def _own_w(name: str, way: Way) -> float:
    """Give the watts of the GPUs that a point uses."""
    used = GPUS[:2] if name == "B" else GPUS
    return sum(way.power_mw[gpu] for gpu in used) / 1000


def _stays(
    draw: st.DrawFn,
    dice: random.Random,
    ways: dict[str, Way],
    *,
    start: int,
    slot_s: int,
    breaks: bool,
) -> list[Stay]:
    """Draw where the run is: some slots at its submitted point, then to and fro."""
    at, stays = start, list[Stay]()

    def stay(length: int, **more: object) -> None:
        nonlocal at
        stays.append(replace(Stay(start=at, end=at + length), **more))  # type: ignore[arg-type]
        at += length

    def some() -> int:
        return dice.randrange(slot_s // 2, 4 * slot_s)

    point = "A"
    stay(some() + draw(st.sampled_from((0, 2 * slot_s))), at=point)
    for _ in range(draw(st.integers(1, 3))):
        if breaks and dice.random() < 0.25:
            stay(some(), lives=False, ours=False)
            stay(some(), at=point)
        target = dice.choice([name for name in ways if name != point])
        draws = {gpu: dice.randrange(40_000, 200_000) for gpu in GPUS}
        stay(dice.randrange(1, max(2, slot_s)), to=target, power_mw=draws)
        if breaks and dice.random() < 0.2:  # it breaks, and we did that
            stay(some(), lives=False, ours=True)
            target = point
        point = target
        stay(some(), at=point)
    return stays


def _sight(draw: st.DrawFn, dice: random.Random, start: int, end: int, slot_s: int) -> Sight:
    """Say how far a GPU is read."""
    one, other = sorted(dice.randrange(start, end) for _ in range(2))
    kind = draw(
        st.sampled_from(("well", "well", "never", "late", "dies", "back", "lost", "blind", "lags"))
    )
    kinds = {
        "well": Sight(),
        "never": Sight(since=None),
        "late": Sight(since=one),
        "dies": Sight(silent=((one, 10**9),)),
        "back": Sight(silent=((one, other),)),
        "lost": Sight(silent=((one, other),), counted=False),
        "blind": Sight(blind=((one, other),)),
        "lags": Sight(late=dice.choice((5, 45, 2 * slot_s + 61))),
    }
    return kinds[kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the figures may be off by for reasons that are no darkness, in micrograms.

    A row is rounded by half a microgram, and each share of a slot by one. Tokens between the last
    report in a slot and its end are counted in the next slot: where that one is modelled the
    baseline loses them (`low`), where one follows that is the run itself, it has them twice
    (`high`); and the slot in which it passes the run's tokens is shared by tokens that are off by
    so many at either border. Joules that wait for a delivery which is not late are in no book yet
    (`waiting`).
    """

    low: Fraction
    high: Fraction
    waiting: Fraction


def bounds(life: Switched, site: Site, at: int, point: str = "A") -> Bounds:
    """Derive what rounding may do by a moment."""
    world, way = life.world, life.world.ways[point]
    dearest = max(world.prices)
    rows = len(site.journal.ledger.emissions(site.run))
    a_token = Fraction(sum(way.power_mw.values()) * dearest, way.tokens_per_s) * UG_PER_MJ_MG
    rounding = Fraction(rows) + 2 + a_token * (1 + rows // 8)
    lost = gained = largest = 0
    slots = [site.grid.slot(each) for each, _ in site.grid.parts(moment(world.start), moment(at))]
    for one, two in pairwise(_seconds(*each) for each in slots):
        end = one[1]
        last = max((each for each in _words(life) if each <= end), default=world.start)
        untold = world.tokens(min(end, world.end)) - world.tokens(min(last, end))
        largest = max(largest, untold)
        before, after = (_at(life, each, point) for each in (one, two))
        lost += untold if before and not after else 0
        gained += untold if after and not before else 0
    waiting = Fraction(0)
    for gpu in world.gpus:
        booked = site.covered_to(gpu)
        if booked is not None and at - booked <= PATIENT_S:
            waiting += world.emitted_of_ug(gpu, booked, at)
    return Bounds(
        low=rounding + (lost + 2 * largest) * a_token,
        high=rounding + (gained + 2 * largest) * a_token,
        waiting=waiting,
    )


def _words(life: Switched) -> Sequence[int]:
    """Give when the run says anything about its tokens."""
    return [life.world.start, *_moments(life)]


def _moments(life: Switched) -> list[int]:
    """Give when anything is said: reports, and where anything changes."""
    return sorted({*life.reports, *(each.start for each in life.world.stays), life.world.end})[1:]


def _seconds(start: datetime, end: datetime) -> Span:
    """Give a slot in seconds after T0."""
    return round((start - T0).total_seconds()), round((end - T0).total_seconds())


def _at(life: Switched, slot: Span, point: str) -> bool:
    """Whether the run was untouched at a point all through a slot, as long as it lived."""
    world, settling = life.world, int(life.told.switch_s)
    start, end = slot
    for each in world.stays:
        if each.start >= end or each.end + (settling if each.to else 0) <= start:
            continue
        if each.to or (each.at and each.at != point) or (not each.lives and each.ours):
            return False
    return True


Judge = Callable[[Switched, Site, int, Seen], None]
"""Holds one look, at a moment."""


def live(sites: Sites, life: Switched, seen: Seen, judge: Judge) -> Site:
    """Live through it; hold every look against the truth."""
    world = life.world
    known = dict.fromkeys(world.gpus, LIMIT_MW / 1000) if life.limits else {}
    cuts, kept = life.cuts, life.cuts.told
    site = sites.site(world, life.sights, life.told, limits=known, cut=cuts.first)
    many = cuts.longest_s // world.slot_s
    site.tell_prices(range(0, len(world.prices), many), world.start, many=many)
    site.deliver(world.start)
    site.begin(world.start, 0)
    seen.runs += 1
    for number, at in enumerate(_moments(life)):
        site.deliver(at)
        _say(site, world.stay(at - 1), world.stay(at), at)
        if number in life.anew:
            site.restart()
        if cuts.then and number == cuts.at:
            recut(site, cuts.then, at)
            kept = True
        if kept and (world.stay(at).lives or site.reported == at):
            site.price(at)
            judge(life, site, at, seen)
    for again in range(1, life.after + 1):
        at = world.end + again * (world.slot_s + 61)
        site.deliver(at)
        site.price(at)
        judge(life, site, at, seen)
    return site


def _say(site: Site, before: Stay, now: Stay, at: int) -> None:
    """Say what a run says at a moment."""
    world = site.world
    if at == world.end:
        site.finish(at) if world.finishes else site.report(at)
    elif not now.lives:
        if before.lives:
            site.report(at)
    elif not before.lives:
        if before.ours:
            site.fail(at)
        site.begin(at, world.tokens(at), now.at)
    elif now.to and now.start == at:
        site.report(at)
        site.order(at, now.to)
        site.step(at, SwitchState.CHECKPOINTING)
    elif before.to and now.start == at:
        site.step(at, SwitchState.CONFIRMED)
        site.report(at, now.at)
    else:
        site.report(at)


def judge_band(life: Switched, site: Site, at: int, seen: Seen) -> None:
    """Hold one look against the truth."""
    world, found = life.world, site.saving(at)
    off = bounds(life, site, at)
    emitted = world.emitted_ug(at)
    assert found.upper_ug is not None, f"{at} s: all prices are told: {found}"
    most = found.actual_ug + found.upper_ug
    assert most >= emitted - off.low - off.waiting, f"{at} s: {most} ug at most, true {emitted}"
    if all(site.covered_to(gpu) in (None, at) for gpu in world.gpus):
        assert found.actual_ug <= emitted + off.low
    if found.saved_ug is None:
        assert found.why
        seen.untold[found.why] += 1
        return
    seen.told += 1
    assert found.high_ug is not None
    tokens = world.tokens(min(site.reported, world.end))
    true = world.saved_ug(tokens, at)
    assert true is not None, f"{at} s: told, though the baseline is behind: {found}"
    where = f"{at} s: told {found.saved_ug} to {found.high_ug}, true {float(true):.1f}"
    assert found.saved_ug <= true + off.low + off.waiting, where
    assert found.high_ug >= true - off.high, where
    seen.worlds["moved" if abs(true) > off.low else "not moved"] += 1
    seen.worlds["band" if found.high_ug > found.saved_ug + 2 * off.low else "exact"] += 1


def judge_parts(life: Switched, site: Site, at: int, seen: Seen) -> None:
    """Hold the parts: they add up exactly, and the carbon-aware one flatters nobody."""
    world, found, run = life.world, site.saving(at), site.row(at)
    seen.told += found.saved_ug is not None
    if found.carbon_aware_ug is None:
        seen.worlds["not split"] += 1
        return
    assert found.better_point_ug is not None
    assert found.better_point_ug + found.carbon_aware_ug == found.saved_ug
    seen.worlds[f"best single {run.best_single}"] += 1
    tokens = world.tokens(min(site.reported, world.end))
    single = world.held_at_ug(run.best_single, tokens, at)
    if single is None:
        return
    off = bounds(life, site, at, run.best_single)
    off_too = bounds(life, site, at)
    true = single - world.emitted_ug(at)
    slack = off.low + off_too.low + off_too.high + off.waiting
    assert found.carbon_aware_ug <= true + slack, (
        f"{at} s: {found.carbon_aware_ug} ug carbon-aware, true {float(true):.1f}, "
        f"{run.best_single}: {found}"
    )
