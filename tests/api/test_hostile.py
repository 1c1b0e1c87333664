"""An adversary with an ordinary account: every hostile call is its own fault, and nobody else's."""

import json
import socket
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import update

from tests.api.conftest import Served
from tests.api.raw import answer, post
from tests.api.test_jobs import put_order
from tests.builders import messages
from wattmesh.controller.journal.database.tables import RUNS, SWITCHES, TRANSITIONS
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.switch import SwitchState

RUN = f"/v1/runs/{messages.RUN}"
NEXT = "6d1c9d0e-0000-4000-8000-0000000000ff"
STEPS = messages.transition("p", 1, SwitchState.ANNOUNCED)
HUGE = 2**63 - 1


def nested(depth: int) -> list[Any]:
    """Put lists in each other."""
    found: list[Any] = []
    for _ in range(depth - 1):
        found = [found]
    return found


HOSTILE = [
    *(
        ("register", messages.register() | {"run": NEXT, "incarnation": "i2", field: value})
        for field, value in (
            ("name", "x" * 208),
            ("name", "a\0b"),
            ("name", "llama 8b"),
            ("name", "a\x1b[31mb"),
            ("name", "a\u202eb"),
            ("name", "\ud800"),
            ("name", NEXT),
            ("name", ""),
            ("incarnation", "incarnation-1"),
            ("incarnation", "i" * 65),
            ("incarnation", "i\0"),
            ("boundary_every", HUGE),
            ("boundary_every", -1),
            ("attempt", 2**31),
            ("world_size", 0),
            ("world_size", 2**40),
            ("ranks", [2**40]),
            ("ranks", [-1]),
            ("gpus", ["G" * 65]),
            ("gpus", ["\ud800"]),
            ("step", 2**64),
            ("step", 10**400),
            ("tokens_total", HUGE),
            ("pid", 2**31),
            ("protocol", 2**70),
            ("host", "h" * 256),
            ("host", "h\x9b"),
            ("checkpoint_digest", "d" * 129),
            ("scheduler_key", "\n"),
            ("capabilities", ["\0"]),
            ("capabilities", ["x"] * 65),
            ("layout", {"tp": 2**62}),
            ("layout", {"micro_batch": 2**62}),
            ("layout", {"recompute": "\ud800"}),
            ("supersedes", "s" * 65),
        )
    ),
    *(
        ("progress", messages.progress() | {field: value})
        for field, value in (
            ("seq", 2**31),
            ("step", -1),
            ("samples", HUGE),
            ("tokens_per_s", -1.0),
            ("tokens_per_s", 1e300),
            ("phase", "p" * 65),
            ("loss", 1.7e308),
            ("pause_share", 1e300),
        )
    ),
    ("transitions", STEPS | {"plan": "\0"}),
    ("transitions", STEPS | {"detail": nested(3)}),
    ("transitions", STEPS | {"elapsed_s": -1.0}),
    *(
        ("transitions", STEPS | {"evidence": evidence})
        for evidence in (
            {str(each): 1 for each in range(65)},
            {"x": nested(4)},
            {"x": nested(300)},
            {"x": [0] * 256},
            {"x": {"a\x1b[2J": 1}},
            {"x": 2**63},
        )
    ),
    ("finish", messages.finish() | {"reason": "\0"}),
    ("finish", messages.finish() | {"loss": 10**400}),
    ("heartbeat", messages.heartbeat() | {"attempt": HUGE}),
]


def test_words_of_an_address_are_short_and_printable(served: Served) -> None:
    """Before anything is looked up: what would be repeated on screens and in logs is refused."""
    for word in ("a" * 2000, "%1b%5b31m", "%E2%80%AE"):
        for target in (f"/v1/runs/{word}", f"/v1/decisions?run={word}"):
            found = served.get(target)
            assert found.status == 422, (target, found.body)
            assert "printable characters" in found.body["error"]


def test_what_no_journal_can_hold_is_the_callers_fault_and_no_outage(
    served_on_each: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hostile registrations and reports are refused with a sentence, and others are served on."""
    served = served_on_each
    served.register()
    for kind, body in HOSTILE:
        run = body["run"]
        found = served.post(f"/v1/runs/{run}/{kind}", body)
        assert (found.status, found.body["kind"]) == (422, "invalid"), (kind, body, found)
        assert len(found.body["error"]) < 400
        assert "has no switch" not in found.body["error"], body
        assert found.body["error"].isprintable()
        assert served.loop_facts.outage is None, (kind, body)
    for target in ("%00", "x" * 401, quote("a\x1b[2J"), quote("\u202e"), "%ff%00"):
        assert served.get(f"/v1/runs/{target}").status in (404, 422)
        assert served.post(f"/v1/runs/{target}/switch", {"point": "B", "reason": "x"}).status != 503
        assert served.get(f"/v1/decisions?run={target}").status in (404, 422)
    for body in ({"run": "\0"}, {"run": [0] * 9000}, {"run": messages.RUN, "reason": "\0"}):
        found = served.post("/v1/freeze", body)
        assert found.status in (400, 404, 422)
        assert len(found.body["error"]) < 400
    assert served.loop_facts.outage is None
    assert served.post(f"{RUN}/progress", messages.progress()).status == 200
    assert [each.run for each in served.journal.runs.all(served.clock.wall)] == [messages.RUN]


def test_what_slips_past_the_door_is_still_no_outage(served_on_each: Served) -> None:
    """The second gate: a database that cannot hold a value says so of the value."""
    journal = served_on_each.journal
    served_on_each.register()
    for name, value in (("name", "a\0b"), ("owner_uid", 2**70), ("name", None)):
        if name == "name" and value and journal.database.is_sqlite:
            continue  # SQLite keeps a NUL
        change = update(RUNS).values({name: value})
        refused = pytest.raises(InputInvalid, match="cannot hold what was sent")
        with refused, journal.database.writing() as connection:
            connection.execute(change)
    assert served_on_each.post(f"{RUN}/progress", messages.progress()).status == 200


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"9" * 400, b"9" * 5000])
def test_numbers_that_are_none_are_refused(
    served: Served, raw: socket.socket, number: bytes
) -> None:
    """An exponent beyond every float, and a whole number without end, in a field and beside it."""
    served.register()
    for key in ("loss", "colour"):
        body = json.dumps(messages.progress() | {key: "@"}).encode().replace(b'"@"', number)
        raw.sendall(post(body))
        status, said = answer(raw)
        assert (status, said["kind"]) == (422, "invalid")
    assert served.get("/v1/status").status == 200


def test_what_an_older_version_stored_breaks_no_screen(served: Served) -> None:
    """A loss, a rate and texts that are refused today are shown as unknown, or cleaned."""
    served.register()
    served.post(f"{RUN}/progress", messages.progress())
    stored: dict[str, Any] = {
        "loss": float("inf"),
        "tokens_per_s": float("inf"),
        "pause_share": float("-inf"),
        "boundary_every": HUGE,
        "step": HUGE,
        "tokens": HUGE,
        "tokens_total": HUGE,
        "checkpoint_step": HUGE,
        "host": "a\x1b[31mb\u202e",
        "gpus": '["\\ud800"]',
    }
    with served.journal.database.writing() as connection:
        connection.execute(update(RUNS).values(**stored))
    put_order(served)
    told = messages.transition("plan-1", 1, SwitchState.ANNOUNCED, evidence={"x": nested(3)})
    assert served.post(f"{RUN}/transitions", told).status == 200
    assert served.get(f"{RUN}/why").body["switches"][0]["evidence"] == {"x": nested(3)}
    for depth in (900, 5000):
        deep = '{"x":' + "[" * depth + "]" * depth + "}"
        for table in (SWITCHES, TRANSITIONS):
            with served.journal.database.writing() as connection:
                connection.execute(update(table).values(evidence=deep))
        assert served.get(f"{RUN}/why").status == 200
    for target in ("/v1/status", "/v1/runs", RUN, f"{RUN}/why", "/v1/budget", f"{RUN}/audit"):
        found = served.get(target)
        assert found.status == 200, (target, found.body)
    line = served.get(RUN).body["run"]
    assert (line["loss"], line["tokens_per_s"]) == (None, None)
