"""Failures that the properties found, each in its smallest form."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

import pytest

from tests.accounting.test_cluster import OTHER, added, two_signals
from tests.accounting.worlds import small_site as small
from tests.accounting.worlds.site import Sight, Site, Sites, moment
from tests.accounting.worlds.world import Stay, World
from wattmesh.controller.accounting.audit import audit
from wattmesh.controller.accounting.budget import budget
from wattmesh.controller.accounting.run_history import RunHistory
from wattmesh.reconfig.switch import SwitchState

S = small.SLOT_S
DARK = Sight(since=None)
ROUNDING_UG = 200
"""Half a microgram a row, and a token's worth where a slot is shared."""


@pytest.fixture
def sites() -> Iterator[Sites]:
    """Journals in memory."""
    with Sites() as opened:
        yield opened


def true_ug(site: Site, now: int) -> Fraction:
    """Give the true saving at the tokens that were reported last."""
    found = site.world.saved_ug(site.world.tokens(min(site.reported, site.world.end)), now)
    assert found is not None
    return found


def test_joules_of_a_slot_that_the_run_has_not_reported_in_are_no_loss(sites: Sites) -> None:
    """Untouched, last heard 3 s before a border; the books are brought up to date 2 s after it."""
    site = small.live(small.begun(sites, small.KEPT), 2 * S)
    site.deliver(3 * S - 3)
    site.report(3 * S - 3)
    site.deliver(3 * S + 2)
    site.price(3 * S + 2)
    assert site.saving(3 * S + 2).saved_ug == 0


def test_a_launch_that_died_in_a_new_slot_has_lost_nothing_by_it(sites: Sites) -> None:
    """Untouched; it dies 9 s into a slot in which it said nothing, and is never launched again."""
    where = small.world(small.at("A", 37, 3 * S + 9))
    site = small.live(small.begun(sites, where), 3 * S)
    for now in (3 * S + 9, 5 * S, 9 * S):
        site.deliver(now)
        site.price(now)
    assert site.saving(9 * S).saved_ug == 0


def test_a_run_that_went_back_to_before_it_registered_is_told(sites: Sites) -> None:
    """Attached half way, it is launched again from a checkpoint of the time before."""
    world = replace(
        small.world(
            small.at("A", 37, 2 * S),
            Stay(start=2 * S, end=2 * S + 50, lives=False, ours=False),
            small.at("A", 2 * S + 50, 5 * S),
        ),
        before=5_000_000,
        lost={2 * S + 50: 4_000_000},
    )
    site = sites.site(world, small.BRIGHT, small.TOLD, limits=small.LIMITS)
    site.tell_prices(range(20), 0)
    site.begin(37, world.tokens(37))
    site.deliver(2 * S)
    site.report(2 * S)
    site.price(2 * S)
    site.deliver(2 * S + 50)
    site.begin(2 * S + 50, world.tokens(2 * S + 50))
    for now in (3 * S, 4 * S):
        site.deliver(now)
        site.report(now)
        site.price(now)
        assert site.saving(now).saved_ug == 0
        assert budget(site.journal, moment(now), "").runs[0].saved_g == 0


def moved(*, first: str, out: tuple[int, int]) -> World:
    """Make a world that was moved, with an outage in the middle of a slot."""
    parts = [small.at(first, 0, out[0])]
    if first == "B":
        parts = [small.at("A", 0, 4 * S), small.to("B", 4 * S, 4 * S + 20)]
        parts.append(small.at("B", 4 * S + 20, out[0]))
    parts.append(Stay(start=out[0], end=out[1], lives=False, ours=False))
    parts.append(small.at(first, out[1], 13 * S))
    if first == "A":
        parts += [small.to("B", 13 * S, 13 * S + 20), small.at("B", 13 * S + 20, 18 * S)]
    return small.world(*parts)


def lived_with_an_outage(sites: Sites, world: World, sights: Mapping[str, Sight]) -> Site:
    """Let a run live that is launched twice."""
    site = small.begun(sites, world, sights)
    back = next(each for each in world.stays if not each.lives)
    small.live(site, back.start)
    site.deliver(back.end)
    site.begin(back.end, world.tokens(back.end), world.stay(back.end).at)
    return small.live(site)


@pytest.mark.parametrize("first", ["A", "B"])
def test_an_outage_within_a_slot_changes_no_watts(sites: Sites, first: str) -> None:
    """Only the time in which a launch lived is what its joules are of.

    A: slots of the submitted point with an outage make its watts too low. B: those right after a
    switch make the drift from there on too high, and so the baseline too thirsty.
    """
    out = (2 * S, 4 * S - 30) if first == "A" else (5 * S + 30, 8 * S - 30)
    world = moved(first=first, out=out)
    if first == "A":  # nearly all slots before the switch hold an outage
        world = replace(world, stays=[replace(each) for each in world.stays])
    site = lived_with_an_outage(sites, world, small.BRIGHT)
    site.price(30 * S)
    found = site.saving(30 * S)
    assert found.saved_ug == pytest.approx(float(true_ug(site, 30 * S)), abs=ROUNDING_UG)


def test_light_that_comes_on_is_no_drift(sites: Sites) -> None:
    """Three of four GPUs are dark for three slots after the switch, and read from then on.

    The run draws what it always drew there: the baseline must not grow by what is seen anew.
    """
    begun, seen = 6 * S + 20, 10 * S
    world = small.world(
        small.at("A", 0, 6 * S),
        small.to("B", 6 * S, begun),
        small.at("B", begun, 20 * S),
    )
    dark = Sight(silent=((6 * S + 1, seen),), counted=False)
    site = small.live(small.begun(sites, world, small.BRIGHT | {"g0": dark, "g1": dark}))
    site.price(60 * S)
    found = site.saving(60 * S)
    assert found.saved_ug is not None
    assert found.saved_ug <= true_ug(site, 60 * S) + ROUNDING_UG


def test_light_that_goes_out_is_no_drift(sites: Sites) -> None:
    """All GPUs are read for four slots after the switch, and three of them never again.

    Its headline may fall; the upper end must hold what the baseline still draws.
    """
    begun, dark = 6 * S + 20, Sight(silent=((11 * S, 10**9),))
    world = small.world(
        small.at("A", 0, 6 * S),
        small.to("B", 6 * S, begun),
        small.at("B", begun, 40 * S),
    )
    site = small.begun(sites, world, dict.fromkeys(small.GPUS, dark) | {"g2": Sight()})
    small.live(site)
    site.price(70 * S)
    found = site.saving(70 * S)
    assert found.high_ug is not None
    assert found.high_ug >= true_ug(site, 70 * S) - ROUNDING_UG


def test_the_largest_draw_is_not_taken_from_a_part_of_a_slot(sites: Sites) -> None:
    """No board tells its limit. The run begins in the last tenth of a slot; one GPU is read."""
    world = small.world(small.at("A", S - 30, 3 * S))
    sights = dict.fromkeys(small.GPUS, DARK) | {"g0": Sight()}
    site = small.live(small.begun(sites, world, sights, limits={}))
    found = site.saving(3 * S)
    assert found.upper_ug is not None
    assert found.actual_ug + found.upper_ug >= world.emitted_ug(3 * S) - ROUNDING_UG


def test_a_bound_that_turned_out_too_low_is_raised(sites: Sites) -> None:
    """The largest draw that was measured grows: earlier dark time may have been as dear."""
    idle = small.at("A", 0, 2 * S)
    world = small.world(
        replace(idle, power_mw={"g0": 60_000, "g1": 403_217}), small.at("A", 2 * S, 6 * S)
    )
    sights = {"g0": Sight(), "g1": DARK, "g2": Sight(), "g3": Sight()}
    site = small.live(small.begun(sites, world, sights, limits={}))
    found = site.saving(6 * S)
    assert found.upper_ug is not None
    assert found.actual_ug + found.upper_ug >= world.emitted_ug(6 * S) - ROUNDING_UG


def test_the_carbon_aware_part_flatters_nobody_in_the_dark(sites: Sites) -> None:
    """The best single point is B; the run stays at A, and two of its GPUs are dark.

    It followed nothing and drew more than B had: its carbon-aware part is a loss, all of it.
    """
    sights = small.BRIGHT | {"g2": DARK, "g3": DARK}
    site = small.live(small.begun(sites, small.KEPT, sights))
    now = small.KEPT.end
    for later in (now + S, now + 40 * S):
        site.price(later)
    found = site.saving(now + 40 * S)
    single = site.world.held_at_ug("B", site.world.tokens(now), now + 40 * S)
    assert single is not None
    assert site.row(now).best_single == "B"
    if found.carbon_aware_ug is not None:
        assert found.carbon_aware_ug <= single - site.world.emitted_ug(now) + ROUNDING_UG


def test_processors_are_no_gpus(sites: Sites) -> None:
    """All GPUs are dark; what was read is the node's processor: no saving can be told."""
    site = small.begun(sites, small.MOVED, dict.fromkeys(small.GPUS, DARK))
    rows = [small.row(n, "cpu:n1:package-0", 9_000_000, source="rapl") for n in range(15)]
    site.journal.ledger.book(rows, [])
    small.live(site)
    site.price(40 * S)
    found = site.saving(40 * S)
    assert (found.saved_ug, found.high_ug) == (None, None)


@pytest.mark.parametrize("gpus", [("", "", "", ""), ("g0", "g1", "", ""), ()])
def test_a_rank_on_an_unknown_gpu_is_not_free(sites: Sites, gpus: tuple[str, ...]) -> None:
    """Two ranks, or all, did not tell their GPU: the most they drew is unknown, or is bounded."""
    site = sites.site(small.MOVED, small.BRIGHT, small.TOLD, limits=small.LIMITS)
    site.gpus = {"A": gpus, "B": gpus}
    site.sights = small.BRIGHT | {gpu: DARK for gpu in small.GPUS if gpu not in gpus}
    site.tell_prices(range(60), 0)
    site.deliver(37)
    site.begin(37, 0)
    small.live(site)
    site.price(40 * S)
    found = site.saving(40 * S)
    view = budget(site.journal, moment(40 * S), "")
    emitted = site.world.emitted_ug(40 * S)
    assert found.upper_ug is None or found.actual_ug + found.upper_ug >= emitted - ROUNDING_UG
    told = view.runs[0]
    assert told.upper_g is None or (told.carbon_g or 0) * 1e6 + told.upper_g * 1e6 >= emitted - 200
    assert found.saved_ug is None or found.saved_ug <= true_ug(site, 40 * S) + ROUNDING_UG


def test_slots_that_were_not_priced_for_hours_cost_the_baseline_no_tokens(sites: Sites) -> None:
    """The books stood still for three slots, the last of which held a switch.

    How often the books are brought up to date changes nothing; so the run has what it had.
    """
    world = small.world(
        small.at("A", 0, 6 * S + 100),
        small.to("B", 6 * S + 100, 6 * S + 120),
        small.at("B", 6 * S + 120, 12 * S),
    )
    site = small.live(small.begun(sites, world), 3 * S)
    for now in (4 * S, 5 * S, 6 * S, 6 * S + 100, 6 * S + 120, 7 * S):
        small.tell(site, now)
    site.price(7 * S)
    small.live(site)
    site.price(40 * S)
    found = site.saving(40 * S)
    assert found.saved_ug == pytest.approx(float(true_ug(site, 40 * S)), abs=ROUNDING_UG)


def test_joules_of_given_back_gpus_without_a_price_leave_the_cluster_s_saving_open(
    sites: Sites,
) -> None:
    """Unknown is never zero: what they emitted is not known yet, so neither is what was saved."""
    site = small.live(small.begun(sites, small.KEPT, told=4), 4 * S)
    given_back = small.row(5, "g9", 50_000_000, run="", incarnation="", line="idle_after_release")
    site.journal.ledger.book([given_back], [])
    site.price(4 * S + 1)
    line = budget(site.journal, moment(4 * S + 1), "").saved[0]
    assert line.saved_g is None or line.saved_g < 0


def test_no_answer_adds_two_signals(sites: Sites) -> None:
    """Neither the audit's micrograms, nor the budget's grams by quality."""
    site = two_signals(sites)
    assert added(audit(site.journal, site.row(40 * S), str(OTHER)), site) == []
    assert added(budget(site.journal, moment(40 * S), str(OTHER)), site) == []


def there_and_back(back: int, end: int) -> World:
    """Make a world that is back at its submitted point, the slower one, from `back` on."""
    return replace(
        small.world(
            small.at("A", 0, 100),
            small.to("B", 100, 120),
            small.at("B", 120, back),
            small.to("A", back, back + 20),
            small.at("A", back + 20, end),
        ),
        ways=small.WAYS | {"A": replace(small.WAYS["A"], tokens_per_s=397)},
    )


def test_tokens_of_another_point_are_not_in_a_speed(sites: Sites) -> None:
    """Looked at in the slot of a switch before it, and then a slot later.

    What was trained between the two looks is partly the other point's. It ends with the only slot
    that can be measured: once that is booked its saving is told.
    """
    world = there_and_back(4 * S + 100, 7 * S)
    site = small.live(small.begun(sites, world), 4 * S)
    for now in (4 * S + 50, 4 * S + 100, 4 * S + 120, 6 * S, 7 * S):
        small.tell(site, now)
        if now not in (4 * S + 100, 4 * S + 120):
            site.price(now)
    end, catalogue = moment(7 * S), small.TOLD.catalogue()
    history = RunHistory(site.journal, site.row(7 * S), catalogue, site.grid, until=end, heard=end)
    found = history.measured("A")
    assert found is not None
    assert found[0].tokens_per_s == pytest.approx(397)
    site.price(40 * S)
    assert site.saving(40 * S).saved_ug is not None


def test_the_slot_in_which_a_run_ended_is_not_a_whole_one(sites: Sites) -> None:
    """Back at its submitted point for one whole slot, and for 10 s of the next; nothing is dark.

    The baseline is slower, and goes on alone at the watts that were measured there.
    """
    site = small.live(small.begun(sites, there_and_back(4 * S, 6 * S + 10)))
    for now in (6 * S + 10, 40 * S):
        site.price(now)
    found = site.saving(40 * S)
    assert found.saved_ug == pytest.approx(float(true_ug(site, 40 * S)), abs=ROUNDING_UG)


@pytest.mark.parametrize("out", [5 * S, 4 * S + 170])
def test_a_launch_that_broke_within_a_switch_stands_still_at_our_cost(
    sites: Sites, out: int
) -> None:
    """It dies in a switch, which is given up soon; it is launched again slots later, as it was.

    The baseline trains on meanwhile, and what the point draws is not taken from the rest of a slot.
    """
    world = small.world(
        small.at("A", 0, S + 100),
        replace(small.to("B", S + 100, S + 120), to=""),
        Stay(start=S + 120, end=out, lives=False, ours=True),
        small.at("A", out, 8 * S),
    )
    site = small.live(small.begun(sites, world), S)
    site.deliver(S + 100)
    site.report(S + 100)
    site.order(S + 100, "B")
    site.step(S + 100, SwitchState.CHECKPOINTING)
    site.price(S + 100)
    site.deliver(S + 120)
    site.report(S + 120)
    site.fail(S + 150)
    site.deliver(out)
    site.begin(out, world.tokens(out), "A")
    small.live(site)
    site.price(40 * S)
    found = site.saving(40 * S)
    assert found.saved_ug == pytest.approx(float(true_ug(site, 40 * S)), abs=ROUNDING_UG)


@pytest.mark.parametrize("ahead", [2, 59])
def test_a_node_whose_clock_is_ahead_breaks_no_saving(sites: Sites, ahead: int) -> None:
    """Untouched; joules of a slot are here before it has begun. Looked at around each border."""
    site = small.begun(sites, small.world(small.at("A", 37, 4 * S - 3)))
    for border in range(S, 5 * S, S):
        for now in (border - 1, border, border + 1):
            site.deliver(now + ahead)
            if now < site.world.end:
                site.report(now)
            site.price(now)
            found = site.saving(now)
            assert (found.saved_ug, found.high_ug) == (0, 0), f"{now} s: {found}"


def test_joules_of_a_run_s_last_moments_that_come_late_are_on_both_sides(sites: Sites) -> None:
    """Its processes end after it said that it had, in a slot that nobody had reckoned with."""
    where = small.world(small.at("A", 0, 4 * S - 5))
    told = replace(small.TOLD, power_w={"A": 1_000.0, "B": 4_000.0})  # nothing is better than A
    site = sites.site(where, small.BRIGHT, told, limits=small.LIMITS)
    site.tell_prices(range(80), 0)
    site.deliver(0)
    site.begin(0, 0)
    small.live(site)
    for late_s in (1, 60, 299):
        site.price(4 * S + late_s)
    site.journal.ledger.book([small.row(4, gpu, 18_900) for gpu in small.GPUS], [])
    site.price(5 * S + 10)
    found = site.saving(5 * S + 10)
    assert (found.saved_ug, found.high_ug) == (0, 0)


@pytest.mark.parametrize("whose", ["r", ""])
def test_a_slot_that_lacks_a_gpu_of_the_run_measures_no_point(
    monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """One GPU's joules were nobody's while it was at A: the other three are not what A draws."""
    real = Site._claim

    def claim(site: Site, gpu: str, at: int) -> tuple[str, str, str]:
        hidden = not whose and gpu == "g1" and at < 1_471
        return ("", "", "unattributed") if hidden else real(site, gpu, at)

    monkeypatch.setattr(Site, "_claim", claim)
    with Sites() as opened:
        site = small.live(small.begun(opened, small.MOVED))
        end = moment(small.MOVED.end)
        row = site.row(small.MOVED.end)
        history = RunHistory(
            site.journal, row, site.told.catalogue(), site.grid, until=end, heard=end
        )
        assert (history.measured("A") is None) == (not whose)
        assert history.measured("B") is not None
