"""Freeze, thaw and switch: who asked and why is kept, and what cannot work is said at once."""

import os
from datetime import timedelta
from urllib.parse import quote

import pytest

from tests.api.conftest import Served
from tests.builders import messages
from wattmesh.policies.decision import Mode

SWITCH = "/v1/runs/llama-8b/switch"


def set_mode(served: Served, mode: Mode) -> None:
    """Put the daemon into another mode."""
    served.loop_facts.settings = served.loop_facts.settings.model_copy(update={"mode": mode})


def test_an_order_is_kept_with_who_and_why(served: Served) -> None:
    """A switch that was asked for waits in the journal for the next cycle, with its reason."""
    served.register()
    found = served.post(SWITCH, {"point": "B", "reason": "testing B"})
    assert found.status == 200, found.body
    assert found.body["done"].startswith("Ordered llama-8b to B: it switches at a coming boundary")
    row = served.journal.runs.find("llama-8b", served.clock.wall)
    assert row is not None
    assert row.ordered_point == "B"
    assert "testing B" in row.ordered_reason
    assert "uid" in row.ordered_reason


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"point": "Z", "reason": "x"}, "has no point 'Z'; it has A, B"),
        ({"point": "B"}, '"reason" must be text'),
        ({"point": "B", "reason": "  "}, '"reason" must be text'),
        ({"point": 3, "reason": "x"}, '"point" must be text'),
        ({"reason": "x"}, '"point" must be text'),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(
    served: Served, body: dict[str, object], words: str
) -> None:
    """An unknown point or a missing reason is named, with the points there are."""
    served.register()
    found = served.post(SWITCH, body)
    assert found.status == 422
    assert words in found.body["error"]


def test_an_order_that_nobody_would_carry_out_is_refused(served: Served) -> None:
    """Mode advise, a freeze, a lost run: each is said with what to do first."""
    body = {"point": "B", "reason": "x"}
    assert served.post(SWITCH, body).status == 404
    served.register()
    set_mode(served, Mode.ADVISE)
    found = served.post(SWITCH, body)
    assert (found.status, found.body["kind"]) == (409, "invalid")
    assert "mode is advise" in found.body["error"]
    set_mode(served, Mode.ACT)
    served.post("/v1/freeze", {"run": messages.RUN, "reason": "debugging"})
    assert "debugging" in served.post(SWITCH, body).body["error"]
    served.post("/v1/thaw", {"run": messages.RUN})
    assert served.post(SWITCH, body).status == 200
    served.clock.pass_s(3600.0)
    assert "is lost" in served.post(SWITCH, body).body["error"]


def test_freeze_and_thaw_one_run(served: Served) -> None:
    """A frozen run says why and by whom until it is thawed."""
    served.register()
    found = served.post("/v1/freeze", {"run": "llama-8b", "reason": "debugging"})
    assert found.body["done"].startswith("Froze llama-8b (debugging): it trains on unswitched")
    assert found.body["changed"] == [messages.RUN]
    (run,) = served.get("/v1/status").body["runs"]
    assert "debugging" in run["frozen"]
    assert run["activity"] == "frozen"
    found = served.post("/v1/thaw", {"run": "llama-8b"})
    assert "is acted upon again; it was frozen: " in found.body["done"]
    (run,) = served.get("/v1/status").body["runs"]
    assert run["frozen"] == ""


def test_a_freeze_says_what_it_means_for_the_run_as_it_stands(served: Served) -> None:
    """One that is not heard, or has ended, is not said to train."""
    served.register()
    served.clock.pass_s(3600.0)
    found = served.post("/v1/freeze", {"run": "llama-8b", "reason": "look"})
    assert "it is not heard, and trains unswitched if it still does" in found.body["done"]
    assert served.post(f"/v1/runs/{messages.RUN}/retire", {}).status == 200
    found = served.post("/v1/freeze", {"run": "llama-8b", "reason": "look"})
    assert "it has ended" in found.body["done"]


def test_sleep_is_ordered_only_of_a_run_that_somebody_wakes(served: Served) -> None:
    """One whose launcher holds no next launch is told how to get one."""
    served.register()
    found = served.post(SWITCH, {"point": "paused", "reason": "quiet"})
    assert found.status == 422
    assert "start it with `python -m wattmesh.integrations.torchrun`" in found.body["error"]


def test_a_sleeping_run_says_what_wakes_it(served: Served) -> None:
    """When, who, and what to type; freeze and retire say what they mean for it."""
    served.register(capabilities=("in_place", "restart", "suspend"))
    found = served.post(SWITCH, {"point": "paused", "reason": "quiet"})
    assert "it goes to sleep at a coming boundary until its alarm" in found.body["done"]
    at = served.clock.wall + timedelta(hours=2)
    left = messages.finish(
        reason="suspended", wakes_at=at.isoformat(), held_as="Slurm job 4711 of alps"
    )
    assert served.post(f"/v1/runs/{messages.RUN}/finish", left).status == 200
    served.clock.pass_s(3600.0)
    (run,) = served.get("/v1/status").body["runs"]
    assert (run["state"], run["activity"]) == ("asleep", "asleep")
    said = "Asleep for 60 min at step 100; Slurm job 4711 of alps starts it again in 60 min"
    assert run["sentence"].startswith(said)
    assert "`wattmesh switch llama-8b A` wakes it now." in run["sentence"]
    (listed,) = served.get("/v1/runs").body["runs"]
    assert listed["wakes_at"] == run["wakes_at"] is not None
    found = served.post(SWITCH, {"point": "B", "reason": "go on"})
    assert "it is woken there as soon as its launcher asks" in found.body["done"]
    found = served.post("/v1/freeze", {"run": "llama-8b", "reason": "look"})
    assert "it is woken, and then trains on unswitched" in found.body["done"]
    served.clock.pass_s(3600.0 + 901.0)
    view = served.get("/v1/status").body
    assert view["runs"][0]["state"] == "lost"
    (red,) = (each for each in view["trouble"] if "was to wake" in each)
    assert "Slurm job 4711 of alps" in red
    served.clock.pass_s(-1000.0)
    found = served.post(f"/v1/runs/{messages.RUN}/retire", {})
    assert "Slurm job 4711 of alps starts it again at" in found.body["done"]
    assert served.get("/v1/runs/llama-8b").body["run"]["ended"].startswith("retired")


def test_a_queued_run_says_what_it_waits_for(served: Served) -> None:
    """Who starts it and when it may come back; it is lost only when neither launch has begun."""
    served.register(capabilities=("in_place", "restart", "suspend", "resize"))
    at = served.clock.wall + timedelta(hours=1)
    held_as = "Slurm job 8 of alps, or Slurm job 7 of alps"
    left = messages.finish(reason="restart", wakes_at=at.isoformat(), held_as=held_as)
    assert served.post(f"/v1/runs/{messages.RUN}/finish", left).status == 200
    served.clock.pass_s(1800.0)
    (run,) = served.get("/v1/status").body["runs"]
    assert (run["state"], run["activity"], run["asleep_at"]) == ("queued", "queued", None)
    said = "Left for another size 30 min ago at step 100; Slurm job 8 of alps, or Slurm job 7 of"
    assert run["sentence"].startswith(said)
    found = served.post(SWITCH, {"point": "B", "reason": "go on"})
    assert "it is looked at again once its next launch trains" in found.body["done"]
    found = served.post("/v1/freeze", {"run": "llama-8b", "reason": "look"})
    assert "it waits for its next launch" in found.body["done"]
    served.clock.pass_s(1800.0 + 3600.0 + 901.0)
    view = served.get("/v1/status").body
    assert view["runs"][0]["state"] == "lost"
    (red,) = (each for each in view["trouble"] if "left for another size" in each)
    assert held_as in red
    served.clock.pass_s(-1000.0)
    found = served.post(f"/v1/runs/{messages.RUN}/retire", {})
    assert f"{held_as} starts it again at" in found.body["done"]


def test_a_run_answers_to_the_id_that_runs_shows(served: Served) -> None:
    """Two of one name can be told apart by it; a beginning that could mean both is refused."""
    other = f"{messages.RUN[:8]}-1111-4000-8000-000000000002"
    served.register()
    assert served.get(f"/v1/runs/{messages.RUN[:8]}").body["run"]["run"] == messages.RUN
    for wrong in (messages.RUN[:7], "6d1c9d0_", "%%%%%%%%", messages.RUN[:8].upper()):
        assert served.get(f"/v1/runs/{quote(wrong)}").status == 404
    said = messages.register(run=other, incarnation="incarnation-2", name="other")
    assert served.post(f"/v1/runs/{other}/register", said).status == 200
    both = served.get(f"/v1/runs/{messages.RUN[:8]}")
    assert both.status == 409
    assert messages.RUN in both.body["error"]
    assert other in both.body["error"]
    assert served.get(f"/v1/runs/{other[:13]}").body["run"]["run"] == other


def test_who_froze_and_who_thawed_is_an_event(served: Served) -> None:
    """It outlasts the freeze. Sabotaged twin: what the journal keeps of the run forgets it."""
    served.register()
    served.post("/v1/freeze", {"run": "llama-8b", "reason": "debugging"})
    served.post("/v1/thaw", {"run": "llama-8b"})
    served.post("/v1/freeze", {"reason": "maintenance"})
    served.post("/v1/thaw", {})
    told = list(reversed(served.get("/v1/events").body["events"]))
    assert [each["kind"] for each in told] == ["freeze", "thaw", "freeze", "thaw"]
    assert all(f"uid {os.getuid()}" in each["detail"] for each in told)
    assert messages.RUN in told[1]["detail"]
    assert "debugging" in told[1]["detail"]
    assert "Everything was thawed by" in told[3]["detail"]
    row = served.journal.runs.find("llama-8b", served.clock.wall)
    assert row is not None
    assert not row.frozen


def test_freeze_and_thaw_everything(served: Served) -> None:
    """Everything frozen shows on every run, and thawing one says that it does not end that."""
    served.register()
    assert served.post("/v1/freeze", {"reason": "maintenance"}).status == 200
    view = served.get("/v1/status").body
    assert "maintenance" in view["frozen"]
    assert "maintenance" in view["runs"][0]["frozen"]
    found = served.post("/v1/thaw", {"run": "llama-8b"}).body["done"]
    assert "llama-8b was not frozen" in found
    assert "But everything is frozen" in found
    assert "Everything is acted upon again" in served.post("/v1/thaw", {}).body["done"]
    assert served.get("/v1/status").body["frozen"] == ""
