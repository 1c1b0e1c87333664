"""Whatever is dark, a headline flatters nobody: it is never above the true saving.

Worlds whose power is known, runs that are moved, any pattern of GPUs and hours that nobody reads.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.accounting.worlds import small_site as small
from tests.accounting.worlds import switched
from tests.accounting.worlds.cuts import Cuts, cut
from tests.accounting.worlds.profile import ENOUGH, many, seen_first
from tests.accounting.worlds.site import Sight, Sites, moment
from tests.accounting.worlds.switched import Switched, judge_band, judge_parts, live
from tests.accounting.worlds.untouched import Seen
from wattmesh.controller.accounting import saving
from wattmesh.controller.accounting.budget import budget
from wattmesh.controller.accounting.unread import Unread
from wattmesh.policies.accounting import baseline

LIVES = st.one_of(
    switched.switched(), switched.switched(limits=False), switched.switched(dark=False)
)


@pytest.fixture
def sites() -> Iterator[Sites]:
    """Journals in memory."""
    with Sites() as found:
        yield found


def test_a_headline_is_never_above_the_true_saving(sites: Sites) -> None:
    """Nor the upper end below it; and what was spent and what was dark cover what was true."""
    seen = Seen()

    @many
    @given(LIVES)
    def lives(life: Switched) -> None:
        live(sites, life, seen, judge_band)

    lives()
    print(seen)
    assert seen.told
    if ENOUGH:
        assert seen.worlds["moved"]
        assert seen.worlds["band"]
        assert seen.told > sum(seen.untold.values()) > 0


def test_the_parts_add_up_and_the_carbon_aware_one_is_never_above_its_truth(sites: Sites) -> None:
    """Exactly, at every look; where they are told."""
    seen = Seen()

    @many
    @given(LIVES)
    def lives(life: Switched) -> None:
        live(sites, life, seen, judge_parts)

    lives()
    print(seen)
    assert seen.told
    if ENOUGH:
        assert sum(seen.worlds[f"best single {name}"] for name in "BC") > 0


def test_dark_time_that_is_dropped_is_caught(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotaged twin: nobody books the time that nobody read."""
    monkeypatch.setattr(Unread, "book", lambda *_: None)

    @seen_first
    @given(LIVES)
    def lives(life: Switched) -> None:
        live(sites, life, Seen(), judge_band)

    with pytest.raises(AssertionError, match=r"at most, true|, true"):
        lives()


def test_a_headline_at_the_upper_end_is_caught(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged twin: the better end is told for both."""
    real = baseline.difference

    def flattering(*asked: object) -> baseline.Difference:
        found = real(*asked)  # type: ignore[arg-type]
        return replace(found, low_ug=found.high_ug)

    monkeypatch.setattr(saving, "difference", flattering)

    @seen_first
    @given(switched.switched(breaks=False))
    def lives(life: Switched) -> None:
        live(sites, life, Seen(), judge_band)

    with pytest.raises(AssertionError, match=", true"):
        lives()


def test_parts_that_do_not_add_up_are_caught(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotaged twin: a microgram of the better point is counted as carbon-aware too."""
    real = saving._split_saving

    def generous(*asked: object) -> saving.Saving:
        found = real(*asked)  # type: ignore[arg-type]
        if found.carbon_aware_ug is None:
            return found
        return replace(found, carbon_aware_ug=found.carbon_aware_ug + 1)

    monkeypatch.setattr(saving, "_split_saving", generous)
    site = small.live(small.begun(sites, small.MOVED))
    life = Switched(
        world=small.MOVED,
        sights=dict(small.BRIGHT),
        told=small.TOLD,
        reports=(),
        anew=frozenset(),
        limits=True,
        cuts=Cuts(first=cut(small.SLOT_S)),
    )
    at = small.MOVED.end + 30 * small.SLOT_S
    site.price(at)
    with pytest.raises(AssertionError):
        judge_parts(life, site, at, Seen())


@pytest.mark.parametrize("finishes", [True, False])
def test_a_run_of_which_nothing_was_read_has_no_saving(sites: Sites, *, finishes: bool) -> None:
    """Moved or not, before and after it ends, in every figure; the most it spent stays."""
    for world in (small.MOVED, small.KEPT):
        where = replace(world, finishes=finishes)
        site = small.begun(sites, where, dict.fromkeys(small.GPUS, Sight(since=None)))
        for until in (*range(600, where.end, 1200), where.end, where.end + 30_000):
            small.live(site, min(until, where.end))
            site.price(until)
            found, view = site.saving(until), budget(site.journal, moment(until), "")
            parts = (found.better_point_ug, found.carbon_aware_ug)
            assert (found.saved_ug, found.high_ug, *parts) == (None, None, None, None)
            assert found.why
            assert view.runs[0].saved_g is None
            assert view.runs[0].unsettled
            assert view.saved == ()
            assert view.total.upper_g is not None
            assert view.total.upper_g * 1e6 >= where.emitted_ug(until) - 10_000
