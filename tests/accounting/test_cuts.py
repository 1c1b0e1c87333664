"""Slots are cut otherwise from some moment on: what is told of a run stays true.

No accounting signal yet is half hours; then one is set, hourly or of five minutes, or the zone of
the site changes. The daemon keeps books before that, or does not yet.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.accounting.worlds import small_site as small
from tests.accounting.worlds.cuts import cut, recut
from tests.accounting.worlds.site import SIGNAL, Sight, Site, Sites, moment
from tests.accounting.worlds.world import Way
from tests.audit import independent
from wattmesh.controller.accounting.accounts import Accounts
from wattmesh.controller.accounting.audit import audit
from wattmesh.controller.accounting.saving import OVERLAP, Saving
from wattmesh.controller.api.handlers.agents import laid
from wattmesh.controller.journal.energy.ledger_slots import LedgerSlots
from wattmesh.controller.views import as_json
from wattmesh.telemetry.energy.delivery import EnergyBatch, Report
from wattmesh.telemetry.energy.ledger import CounterBaseline, SlotGrid

S = small.SLOT_S
PRICES = [*[207_700] * 6, *[333_100] * 74]
"""One from before the switch on: of a longer slot it is not known when its joules were drawn."""

MOVED = replace(
    small.world(
        small.at("A", 0, 12 * S),
        small.to("B", 12 * S, 12 * S + 30),
        small.at("B", 12 * S + 30, 20 * S),
    ),
    prices=PRICES,
)
KEPT = small.world(small.at("A", 37, 20 * S))
CASES = [
    (cut(6 * S), cut(S), 12 * S, False),
    (cut(6 * S), cut(2 * S), 13 * S + 40, True),
    (cut(S), cut(2 * S), 9 * S - 17, True),
    (cut(S), cut(3 * S), 15 * S + 1, False),
    (cut(5 * S, "Atlantic/Azores"), cut(5 * S), 14 * S + 5, True),
]


@pytest.fixture
def sites() -> Iterator[Sites]:
    """Journals in memory."""
    with Sites() as opened:
        yield opened


def lived(sites: Sites, case: tuple[SlotGrid, SlotGrid, int, bool], world: Any = MOVED) -> Site:
    """Let a run live; from a moment on its slots are cut otherwise. Its books end long after it."""
    first, then, at, kept = case
    site = small.begun(sites, world, cut=first)
    stays = {each.start for each in world.stays}
    for now in sorted({*range(S, world.end + 1, S), *stays, at} - {world.start}):
        small.tell(site, now)
        if now == at:
            recut(site, then, now)
            kept = True
        if kept:
            site.price(now)
            if world is KEPT:
                assert site.saving(now).saved_ug in (0, None)
    site.price(60 * S)
    return site


def assert_true(found: Saving) -> None:
    """Hold what is told of the moved run against the truth."""
    true = MOVED.saved_ug(MOVED.tokens(20 * S), 60 * S)
    assert true is not None
    assert found.why == ""
    assert found.saved_ug is not None
    assert float(true) * 0.999 < found.saved_ug < float(true) + 100


@pytest.mark.parametrize("case", CASES)
def test_a_change_of_slots_makes_no_saving_and_takes_none(
    sites: Sites, case: tuple[SlotGrid, SlotGrid, int, bool]
) -> None:
    """An untouched run saves exactly 0, and a moved one what is true; both are told.

    No two slots of the ledger overlap, in any scenario, and a daemon that starts anew cuts alike.
    """
    assert lived(sites, case, KEPT).saving(60 * S).saved_ug == 0
    site = lived(sites, case)
    assert_true(held(site, 60 * S))
    ledger = site.journal.ledger
    spans = sorted(
        {(row.slot_start, row.slot_end) for row in ledger.energy()}
        | {(row.slot_start, row.slot_end) for row in ledger.emissions()}
    )
    assert all(one[1] <= two[0] for one, two in pairwise(spans))
    anew = LedgerSlots(site.journal.database).on(case[1], moment(0))
    assert {anew.slot(start) for start, _ in spans} == {*spans}


def test_books_that_were_kept_in_two_lengths_at_once_tell_nothing_false(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler of before went on in half hours after a reload. From the next start on all is told.

    So it is the sabotaged twin too: a ledger that forgets how it was cut is seen.
    """
    site = small.begun(sites, MOVED, cut=cut(6 * S))
    accounts = Accounts(site.journal, site.signal, cut(S), limits=dict)
    whys = set()
    with monkeypatch.context() as before:
        before.setattr(LedgerSlots, "on", lambda _, slots, *__, **___: slots)
        for now in sorted({*range(S, 20 * S + 1, S), 12 * S + 30}):
            small.tell(site, now)
            accounts.price(moment(now))
            found = site.saving(now)
            assert found.saved_ug in (None, 0) or now > 12 * S
            whys.add(found.why)
        accounts.price(moment(60 * S))
        assert site.saving(60 * S).saved_ug is None
    assert OVERLAP in whys
    site.restart()
    for _ in range(2):  # its marks are made anew first, then what was measured between them
        site.price(60 * S)
    assert_true(site.saving(60 * S))


def test_the_slot_under_way_ends_as_it_began(sites: Sites) -> None:
    """Nothing of it is booked yet as the settings change; somebody is about to."""
    slots = small.begun(sites, MOVED).journal.ledger_slots
    slots.on(cut(6 * S), moment(13 * S))
    found = slots.on(cut(4 * S), moment(13 * S))
    spans = [found.slot(moment(at * S)) for at in (11, 13, 18)]
    assert spans == [(moment(a * S), moment(b * S)) for a, b in ((8, 12), (12, 18), (18, 20))]


THIRSTY = small.WAYS | {"B": Way(tokens_per_s=2_500, power_mw=dict.fromkeys(small.GPUS, 690_001))}


@pytest.mark.parametrize(
    ("first", "quality", "ways"),
    [(6, "measured", small.WAYS), (6, "simulated", THIRSTY), (0, "measured", THIRSTY)],
)
def test_half_hours_of_an_agent_that_did_not_know_the_slots_measure_no_slot(
    sites: Sites, first: int, quality: str, ways: dict[str, Way]
) -> None:
    """It began while the controller was away. The run moved in that time: watts of both are mixed.

    Its joules are booked, as an estimate of each slot; what A draws is told by the hours before;
    where there are none, nothing tells it.
    """
    away, there = (first + 3) * S, (first + 3) * S + 20
    stays = [
        small.at("A", 0, away),
        small.to("B", away, there),
        small.at("B", there, 20 * S),
    ]
    world = replace(MOVED, stays=stays, ways=ways)
    dark = Sight(silent=((first * S + bool(first), (first + 7) * S),))
    site = small.begun(sites, world, dict.fromkeys(small.GPUS, dark))
    for now in sorted({*range(S, 20 * S + 1, S), there} - {0}):
        if now == (first + 7) * S:
            half_hour(site, first, quality)
        small.tell(site, now)
        site.price(now)
        held(site, now)
    site.price(60 * S)
    found = held(site, 60 * S)
    assert (found.saved_ug is not None) is (first > 0)
    assert found.upper_ug == 0
    assert abs(found.actual_ug - world.emitted_ug(60 * S)) < 200
    assert "estimated" in found.flags


def held(site: Site, now: int) -> Saving:
    """Hold the band against the truth, where one is told."""
    found, world = site.saving(now), site.world
    true = world.saved_ug(world.tokens(min(now, world.end)), now)
    if found.saved_ug is not None and true is not None:
        assert found.high_ug is not None
        assert found.saved_ug < true + 100 < found.high_ug + 300
    rows = json.loads(json.dumps(as_json(audit(site.journal, site.row(now), str(SIGNAL)))))
    assert independent.differences(rows) == []
    return found


def half_hour(site: Site, first: int, quality: str) -> None:
    """Deliver what every GPU drew in six slots as one row of an agent, laid as our door does.

    A second delivery adds to slots of the first: what these are must not get lost by it.
    """
    start, end = first * S, (first + 6) * S
    counters = tuple(
        CounterBaseline(
            gpu_uuid=gpu,
            energy_mj=0,
            at=moment(end),
            monotonic_s=float(end),
            boot_id="b",
            since_us=int(moment(0).timestamp()) * 1_000_000,
        )
        for gpu in small.GPUS
    )
    whole = (
        small.row(first, gpu, site.world.energy_mj(gpu, start, end), quality=quality)
        for gpu in small.GPUS
    )
    deliveries = (
        tuple(replace(row, slot_end=moment(end)) for row in whole),
        tuple(small.row(first + number, gpu, 0) for gpu in small.GPUS for number in range(6)),
    )
    for number, rows in enumerate(deliveries, 1):
        batch = EnergyBatch(
            node="n1", boot_id="b", seq=number, at=moment(end), rows=rows, baselines=counters
        )
        ours = laid(rows, site.grid, batch.at)
        site.journal.nodes.deliver("n1", Report(batch=batch), ours, moment(end + S))
    site._to.update(dict.fromkeys(small.GPUS, end))
