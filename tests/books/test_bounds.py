"""How unread time is bounded: by limits that only rise, by what was measured, else at worst."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.accounts.test_spending import Limit
from tests.books import story
from tests.books.site import SIGNAL, Sight, Site, Sites, moment
from tests.books.world import Stay, World
from wattmesh.controller.books.spending import spending

S = story.SLOT_S
DARK = Sight(since=None)
ROUNDING_UG = 200
"""Half a microgram a row."""


@pytest.fixture
def sites() -> Iterator[Sites]:
    """Journals in memory."""
    with Sites() as opened:
        yield opened


def alone_in_the_light(sites: Sites, world: World, sight: Sight) -> Site:
    """Let a run live of which one GPU is read for a while; boards tell no limit."""
    sights = dict.fromkeys(story.GPUS, DARK) | {"g0": sight}
    site = sites.site(world, sights, story.TOLD, limits={})
    site.tell_prices(range(80), 0)
    site.deliver(0)
    site.deliver(world.start)
    site.begin(world.start, 0)
    story.live(site)
    site.price(14 * S)
    return site


LOADS = Stay(start=S - 20, end=2 * S - 30, power_mw=dict.fromkeys(story.GPUS, 60_001))


@pytest.mark.parametrize(
    "stays",
    [
        [story.at("A", S, 12 * S)],
        [story.at("A", 2 * S - 30, 12 * S)],
        [LOADS, story.at("A", LOADS.end, 12 * S)],
    ],
)
def test_a_slot_that_was_mostly_idle_bounds_nothing(sites: Sites, stays: list[Stay]) -> None:
    """The agent was there before the run, and dies as it has hardly begun: its slot is no bound.

    So the budget of 300 g burns by what boards may draw of which nothing is known.
    """
    world = story.world(*stays)
    site = alone_in_the_light(sites, world, Sight(silent=((2 * S + 1, 10**9),)))
    found, limits = site.saving(14 * S), {"r": Limit(grams=300.0, period="day")}
    assert found.upper_ug is not None
    assert found.actual_ug + found.upper_ug >= world.emitted_ug(14 * S) - ROUNDING_UG
    (line,) = spending(site.journal, limits, "UTC", moment(14 * S), signal=str(SIGNAL))
    assert line.urgency == "exhausted"
    assert line.spent_g == pytest.approx(found.actual_ug / 1e6)


@pytest.mark.parametrize("first", ["A", "B"])
def test_a_point_that_was_never_measured_has_no_bound_by_another(sites: Sites, first: str) -> None:
    """Its one GPU that is read is read at one point, and draws the most of all at the other.

    Where it was measured for whole slots, that is a bound.
    """
    other = "B" if first == "A" else "A"
    world = story.world(
        story.at("A", 0, 4 * S), story.to("B", 4 * S, 4 * S + 20), story.at("B", 4 * S + 20, 9 * S)
    )
    ways = {first: dict.fromkeys(story.GPUS, 200_003), other: dict.fromkeys(story.GPUS, 650_003)}
    world = replace(
        world,
        ways={name: replace(way, power_mw=ways[name]) for name, way in story.WAYS.items()},
    )
    light = (4 * S, 10**9) if first == "A" else (0, 4 * S + 20)
    site = alone_in_the_light(sites, world, Sight(silent=(light,), counted=False))
    found = site.saving(14 * S)
    assert found.upper_ug is not None
    assert found.actual_ug + found.upper_ug >= world.emitted_ug(14 * S) - ROUNDING_UG
    assert bounds_mj(site, 2 if first == "A" else 7) == {200_003 * S}


def bounds_mj(site: Site, slot: int) -> set[int]:
    """Give the most that unread GPUs drew in a slot."""
    rows = site.journal.ledger.energy(moment(slot * S), moment(slot * S + 1))
    return {row.upper_mj for row in rows if row.line == "unobserved"}


def test_a_gpu_that_the_run_had_for_part_of_a_slot_bounds_nothing(sites: Sites) -> None:
    """Each slot of the GPU that is read holds joules that are nobody's too."""
    world = story.world(story.at("A", 0, 5 * S))
    sights = dict.fromkeys(story.GPUS, DARK) | {"g0": Sight()}
    site = story.live(story.begun(sites, world, sights, limits={}), S)
    rows = site.journal.ledger.energy()
    shared = [
        replace(
            next(row for row in rows if row.line == "run"),
            run="",
            incarnation="",
            line="unattributed",
            slot_start=moment(slot * S),
            slot_end=moment((slot + 1) * S),
        )
        for slot in range(5)
    ]
    site.journal.ledger.book(shared, [])
    story.live(site)
    assert bounds_mj(site, 4) == {1_600_000 * S}


def test_a_bound_is_only_ever_raised(sites: Sites) -> None:
    """Boards tell 700 W, and 100 W from the middle of a slot on; at last they tell 900 W."""
    world = story.world(story.at("A", 0, 4 * S))
    sights = story.BRIGHT | {"g2": DARK, "g3": DARK}
    site = story.live(story.begun(sites, world, sights), S + 200)
    site.limits = dict.fromkeys(story.GPUS, 100.0)
    site.restart()
    story.live(site)
    before_mj = 700_000 * 200 + 100_000 * (S - 200)
    assert [bounds_mj(site, slot) for slot in range(4)] == [
        {700_000 * S},
        {before_mj},
        {100_000 * S},
        {100_000 * S},
    ]
    site.limits = dict.fromkeys(story.GPUS, 900.0)
    site.restart()
    site.price(4 * S + 1)
    assert [bounds_mj(site, slot) for slot in range(4)] == [{900_000 * S}] * 4


def test_a_cap_that_is_told_later_takes_the_place_of_no_default(sites: Sites) -> None:
    """Nothing was known of the boards; 100 W that they tell then bound nothing of before."""
    world = story.world(story.at("A", 0, 2 * S))
    site = story.begun(sites, world, dict.fromkeys(story.GPUS, DARK), limits={})
    story.live(site, S)
    site.limits = dict.fromkeys(story.GPUS, 100.0)
    site.restart()
    story.live(site)
    assert [bounds_mj(site, slot) for slot in range(2)] == [{1_600_000 * S}, {100_000 * S}]
