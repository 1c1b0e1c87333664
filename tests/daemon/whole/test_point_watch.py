"""Points that are not as their catalogue states: told on every screen, as metric and as event."""

import re
from pathlib import Path

import pytest

from tests.api.conftest import Served, open_folder, served, settings
from tests.builders.accounts import GRID, SLOT_S, Life, intensity
from tests.builders.runs import PLAN
from tests.daemon.whole.test_budgets import events, sample
from wattmesh.controller.cli.main import main
from wattmesh.controller.daemon.point_watch import AGREES, OFF, PointWatch
from wattmesh.controller.loop_facts import Lead
from wattmesh.controller.metrics.figures import FigureReader
from wattmesh.controller.metrics.points import point_metrics

__all__ = ["open_folder", "served", "settings"]

RULES = Path(__file__).parents[3] / "integrations/prometheus/rules/points.yml"


def live(served: Served, life: Life, count: int) -> None:
    """Train so many slots."""
    life.live(count)
    served.clock.pass_s(count * SLOT_S)


def look(served: Served) -> None:
    """A daemon that has just started looks at the points."""
    served.loop_facts.points = {}
    PointWatch(served.journal, served.loop_facts, lambda _: GRID).turn()


@pytest.fixture
def slow(served: Served) -> Life:
    """A run at 80 % of its catalogue's speed and 115 % of its watts."""
    intensity(served.journal, [200.0] * 80)
    life = Life(journal=served.journal, rate=800.0, power_w=460.0)
    life.begin(plan=PLAN)
    live(served, life, 8)
    look(served)
    return life


def test_an_alarm_is_told_with_what_to_do(
    served: Served, slow: Life, capsys: pytest.CaptureFixture[str]
) -> None:
    """In `status`, `why` and their JSON, each with what the watts are."""
    view = served.get("/v1/status").body
    (line,) = view["runs"][0]["measured"]
    assert (line["point"], line["speed_ratio"], line["flags"]) == ("A", 0.8, ["simulated"])
    (told,) = [each for each in view["trouble"] if "catalogue" in each]
    assert told.startswith(
        "llm at A trains at 80 % of the speed and draws 115 % sim of the watts that its catalogue"
    )
    assert "with `wattmesh configs profile JOB --out FILE`" in told
    assert main(["why", "llm", "--socket", str(served.socket)]) == 0
    assert "80 % of its catalogue's speed, 115 % sim of its watts" in capsys.readouterr().out


def test_an_alarm_is_an_event_once_whoever_looks(served: Served, slow: Life) -> None:
    """A daemon that restarts does not tell it again; its end is told once."""
    look(served)
    (begun,) = events(served.journal, OFF)
    assert begun.startswith("llm (r) at A: trains at 80 % of the speed")
    slow.rate, slow.power_w = 1000.0, 400.0
    live(served, slow, 16)
    for _ in range(2):
        look(served)
    assert events(served.journal, AGREES) == ["llm (r) at A: it is as its catalogue states again."]
    assert len(events(served.journal, OFF)) == 1
    told = served.get("/v1/status").body["trouble"]
    assert not [each for each in told if "catalogue" in each]


def test_the_alert_rule_names_metrics_that_are_served(served: Served, slow: Life) -> None:
    """Both ratios, and 1 for each quantity that alarms."""
    reader = FigureReader(served.journal, served.loop_facts)
    metrics = list(point_metrics(served.loop_facts, reader.read()))
    place = {"run": "llm", "run_id": "r", "point": "A"}
    assert sample(metrics, "wattmesh_run_point_throughput_ratio", **place) == pytest.approx(0.8)
    power = sample(metrics, "wattmesh_run_point_power_ratio", **place, flags="simulated")
    assert power == pytest.approx(1.15)
    for quantity in ("speed", "power"):
        assert sample(metrics, "wattmesh_run_point_alert", **place, quantity=quantity) == 1.0
    asked = re.findall(r"expr: (\w+)", RULES.read_text())
    assert asked == ["wattmesh_run_point_alert"]
    assert asked[0] in {each.name for each in metrics}


def test_a_standby_looks_and_writes_nothing(served: Served, slow: Life) -> None:
    """Its own screen shows the alarm; the event is the leader's."""
    served.loop_facts.lead = Lead()
    slow.rate, slow.power_w = 1000.0, 400.0
    live(served, slow, 16)
    look(served)
    assert [each.speed_alarm for each in served.loop_facts.points["r"]] == [False]
    assert events(served.journal, AGREES) == []


def test_a_clock_in_doubt_leaves_what_was_known(served: Served, slow: Life) -> None:
    """After a step nothing is compared by dates that may be wrong."""
    known = served.loop_facts.points
    served.clock.step_wall(86_400.0)
    served.loop_facts.trusted.take_steps()
    PointWatch(served.journal, served.loop_facts, lambda _: GRID).turn()
    assert served.loop_facts.points is known
