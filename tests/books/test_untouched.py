"""A run that was never touched has saved exactly 0, whatever its catalogue says."""

from collections.abc import Iterator

import pytest
from hypothesis import given

from tests.books.profile import many, seen_first
from tests.books.site import Sites
from tests.books.untouched import Seen, Untouched, live, untouched
from wattmesh.controller.books.run_history import RunHistory


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
    assert seen.told > 3 * sum(seen.untold.values())
    assert seen.told


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
