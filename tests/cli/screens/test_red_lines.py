"""Red means that a person must act: each red line is provoked, and is gone when that has passed.

`trouble.py` is the one place that decides it; what only looks like trouble stands beside each line.
"""

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from tests.cli import facts
from tests.cli.screens.test_coverage import status_view
from tests.daemon.clocks import SteppedClock
from tests.telemetry.world import World
from wattmesh.controller.accounting.budgets.spending import PeriodLine
from wattmesh.controller.carbon_views import ExogenousLine
from wattmesh.controller.cycle.fleet import Fleet
from wattmesh.controller.journal.nodes.node_store import NodeRow
from wattmesh.controller.loop_facts import Budgets, LoopFacts, NewestSample
from wattmesh.controller.planner.asking import Planning
from wattmesh.controller.process.loops import LoopState
from wattmesh.controller.process.trusted_time import HOLD_S
from wattmesh.controller.settings.read import Settings
from wattmesh.controller.status import trouble
from wattmesh.controller.views import CapLine, PointLine
from wattmesh.telemetry.desired import Applied
from wattmesh.telemetry.energy.sampler import Sample
from wattmesh.telemetry.readings import Component

THEIRS = "5f0d0c3e-0000-4000-8000-000000000002"


class Site:
    """A daemon that is well, as `status` sees it, until a test changes something."""

    def __init__(self) -> None:
        """Begin well, an hour after the start."""
        self.clock = SteppedClock()
        self.loop_facts = LoopFacts(
            clock=self.clock.clock, settings=Settings(), started_s=self.clock.monotonic_s
        )
        self.clock.pass_s(HOLD_S)
        self.view = replace(status_view(), at=self.clock.wall)

    def red(self) -> tuple[str, ...]:
        """Give the red lines."""
        return trouble.troubles(self.view, self.loop_facts)

    def show(self, **changes: Any) -> None:
        """Change what the view shows."""
        self.view = replace(self.view, **changes)

    def loop(self, **changes: Any) -> None:
        """Let the sampler be as told."""
        state = LoopState(name="sampler", every_s=5.0, last_progress_s=self.clock.monotonic_s)
        self.loop_facts.loops["sampler"] = lambda: replace(state, **changes)

    def node(self, **told: Any) -> None:
        """Let one node's agent tell something."""
        heard = self.clock.wall
        told_of = NodeRow(node="n1", boot_id="b", last_seen_at=heard, devices={}, facts=told)
        self.loop_facts.fleet = Fleet(nodes=(told_of,))


@dataclass(frozen=True, slots=True)
class Line:
    """One red line: words of it, what provokes it, and what is nearly so and needs nobody."""

    words: str
    provoked: Callable[[Site], None]
    gone: Callable[[Site], None]


def carbon(**changes: Any) -> Callable[[Site], None]:
    """Let the signal be as told."""
    return lambda site: site.show(carbon=facts.carbon(**{"state": "ok", **changes}))


def beside(**changes: Any) -> Callable[[Site], None]:
    """Say how a provider of weather answers, beside a signal that is well."""
    known: dict[str, Any] = {"series": "openmeteo:DE", "detail": "", "age_s": 0.0}
    times = dict.fromkeys(("reaches_at", "issued_at", "past_since"))
    return carbon(exogenous=(ExogenousLine(**known | times | changes),))


def power(**changes: Any) -> Callable[[Site], None]:
    """Let the power be read as told."""
    return lambda site: site.show(power=facts.power(**changes))


def run(**changes: Any) -> Callable[[Site], None]:
    """Let one run be as told."""
    return lambda site: site.show(runs=(facts.run(**changes),))


def point(*, speed_ratio: float, speed_alarm: bool) -> PointLine:
    """Compare a point with its catalogue."""
    return PointLine(
        point="B",
        tokens_per_s=1000.0 * speed_ratio,
        catalogue_tokens_per_s=1000.0,
        speed_ratio=speed_ratio,
        power_w=None,
        catalogue_power_w=None,
        power_ratio=None,
        speed_alarm=speed_alarm,
        power_alarm=False,
        measured_s=3600.0,
        until=facts.NOW,
        flags=(),
    )


def cap(**changes: Any) -> Callable[[Site], None]:
    """Let a power cap be in force."""
    at = SteppedClock().wall
    kept = CapLine(
        cap_w=4000.0,
        start=at,
        until=at + timedelta(hours=1),
        by="uid 0",
        reason="the utility asks",
        meets=True,
        bound_w=3900.0,
        lowest_w=1000.0,
        sentence="The cap of 4 kW cannot be kept: raise it.",
    )
    return lambda site: site.show(cap=replace(kept, **changes))


def planning(in_a_row: int) -> Callable[[Site], None]:
    """Let plans fail so often in a row."""

    def change(site: Site) -> None:
        site.loop_facts.planning = lambda: Planning(in_a_row=in_a_row, trouble="it was killed")

    return change


def budget(alert: str) -> Callable[[Site], None]:
    """Let the cluster's budget say something."""

    def change(site: Site) -> None:
        at = site.clock.wall
        line = PeriodLine(
            name="cluster",
            period="2026-11",
            start=at,
            end=at + timedelta(days=30),
            limit_g=1.0,
            spent_g=0.5,
            unpriced_j=0.0,
            expected_g=0.4,
            burn=1.2,
            on_course_g=None,
            restated_g=0.0,
            alert=alert,
        )
        site.loop_facts.budgets = Budgets(lines=(line,))

    return change


def obeys(why: str) -> Callable[[Site], None]:
    """Let the actuator of a node obey us, or refuse us by its fence."""

    def change(site: Site) -> None:
        site.loop_facts.lead = replace(site.loop_facts.lead, epoch=3, journal="ours")
        site.node(applied=Applied(mode="enforce", epoch=9, fenced=why, journal=THEIRS).to_json())

    return change


def meter(watts: float) -> Callable[[Site], None]:
    """Let the meter of a node read so much, where its one GPU draws 100 W."""

    def change(site: Site) -> None:
        gpu = World("G0").read()[0]
        psu = replace(gpu, gpu_uuid="node:n1:psu", power_w=watts, component=Component.NODE)
        for at_s in (0.0, 121.0):
            seen = tuple(replace(each, monotonic_s=gpu.monotonic_s + at_s) for each in (gpu, psu))
            site.loop_facts.exporter.observe(Sample(readings=seen), {})

    return change


def outage(site: Site) -> None:
    """Let the journal not answer."""
    site.loop_facts.journal_failed("the journal is locked")


def answers(site: Site) -> None:
    """Let it answer again."""
    outage(site)
    site.loop_facts.journal_answered()


def stepped(site: Site) -> None:
    """Step the wall clock."""
    site.clock.step_wall(3600.0)


def stepped_long_ago(site: Site) -> None:
    """And wait until it is believed."""
    stepped(site)
    site.loop_facts.trusted.doubt()
    site.clock.pass_s(HOLD_S + 1)


def refused(sentence: str) -> Callable[[Site], None]:
    """Let a node's delivery be refused, and taken again where there is no sentence."""

    def change(site: Site) -> None:
        site.loop_facts.node_faults.note("n1", "2 rows of the future")
        if not sentence:
            site.loop_facts.node_faults.clear("n1")

    return change


LINES = (
    Line("The journal is locked (for 0 s now)", outage, answers),
    Line(
        "The sampler loop: a bug ended its turn",
        lambda site: site.loop(trouble="a bug ended its turn (KeyError)"),
        lambda site: site.loop(trouble="nvml does not answer"),
    ),
    Line(
        "The sampler loop has made no progress",
        lambda site: site.loop(last_progress_s=site.clock.monotonic_s - 36.0),
        lambda site: site.loop(last_progress_s=site.clock.monotonic_s - 34.0),
    ),
    Line(
        "was not taken",
        lambda site: setattr(
            site.loop_facts, "settings_trouble", "The settings file was not taken."
        ),
        lambda site: setattr(site.loop_facts, "settings_trouble", ""),
    ),
    Line(
        "The agents' certificate",
        lambda site: setattr(
            site.loop_facts, "certificate_trouble", "The agents' certificate ends: make it anew."
        ),
        lambda site: setattr(site.loop_facts, "certificate_trouble", ""),
    ),
    Line("No plan can be made", planning(trouble.PLANS_FAILED), planning(trouble.PLANS_FAILED - 1)),
    Line("The wall clock was stepped", stepped, stepped_long_ago),
    Line(
        "is closed and has not ended",
        lambda site: setattr(site.loop_facts, "budgets", Budgets(sealed_ahead=("2027-01",))),
        lambda site: setattr(site.loop_facts, "budgets", Budgets()),
    ),
    Line(
        "refuses to answer, and will until you mend it",
        carbon(state="refused", detail="the key is not known"),
        carbon(),
    ),
    Line(
        "Every run holds until the signal is back",
        carbon(trouble="No answer for 2 h.", rung="none"),
        carbon(trouble="Nothing is known of the hours ahead.", rung="static"),
    ),
    Line(
        "has not answered for",
        carbon(state="failed", detail="timeout", age_s=trouble.LONG_SILENT_S + 60),
        carbon(state="failed", detail="timeout", age_s=trouble.LONG_SILENT_S - 60),
    ),
    Line(
        "openmeteo:DE refuses to answer",
        beside(state="refused", detail="no such place"),
        beside(state="ok"),
    ),
    Line(
        "openmeteo:DE has not answered for",
        beside(state="failed", detail="timeout", age_s=trouble.LONG_SILENT_S + 60),
        beside(state="failed", detail="timeout", age_s=trouble.LONG_SILENT_S - 60),
    ),
    Line("GPU power is not read", power(trouble="no NVML"), power()),
    Line("2 of 64 GPUs do not answer", power(gpus=62), power(gpus=65)),
    Line(
        "Power is read in part",
        lambda site: sampled(site, (("G1", "the field is not supported"),)),
        lambda site: sampled(site, ()),
    ),
    Line("Coverage 56 of 64 GPUs", power(covered=56, to_cover=64), power(covered=64, to_cover=64)),
    Line(
        "keeps back ledger rows",
        lambda site: site.node(refused={"rows": 2, "energy_j": 5.0, "why": "of a newer version"}),
        lambda site: site.node(refused={"rows": 0, "energy_j": 0.0, "why": ""}),
    ),
    Line("what its agent delivers is refused", refused("why"), refused("")),
    Line("obeys another journal", obeys("journal"), obeys("")),
    Line("obeys epoch 9 of this journal", obeys("epoch"), obeys("")),
    Line("The node's meter reads 20 W", meter(20.0), meter(500.0)),
    Line("The cap of 4 kW cannot be kept", cap(meets=False), cap()),
    Line("miss the deadline, for a cap outranks it", cap(late=("llama-8b",)), cap()),
    Line("cluster burns too fast", budget("cluster burns too fast: postpone a run"), budget("")),
    Line(
        "3 runs of uid 1000 have not been heard",
        lambda site: site.show(
            runs=(facts.run(state="lost", activity="lost"),), lost_more={"1000": 2}
        ),
        lambda site: site.show(runs=(facts.run(),), lost_more={}),
    ),
    Line(
        "llama-8b has not been heard for",
        run(state="lost", activity="lost", last_seen_s=900.0),
        run(state="lost", activity="failed", last_seen_s=900.0, ended="failed: KeyError('x')"),
    ),
    Line(
        "was to wake",
        run(
            state="lost",
            activity="lost",
            asleep_at=facts.NOW - timedelta(hours=5),
            wakes_at=facts.NOW - timedelta(hours=1),
            held_as="Slurm job 4711 of alps",
        ),
        run(state="asleep", activity="asleep", wakes_at=facts.NOW + timedelta(hours=1)),
    ),
    Line(
        "left for another size",
        run(
            state="lost",
            activity="lost",
            wakes_at=facts.NOW - timedelta(hours=1),
            held_as="Slurm job 8 of alps, or Slurm job 7 of alps",
        ),
        run(state="queued", activity="queued", wakes_at=facts.NOW + timedelta(hours=1)),
    ),
    Line(
        "has no new checkpoint (the disk is full)",
        run(trouble="the disk is full"),
        run(state="lost", activity="stopped", ended="stopped: SIGTERM", trouble="the disk is full"),
    ),
    Line(
        "at B trains at 80 % of the speed that its catalogue states",
        run(measured=(point(speed_ratio=0.8, speed_alarm=True),)),
        run(measured=(point(speed_ratio=0.95, speed_alarm=False),)),
    ),
    Line(
        "is frozen: wattmesh froze it",
        run(activity="frozen", frozen="wattmesh froze it after two failures"),
        run(activity="frozen", frozen="uid 1000: maintenance"),
    ),
    Line(
        "where it is frozen", run(slack_s=-60.0, frozen="uid 1000: maintenance"), run(slack_s=0.0)
    ),
    Line("even at its fastest point", run(slack_s=-60.0), run(slack_s=0.0)),
)


def sampled(site: Site, troubles: tuple[tuple[str, str], ...]) -> None:
    """Let the newest sample say what it could not read."""
    reading = World("G0").read()
    sample = Sample(readings=tuple(reading), troubles=troubles)
    site.loop_facts.sampled = NewestSample(monotonic_s=site.clock.monotonic_s, sample=sample)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.words)
def test_a_red_line_comes_and_goes(line: Line) -> None:
    """Exactly one line, which ends in what to do; none where it has passed or needs nobody."""
    site = Site()
    assert site.red() == ()
    line.provoked(site)
    (said,) = site.red()
    assert line.words in said
    assert said.endswith(".")
    line.gone(site)
    assert site.red() == ()


def test_a_loop_that_waits_for_the_journal_is_not_told_to_be_restarted() -> None:
    """While the journal hangs, a loop stands for as long; longer than that is its own fault."""
    site = Site()
    site.loop(last_progress_s=site.clock.monotonic_s - 60.0)
    assert trouble.troubles(site.view, site.loop_facts, journal_hangs_s=30.0) == ()
    (said,) = trouble.troubles(site.view, site.loop_facts, journal_hangs_s=20.0)
    assert "systemctl restart wattmesh" in said


def test_no_red_line_is_left_out() -> None:
    """A line that is added to the one place wants a row here.

    Beside its own sentences it passes on two of fences, one of budgets.
    """
    tree = ast.parse(inspect.getsource(trouble))
    own = [each for each in ast.walk(tree) if isinstance(each, ast.Yield)]
    assert len(LINES) == len(own) + 3
