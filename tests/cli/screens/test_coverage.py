"""What is said where not every GPU is seen: in the power line and beside savings."""

from dataclasses import fields, replace

from tests.cli import facts
from tests.cli.screens.test_budget import run, view
from tests.cli.screens.test_screens import plain
from tests.daemon.clocks import SteppedClock
from tests.telemetry.world import World
from wattmesh.controller.cli.accounting import budget_screen
from wattmesh.controller.cli.runs import status_screen
from wattmesh.controller.cycle.fleet import GpusRead
from wattmesh.controller.loop_facts import LoopFacts, NewestSample
from wattmesh.controller.settings.read import Settings
from wattmesh.controller.status.status import power_line
from wattmesh.controller.status.trouble import troubles
from wattmesh.controller.views import StatusView
from wattmesh.telemetry.energy.sampler import Sample
from wattmesh.telemetry.readings import Component, component_of


def power_words(**changes: object) -> str:
    """Give the power line of the status screen."""
    text = plain(status_screen.screen(facts.status(power=facts.power(**changes))))
    return next(line for line in text.splitlines() if line.startswith("power"))


def test_full_coverage_needs_no_word() -> None:
    """64 of 64: nothing is said of it, and nothing of clocks where there is no actuator."""
    line = power_words(covered=64, to_cover=64)
    assert "coverage" not in line
    assert "clocks" not in line


def test_partial_coverage_is_said_with_what_follows_from_it() -> None:
    """56 of 64: estimated savings and runs that are held, in the very line."""
    line = power_words(covered=56, to_cover=64)
    assert "coverage 56 of 64 GPUs: savings are estimated, runs on the others are held" in line


def test_clocks_and_hosts_are_shown_where_they_are_known() -> None:
    """As in the sketch: processors beside the GPUs, and the clocks that are as ordered."""
    line = power_words(hosts_w=12_900.0, clocks=64, clocks_as_ordered=60)
    assert "GPUs 41.2 kW + processors 12.9 kW" in line
    assert "60 of 64 clocks as ordered" in line


def test_an_estimated_saving_says_why() -> None:
    """By coverage, or by what its joules are; a measured one says nothing."""
    said = plain(budget_screen.screen(view(run(), estimated=True, covered=(56, 64))))
    assert "estimated: coverage 56 of 64 GPUs" in said
    said = plain(budget_screen.screen(view(run(flags=("estimated",)), covered=(64, 64))))
    assert "1.1 g est" in said
    assert "est: estimated" in said
    assert "estimated" not in plain(budget_screen.screen(view(run())))


def test_the_power_line_keeps_gpus_and_hosts_apart() -> None:
    """Processors are not GPUs: neither in watts nor in the count."""
    clock = SteppedClock()
    loop_facts = LoopFacts(clock=clock.clock, settings=Settings(), started_s=clock.monotonic_s)
    gpu = World("G0").read()[0]
    cpu = "cpu:n1:package-0"
    host = replace(gpu, gpu_uuid=cpu, power_w=75.0, component=component_of(cpu))
    sample = Sample(readings=(gpu, host))
    loop_facts.sampled = NewestSample(monotonic_s=clock.monotonic_s, sample=sample)
    loop_facts.fleet = replace(
        loop_facts.fleet, gpus=GpusRead(known=frozenset({"G0", "G1"}), lately=frozenset({"G0"}))
    )
    line = power_line(loop_facts)
    assert (line.total_w, line.hosts_w, line.gpus) == (100.0, 75.0, 1)
    assert (line.covered, line.to_cover, line.clocks) == (1, 2, 0)


def test_what_is_wrong_with_sensors_and_coverage_stands_among_the_troubles() -> None:
    """Once each, with what to do; and nothing while all is well."""
    clock = SteppedClock()
    loop_facts = LoopFacts(clock=clock.clock, settings=Settings(), started_s=clock.monotonic_s)
    well = status_view()
    assert troubles(well, loop_facts) == ()
    gpu = World("G0").read()[0]
    meter = replace(gpu, gpu_uuid="node:n1:psu", power_w=20.0, component=Component.NODE)
    for at_s in (0.0, 121.0):
        seen = tuple(replace(each, monotonic_s=gpu.monotonic_s + at_s) for each in (gpu, meter))
        loop_facts.exporter.observe(Sample(readings=seen), {})
    short = replace(well, power=facts.power(covered=56, to_cover=64))
    said = troubles(short, loop_facts)
    assert len(said) == 2
    assert any("Coverage 56 of 64 GPUs" in each and "retire" in each for each in said)
    assert any("node's meter reads 20 W" in each for each in said)


def status_view() -> StatusView:
    """Give the view of a daemon that is well."""
    answer = facts.status()
    names = {each.name for each in fields(StatusView)}
    values = {name: value for name, value in answer.items() if name in names}
    return StatusView(
        **values
        | {"runs": (), "power": facts.power(), "carbon": None, "accounting": None, "trouble": ()}
    )
