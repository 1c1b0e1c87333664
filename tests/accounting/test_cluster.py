"""The cluster's lines: what was given back is taken off, and two signals are never added."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest

from tests.accounting.worlds import small_site as small
from tests.accounting.worlds.site import Sight, Site, Sites, moment
from tests.accounting.worlds.world import Stay, World
from wattmesh.controller.accounting.audit import audit
from wattmesh.controller.accounting.budget import BudgetView, budget
from wattmesh.controller.cycle.fleet import holders
from wattmesh.controller.views import as_json
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.energy.attribution import NodeView, attribute

S = small.SLOT_S
OTHER = Signal(provider="csv", zone="DE", factor="lifecycle", gas="CO2eq")
BEGUN = 6 * S
RESTARTED = small.world(
    small.at("A", 0, BEGUN),
    Stay(start=BEGUN, end=BEGUN + 40, lives=False, ours=True),
    small.at("B", BEGUN + 40, 14 * S),
)
"""Launched again on two of its four GPUs, because we asked: the other two are given back."""


@pytest.fixture
def sites() -> Iterator[Sites]:
    """Journals in memory."""
    with Sites() as opened:
        yield opened


def asked_to_restart(sites: Sites, world: World, sights: Mapping[str, Sight]) -> Site:
    """Let a run live until it leaves to be started again on two of its four GPUs."""
    site = small.begun(sites, world, sights)
    site.gpus = {"A": small.GPUS, "B": small.GPUS[:2]}
    small.live(site, BEGUN - S)
    site.deliver(BEGUN)
    site.report(BEGUN)
    site.order(BEGUN, "B")
    site.finish(BEGUN, reason="restart")
    site.price(BEGUN)
    return site


def restarted(sites: Sites, sights: Mapping[str, Sight] = small.BRIGHT) -> Site:
    """Let that run live."""
    site = asked_to_restart(sites, RESTARTED, sights)
    site.deliver(BEGUN + 40)
    site.begin(BEGUN + 40, RESTARTED.tokens(BEGUN + 40), "B")
    small.live(site)
    site.price(40 * S)
    return site


def given_back_ug(site: Site) -> int:
    """Add up what given-back GPUs emitted, from the joules that were booked."""
    found = 0
    for row in site.journal.ledger.energy():
        if row.line == "idle_after_release":
            slot = int((row.slot_start - moment(0)) / timedelta(seconds=S))
            found += ((row.energy_mj or 0) * site.world.prices[slot] + 1_800_000) // 3_600_000
    return found


def test_what_given_back_gpus_drew_is_taken_off_the_cluster_s_saving(sites: Sites) -> None:
    """Exactly, and off the carbon-aware part; the lines add up to the total."""
    site = restarted(sites)
    view, mine = budget(site.journal, moment(40 * S), ""), site.saving(40 * S)
    (line,) = view.saved
    released_ug = given_back_ug(site)
    assert released_ug > 1_000_000
    assert mine.saved_ug is not None
    assert ug(line.released_g) == released_ug
    assert ug(line.saved_g) == mine.saved_ug - released_ug
    assert ug(line.saved_g) == sum(
        map(ug, (line.better_point_g, line.carbon_aware_g, line.unsplit_g))
    )
    assert ug(view.saved_g) == ug(line.saved_g)
    parts = [each.carbon_g or 0.0 for each in view.lines]
    assert ug(view.total.carbon_g) == sum(map(ug, parts))


def test_given_back_gpus_do_not_touch_the_run_s_own_saving(sites: Sites) -> None:
    """It is what it truly was, with the gap of the restart charged to the run."""
    site = restarted(sites)
    tokens = RESTARTED.tokens(RESTARTED.end)
    baseline_ug = RESTARTED.held_at_ug("A", tokens, 40 * S)
    assert baseline_ug is not None
    own_ug = sum(
        RESTARTED.emitted_of_ug(gpu, 0, RESTARTED.end if gpu in small.GPUS[:2] else BEGUN)
        for gpu in small.GPUS
    )
    found = site.saving(40 * S)
    assert found.saved_ug == pytest.approx(float(baseline_ug - own_ug), abs=200)


GONE = Sight(silent=((BEGUN + 100, 10**9),))
"""Its agent dies a minute after the restart, for good."""


def in_the_dark(sites: Sites) -> tuple[int, int, Fraction]:
    """Give the cluster's saving, low and high, and the true one, with given-back GPUs unread."""
    site = restarted(sites, small.BRIGHT | dict.fromkeys(small.GPUS[2:], GONE))
    (line,) = budget(site.journal, moment(40 * S), "").saved
    drawn = [RESTARTED.emitted_of_ug(gpu, BEGUN + 40, 14 * S) for gpu in small.GPUS[2:]]
    own_ug = site.saving(40 * S).saved_ug
    assert own_ug is not None
    return ug(line.saved_g), ug(line.high_g), own_ug - sum(drawn, Fraction(0))


def test_given_back_gpus_that_nobody_reads_are_no_saving(sites: Sites) -> None:
    """They are booked from above, as GPUs are that a run holds: the truth lies in the band."""
    low_ug, high_ug, true_ug = in_the_dark(sites)
    assert low_ug < true_ug < high_ug


def test_given_back_gpus_that_are_read_late_are_booked_as_read(sites: Sites) -> None:
    """What was booked from above is taken back when the agent delivers after all."""
    late = Sight(silent=((BEGUN + 100, 13 * S),))
    first = restarted(sites, small.BRIGHT | dict.fromkeys(small.GPUS[2:], late))
    again = restarted(sites)
    assert budget(first.journal, moment(40 * S), "").saved == (
        budget(again.journal, moment(40 * S), "").saved
    )


def test_given_back_gpus_that_are_forgotten_in_the_dark_are_caught(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged twin: only what a sampler read of them is taken off."""
    monkeypatch.setattr("wattmesh.controller.accounting.budget._given_back", lambda row: False)
    low_ug, _, true_ug = in_the_dark(sites)
    assert low_ug > true_ug


def crashed(sites: Sites, layout: str) -> Site:
    """Let it crash on two GPUs, and be launched again by whoever launches it, 30 s later."""
    at = 8 * S
    crash = Stay(start=at, end=at + 30, lives=False, ours=False)
    world = small.world(
        *RESTARTED.stays[:2],
        small.at("B", BEGUN + 40, at),
        crash,
        small.at(layout, crash.end, 14 * S),
    )
    dark = small.BRIGHT | dict.fromkeys(small.GPUS[2:], Sight(silent=((BEGUN + 40, 10**9),)))
    site = asked_to_restart(sites, world, dark)
    site.begin(BEGUN + 40, world.tokens(BEGUN + 40), "B")
    small.live(site, at - 1)
    site.begin(crash.end, world.tokens(crash.end), layout)
    small.live(site)
    site.price(40 * S)
    return site


def test_given_back_gpus_stay_given_back_when_the_smaller_launch_crashes(sites: Sites) -> None:
    """Nobody else has them yet: they are taken off the cluster's saving as before."""
    site, now = crashed(sites, "B"), moment(14 * S)
    (run,) = site.journal.runs.all(now)
    claims = attribute(holders([run], now, seen=True), NodeView(users={"g2": (), "g0": ()}))
    assert run.released == small.GPUS[2:]
    assert [claims[gpu].line for gpu in ("g0", "g2")] == ["idle", "idle_after_release"]
    dark_s = sum(row.unobserved_ms for row in site.journal.ledger.energy() if not row.run) / 1000
    assert dark_s == pytest.approx(2 * (14 * S - BEGUN - 40 - 30), abs=2 * S)


def test_given_back_gpus_that_a_later_launch_has_again_are_the_run_s(sites: Sites) -> None:
    """It was launched again on all four."""
    assert crashed(sites, "A").row(14 * S).released == ()


def ug(grams: float | None) -> int:
    """Give whole micrograms."""
    assert grams is not None
    return round(grams * 1e6)


def two_signals(sites: Sites) -> Site:
    """Account the first slots of a run in one signal, and the others in another."""
    site = small.begun(sites, small.KEPT)
    site.tell_prices(range(40), 0, factor=3, signal=OTHER)
    small.live(site, 5 * S)
    site.signal = OTHER
    site.restart()
    small.live(site)
    site.price(40 * S)
    return site


def numbers(found: Any) -> Iterator[float]:
    """Give every number in a JSON answer."""
    if isinstance(found, dict | list):
        for each in found.values() if isinstance(found, dict) else found:
            yield from numbers(each)
    elif isinstance(found, int | float) and not isinstance(found, bool):
        yield found


def added(answer: Any, site: Site) -> list[float]:
    """Find numbers that are grams of two signals together, in grams or in micrograms."""
    by_signal: dict[str, int] = {}
    for row in site.journal.ledger.emissions(site.run, scenario="actual"):
        by_signal[row.signal] = by_signal.get(row.signal, 0) + (row.carbon_ug or 0)
    assert len(by_signal) == 2
    both_ug = sum(by_signal.values())
    return [
        each
        for each in numbers(json.loads(json.dumps(as_json(answer))))
        if abs(each - both_ug) < 1 or abs(each * 1e6 - both_ug) < 1
    ]


def test_two_signals_are_two_lines_and_no_sum(sites: Sites) -> None:
    """Neither in the total, nor of the run, nor as a saving; the audit tells no saving."""
    site = two_signals(sites)
    view = budget(site.journal, moment(40 * S), str(OTHER))
    assert [each.signal for each in view.total.carbon] == sorted(map(str, (site_first(), OTHER)))
    assert view.total.carbon_g is None
    assert view.runs[0].carbon_g is None
    assert view.runs[0].saved_g is None
    assert view.saved == ()
    assert all(each.carbon_g for each in view.runs[0].carbon)
    laid_open = audit(site.journal, site.row(40 * S), str(OTHER))
    assert laid_open.saved_ug is None


def site_first() -> Signal:
    """Give the signal that a site begins with."""
    return Signal(provider="csv", zone="GB")


def test_a_sum_of_two_signals_is_caught(sites: Sites) -> None:
    """Sabotaged twin: a total that adds them, as one did."""
    site = two_signals(sites)
    view: BudgetView = budget(site.journal, moment(40 * S), str(OTHER))
    both = sum(each.carbon_g for each in view.total.carbon)
    assert added(replace(view, total=replace(view.total, carbon_g=both)), site)
