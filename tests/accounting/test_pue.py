"""A change of the PUE is other knowledge or another boundary: nothing is saved by it."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.accounting.test_cluster import OTHER
from tests.accounting.worlds import small_site as small
from tests.accounting.worlds.site import SIGNAL, Sight, Site, Sites, moment
from wattmesh.controller.accounting import saving
from wattmesh.controller.accounting.budget import budget
from wattmesh.controller.accounting.saving import SPLIT_PUES, Saving

S = small.SLOT_S


@pytest.fixture
def sites() -> Iterator[Sites]:
    """Journals in memory."""
    with Sites() as opened:
        yield opened


def with_pues(first: int, change: int, then: int) -> float:
    """Give what was truly saved, had two PUEs (in thousandths) held before and after a moment."""
    prices = [
        price * (first if slot * S < change else then) // 1000
        for slot, price in enumerate(small.MOVED.prices)
    ]
    true = replace(small.MOVED, prices=prices)
    return float(true.saved_ug(true.tokens(true.end), 40 * S) or 0)


@pytest.mark.parametrize(("before", "after"), [(1500, 1000), (1000, 1500)])
def test_joules_that_come_late_have_the_pue_and_the_signal_of_their_slot(
    sites: Sites, before: int, after: int
) -> None:
    """The settings change while agents are away. A slot has one PUE, on both sides of a saving.

    Its headline is what the least of them gives: with either all the time, or each in its time.
    """
    change = 12 * S
    sights = dict.fromkeys(small.GPUS, Sight(silent=((6 * S, 14 * S + 100),)))
    site = small.begun(sites, small.MOVED, sights)
    site.tell_prices(range(80), 0, factor=3, signal=OTHER)
    site.pue_milli = before
    small.live(site, change)
    site.pue_milli = after
    site.restart()
    small.live(site)
    for now in (small.MOVED.end + 200, 40 * S):
        site.deliver(now)
        site.price(now)
    true_ug = [with_pues(first, change, then) for first in (1000, 1500) for then in (1000, 1500)]
    true_ug = [true_ug[0], true_ug[1 if before < after else 2], true_ug[3]]
    found = site.saving(40 * S)
    assert found.saved_ug == pytest.approx(min(true_ug), abs=2_000)
    assert found.high_ug == pytest.approx(max(true_ug), abs=2_000)
    assert "the PUE was changed during it (1 and 1.5), which is no saving" in found.pue_note
    (run,) = budget(site.journal, moment(40 * S), "", pue=after / 1000).runs
    assert (run.pue_note, run.bound_g) == (found.pue_note, None)
    assert run.saved_g == pytest.approx(min(true_ug) / 1e6, abs=0.002)
    site.signal = OTHER
    site.restart()
    row = next(row for row in site.journal.ledger.energy() if row.line == "run")
    site.journal.ledger.book([replace(row, gpu_uuid="g9")], [])
    site.price(40 * S + 1)
    rows = site.journal.ledger.emissions(None, row.slot_start, row.slot_end)
    (late,) = (each for each in rows if each.gpu_uuid == "g9")
    assert (late.signal, late.pue_milli) == (str(SIGNAL), before)


@pytest.mark.parametrize(("moved", "change"), [(False, 4 * S), (True, 9 * S), (True, 20 * S)])
def test_a_change_of_the_pue_saves_nothing(sites: Sites, change: int, *, moved: bool) -> None:
    """Within a run, and after its end while its baseline goes on alone; one never touched has 0."""
    world = small.world(small.at("A", 0, 20 * S))
    if moved:
        stays = (small.to("B", 6 * S, 6 * S + 30), small.at("B", 6 * S + 30, 20 * S))
        world = small.world(small.at("A", 0, 6 * S), *stays)
    site = small.live(small.begun(sites, world), min(change, world.end))
    site.price(min(change, 21 * S))
    site.pue_milli = 1_600
    site.restart()
    small.live(site)
    site.price(60 * S)
    found = site.saving(60 * S)
    true_ug = float(world.saved_ug(world.tokens(world.end), 60 * S) or 0)
    ends = sorted((true_ug, 1.6 * true_ug))
    assert found.saved_ug is not None
    assert found.saved_ug <= ends[0] + 2_000
    assert (found.high_ug or 0) >= ends[1] - 2_000
    assert bool(found.pue_note) is moved
    assert (found.better_point_ug, found.split_why) == (None, SPLIT_PUES)
    if not moved:
        assert (found.saved_ug, found.high_ug) == (0, 0)
        assert found.reference_ug == found.actual_ug


def test_what_is_dark_and_what_is_nobodys_has_one_pue_too(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The band is that of journals in which one of the PUEs did hold all the time."""
    real, nobodys = Site._claim, ("", "", "unattributed")
    monkeypatch.setattr(
        Site,
        "_claim",
        lambda site, gpu, at: nobodys if gpu == "g1" and at >= 9 * S else real(site, gpu, at),
    )

    def told(first: int, then: int) -> Saving:
        site = small.begun(sites, small.MOVED, small.DIM, pue_milli=first)
        small.live(site, 8 * S)
        site.pue_milli = then
        site.restart()
        small.live(site)
        site.price(40 * S)
        return site.saving(40 * S)

    found, one, other = told(1000, 1600), told(1000, 1000), told(1600, 1600)
    assert (one.pue_note, other.pue_note) == ("", "")
    lows = sorted(each.saved_ug or 0 for each in (one, other))
    highs = sorted(each.high_ug or 0 for each in (one, other))
    assert found.saved_ug == pytest.approx(lows[0], abs=200)
    assert found.high_ug == pytest.approx(highs[1], abs=200)


def test_a_saving_of_several_pues_as_it_comes_is_caught(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged twin: each slot at its own PUE, and no more is asked."""
    monkeypatch.setattr(saving, "least", lambda found, _: found)
    with pytest.raises(AssertionError):
        test_a_change_of_the_pue_saves_nothing(sites, 9 * S, moved=True)
