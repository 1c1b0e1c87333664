"""A run that was never touched has saved exactly 0, whatever its catalogue says."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from sqlalchemy import delete

from tests.accounting.worlds import small_site as small
from tests.accounting.worlds.profile import ENOUGH, many, seen_first
from tests.accounting.worlds.site import Sites
from tests.accounting.worlds.untouched import Seen, Untouched, live, untouched
from tests.accounting.worlds.world import Stay
from wattmesh.controller.accounting import saving
from wattmesh.controller.accounting.run_history import RunHistory
from wattmesh.controller.accounting.saving import EARLIER_VERSION, Saving
from wattmesh.controller.journal.database.tables import STAYS

S = small.SLOT_S


@pytest.fixture
def sites() -> Iterator[Sites]:
    """Journals in memory."""
    with Sites() as found:
        yield found


def test_a_run_that_was_never_touched_has_saved_exactly_0(sites: Sites) -> None:
    """At every look at which its saving is told; and it is told at most of them."""
    seen = Seen()

    @many
    @given(untouched())
    def lives(life: Untouched) -> None:
        live(sites, life, seen)

    lives()
    print(seen)
    assert seen.most_ug == 0
    assert seen.told
    if ENOUGH:
        assert seen.told > 3 * sum(seen.untold.values())


def upgraded(sites: Sites, again_at: int | None) -> Iterator[Saving]:
    """Let a run live that began under an earlier version: where it was then was not noted."""
    stays = [small.at("A", 37, 16 * S)]
    if again_at is not None:
        died = Stay(start=8 * S, end=again_at, lives=False, ours=False)
        more = small.at("A", again_at, 16 * S)
        drawn = replace(more, power_mw=dict.fromkeys(small.GPUS, 550_000))
        stays = [small.at("A", 37, 8 * S), died, drawn]
    site = small.begun(sites, small.world(*stays))
    for now in range(S, 6 * S + 1, S):
        site.deliver(now)
        site.report(now)
    with site.journal.database.writing() as connection:
        connection.execute(delete(STAYS))
    for now in sorted({*range(7 * S, 16 * S, S), again_at or 7 * S}):
        site.deliver(now)
        if now == again_at:
            site.begin(now, site.world.tokens(now))
        elif site.world.stay(now).lives:
            site.report(now)
        site.price(now)
        yield site.saving(now)
    site.finish(16 * S)
    site.deliver(16 * S)
    for now in (17 * S, 40 * S):
        site.price(now)
    yield site.saving(40 * S)


@pytest.mark.parametrize("again_at", [None, 8 * S + 50])
def test_where_it_is_not_known_where_a_run_was_at_first_nothing_is_told(
    sites: Sites, again_at: int | None
) -> None:
    """Whether it was moved then, nobody knows: also once it was launched again, and is noted."""
    found = list(upgraded(sites, again_at))
    assert {(each.saved_ug, each.high_ug, each.why) for each in found} == {
        (None, None, EARLIER_VERSION)
    }


def test_time_of_which_nothing_was_noted_and_that_is_modelled_is_caught(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged twin: what was noted later is taken for all there is to know."""
    monkeypatch.setattr(saving, "_not_from_the_first", lambda *_: "")
    assert {each.saved_ug for each in upgraded(sites, 8 * S + 50)} - {None, 0}


def test_a_baseline_that_is_always_modelled_is_caught(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged twin: the run's own slots are reckoned by their measured speed and watts."""
    monkeypatch.setattr(RunHistory, "point_in", lambda *_: "")

    @seen_first
    @given(untouched())
    def lives(life: Untouched) -> None:
        live(sites, life, Seen())

    with pytest.raises(AssertionError, match="saved_ug="):
        lives()
