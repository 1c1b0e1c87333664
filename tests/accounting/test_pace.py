"""Slots that are no witness of what a point draws raise no saving."""

from dataclasses import replace

import pytest

from tests.accounting.test_found import ROUNDING_UG, sites, true_ug
from tests.accounting.worlds import small_site as small
from tests.accounting.worlds.site import Site, Sites
from tests.accounting.worlds.world import Stay

__all__ = ["sites"]

S = small.SLOT_S

SAME = {"A": small.WAYS["A"], "B": small.WAYS["A"]}
"""Nothing can be saved by the point B: it is as fast as A, and draws as much."""


def paused(start: int, end: int) -> Stay:
    """Make a stay in which its processes live and train nothing: loading, compiling, evaluation."""
    return Stay(start=start, end=end, power_mw=dict.fromkeys(small.GPUS, 80_000))


@pytest.mark.parametrize(
    "stays",
    [
        [paused(0, 290), small.at("A", 290, 3 * S)],
        [paused(0, 100), small.at("A", 100, 3 * S)],
        [small.at("A", 0, S), paused(S, 2 * S), small.at("A", 2 * S, 3 * S)],
    ],
)
def test_a_slot_of_loading_is_no_training(sites: Sites, stays: list[Stay]) -> None:
    """The mean of the speed beside the median of the watts told up to 236 g of 527."""
    world = replace(
        small.world(*stays, small.to("B", 3 * S, 3 * S + 20), small.at("B", 3 * S + 20, 20 * S)),
        ways=SAME,
    )
    site = small.live(small.begun(sites, world))
    site.price(60 * S)
    found = site.saving(60 * S)
    assert found.saved_ug is not None
    assert found.saved_ug <= ROUNDING_UG


def test_a_stranger_in_the_first_slots_at_a_point_is_no_drift(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One GPU of four is shared for half of three slots: told 435 g where 271 are true."""
    mine = Site._claim

    def claim(site: Site, gpu: str, at: int) -> tuple[str, str, str]:
        shared = gpu == "g0" and 1500 <= at < 8 * S and at % S >= S // 2
        return ("", "", "unattributed") if shared else mine(site, gpu, at)

    monkeypatch.setattr(Site, "_claim", claim)
    stays = (
        small.at("A", 37, 1471),
        small.to("B", 1471, 1500),
        small.at("B", 1500, 20 * S),
    )
    site = small.begun(sites, small.world(*stays))
    for now in sorted({*range(S, 20 * S + 1, S), 1471, 1500}):
        if now % S == 0:
            site.deliver(now - S // 2)
        small.tell(site, now)
        site.price(now)
    site.price(60 * S)
    found = site.saving(60 * S)
    assert found.saved_ug is not None
    assert found.saved_ug <= true_ug(site, 60 * S) + ROUNDING_UG
    assert found.high_ug is not None
    assert found.high_ug >= true_ug(site, 60 * S) - ROUNDING_UG
