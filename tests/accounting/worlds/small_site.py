"""One small story with everything in it: odd numbers, two switches, an outage, dark GPUs."""

from collections.abc import Mapping
from typing import Any

from tests.accounting.worlds.site import Sight, Site, Sites, Told, moment
from tests.accounting.worlds.world import Stay, Way, World
from wattmesh.reconfig.switch import SwitchState
from wattmesh.telemetry.energy.ledger import EnergyRow

GPUS = ("g0", "g1", "g2", "g3")
SLOT_S = 300
WAYS = {
    "A": Way(tokens_per_s=997, power_mw=dict.fromkeys(GPUS, 403_217)),
    "B": Way(
        tokens_per_s=701,
        power_mw={"g0": 311_113, "g1": 309_871, "g2": 52_301, "g3": 52_301},
    ),
}
TOLD = Told(
    tokens_per_s={"A": 2 * 997.0, "B": 2 * 701.0},
    power_w={"A": 1_000.0, "B": 400.0},
    gpus={"A": 4, "B": 2},
    deadline_s=1e9,
)
BRIGHT = dict.fromkeys(GPUS, Sight())
DIM = BRIGHT | {"g2": Sight(blind=((700, 801), (2_500, 2_555))), "g3": Sight(since=None)}
LIMITS = dict.fromkeys(GPUS, 700.0)
PRICES = [101_300, 207_700, 333_100, 80_000, 412_900, 150_001, 77_777, 501_013]


def row(number: int, gpu: str, energy_mj: int, **changes: Any) -> EnergyRow:
    """Make the row of one device in one slot, measured and the run's unless said otherwise."""
    values: dict[str, Any] = {
        "run": "r",
        "incarnation": "r1",
        "unobserved_ms": 0,
        "upper_mj": 0,
        "source": "nvml",
        "quality": "measured",
        "line": "run",
    }
    start, end = moment(number * SLOT_S), moment((number + 1) * SLOT_S)
    return EnergyRow(
        gpu_uuid=gpu, slot_start=start, slot_end=end, energy_mj=energy_mj, **(values | changes)
    )


def world(*stays: Stay, finishes: bool = True) -> World:
    """Make a world of these stays."""
    prices = [PRICES[number % len(PRICES)] + 13 * number for number in range(80)]
    return World(ways=WAYS, stays=stays, slot_s=SLOT_S, prices=prices, finishes=finishes)


def to(point: str, start: int, end: int) -> Stay:
    """Make the stay of a switch."""
    return Stay(start=start, end=end, to=point, power_mw=dict.fromkeys(GPUS, 90_001))


def at(point: str, start: int, end: int) -> Stay:
    """Make a stay at a point."""
    return Stay(start=start, end=end, at=point)


MOVED = world(at("A", 37, 1_471), to("B", 1_471, 1_500), at("B", 1_500, 4_211))
KEPT = world(at("A", 37, 4_211))


def begun(
    sites: Sites, where: World, sights: Mapping[str, Sight] = BRIGHT, told: int = 80, **more: Any
) -> Site:
    """Open a site in which the run of a world has just registered.

    Args:
        sites: where.
        where: its world.
        sights: of its GPUs.
        told: so many slots have a price already.
        more: of `Site`.
    """
    site = sites.site(where, sights, TOLD, **{"limits": LIMITS, **more})
    site.tell_prices(range(told), where.start)
    site.deliver(where.start)
    site.begin(where.start, 0)
    return site


def live(site: Site, until: int | None = None) -> Site:
    """Let a run without outages live; it reports, and is booked, at each border of a slot."""
    where = site.world
    last = where.end if until is None else until
    borders = {*range(SLOT_S, last, SLOT_S), *(each.start for each in where.stays), last}
    for now in sorted(each for each in borders if site.reported < each <= last):
        tell(site, now)
        site.price(now)
    return site


def tell(site: Site, now: int) -> None:
    """Say what hook and samplers say at a moment."""
    where, here, before = site.world, site.world.stay(now), site.world.stay(now - 1)
    site.deliver(now)
    if here.to and here.start == now:
        site.report(now)
        site.order(now, here.to)
        site.step(now, SwitchState.CHECKPOINTING)
    elif before.to and here.start == now:
        site.step(now, SwitchState.CONFIRMED)
        site.report(now, here.at)
    elif now == where.end and where.finishes:
        site.finish(now)
    else:
        site.report(now)
