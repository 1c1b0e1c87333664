"""What a run reports, and who may report it."""

import grp
import logging
import os
from dataclasses import replace
from typing import Any

import pytest

from tests.api.conftest import Served
from tests.api.stranger import STRANGER, as_stranger, needs_root
from tests.builders import messages, runs
from tests.daemon.process import Answer, ask
from wattmesh.controller.api.handlers import jobs
from wattmesh.reconfig.switch import SwitchState

RUN = f"/v1/runs/{messages.RUN}"
OTHER = "6d1c9d0e-0000-4000-8000-0000000000ff"


def test_a_run_lives_from_register_to_finish(served: Served) -> None:
    """Register, progress and finish are acknowledged, and the journal has them."""
    welcome = served.register()
    assert welcome.status == 200
    assert welcome.body["epoch"] == 1
    assert welcome.body["mode"] == "act"
    assert served.post(f"{RUN}/progress", messages.progress()).status == 200
    row = served.journal.runs.find(messages.RUN, served.clock.wall)
    assert row is not None
    assert (row.step, row.owner_uid, row.state) == (10, os.getuid(), "live")
    assert served.post(f"{RUN}/finish", messages.finish()).status == 200
    row = served.journal.runs.find(messages.RUN, served.clock.wall)
    assert row is not None
    assert row.state == "finished"


def test_a_repeated_register_changes_nothing(served: Served) -> None:
    """The same incarnation may introduce itself again; a second live one is fenced off."""
    assert served.register().status == 200
    assert served.register().status == 200
    other = served.register(incarnation="incarnation-2", attempt=2)
    assert (other.status, other.body["kind"]) == (409, "fenced")
    older = served.register(incarnation="incarnation-0", attempt=1)
    assert (older.status, older.body["kind"]) == (409, "fenced")


@needs_root
@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("POST", f"{RUN}/register", messages.register(incarnation="other", attempt=2)),
        ("POST", f"{RUN}/progress", messages.progress(seq=9, step=999)),
        ("POST", f"{RUN}/finish", messages.finish()),
        ("POST", f"{RUN}/transitions", messages.transition("p", 1, SwitchState.ANNOUNCED)),
        ("GET", f"{RUN}/order", None),
        ("POST", f"{RUN}/switch", {"point": "B", "reason": "mine now"}),
        ("POST", "/v1/freeze", {"run": "llama-8b", "reason": "ha"}),
        ("POST", "/v1/thaw", {"run": "llama-8b"}),
        ("POST", "/v1/freeze", {"reason": "everything"}),
        ("POST", "/v1/thaw", {}),
    ],
)
def test_another_user_may_neither_report_nor_attach_nor_order(
    served: Served, method: str, target: str, body: Any
) -> None:
    """A second uid is refused with a sentence, and nothing changes."""
    served.register()
    before = served.journal.runs.all(served.clock.wall)
    answer = as_stranger(served.socket, method, target, body)
    assert answer.status == 403, answer.body
    assert answer.body["kind"] == "refused"
    assert str(STRANGER) in answer.body["error"]
    assert served.journal.runs.all(served.clock.wall) == before
    assert served.journal.runs.frozen_all() == ""


@needs_root
def test_another_user_may_read_and_own_a_run_of_its_own(served: Served) -> None:
    """The twin: the same second uid reads, and its own run belongs to it."""
    assert as_stranger(served.socket, "GET", "/v1/status").status == 200
    own = "6d1c9d0e-0000-4000-8000-0000000000ff"
    mine = messages.register(run=own, name="mine")
    assert as_stranger(served.socket, "POST", f"/v1/runs/{own}/register", mine).status == 200
    row = served.journal.runs.find(own, served.clock.wall)
    assert row is not None
    assert row.owner_uid == STRANGER
    frozen = as_stranger(served.socket, "POST", "/v1/freeze", {"run": own, "reason": "mine"})
    assert frozen.status == 200


@needs_root
def test_a_supplementary_group_makes_an_operator(served: Served) -> None:
    """Membership counts as the kernel says it, in a supplementary group too."""
    daemon_group = grp.getgrnam("daemon")
    api = served.loop_facts.settings.api.model_copy(update={"operators_group": "daemon"})
    served.loop_facts.settings = served.loop_facts.settings.model_copy(update={"api": api})
    served.register()
    body = {"run": None, "reason": "maintenance"}
    assert as_stranger(served.socket, "POST", "/v1/freeze", body).status == 403
    answer = as_stranger(served.socket, "POST", "/v1/freeze", body, daemon_group.gr_gid)
    assert answer.status == 200
    assert "maintenance" in served.journal.runs.frozen_all()


def test_a_run_that_nobody_knows_is_told_to_register(served: Served) -> None:
    """After a journal was replaced the hook learns that it must introduce itself again: 404."""
    for kind, body in (("progress", messages.progress()), ("finish", messages.finish())):
        answer = served.post(f"{RUN}/{kind}", body)
        assert (answer.status, answer.body["kind"]) == (404, "not_found")
    assert served.get(f"{RUN}/order").status == 404


def test_wrong_messages_name_the_field(served: Served) -> None:
    """A missing field, a wrong type and another run's message are refused by name."""
    body = messages.register()
    del body["attempt"]
    answer = served.post(f"{RUN}/register", body)
    assert answer.status == 422
    assert "'attempt' is missing" in answer.body["error"]
    served.register()
    answer = served.post(f"{RUN}/progress", {**messages.progress(), "step": "ten"})
    assert answer.status == 422
    assert "Progress.step: expected int" in answer.body["error"]
    answer = served.post("/v1/runs/other/progress", messages.progress())
    assert answer.status == 422
    assert "names run 'other'" in answer.body["error"]


def test_protocols_n_and_before_are_served(served: Served) -> None:
    """A hook one version behind is welcome; older ones, and one from the future, are told."""
    assert served.register(protocol=1).status == 200
    assert served.register(protocol=0).status == 422
    answer = served.register(protocol=7)
    assert answer.status == 422
    assert "trains on unswitched" in answer.body["error"]


def test_a_heartbeat_keeps_a_run_live_whatever_the_journal_does(served: Served) -> None:
    """It is answered from memory with how often it is wanted; a stranger's is not."""
    welcome = served.register().body["heartbeat_s"]
    progressed = served.post(f"{RUN}/progress", messages.progress())
    assert progressed.status == 200
    for _ in range(30):
        served.clock.pass_s(20.0)
        assert beat(served).body == {"heartbeat_s": welcome}
    row = served.journal.runs.find(messages.RUN, served.clock.wall)
    assert row is not None
    assert (row.state, row.phase) == ("live", "checkpointing")
    (folder := served.folder / "journal.db").rename(served.folder / "away.db")
    assert beat(served).status == 200
    served.clock.pass_s(20.0)
    assert served.post(f"{RUN}/progress", messages.progress(seq=9)).status == 503
    assert beat(served).status == 200
    (served.folder / "away.db").rename(folder)


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"attempt": 0}, 409, "superseded"),
        ({"incarnation": "incarnation-0"}, 409, "superseded"),
        ({"phase": "Training; rm -rf"}, 422, "send a phase"),
        ({"phase": "x" * 33}, 422, "send a phase"),
        ({"phase": 7}, 422, "Heartbeat.phase: expected str"),
        ({"run": OTHER}, 422, f"message names '{OTHER}'"),
        ({"run": "other"}, 422, "Heartbeat.run: 'other' cannot be taken; send a UUID"),
    ],
)
def test_a_heartbeat_that_is_not_the_newest_launchs_is_refused(
    served: Served, changes: dict[str, Any], status: int, words: str
) -> None:
    """With a sentence, before and after the right one was heard; a newer hook's phase is taken."""
    served.register()
    for _ in range(2):
        answer = beat(served, **changes)
        assert (answer.status, words in answer.body["error"]) == (status, True), answer.body
        assert beat(served, phase="defragmenting").status == 200


@needs_root
def test_a_strangers_heartbeat_is_refused(served: Served) -> None:
    """Also while the owner's is remembered; and one of a run that nobody knows is a 404."""
    served.register()
    beat(served)
    body = messages.heartbeat()
    assert as_stranger(served.socket, "POST", f"{RUN}/heartbeat", body).status == 403
    own = "6d1c9d0e-0000-4000-8000-0000000000ff"
    answer = served.post(f"/v1/runs/{own}/heartbeat", messages.heartbeat(run=own))
    assert (answer.status, answer.body["kind"]) == (404, "not_found")


def test_a_loss_that_is_no_number_keeps_the_run_alive(served: Served) -> None:
    """A diverged run (loss NaN) still reports: NaN counts as not known."""
    served.register()
    answer = served.post(f"{RUN}/progress", {**messages.progress(), "loss": float("nan")})
    assert answer.status == 200
    row = served.journal.runs.find(messages.RUN, served.clock.wall)
    assert row is not None
    assert row.loss is None


def test_a_switch_is_reported_step_by_step(served: Served) -> None:
    """Transitions move the switch on; repeats are acknowledged and change nothing."""
    served.register()
    put_order(served)
    for state in (SwitchState.ANNOUNCED, SwitchState.ANNOUNCED, SwitchState.CONFIRMED):
        answer = served.post(f"{RUN}/transitions", messages.transition("plan-1", 1, state))
        assert answer.status == 200, answer.body
    late = served.post(f"{RUN}/transitions", messages.transition("plan-1", 1, SwitchState.LOADED))
    assert late.body == {"ok": True, "state": "confirmed"}
    unknown = served.post(f"{RUN}/transitions", messages.transition("none", 1, SwitchState.LOADED))
    assert unknown.status == 422


def test_what_the_journal_had_already_is_neither_logged_nor_wakes(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of a run's words, three times: one short line of the log at most, one turn."""
    caplog.set_level(logging.INFO, logger=jobs.__name__)
    announced, confirmed = (
        messages.transition("plan-1", 1, state)
        for state in (SwitchState.ANNOUNCED, SwitchState.CONFIRMED)
    )
    for kind, body, line in (
        ("register", messages.register(), "llama-8b: incarnation 1 registered"),
        ("transitions", announced, ""),
        ("transitions", confirmed, "llama-8b: switch A -> B: confirmed at step 20, after"),
        ("finish", messages.finish(reason="x" * 4000), "llama-8b: incarnation 1 ended: xxx"),
        (
            "register",
            messages.register(attempt=2, incarnation="incarnation-2"),
            "incarnation 2 reg",
        ),
    ):
        if body is announced:
            put_order(served)
        woken, before = [], len(caplog.messages)
        for _ in range(3):
            assert served.post(f"{RUN}/{kind}", body).status == 200
            woken.append(served.cycle._wake.is_set())
            served.cycle._wake.clear()
        # A step on the way is no news; how the switch ended is, by run and points.
        assert woken == [bool(line), False, False], kind
        lines = caplog.messages[before:]
        assert [line in each for each in lines] == [True] * bool(line), (kind, lines)
        assert all(len(each) < 400 for each in lines)


def test_a_standby_takes_no_reports(served: Served) -> None:
    """A daemon that does not lead answers 503 and names who does; reading goes on."""
    served.loop_facts.lead = replace(served.loop_facts.lead, epoch=None, leader="head-2")
    answer = served.register()
    assert (answer.status, answer.body["kind"]) == (503, "unavailable")
    assert "head-2 leads" in answer.body["error"]
    assert served.get("/v1/status").body["leading"] is False
    assert served.loop_facts.outage is None


def beat(served: Served, **changes: Any) -> Answer:
    """Let the run say that it lives."""
    return served.post(f"{RUN}/heartbeat", messages.heartbeat(phase="checkpointing") | changes)


def put_order(served: Served) -> None:
    """Write the intent row of a switch to B."""
    made = runs.order(1, "plan-1", messages.RUN)
    assert runs.put_order(served.journal, made, served.clock.wall)


def test_ask_is_a_plain_client(served: Served) -> None:
    """The helper of these tests talks to the socket as any client does."""
    assert ask(served.socket, "GET", "/healthz").body == {"ok": True}
