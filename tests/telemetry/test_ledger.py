"""Splitting whole numbers and finding slots: exact, whatever the numbers."""

import itertools
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from wattmesh.telemetry.energy.ledger import SlotGrid, share
from wattmesh.telemetry.slots import border, index_at

ORIGIN = datetime(2026, 11, 20, 12, 0, 0, 123457, tzinfo=UTC)
LENGTHS_S = st.sampled_from([1800.0, 3600.0, 300.0, 1.25, 1.5, 1800 / 7, 0.1, 1 / 3])


@given(st.integers(0, 10**15), st.lists(st.integers(0, 10**12), min_size=1, max_size=50))
def test_shares_are_exact_and_fair(total: int, weights: list[int]) -> None:
    """Shares sum to the whole, are never negative, and each is within one of its due."""
    parts = share(total, weights)
    assert sum(parts) == total
    assert all(part >= 0 for part in parts)
    whole = sum(weights)
    if whole:
        assert all(
            abs(part * whole - total * weight) < whole
            for part, weight in zip(parts, weights, strict=True)
        )


def test_rounding_each_share_would_be_caught() -> None:
    """Sabotaged: shares that are rounded one by one do not sum to the whole."""
    naive = [round(100 * weight / 3) for weight in (1, 1, 1)]
    assert sum(naive) != 100
    assert sum(share(100, [1, 1, 1])) == 100


@given(LENGTHS_S, st.integers(-(10**7), 10**7))
def test_every_moment_lies_in_its_slot(interval_s: float, offset_ms: int) -> None:
    """A moment lies in [start, end) of its slot, and slots touch."""
    grid = SlotGrid(origin=ORIGIN, interval_s=interval_s)
    at = ORIGIN + timedelta(milliseconds=offset_ms)
    start, end = grid.slot(at)
    assert start <= at < end
    assert grid.slot(end)[0] == end
    assert grid.slot(end - timedelta(microseconds=1)) == (start, end)


@given(LENGTHS_S, st.integers(-(10**6), 10**6))
def test_borders_are_their_own_slots_starts(interval_s: float, index: int) -> None:
    """The border of an index is found again under that index: no rounding moves a border."""
    assert index_at(ORIGIN, interval_s, border(ORIGIN, interval_s, index)) == index


@given(LENGTHS_S, st.integers(0, 10**5), st.integers(0, 20_000))
def test_parts_tile(interval_s: float, offset_ms: int, length_ms: int) -> None:
    """Parts touch, lie in one slot each, and are together what was cut."""
    grid = SlotGrid(origin=ORIGIN, interval_s=interval_s)
    start = ORIGIN + timedelta(milliseconds=offset_ms)
    end = start + timedelta(milliseconds=length_ms)
    parts = list(grid.parts(start, end))
    assert (parts[0][0], parts[-1][1]) == (start, end)
    for (_, until), (following, _) in itertools.pairwise(parts):
        assert until == following
    for at, until in parts:
        assert until <= grid.slot(at)[1]
