"""How unread time is bounded: by limits that only rise, by what was measured, else at worst."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.accounting.worlds import small_site as small
from tests.accounting.worlds.site import SIGNAL, Sight, Site, Sites, moment
from tests.accounting.worlds.world import Stay, World
from tests.accounts.test_spending import Limit
from wattmesh.controller.accounting.budget import budget
from wattmesh.controller.accounting.budgets.spending import PeriodLine, spending
from wattmesh.controller.accounting.unread import Unread
from wattmesh.controller.api.handlers.deliveries import read_delivery
from wattmesh.controller.cycle.fleet import limits_w
from wattmesh.telemetry.energy.delivery import Report, live
from wattmesh.telemetry.energy.ledger import CounterBaseline, SlotGrid
from wattmesh.telemetry.energy.unobserved import Holding, Limits, rows
from wattmesh.telemetry.readings import PowerReading, Quality

S = small.SLOT_S
DARK = Sight(since=None)
LAID = "estimated+spread"
ROUNDING_UG = 200
"""Half a microgram a row."""


@pytest.fixture
def sites() -> Iterator[Sites]:
    """Journals in memory."""
    with Sites() as opened:
        yield opened


def alone_in_the_light(sites: Sites, world: World, sight: Sight) -> Site:
    """Let a run live of which one GPU is read for a while; boards tell no limit."""
    sights = dict.fromkeys(small.GPUS, DARK) | {"g0": sight}
    site = sites.site(world, sights, small.TOLD, limits={})
    site.tell_prices(range(80), 0)
    site.deliver(0)
    site.deliver(world.start)
    site.begin(world.start, 0)
    small.live(site)
    site.price(14 * S)
    return site


LOADS = Stay(start=S - 20, end=2 * S - 30, power_mw=dict.fromkeys(small.GPUS, 60_001))


@pytest.mark.parametrize(
    "stays",
    [
        [small.at("A", S, 12 * S)],
        [small.at("A", 2 * S - 30, 12 * S)],
        [LOADS, small.at("A", LOADS.end, 12 * S)],
    ],
)
def test_a_slot_that_was_mostly_idle_bounds_nothing(sites: Sites, stays: list[Stay]) -> None:
    """The agent was there before the run, and dies as it has hardly begun: its slot is no bound.

    So the budget of 300 g burns by what boards may draw of which nothing is known.
    """
    world = small.world(*stays)
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
    world = small.world(
        small.at("A", 0, 4 * S),
        small.to("B", 4 * S, 4 * S + 20),
        small.at("B", 4 * S + 20, 9 * S),
    )
    ways = {
        first: dict.fromkeys(small.GPUS, 200_003),
        other: dict.fromkeys(small.GPUS, 650_003),
    }
    world = replace(
        world,
        ways={name: replace(way, power_mw=ways[name]) for name, way in small.WAYS.items()},
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
    world = small.world(small.at("A", 0, 5 * S))
    sights = dict.fromkeys(small.GPUS, DARK) | {"g0": Sight()}
    site = small.live(small.begun(sites, world, sights, limits={}), S)
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
    small.live(site)
    assert bounds_mj(site, 4) == {1_600_000 * S}


@pytest.mark.parametrize(("quality", "most_mw"), [("measured", 400_000), (LAID, 1_600_000)])
def test_joules_that_were_laid_over_slots_by_time_bound_nothing(
    sites: Sites, quality: str, most_mw: int
) -> None:
    """What they are a mean of may have been less than what the run drew at its point."""
    world = small.world(small.at("A", 0, 6 * S))
    site = small.begun(sites, world, dict.fromkeys(small.GPUS, DARK), limits={})
    counter = CounterBaseline(
        gpu_uuid="g0",
        energy_mj=0,
        at=moment(6 * S),
        monotonic_s=0.0,
        boot_id="b",
        since_us=int(moment(0).timestamp()) * 1_000_000,
    )
    rows = [small.row(number, "g0", 400_000 * S, quality=quality) for number in range(6)]
    site.journal.ledger.book(rows, [counter])
    small.live(site)
    site.price(7 * S)
    assert bounds_mj(site, 3) == {most_mw * S}


def test_a_bound_is_only_ever_raised(sites: Sites) -> None:
    """Boards tell 700 W, and 100 W from the middle of a slot on; at last they tell 900 W."""
    world = small.world(small.at("A", 0, 4 * S))
    sights = small.BRIGHT | {"g2": DARK, "g3": DARK}
    site = small.live(small.begun(sites, world, sights), S + 200)
    site.limits = dict.fromkeys(small.GPUS, 100.0)
    site.restart()
    small.live(site)
    before_mj = 700_000 * 200 + 100_000 * (S - 200)
    assert [bounds_mj(site, slot) for slot in range(4)] == [
        {700_000 * S},
        {before_mj},
        {100_000 * S},
        {100_000 * S},
    ]
    site.limits = dict.fromkeys(small.GPUS, 900.0)
    site.restart()
    site.price(4 * S + 1)
    assert [bounds_mj(site, slot) for slot in range(4)] == [{900_000 * S}] * 4


def test_a_cap_that_is_told_later_takes_the_place_of_no_default(sites: Sites) -> None:
    """Nothing was known of the boards; 100 W that they tell then bound nothing of before."""
    world = small.world(small.at("A", 0, 2 * S))
    site = small.begun(sites, world, dict.fromkeys(small.GPUS, DARK), limits={})
    small.live(site, S)
    site.limits = dict.fromkeys(small.GPUS, 100.0)
    site.restart()
    small.live(site)
    assert [bounds_mj(site, slot) for slot in range(2)] == [{1_600_000 * S}, {100_000 * S}]


@pytest.mark.parametrize(
    ("who", "enforced_w", "highest_w", "most_w"),
    [
        (small.GPUS, 300.0, 700.0, 700),
        (small.GPUS, 300.0, None, 1_600),
        (("smaller",), 70.0, 70.0, 1_600),
    ],
)
def test_a_cap_and_another_kind_of_board_bound_nothing(
    sites: Sites, who: tuple[str, ...], enforced_w: float, highest_w: float | None, most_w: int
) -> None:
    """Its agent dies while a cap holds, which then ends: the board may draw what it can."""
    site = small.begun(
        sites,
        small.world(small.at("A", 0, 4 * S)),
        dict.fromkeys(small.GPUS, DARK),
        limits={},
    )
    boards = [
        PowerReading(
            gpu_uuid=gpu,
            at=moment(S),
            monotonic_s=1.0,
            power_w=enforced_w,
            energy_mj=1,
            clock_mhz=None,
            power_limit_w=enforced_w,
            highest_limit_w=highest_w,
            source="nvml",
            quality=Quality.MEASURED,
        )
        for gpu in who
    ]
    body = Report(devices={each.gpu_uuid: live(each) for each in boards}).to_json()
    report = read_delivery(json.loads(json.dumps(body)), moment(S), site.grid)
    site.journal.nodes.deliver("n1", report, (), moment(S))
    site.limits = limits_w(site.journal.nodes.all(), ())
    assert site.limits == limits_w((), boards)  # as where the daemon reads them itself
    site.restart()
    small.live(site)
    assert [bounds_mj(site, slot) for slot in range(4)] == [{most_w * 1000 * S}] * 4


def kept(sites: Sites, sight: Sight, gpus: tuple[str, ...] = small.GPUS) -> Site:
    """Let an untouched run live whose ranks say that they use these GPUs."""
    site = sites.site(
        small.KEPT,
        dict.fromkeys(small.GPUS, sight),
        small.TOLD,
        limits=small.LIMITS,
    )
    site.gpus = {"A": gpus}
    site.tell_prices(range(80), 0)
    site.deliver(37)
    site.begin(37, 0)
    site.gpus = {}  # what processes compute on is told by their node
    small.live(site)
    site.price(15 * S)
    return site


def lines_of(site: Site) -> tuple[PeriodLine, ...]:
    """Say where budgets of 150 g stand, of the cluster and of the run."""
    limits = {name: Limit(grams=150.0, period="day") for name in ("cluster", "r")}
    return spending(site.journal, limits, "UTC", moment(15 * S), signal=str(SIGNAL))


@pytest.mark.parametrize("gpus", [small.GPUS, ("", "", "g2", ""), ("", "", "", ""), ()])
def test_ranks_whose_gpu_is_not_known_burn_budgets_by_what_boards_may_draw(
    sites: Sites, gpus: tuple[str, ...]
) -> None:
    """Unknown is never zero: nothing of it is read, and it is known that it trains."""
    site = kept(sites, DARK, gpus)
    true_g = float(small.KEPT.emitted_ug(15 * S)) / 1e6
    for line in lines_of(site):
        assert line.spent_g == 0
        # What boards may draw of which no limit was told is not known.
        assert true_g < line.upper_g < (2 if gpus == small.GPUS else 4) * true_g
        assert line.urgency == "exhausted"
        assert line.unobserved_s == pytest.approx(4 * (4_211 - 37), abs=1)
        assert "estimated" in line.flags
    dark = Counter(row.slot_start for row in site.journal.ledger.energy() if row.unobserved_ms)
    assert {*dark.values()} == {len({*gpus} - {""}) + (gpus != small.GPUS)}
    view = budget(site.journal, moment(15 * S), str(SIGNAL))
    (run,) = view.runs
    assert (view.estimated, run.estimated) == (True, True)
    assert "estimated" in {*view.total.flags} & {*run.flags}


@pytest.mark.parametrize("gpus", [("", "", "", ""), ("g0", "", "", ""), ()])
def test_ranks_whose_gpus_are_found_by_their_joules_are_not_dark(
    sites: Sites, gpus: tuple[str, ...]
) -> None:
    """Each device that was booked to the run is the one of some rank: none is counted twice."""
    for line in lines_of(kept(sites, Sight(), gpus)):
        assert (line.upper_g, line.unobserved_s) == (0, 0)
        assert line.spent_g == pytest.approx(float(small.KEPT.emitted_ug(15 * S)) / 1e6)


def test_ranks_without_a_name_are_one_row_a_slot_however_many_they_are() -> None:
    """GPU seconds and the most of them all: what a launch says of its size costs no row."""
    held = Holding(
        run="r", incarnation="i", gpus=("g0",), start=moment(0), end=moment(2 * S), unknown=2**17
    )
    grid = SlotGrid(origin=moment(0), interval_s=S)
    found = rows([held], {}, grid, Limits(by_gpu={"g0": 700.0}), moment(9 * S))
    told = {(row.gpu_uuid, row.slot_start): (row.unobserved_ms, row.upper_mj) for row in found}
    many = (2**17 * S * 1000, 2**17 * S * 1_600_000)
    assert told == {
        (gpu, moment(at)): amounts
        for at in (0, S)
        for gpu, amounts in (("g0", (S * 1000, S * 700_000)), ("unknown:r", many))
    }


def test_ranks_that_are_forgotten_are_caught(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotaged twin: only GPUs that were named are held."""
    monkeypatch.setattr(
        Unread, "_with_gpus_found_by_joules", lambda _, holding: replace(holding, unknown=0)
    )
    for line in lines_of(kept(sites, DARK, ("", "", "", ""))):
        assert (line.upper_g, line.urgency) == (0, "")


def shared(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Let three GPUs of a run be nobody's from its second slot on."""
    real = Site._claim
    monkeypatch.setattr(
        Site,
        "_claim",
        lambda site, gpu, at: (
            ("", "", "unattributed") if gpu != "g0" and at >= 600 else real(site, gpu, at)
        ),
    )
    return kept(sites, Sight())


def test_joules_of_nobody_burn_the_run_s_budget_as_its_saving_counts_them(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saving, run's line and budget say the same most; the cluster has them as what they are."""
    site = shared(sites, monkeypatch)
    cluster, line = lines_of(site)
    (run,), found = budget(site.journal, moment(15 * S), str(SIGNAL)).runs, site.saving(15 * S)
    true_g = float(small.KEPT.emitted_ug(15 * S)) / 1e6
    assert found.upper_ug
    assert line.spent_g + line.upper_g == pytest.approx(true_g, abs=ROUNDING_UG / 1e6)
    assert line.upper_g == pytest.approx(found.upper_ug / 1e6)
    assert run.upper_g == pytest.approx(found.upper_ug / 1e6)
    assert run.carbon[0].upper_g == run.upper_g
    assert (line.urgency, line.residual_g < 0, run.estimated) == ("exhausted", True, True)
    assert "estimated" in {*line.flags} & {*run.flags}
    assert cluster.spent_g == pytest.approx(true_g, abs=ROUNDING_UG / 1e6)
    assert cluster.upper_g == 0


def test_a_budget_that_sees_only_what_was_charged_is_caught(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged twin: what nobody was charged for is nothing."""
    path = "wattmesh.controller.accounting.budgets.budget_plans.unclaimed_spent"
    monkeypatch.setattr(path, lambda *_: {})
    _, line = lines_of(shared(sites, monkeypatch))
    assert (line.upper_g, line.urgency) == (0, "")
