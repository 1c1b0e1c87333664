"""The calls of the power cap: who may, what makes no sense, what would have no effect."""

import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import Served
from tests.api.stranger import as_stranger, needs_root
from tests.api.test_operators import set_mode
from tests.cycle.test_caps import node
from wattmesh.controller.cycle.capping import apply
from wattmesh.controller.cycle.cycle import CycleReport
from wattmesh.controller.journal.nodes.caps import DEMAND_RESPONSE, CapRow
from wattmesh.controller.loop_facts import NewestTurn
from wattmesh.controller.metrics.caps import cap_metrics
from wattmesh.policies.decision import CarbonView, Mode, Observation
from wattmesh.policies.powercap.triggers import CapOrigin, Response, TriggerFacts

RULES = Path(__file__).parents[2] / "integrations/prometheus/rules/powercap.yml"


def turned(served: Served, *, acts: bool = True) -> None:
    """Let a cycle have seen a node of four boards."""
    now = served.clock.wall
    seen = Observation(
        now=now, mode=Mode.ACT, runs=(), carbon=CarbonView(signal="", slots=(), age_s=None)
    )
    served.loop_facts.fleet = replace(
        served.loop_facts.fleet, nodes=(node(at=now, changes={} if acts else {"settable": False}),)
    )
    report = CycleReport(at=now, sentence="", observation=seen)
    served.loop_facts.turned = NewestTurn(monotonic_s=served.clock.monotonic_s, report=report)


def body(served: Served, cap_w: object = 1200.0, **changes: Any) -> dict[str, Any]:
    """A cap for two hours."""
    until: datetime = served.clock.wall + timedelta(hours=2)
    return {"cap_w": cap_w, "until": until.isoformat(), "reason": "hot"} | changes


def test_a_cap_is_in_the_journal_before_the_answer_and_its_end_too(served: Served) -> None:
    """Who asked and why; one sentence says what follows."""
    turned(served)
    answer = served.post("/v1/powercap", body(served))
    assert answer.status == 200, answer.body
    assert "holds 4 GPUs at 1.2 kW at most" in answer.body["done"]
    row = served.journal.caps.standing(served.clock.wall)[0]
    assert row is not None
    assert (row.cap_w, row.reason) == (1200.0, "hot")
    assert "uid" in row.by
    again = served.post("/v1/powercap", body(served, 2000.0))
    assert "It takes the place of the cap of 1.2 kW." in again.body["done"]
    assert "was ended" in served.post("/v1/powercap/end", {}).body["done"]
    assert served.post("/v1/powercap/end", {}).body["done"] == "No power cap is in force."
    assert served.get("/v1/powercap").body["cap"] is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cap_w": 0}, "above 0"),
        ({"cap_w": "150kW"}, "a number of watts"),
        ({"cap_w": True}, "a number of watts"),
        ({"until": "soon"}, "is not a time"),
        ({"until": "2026-12-01T18:00:00"}, "is not a time"),
        ({"until": "2001-01-01T00:00:00Z"}, "between now and 31 days"),
        ({"until": "2099-01-01T00:00:00Z"}, "between now and 31 days"),
        ({"from": "at noon"}, "from='at noon' is not a time"),
        ({"from": "2026-12-01T18:00:00"}, "is not a time"),
        ({"from": "2001-01-01T00:00:00Z"}, "between now and the cap's end"),
        ({"from": "2099-01-01T00:00:00Z"}, "between now and the cap's end"),
        ({"from": 5}, "from"),
    ],
)
def test_a_cap_that_makes_no_sense_is_refused(
    served: Served, changes: dict[str, Any], words: str
) -> None:
    """A number, and an end to come."""
    turned(served)
    answer = served.post("/v1/powercap", body(served, **changes))
    assert answer.status == 422
    assert words in answer.body["error"]
    assert served.journal.caps.list() == ()


def test_a_cap_that_would_have_no_effect_is_refused_with_what_to_do(served: Served) -> None:
    """No cycle yet, a mode that sets nothing, no board that obeys."""
    assert served.post("/v1/powercap", body(served)).status == 503
    turned(served, acts=False)
    assert "No board obeys" in served.post("/v1/powercap", body(served)).body["error"]
    turned(served)
    set_mode(served, Mode.ADVISE)
    assert 'set mode = "act"' in served.post("/v1/powercap", body(served)).body["error"]
    assert served.journal.caps.list() == ()


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (4, "No board obeys: all 4 GPUs are shared (MIG, or a virtual GPU), and a shared GPU is"),
        (2, "No board obeys: 2 GPUs are shared (MIG, or a virtual GPU), and a shared GPU is read"),
        (0, "No board obeys: no agent that is heard reports an actuator that acts"),
    ],
)
def test_of_boards_shared_by_mig_no_setting_is_asked_for(
    served: Served, count: int, said: str
) -> None:
    """Agent and actuator are as they should be; only the others need an actuator that acts."""
    turned(served, acts=False)
    (only,) = served.loop_facts.fleet.nodes
    devices = {
        gpu: dict(facts) | ({"shared": "mig"} if number < count else {})
        for number, (gpu, facts) in enumerate(only.devices.items())
    }
    served.loop_facts.fleet = replace(
        served.loop_facts.fleet, nodes=(replace(only, devices=devices),)
    )
    answer = served.post("/v1/powercap", body(served))
    assert answer.status == 409
    assert said in answer.body["error"]
    assert ('actuator.mode = "enforce"' in answer.body["error"]) == (count < 4)


@needs_root
def test_only_operators_cap_and_end_caps(served: Served) -> None:
    """The owner of a run is none."""
    turned(served)
    for path in ("/v1/powercap", "/v1/powercap/end", "/v1/powercap/withdraw"):
        assert as_stranger(served.socket, "POST", path, body(served)).status == 403


def seen_again(served: Served) -> None:
    """Let a cycle have seen what is in the journal."""
    turned(served)
    ahead = served.journal.caps.standing(served.clock.wall).ahead
    newest = served.loop_facts.turned
    assert newest is not None
    report = replace(newest.report, caps_ahead=ahead)
    served.loop_facts.turned = replace(newest, report=report)


def test_an_announced_cap_is_told_and_can_be_taken_back(served: Served) -> None:
    """When it begins, what it would do now; in status and metrics; no cap in force is touched."""
    turned(served)
    start: datetime = served.clock.wall + timedelta(hours=1)
    said = served.post("/v1/powercap", body(served, **{"from": start.isoformat()})).body["done"]
    assert "A power cap of 1.2 kW is announced from " in said
    assert "As things are now it would hold 4 GPUs lower." in said
    assert served.journal.caps.standing(served.clock.wall)[0] is None
    seen_again(served)
    (told,) = served.get("/v1/powercap").body["announced"]
    assert datetime.fromisoformat(told["start"]) == start
    assert served.get("/v1/status").body["announced_caps"] == [told]
    samples = {each.name: each.samples for each in cap_metrics(served.loop_facts)}
    (begins,) = samples["wattmesh_power_cap_announced_start_timestamp_seconds"]
    assert begins.value == start.timestamp()
    assert served.post("/v1/powercap", body(served, 2000.0)).status == 200
    ended = served.post("/v1/powercap/end", {}).body["done"]
    assert "was ended" in ended
    assert "`wattmesh powercap withdraw` takes it back" in ended
    assert "were withdrawn: 1.2 kW from" in served.post("/v1/powercap/withdraw", {}).body["done"]
    nothing = served.post("/v1/powercap/withdraw", {}).body["done"]
    assert nothing == "No power cap is announced."


def test_a_cap_that_cannot_be_kept_may_be_announced_and_says_so(served: Served) -> None:
    """What is lowest now is said; and there are not more of them than a cycle is to plan."""
    turned(served)
    start: datetime = served.clock.wall + timedelta(hours=1)
    asked = body(served, 10.0, **{"from": start.isoformat()})
    said = served.post("/v1/powercap", asked).body["done"]
    assert "As things are now it could not be kept: the lowest that can be reached is 1 kW" in said
    for _ in range(7):
        assert served.post("/v1/powercap", asked).status == 200
    answer = served.post("/v1/powercap", asked)
    assert answer.status == 409
    assert "8 power caps are announced" in answer.body["error"]


def trigger_one(served: Served, start: datetime, hours: float = 2.0) -> None:
    """Let demand response have set a cap of 1,300 W."""
    epoch = served.loop_facts.lead.epoch or 0
    facts = TriggerFacts(
        signal="neso:GB", unit="g/kWh", value=310.0, threshold=290.0, issued_at=served.clock.wall
    )
    row = CapRow(
        id=0,
        cap_w=1300.0,
        start=start,
        until=start + timedelta(hours=hours),
        by=DEMAND_RESPONSE,
        reason="carbon: 310 g/kWh on average",
        origin=CapOrigin.CARBON,
        trigger=facts,
    )
    served.journal.caps.respond([row], {}, now=served.clock.wall, epoch=epoch)


def test_a_triggered_cap_is_shown_with_what_triggered_it_and_ended_alone(served: Served) -> None:
    """An operator's cap beside it neither ends it nor is ended with it, where so asked."""
    turned(served)
    trigger_one(served, served.clock.wall)
    said = served.post("/v1/powercap", body(served, 2000.0)).body["done"]
    assert "the lower cap of 1.3 kW (demand response by carbon) counts." in said
    kept(served)
    newest = served.loop_facts.turned
    assert newest is not None
    beside = served.journal.caps.standing(served.clock.wall).beside
    demand = (
        Response(origin=CapOrigin.CARBON, sentence="Follows neso.", held=False),
        Response(origin=CapOrigin.PRICE, sentence="Demand response by price holds.", held=True),
    )
    report = replace(newest.report, caps_beside=beside, demand=demand)
    served.loop_facts.turned = replace(newest, report=report)
    told = served.get("/v1/powercap").body
    assert (told["cap"]["origin"], told["cap"]["trigger"]["value"]) == ("carbon", 310.0)
    assert told["cap"]["trigger"]["signal"] == "neso:GB"
    assert [(each["cap_w"], each["origin"]) for each in told["beside"]] == [(2000.0, "operator")]
    assert [each["held"] for each in told["demand_response"]] == [False, True]
    status = served.get("/v1/status").body
    assert "Demand response by price holds." in status["trouble"]
    samples = {
        (each.name, each.labels["origin"]): each.value
        for metric in cap_metrics(served.loop_facts)
        for each in metric.samples
        if "origin" in each.labels
    }
    assert samples == {
        ("wattmesh_demand_response_held", "carbon"): 0.0,
        ("wattmesh_demand_response_held", "price"): 1.0,
        ("wattmesh_power_cap_triggered", "carbon"): 1.0,
    }
    assert served.post("/v1/powercap/end", {"triggered": "yes"}).status == 422
    ended = served.post("/v1/powercap/end", {"triggered": True}).body["done"]
    assert "The power cap of 1.3 kW until " in ended
    assert "(demand response by carbon) was ended." in ended
    assert "2 kW" not in ended
    again = served.post("/v1/powercap/end", {"triggered": True}).body["done"]
    assert again == "No power cap that demand response triggered is in force."
    assert served.journal.caps.list()[-1].ended_by_operator


def test_triggered_caps_take_no_place_of_operators_and_are_withdrawn_alone(served: Served) -> None:
    """The eighth of an operator is announced beside them."""
    turned(served)
    start: datetime = served.clock.wall + timedelta(hours=3)
    trigger_one(served, start)
    asked = body(served, **{"from": (served.clock.wall + timedelta(hours=1)).isoformat()})
    assert served.post("/v1/powercap", asked).status == 200
    gone = served.post("/v1/powercap/withdraw", {"triggered": True}).body["done"]
    assert "withdrawn: 1.3 kW from" in gone
    assert "(demand response by carbon)" in gone
    assert len(served.journal.caps.standing(served.clock.wall).ahead) == 1
    none = served.post("/v1/powercap/withdraw", {"triggered": True}).body["done"]
    assert none == "No power cap is announced by demand response."


def test_status_and_metrics_tell_how_a_cap_is_kept(served: Served) -> None:
    """In force: how far it is kept; not to be kept: a trouble; over: nothing."""
    turned(served)
    served.post("/v1/powercap", body(served))
    kept(served)
    assert served.get("/v1/powercap").body["cap"]["meets"] is True
    assert not any("power cap" in each for each in served.get("/v1/status").body["trouble"])
    assert figures(served) == {"ordered": 1200.0, "bound": 1200.0, "lowest": 1000.0}
    served.post("/v1/powercap", body(served, 900.0))
    kept(served)
    said = served.get("/v1/status").body
    assert said["cap"]["meets"] is False
    assert any("cannot be kept: GPUs may still draw 1 kW" in each for each in said["trouble"])
    served.clock.pass_s(3 * 3600.0)
    assert served.get("/v1/powercap").body["cap"] is None
    assert figures(served) == {}


def test_a_cap_without_any_known_limit_has_no_bound_and_is_not_kept(served: Served) -> None:
    """Neither the API nor Prometheus gives 0 W for what is not known."""
    turned(served)
    nodes = [node(changes={"limit_w": None, "floor_w": None}, at=served.clock.wall)]
    mute = replace(nodes[0], devices={gpu: {} for gpu in nodes[0].devices})
    served.loop_facts.fleet = replace(served.loop_facts.fleet, nodes=(mute,))
    assert "is unknown" in served.post("/v1/powercap", body(served)).body["done"]
    kept(served)
    cap = served.get("/v1/powercap").body["cap"]
    assert (cap["meets"], cap["bound_w"], cap["lowest_w"]) == (False, None, None)
    assert figures(served) == {"ordered": 1200.0}
    assert firing(RULES.read_text(encoding="utf-8"), served) == ["WattmeshPowerCapNotKept"]
    assert any("is unknown" in each for each in served.get("/v1/status").body["trouble"])


def kept(served: Served) -> None:
    """Let a cycle have kept the cap that is in force."""
    now = served.clock.wall
    row = served.journal.caps.standing(now)[0]
    before = served.loop_facts.turned
    assert row is not None
    assert before is not None
    assert before.report.observation is not None
    seen = replace(before.report.observation, now=now)
    _, cap = apply(seen, row, served.loop_facts.fleet.nodes, ())
    report = replace(before.report, cap=cap)
    served.loop_facts.turned = NewestTurn(monotonic_s=served.clock.monotonic_s, report=report)


def figures(served: Served) -> dict[str, float]:
    """The cap's figures as Prometheus reads them."""
    found = {metric.name: metric.samples for metric in cap_metrics(served.loop_facts)}
    samples = found["wattmesh_power_cap_watts"]
    return {each.labels["figure"]: each.value for each in samples}


def firing(rules: str, served: Served) -> list[str]:
    """Name the alerts whose expression, `metric == number`, holds of the samples there are."""
    samples = {
        each.name: each.value
        for metric in cap_metrics(served.loop_facts)
        for each in metric.samples
    }
    rule = re.compile(r"alert: (\w+)\n +expr: (\w+) == ([\d.]+)\n")
    found = rule.findall(rules)
    assert len(found) == rules.count("- alert:")
    return [name for name, metric, wanted in found if samples.get(metric) == float(wanted)]


def test_a_cap_that_is_not_kept_raises_an_alert_and_nothing_else_does(served: Served) -> None:
    """No cap, a cap that is kept, one that is over: silence. The sabotaged twins never fire."""
    rules = RULES.read_text(encoding="utf-8")
    turned(served)
    assert firing(rules, served) == []
    served.post("/v1/powercap", body(served))
    kept(served)
    assert firing(rules, served) == []
    served.post("/v1/powercap", body(served, 900.0))
    kept(served)
    assert firing(rules, served) == ["WattmeshPowerCapNotKept"]
    assert firing(rules.replace("_cap_kept", "_caps_kept"), served) == []
    assert firing(rules.replace("== 0", "== 1"), served) == []
    served.clock.pass_s(3 * 3600.0)
    assert firing(rules, served) == []
