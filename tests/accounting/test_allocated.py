"""GPUs that the scheduler gave a run's job: the run pays for them, used or not, and saves none."""

from collections.abc import Iterator, Mapping

import pytest

from tests.accounting.test_cluster import BEGUN, RESTARTED, asked_to_restart, given_back_ug, ug
from tests.accounting.worlds import small_site as small
from tests.accounting.worlds.site import Sight, Site, Sites, moment
from tests.accounting.worlds.world import Stay
from wattmesh.controller.accounting.budget import budget
from wattmesh.controller.accounting.saving import Saving
from wattmesh.controller.accounting.scopes import FEWER_SPARE, fewer_spare
from wattmesh.controller.cycle.fleet import holders
from wattmesh.controller.journal.runs.stays import LaunchRow

S = small.SLOT_S
TWO, SPARE = small.GPUS[:2], small.GPUS[2:]


@pytest.fixture
def sites() -> Iterator[Sites]:
    """Journals in memory."""
    with Sites() as found:
        yield found


def restarted_in_its_job(
    sites: Sites, sights: Mapping[str, Sight] = small.BRIGHT, *, known: bool = True
) -> Site:
    """Let a run go on with two ranks in a job that has four GPUs; `known`: its hook says so."""
    site = asked_to_restart(sites, RESTARTED, sights)
    site.allocated = small.GPUS if known else ()
    site.deliver(BEGUN + 40)
    site.begin(BEGUN + 40, RESTARTED.tokens(BEGUN + 40), "B")
    small.live(site)
    site.price(40 * S)
    return site


def test_a_run_that_never_used_all_gpus_of_its_job_pays_for_them_and_saves_nothing(
    sites: Sites,
) -> None:
    """The A/A law: it holds four GPUs at its submitted point too, so none of it is a saving."""
    site = sites.site(small.KEPT, small.BRIGHT, small.TOLD, limits=small.LIMITS)
    site.gpus, site.allocated = {"A": TWO}, small.GPUS
    site.tell_prices(range(80), small.KEPT.start)
    site.deliver(small.KEPT.start)
    site.begin(small.KEPT.start, 0)
    small.live(site)
    site.price(40 * S)
    found = site.saving(40 * S)
    assert (found.saved_ug, found.high_ug) == (0, 0)
    rows = [row for row in site.journal.ledger.energy() if row.run]
    assert {row.gpu_uuid for row in rows} == {*small.GPUS}


def test_a_restart_on_fewer_ranks_of_its_job_gives_nothing_back(sites: Sites) -> None:
    """The run is charged for what idles, and the cluster's saving is the run's: none twice."""
    site = restarted_in_its_job(sites)
    now = 14 * S
    (run,) = site.journal.runs.all(moment(now))
    assert (run.gpus, run.released, run.allocated) == (TWO, (), small.GPUS)
    (owner,) = holders([run], moment(now - 1), seen=True)
    assert (owner.released, owner.allocated) == ((), small.GPUS)
    (line,) = budget(site.journal, moment(40 * S), "").saved
    mine = site.saving(40 * S)
    assert given_back_ug(site) == 0
    assert ug(line.saved_g) == mine.saved_ug
    # Sabotaged twin: a hook that does not say it looks better by what the two others drew.
    silent = restarted_in_its_job(sites, known=False)
    released_ug = given_back_ug(silent)
    better_ug = silent.saving(40 * S).saved_ug
    assert better_ug is not None
    assert mine.saved_ug is not None
    assert released_ug > 1_000_000
    assert better_ug - mine.saved_ug == pytest.approx(released_ug, abs=200)


def test_spare_gpus_that_nobody_reads_are_booked_from_above_and_once(sites: Sites) -> None:
    """The run's, as its ranks' GPUs are, and in no second line."""
    dark = small.BRIGHT | dict.fromkeys(SPARE, Sight(silent=((BEGUN + 100, 10**9),)))
    site = restarted_in_its_job(sites, dark)
    unread = [row for row in site.journal.ledger.energy() if row.source == "unobserved"]
    assert {(row.run, row.gpu_uuid) for row in unread} == {("r", gpu) for gpu in SPARE}
    dark_s = sum(row.unobserved_ms for row in unread) / 1000
    assert dark_s == pytest.approx(2 * (14 * S - BEGUN - 40), abs=S)
    found = site.saving(40 * S)
    assert found.saved_ug is not None
    assert found.high_ug is not None
    assert found.saved_ug < found.high_ug


def came_back(sites: Sites, *, before: tuple[str, ...], then: tuple[str, ...]) -> Saving:
    """Let two ranks end by themselves and come back in another job; then they go to B."""
    left, moved, end = 6 * S, 10 * S, 16 * S
    world = small.world(
        small.at("A", 0, left),
        Stay(start=left, end=left + 40, lives=False, ours=False),
        small.at("A", left + 40, moved),
        small.to("B", moved, moved + 30),
        small.at("B", moved + 30, end),
    )
    site = sites.site(world, small.BRIGHT, small.TOLD, limits=small.LIMITS)
    site.gpus, site.allocated = {"A": TWO, "B": TWO}, before
    site.tell_prices(range(80), 0)
    site.deliver(0)
    site.begin(0, 0)
    small.live(site, left - S)
    site.deliver(left)
    site.report(left)
    site.finish(left, reason="failed")
    site.deliver(left + 40)
    site.allocated = then
    site.begin(left + 40, world.tokens(left + 40))
    small.live(site)
    site.price(40 * S)
    return site.saving(40 * S)


@pytest.mark.parametrize(
    ("before", "then", "known"),
    [
        (small.GPUS, small.GPUS, True),
        (TWO, TWO, True),
        (TWO, small.GPUS, True),  # more than before makes it look worse, never better
        (small.GPUS, TWO, False),  # its user asked for less
        (small.GPUS, (), False),  # its job may have them still, and nobody says so
    ],
)
def test_what_a_job_has_no_more_without_an_order_is_no_saving(
    sites: Sites, before: tuple[str, ...], then: tuple[str, ...], known: bool
) -> None:
    """Else the GPUs that idled at its submitted point would count as saved after it."""
    found = came_back(sites, before=before, then=then)
    assert (found.saved_ug is not None, found.why) == (known, "" if known else FEWER_SPARE)


def launch(*, ours: bool = False, gpus: int = 2, spare: int = 0) -> LaunchRow:
    """One launch."""
    names = tuple(f"g{number}" for number in range(gpus))
    return LaunchRow(start=moment(0), end=moment(1), ours=ours, gpus=names, spare=spare)


def test_only_gpus_that_are_gone_by_themselves_are_a_doubt() -> None:
    """Ordered ones are given back; those that ranks use now are not gone."""
    wide = launch(gpus=4, spare=2)
    assert fewer_spare([wide, launch()]) == FEWER_SPARE
    assert not fewer_spare([launch(ours=True, gpus=4, spare=2), launch()])
    assert not fewer_spare([wide, launch(gpus=4)])
    assert not fewer_spare([launch(), wide, wide])
