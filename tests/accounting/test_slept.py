"""What a run that slept has saved: its baseline's clock never stopped, and its idle GPUs count."""

from collections.abc import Iterator

import pytest

from tests.accounting.worlds import small_site as small
from tests.accounting.worlds.site import Site, Sites, moment
from tests.accounting.worlds.world import Stay
from tests.telemetry.test_attribution import holder
from wattmesh.controller.accounting.unclaimed import unclaimed_ug
from wattmesh.telemetry.energy.attribution import DISPUTED, IDLE, RELEASED, NodeView, attribute

S = small.SLOT_S
SLEEP = Stay(start=8 * S, end=14 * S, lives=False, ours=True, power_mw={})
SLEPT = small.world(small.at("A", 37, 8 * S), SLEEP, small.at("A", 14 * S, 30 * S))
OUTAGE = Stay(start=8 * S, end=14 * S, lives=False, ours=False, power_mw={})
DOWN = small.world(small.at("A", 37, 8 * S), OUTAGE, small.at("A", 14 * S, 30 * S))


@pytest.fixture
def sites() -> Iterator[Sites]:
    """Journals in memory."""
    with Sites() as found:
        yield found


def lived(site: Site, reason: str) -> Site:
    """Let the run train, leave for `reason`, begin again and end; it is booked at each slot."""
    for now in range(S, 31 * S, S):
        site.deliver(now)
        if now == SLEEP.start:
            wakes = None if reason.startswith("stopped") else SLEEP.end
            site.finish(now, reason, wakes=wakes, held_as="Slurm job 7" if wakes else "")
        elif now == SLEEP.end:
            site.begin(now, site.world.tokens(now))
        elif now == 30 * S:
            site.finish(now)
        elif site.world.stay(now).lives:
            site.report(now)
        site.price(now)
    for now in (32 * S, 40 * S):
        site.deliver(now)
        site.price(now)
    return site


@pytest.mark.parametrize("reason", ["suspended", "restart"])
def test_a_run_that_slept_saved_what_its_baseline_emitted_more(sites: Sites, reason: str) -> None:
    """By an independent reckoning; the baseline trained on through all of the sleep, or queue."""
    site = lived(small.begun(sites, SLEPT), reason)
    told = site.saving(40 * S)
    truth = SLEPT.saved_ug(SLEPT.tokens(30 * S), 40 * S, 30 * S)
    assert truth is not None
    assert told.saved_ug == told.high_ug
    assert told.saved_ug is not None
    assert abs(told.saved_ug - truth) <= 2e-3 * abs(truth)
    assert truth != 0


def test_an_outage_of_the_same_length_stops_the_baseline(sites: Sites) -> None:
    """The twin: a run that nobody put to sleep was never touched, so it has saved exactly 0."""
    told = lived(small.begun(sites, DOWN), "stopped: by hand").saving(40 * S)
    assert told.saved_ug == 0


def test_while_it_sleeps_nothing_is_saved_yet(sites: Sites) -> None:
    """Equal work only: the tokens trained so far, which the baseline trained in the same hours."""
    site = small.begun(sites, SLEPT)
    for now in range(S, 12 * S, S):
        site.deliver(now)
        if now < SLEEP.start:
            site.report(now)
        elif now == SLEEP.start:
            site.finish(now, "suspended", wakes=SLEEP.end)
        site.price(now)
        told = site.saving(now)
        assert told.saved_ug in (0, None), (now, told)
    assert site.row(11 * S).state == "asleep"
    assert site.saving(11 * S).saved_ug == 0


def test_gpus_that_a_sleeping_run_keeps_are_its_own_while_they_idle(sites: Sites) -> None:
    """Unread, they are its darkness up to now; given back, they are nobody's, not its own."""
    site = small.begun(sites, SLEPT)
    for now in range(S, 8 * S, S):
        site.deliver(now)
        site.report(now)
    site.finish(8 * S, "suspended", wakes=14 * S)
    journal = site.journal

    def held(at: int) -> list[tuple[str, object]]:
        found = journal.coverage.holdings(moment(0), moment(at), {})
        return [(each.run, each.end) for each in found if each.gpus]

    assert held(11 * S) == [("r", moment(11 * S))]
    assert held(20 * S) == [("r", moment(14 * S))]  # its alarm: what comes then is not known
    with journal.database.writing() as connection:
        connection.exec_driver_sql("UPDATE incarnations SET asleep_release = 'released'")
    assert sorted(held(11 * S)) == [("", moment(11 * S)), ("r", moment(8 * S))]
    (launch,) = journal.stays.launches("r")
    assert launch.gave_back
    assert unclaimed_ug(journal, (launch,)) == {}


def test_gpus_of_a_run_in_a_queue_are_nobodys(sites: Sites) -> None:
    """Its job has ended, whatever its catalogue says of a run that sleeps."""
    site = small.begun(sites, SLEPT)
    for now in range(S, 8 * S, S):
        site.deliver(now)
        site.report(now)
    site.finish(8 * S, "restart", wakes=14 * S, held_as="Slurm job 7")
    journal = site.journal
    found = journal.coverage.holdings(moment(10 * S), moment(11 * S), {})
    spans = sorted((each.run, each.end) for each in found if each.gpus)
    assert spans == [("", moment(11 * S)), ("r", moment(8 * S))]
    (launch,) = journal.stays.launches("r")
    assert (launch.ours, launch.gave_back) == (True, True)
    assert unclaimed_ug(journal, (launch,)) == {}


def test_an_idle_gpu_belongs_to_the_sleeper_that_keeps_it() -> None:
    """Without a process, whether or not processes are seen; given back, it has its own line."""
    keeps = holder(gpus=("g0",), idles=True)
    gave = holder(gpus=(), released=("g0",))
    view = NodeView(users={"g0": ()})
    for seen in (None, view):
        assert attribute([keeps], seen)["g0"].line == "run"
        assert attribute([gave], seen)["g0"] == RELEASED
    assert attribute([holder(gpus=("g0",))], view)["g0"] == IDLE
    both = [keeps, holder(run="other", gpus=("g0",), idles=True)]
    assert attribute(both, view)["g0"] == DISPUTED
