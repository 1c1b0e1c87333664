"""One energy boundary: what watts contain in the catalogue, and what the meters read.

The run stays at A; the best single point is B, where nothing was ever measured. So the first part
of its saving is reckoned from the catalogue's watts of A and B, which must contain what the meters
do. The truth is known: host and GPUs draw what they draw, whatever is told of it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.accounting.worlds import small_site as small
from tests.accounting.worlds.site import Site, Sites, Told, moment
from tests.accounting.worlds.world import Stay, World
from wattmesh.controller.accounting.budget import RunBudget, budget
from wattmesh.reconfig.catalogue import Catalogue, PowerScope
from wattmesh.reconfig.switch import SwitchState
from wattmesh.telemetry.energy.delivery import Report

S = small.SLOT_S
HOST_W = 611
"""Of both hosts together, at every point."""

GPU_W = {name: sum(way.power_mw.values()) / 1000 for name, way in small.WAYS.items()}
RATES = {name: float(way.tokens_per_s) for name, way in small.WAYS.items()}
NOW = 40 * S


@pytest.fixture
def sites() -> Iterator[Sites]:
    """Journals in memory."""
    with Sites() as found:
        yield found


def told(scope: PowerScope, host_w: float | None) -> Told:
    """Give a catalogue that is right, in its own scope."""
    more = {PowerScope.GPU: 0, PowerScope.NODE: HOST_W, PowerScope.FACILITY: HOST_W + 500}[scope]
    return Told(
        tokens_per_s=RATES,
        power_w={name: watts + more for name, watts in GPU_W.items()},
        gpus={"A": 4, "B": 4},
        deadline_s=2e9,
        power_scope=scope,
        host_power_w=host_w,
    )


def lived(sites: Sites, catalogue: Told, hosts: tuple[str, ...] = ()) -> RunBudget:
    """Live at A to the end, with meters on these hosts' processors; give the run as it is told."""
    site = sites.site(small.KEPT, small.BRIGHT, catalogue, limits=small.LIMITS)
    site.tell_prices(range(80), site.world.start)
    site.deliver(site.world.start)
    site.begin(site.world.start, 0)
    nodes(site)
    for host in hosts:
        processors(site, host)
    small.live(site)
    site.price(NOW)
    (line,) = budget(site.journal, moment(NOW), "").runs
    return line


def nodes(site: Site) -> None:
    """Let two agents tell which boards they have."""
    for node, gpus in (("n1", ("g0", "g1")), ("n2", ("g2", "g3"))):
        devices = {gpu: {"at": moment(0).isoformat()} for gpu in gpus}
        site.journal.nodes.deliver(node, Report(devices=devices), (), moment(0))


def processors(site: Site, host: str) -> None:
    """Book half of what both hosts draw."""
    world: World = site.world
    name = f"cpu:{host}:package-0"
    rows = [
        small.row(start // S, name, HOST_W * 500 * (end - start), source="rapl")
        for start, end in world.cuts(world.start, world.end)
    ]
    site.journal.ledger.book(rows, [])


def better_point_g(host_w: float) -> float:
    """Give what B had truly saved, with this much of the hosts in it."""
    here = {name: {**way.power_mw, "host": int(1000 * host_w)} for name, way in small.WAYS.items()}
    ways = {name: replace(way, power_mw=here[name]) for name, way in small.WAYS.items()}
    world = replace(small.KEPT, ways=ways)
    tokens = world.tokens(world.end)
    at_a, at_b = world.held_at_ug("A", tokens, 80 * S), world.held_at_ug("B", tokens, 80 * S)
    assert at_a is not None
    assert at_b is not None
    return float(at_a - at_b) / 1e6


BOTH = ("n1", "n2")


@pytest.mark.parametrize(
    ("scope", "host_w", "hosts", "truth"),
    [
        (PowerScope.GPU, None, (), 0.0),
        (PowerScope.NODE, HOST_W, (), 0.0),
        (PowerScope.NODE, None, BOTH, HOST_W),
        (PowerScope.GPU, HOST_W, BOTH, HOST_W),
    ],
)
def test_where_the_pair_can_be_made_equal_the_split_is_the_true_one(
    sites: Sites, scope: PowerScope, host_w: float | None, hosts: tuple[str, ...], truth: float
) -> None:
    """What the hosts draw is added or subtracted, as the catalogue tells it; A/A stays 0."""
    line = lived(sites, told(scope, host_w), hosts)
    assert line.saved_g == 0.0
    assert line.better_point_g == pytest.approx(better_point_g(truth), rel=1e-3)
    assert (line.power_scope, line.meter_scope) == (str(scope), "node" if hosts else "gpu")
    assert bool(line.scope_note) is (line.power_scope != line.meter_scope)


@pytest.mark.parametrize(
    ("scope", "host_w", "hosts"),
    [
        (PowerScope.NODE, None, ()),
        (PowerScope.GPU, None, BOTH),
        (PowerScope.FACILITY, HOST_W, BOTH),
        (PowerScope.FACILITY, HOST_W, ()),
        (PowerScope.GPU, HOST_W, ("n1",)),
        (PowerScope.NODE, HOST_W, ("n1",)),
    ],
)
def test_where_it_cannot_nothing_is_compared_and_it_is_said(
    sites: Sites, scope: PowerScope, host_w: float | None, hosts: tuple[str, ...]
) -> None:
    """No split, no bound; processors that are read on one of two nodes are neither scope."""
    line = lived(sites, told(scope, host_w), hosts)
    assert (line.saved_g, line.better_point_g, line.bound_g) == (0.0, None, None)
    assert "power_scope and host_power_w" in line.split_unsettled
    assert f"the catalogue's watts are of the {scope}" in line.scope_note
    assert line.meter_scope == {0: "gpu", 1: "some nodes", 2: "node"}[len(hosts)]


PACKAGES = ("n1:package-0", "n1:package-1", "n2:package-0")


def launched_again(
    sites: Sites, before: tuple[str, ...], after: tuple[str, ...], gpus: tuple[str, ...]
) -> Iterator[tuple[int, Site]]:
    """Switch by restart to B, on these GPUs; until and from then on these processors are read."""
    begun, back = 6 * S + 30, 7 * S + 50
    wait = Stay(start=begun, end=back, lives=False, power_mw=dict.fromkeys(small.GPUS, 0))
    world = small.world(small.at("A", 0, begun), wait, small.at("B", back, 15 * S))
    site = small.begun(sites, world)
    rows = [
        small.row(number, f"cpu:{package}", 200_000 * S, source="rapl")
        for number in range(15)
        for package in PACKAGES
        if (package in before and number * S < back)
        or (package in after and (number + 1) * S > back)
    ]
    site.journal.ledger.book(rows, [])
    small.live(site, begun - 1)
    site.deliver(begun)
    site.report(begun)
    site.order(begun, "B")
    site.step(begun, SwitchState.CHECKPOINTING)
    site.finish(begun, reason="restart")
    site.gpus = {"B": gpus}
    site.begin(back, world.tokens(back), "B")
    for now in range(8 * S, 15 * S + 1, S):
        small.tell(site, now)
        site.price(now)
        yield now, site


@pytest.mark.parametrize(
    ("before", "after", "gpus", "known", "told"),
    [
        (PACKAGES, PACKAGES, small.GPUS, True, True),
        (PACKAGES, PACKAGES[:2], small.GPUS, True, False),
        (PACKAGES, PACKAGES[1:], small.GPUS, True, False),
        (PACKAGES, (), small.GPUS, True, False),
        (PACKAGES[:2], PACKAGES, small.GPUS, True, False),
        (PACKAGES, PACKAGES[:2], ("g0", "g1"), True, True),
        (PACKAGES, PACKAGES[:2], ("g0", "g1"), False, False),
        (PACKAGES, PACKAGES[2:], ("g0", "g1"), True, False),
    ],
)
def test_processors_are_read_alike_in_every_launch_or_nothing_is_compared(
    sites: Sites,
    before: tuple[str, ...],
    after: tuple[str, ...],
    gpus: tuple[str, ...],
    *,
    known: bool,
    told: bool,
) -> None:
    """A launch on one node needs that node's only, where it is known which node that is."""
    for now, site in launched_again(sites, before, after, gpus):
        if known:
            nodes(site)
        assert told or site.saving(now).saved_ug is None
    (line,) = budget(site.journal, moment(NOW), "").runs
    assert (site.saving(NOW).saved_ug is not None) is told
    assert told or line.meter_scope == "some nodes"


def test_watts_that_are_compared_without_a_look_at_their_scope_are_caught(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotaged twin: every meter is taken to contain what the catalogue's watts do."""

    def blind(self: Catalogue, point: Any, gpus_held: int, _: Any) -> float:
        return self.held_power_w(point, gpus_held)

    monkeypatch.setattr(Catalogue, "comparable_power_w", blind)
    line = lived(sites, told(PowerScope.NODE, HOST_W))
    assert line.better_point_g != pytest.approx(better_point_g(0.0), rel=1e-2)


def test_a_bound_is_of_watts_that_the_meters_read(sites: Sites) -> None:
    """The hindsight bound of a finished run is told where both are of the GPUs alone."""
    for scope, hosts in ((PowerScope.GPU, ()), (PowerScope.GPU, BOTH), (PowerScope.NODE, BOTH)):
        line = lived(sites, replace(told(scope, HOST_W), deadline_s=None), hosts)
        assert (line.bound_g is not None) is (scope is PowerScope.GPU and not hosts)
