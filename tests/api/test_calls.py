"""Hostile and clumsy clients: every one gets a sentence or is cut off, and harms nobody else."""

import json
import socket
import struct
import time
from contextlib import ExitStack

import pytest

from tests.api.conftest import Served
from tests.api.raw import answer, post
from tests.builders import messages
from tests.daemon.waiting import wait_for
from wattmesh.controller.api.app import CALLS
from wattmesh.controller.api.calls import BODY_LIMIT_BYTES
from wattmesh.controller.api.transport import peers


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[1]", "is a JSON list"),
        (b'"x"', "is a JSON str"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_a_body_that_is_no_object_is_a_sentence(
    raw: socket.socket, body: bytes, words: str
) -> None:
    """Malformed JSON in every shape is a 400 that says what to send."""
    raw.sendall(post(body))
    status, said = answer(raw)
    assert status == 400
    assert said["kind"] == "invalid"
    assert words in said["error"]


def test_a_huge_body_is_refused_before_it_is_whole(raw: socket.socket) -> None:
    """A body above the limit is refused while it still arrives."""
    raw.sendall(post(b" " * (BODY_LIMIT_BYTES + 1), length=1 << 40))
    status, said = answer(raw)
    assert status == 413
    assert str(BODY_LIMIT_BYTES) in said["error"]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n" * 1000 + b"\0\0\0",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /v1/freeze HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
    ],
)
def test_garbage_is_refused_and_the_next_client_served(
    served: Served, raw: socket.socket, garbage: bytes
) -> None:
    """What is no HTTP ends its own connection only."""
    raw.sendall(garbage)
    content = raw.recv(65536)
    assert content == b"" or content.startswith(b"HTTP/1.1 4")
    assert served.get("/healthz").status == 200


def test_a_reset_in_the_middle_harms_nobody(served: Served) -> None:
    """Clients that vanish at every point of a request leave the server serving."""
    request = post(json.dumps(messages.progress()).encode())
    for length in range(0, len(request), 37):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(served.socket))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(request[:length])
    assert served.get("/healthz").status == 200


def test_a_slow_client_is_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a head, half a body, silence: each ends at the limit, and costs no thread till then."""
    monkeypatch.setattr(peers, "REQUEST_LIMIT_S", 0.3)
    request = post(json.dumps(messages.progress()).encode())
    with ExitStack() as stack:
        clients = []
        for part in (b"", request[:20], request[:-5]) * 20:
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(20.0)
            client.connect(str(served.socket))
            client.sendall(part)
            clients.append(client)
        assert served.get("/v1/status").status == 200
        for client in clients:
            assert gone(client)


def test_half_a_second_request_is_cut_off_too(
    served: Served, raw: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit begins anew with each request of a connection that is kept open."""
    monkeypatch.setattr(peers, "REQUEST_LIMIT_S", 0.3)
    raw.sendall(b"GET /healthz HTTP/1.1\r\nhost: w\r\n\r\n")
    assert answer(raw)[0] == 200
    raw.sendall(b"GET /healthz HT")
    assert gone(raw)


def test_a_waiting_run_is_not_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a request that is whole may be answered late."""
    monkeypatch.setattr(peers, "REQUEST_LIMIT_S", 0.1)
    served.register()
    began = time.monotonic()
    found = served.get(f"/v1/runs/{messages.RUN}/order?wait=0.5")
    assert found.body["order"] is None
    assert time.monotonic() - began >= 0.5


def gone(client: socket.socket) -> bool:
    """Whether the server ended a connection."""
    try:
        return client.recv(65536) == b""
    except ConnectionResetError:
        return True


def test_wrong_addresses_say_what_there_is(served: Served) -> None:
    """A page that is not there, and a wrong method, answer as every other mistake does."""
    missing = served.get("/v1/statsu")
    assert (missing.status, missing.body["kind"]) == (404, "not_found")
    assert "openapi.json" in missing.body["error"]
    wrong = served.post("/v1/status", {})
    assert (wrong.status, wrong.body["kind"]) == (405, "invalid")
    unknown = served.get("/v1/runs/none")
    assert (unknown.status, unknown.body["kind"]) == (404, "not_found")


def test_wrong_parameters_are_named(served: Served) -> None:
    """A query that makes no sense is refused with its own words."""
    for target, words in (
        ("/v1/decisions?limit=many", "limit='many' is not a number"),
        ("/v1/decisions?limit=0", "between 1 and 1000"),
        ("/v1/decisions?since=yesterday", "is not a time"),
        ("/v1/carbon/history?hours=nan", "between"),
    ):
        found = served.get(target)
        assert found.status == 422, target
        assert words in found.body["error"]


def test_a_bug_is_told_as_one_and_ends_one_call(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """An error nobody foresaw is a 500 that asks for a report, with its traceback in the log."""
    del served.loop_facts.loops["cycle"]
    found = served.get("/v1/status")
    assert (found.status, found.body["kind"]) == (500, "bug")
    assert "please report it" in found.body["error"]
    wait_for(lambda: "KeyError" in caplog.text, "the traceback")
    assert served.get("/healthz").status == 200


def test_the_published_description_holds_every_call(served: Served) -> None:
    """What is served is described, with the fields of what is sent and answered."""
    described = served.get("/v1/openapi.json").body
    for call in CALLS:
        operation = described["paths"][call.path][call.method.lower()]
        assert len(operation["summary"]) > 10
    schemas = described["components"]["schemas"]
    assert schemas["Register"]["required"][:3] == ["run", "name", "incarnation"]
    assert schemas["StatusView"]["properties"]["runs"]["type"] == "array"
    assert schemas["Transition"]["properties"]["state"]["enum"][0] == "ordered"
