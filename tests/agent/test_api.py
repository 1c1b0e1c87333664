"""The agents' calls: who may make them, over which way, and what they do."""

import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.agent.delivery.ledgers import T0, counter, row
from tests.api.conftest import Served, open_folder, served
from tests.api.stranger import STRANGER, as_stranger, connecting, needs_root
from tests.builders import messages
from tests.daemon.process import Answer
from tests.daemon.waiting import wait_for
from wattmesh.controller.agent.knowledge import AgentInstructions
from wattmesh.controller.agent.link import ControllerLink
from wattmesh.controller.agent.relay import ATTESTED_UID, MOST_CONNECTIONS_PER_USER, Relay
from wattmesh.controller.api import attested
from wattmesh.controller.api.agents_server import AgentsServer
from wattmesh.controller.api.request_context import RequestContext
from wattmesh.controller.api.transport import handshakes
from wattmesh.controller.cycle.fleet import FleetSnapshot
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.controller.settings.read import Settings, parse
from wattmesh.errors import FixInput, SourceUnavailable
from wattmesh.telemetry.energy.delivery import EnergyBatch, Report

__all__ = ["open_folder", "served"]

TOKEN = "0123456789abcdef0123456789abcdef"
READINGS, DESIRED = "/v1/agents/n1/readings", "/v1/agents/n1/desired"


@pytest.fixture
def settings(open_folder: Path) -> Settings:
    """Settings of a daemon whose power comes from agents."""
    (open_folder / "catalogue.toml").write_text(messages.CATALOGUE)
    return parse(
        f'mode = "act"\n[journal]\nurl = "sqlite:///{open_folder}/journal.db"\n'
        f'[api]\nsocket = "{open_folder}/w.sock"\ngroup = "users"\n'
        'operators_group = "wattmesh-test-operators"\n[power]\nsource = "agents"\n',
        where=open_folder / "wattmesh.toml",
    )


def report(seq: int = 1, **changes: Any) -> dict[str, Any]:
    """Give a delivery of n1 with one row."""
    batch = EnergyBatch(
        node="n1", boot_id="b", seq=seq, at=T0, rows=(row(),), baselines=(counter(1000),)
    )
    devices = {"G0": {"at": T0.isoformat(), "power_w": 400.0}}
    values: dict[str, Any] = {"batch": batch, "devices": devices}
    return Report(**values | changes).to_json()


def look(where: Served) -> None:
    """Do what a turn of the cycle does for agents."""
    where.loop_facts.snapshot = FleetSnapshot.of(
        where.clock.monotonic_s,
        where.journal.runs.all(where.clock.wall),
        where.journal.nodes.all(),
        frozen="",
    )
    where.changes.ring()


def test_a_delivery_is_applied_once_and_says_so(served: Served) -> None:
    """A repeat is acknowledged; a fresh agent hears what there is of it."""
    assert served.post(READINGS, report()).body == {"ok": True, "applied": True}
    assert served.post(READINGS, report()).body == {"ok": True, "applied": False}
    answer = served.post(READINGS, report(batch=None, fresh=True)).body
    assert [each["energy_mj"] for each in answer["baselines"]] == [1000]
    assert [each.energy_mj for each in served.journal.ledger.energy()] == [1000]


def test_a_delivery_that_makes_no_sense_is_refused_whole(served: Served) -> None:
    """Another node's batch, a wrong row: nothing of it is booked."""
    assert served.post("/v1/agents/n2/readings", report()).status == 422
    wrong = report()
    wrong["batch"]["rows"].append({})
    assert served.post(READINGS, wrong).status == 422
    assert served.post(READINGS, report(devices={"G0": {}})).status == 422
    assert served.journal.ledger.energy() == ()


def test_a_batch_that_was_taken_in_is_not_refused_afterwards(served: Served) -> None:
    """A daemon that reads more strictly than the one before: a refusal means never counted."""
    assert served.post(READINGS, report(5)).status == 200
    wrong = report(5)
    wrong["batch"]["rows"].append({})
    assert served.post(READINGS, wrong).body == {"ok": True, "applied": False}
    assert served.post(READINGS, wrong | {"devices": {"G0": {}}}).status == 200
    later = report(6)
    later["batch"]["rows"].append({})
    assert served.post(READINGS, later).status == 422
    assert served.post("/v1/agents/n2/readings", wrong).status == 422
    for name, bad in (("boot_id", "b\0"), ("boot_id", None), ("seq", "5"), ("seq", 1 << 80)):
        unclear = report(5)
        unclear["batch"][name] = bad
        assert served.post(READINGS, unclear).status == 422
    assert [each.energy_mj for each in served.journal.ledger.energy()] == [1000]


def test_a_standby_takes_no_deliveries(served: Served) -> None:
    """Nor does it say what is wished; the agent asks again."""
    served.loop_facts.lead = replace(served.loop_facts.lead, epoch=None)
    assert served.post(READINGS, report()).status == 503
    assert served.get(DESIRED).status == 503


@needs_root
def test_a_stranger_cannot_speak_for_a_node_or_for_others(served: Served) -> None:
    """Members of the socket's group own runs, not nodes; and nobody believes their header."""
    for method, target, body in (
        ("POST", READINGS, report()),
        ("GET", DESIRED, None),
        ("POST", "/v1/agents/n1/retire", {}),
    ):
        assert as_stranger(served.socket, method, target, body).status == 403
    assert served.journal.nodes.all() == ()


def test_an_agent_on_this_machine_attests_who_made_a_call(served: Served) -> None:
    """The owner is whom the agent names; root over there is no operator here."""
    register = json.dumps(messages.register()).encode()
    target = f"/v1/runs/{messages.RUN}/register"
    link = ControllerLink(f"unix://{served.socket}")

    def call(path: str, body: bytes, uid: str) -> int:
        headers = {ATTESTED_UID: uid}
        return link.call("POST", path, body, limit_s=10.0, headers=headers).status

    assert call(target, register, "4242") == 200
    assert served.journal.runs.all(served.clock.wall)[0].owner_uid == 4242
    progress = f"/v1/runs/{messages.RUN}/progress"
    assert call(progress, json.dumps(messages.progress()).encode(), "0") == 403
    assert call(progress, json.dumps(messages.progress()).encode(), "4242") == 200
    for uid, status in (("0", 403), ("4242", 200)):
        headers = {ATTESTED_UID: uid}
        order = link.call("GET", f"/v1/runs/{messages.RUN}/order", limit_s=10.0, headers=headers)
        assert order.status == status
    for nonsense in ("", "root", "-1", "4294967295", "99999999999"):
        assert call(target, register, nonsense) == 403
    assert ATTESTED_UID.lower() == attested.ATTESTED_UID


def test_what_is_wished_is_waited_for_and_heard_again(served: Served) -> None:
    """A known serial waits for another one; a run that registers is heard of at once."""
    assert served.get(DESIRED).status == 503  # no cycle yet
    look(served)
    first = AgentInstructions.from_json(served.get(DESIRED).body)
    assert (first.known, first.holders, first.desired.wishes) == (False, (), ())
    served.post(READINGS, report())
    look(served)
    second = AgentInstructions.from_json(served.get(DESIRED).body)
    assert second.known
    serial = second.desired.serial
    same = AgentInstructions.from_json(served.get(f"{DESIRED}?wait=0.1&serial={serial}").body)
    assert same.desired.serial == serial
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(served.get, f"{DESIRED}?wait=30&serial={serial}")
        served.register(gpus=("G0", "G9", "", ""))
        look(served)
        told = AgentInstructions.from_json(waiting.result(20).body)
    assert [each.run for each in told.holders] == [messages.RUN]
    assert told.holders[0].owner_uid == os.geteuid()
    assert told.holders[0].gpus == ("G0",)


def test_wishes_that_are_old_are_not_told(served: Served) -> None:
    """A daemon that cannot read its journal lets leases run out."""
    look(served)
    served.clock.pass_s(20.0)
    assert served.get(DESIRED).status == 503


def test_a_retired_node_is_expected_no_more(served: Served) -> None:
    """Until it reports again."""
    served.post(READINGS, report())
    assert served.post("/v1/agents/n1/retire", {}).status == 200
    assert served.journal.nodes.all() == ()
    assert served.post("/v1/agents/n1/retire", {}).status == 404


def certify(certificate: Path, key: Path) -> None:
    """Make a certificate of this machine, and its key."""
    openssl = shutil.which("openssl")
    assert openssl is not None, "install openssl"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    name = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    files = ("-keyout", str(key), "-out", str(certificate))
    subprocess.run(
        [openssl, "req", "-x509", *curve, *name, *files], check=True, capture_output=True
    )


class Remote:
    """The way in for agents of other nodes, and a certificate to trust."""

    def __init__(self, server: AgentsServer, certificate: Path) -> None:
        self.server = server
        self.certificate = certificate

    @property
    def url(self) -> str:
        """Its address."""
        return f"https://localhost:{self.server.address[1]}"

    def ask(self, method: str, target: str, body: Any = None, **headers: str) -> Answer:
        """Make a call with the headers given."""
        context = ssl.create_default_context(cafile=self.certificate)
        connection = http.client.HTTPSConnection(
            "localhost", self.server.address[1], context=context, timeout=20
        )
        try:
            data = None if body is None else json.dumps(body)
            names = {key.replace("_", "-"): value for key, value in headers.items()}
            connection.request(method, target, data, names)
            answer = connection.getresponse()
            return Answer(status=answer.status, body=json.loads(answer.read()))
        finally:
            connection.close()


@contextmanager
def opened_to_agents(served: Served, token: str) -> Iterator[Remote]:
    """Serve agents on a TCP port, with a certificate of its own and a shared token if any."""
    key, certificate = served.folder / "tls.key", served.folder / "tls.pem"
    certify(certificate, key)
    context = RequestContext(
        journal=served.journal,
        loop_facts=served.loop_facts,
        changes=served.changes,
        plan_for=lambda name: RunPlan(),
        wake=served.cycle.wake,
    )
    server = AgentsServer(context, ("127.0.0.1", 0), certificate, key, token)
    server.start()
    yield Remote(server, certificate)
    assert server.stop()


@pytest.fixture
def remote(served: Served) -> Iterator[Remote]:
    """A served TCP port, where agents show the shared token."""
    with opened_to_agents(served, TOKEN) as opened:
        yield opened


def test_a_new_certificate_is_served_without_a_restart(served: Served, remote: Remote) -> None:
    """Once its files have changed; a pair that does not fit leaves the one before in use."""
    folder, shown = served.folder, ssl.get_server_certificate
    before = shown(remote.server.address)
    remote.server.renew()
    assert shown(remote.server.address) == before, "nothing has changed"
    certify(folder / "other.pem", folder / "other.key")
    (folder / "other.key").rename(folder / "tls.key")
    remote.server.renew()
    assert shown(remote.server.address) == before, "the certificate of another key"
    assert "cannot be used" in remote.server.trouble(datetime.now(UTC)), "and status says so"
    (folder / "other.pem").rename(folder / "tls.pem")
    remote.server.renew()
    assert shown(remote.server.address).strip() == (folder / "tls.pem").read_text().strip()
    assert remote.ask("GET", DESIRED, Authorization=f"Bearer {TOKEN}").status in (200, 503)
    assert remote.server.trouble(datetime.now(UTC)) == ""


def test_a_certificate_that_ends_is_told_before_it_shuts_agents_out(remote: Remote) -> None:
    """In the last tenth of its life, after its end, and where the clock is before its beginning."""
    now = datetime.now(UTC)
    said = [remote.server.trouble(now + timedelta(hours=each)) for each in (-72, 36, 44, 60)]
    assert [bool(each) for each in said] == [True, False, True, True]
    assert "is good from" in said[0]
    assert " ends at " in said[2]
    assert "has ended" in said[3]
    assert "are shut out, which keep what they measure: make it anew" in said[3]


def test_an_agent_of_another_node_delivers_over_tls(served: Served, remote: Remote) -> None:
    """With the token and a certificate that it trusts; and not without."""
    link = ControllerLink(remote.url, token=TOKEN, ca_file=remote.certificate)
    body = json.dumps(report()).encode()
    reply = link.call("POST", READINGS, body, limit_s=10.0)
    assert (reply.status, reply.json()["applied"]) == (200, True)
    with pytest.raises(SourceUnavailable, match="certificate"):
        ControllerLink(remote.url, token=TOKEN).call("POST", READINGS, body, limit_s=10.0)


def test_without_the_token_nothing_is_answered(served: Served, remote: Remote) -> None:
    """Not even whether an address exists."""
    for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
        for method, target in (("POST", READINGS), ("GET", "/v1/status"), ("GET", "/nowhere")):
            assert remote.ask(method, target, {}, **header).status == 401
    assert served.journal.nodes.all() == ()


def test_with_the_token_only_the_agents_calls_are_served(served: Served, remote: Remote) -> None:
    """No reading, no operator's act, no run without its owner's uid."""
    shown = {"Authorization": f"Bearer {TOKEN}"}
    for method, target in (
        ("GET", "/v1/status"),
        ("POST", "/v1/freeze"),
        ("POST", "/v1/agents/n1/retire"),
        ("POST", f"/v1/runs/{messages.RUN}/switch"),
        ("GET", "/v1/openapi.json"),
    ):
        assert remote.ask(method, target, {}, **shown).status in (404, 405)
    target = f"/v1/runs/{messages.RUN}/register"
    assert remote.ask("POST", target, messages.register(), **shown).status == 403
    attested_call = {**shown, "Wattmesh_Attested_Uid": str(STRANGER)}
    assert remote.ask("POST", target, messages.register(), **attested_call).status == 200
    assert served.journal.runs.all(served.clock.wall)[0].owner_uid == STRANGER


def test_an_address_that_is_taken_names_the_setting(served: Served, remote: Remote) -> None:
    """One sentence with the way out."""
    context = RequestContext(
        journal=served.journal,
        loop_facts=served.loop_facts,
        changes=served.changes,
        plan_for=lambda name: RunPlan(),
        wake=served.cycle.wake,
    )
    key = served.folder / "tls.key"
    with pytest.raises(FixInput, match=r"api\.listen"):
        AgentsServer(context, remote.server.address, remote.certificate, key, TOKEN)
    with pytest.raises(FixInput, match=r"api\.tls_key"):
        AgentsServer(context, ("127.0.0.1", 0), remote.certificate, remote.certificate, TOKEN)


def test_a_relay_passes_on_the_calls_of_runs_alone(served: Served, tmp_path: Path) -> None:
    """What a job says of itself is not passed on, and a controller that is away is a 503."""
    relay = Relay(tmp_path / "r.sock", "", ControllerLink(f"unix://{served.socket}"))
    relay.start()
    try:
        job = ControllerLink(f"unix://{tmp_path}/r.sock")
        target = f"/v1/runs/{messages.RUN}/register"
        body = json.dumps(messages.register()).encode()
        lie = {ATTESTED_UID: "4711"}
        assert job.call("POST", target, body, limit_s=10.0, headers=lie).status == 200
        assert served.journal.runs.all(served.clock.wall)[0].owner_uid == os.geteuid()
        order = job.call("GET", f"/v1/runs/{messages.RUN}/order?wait=0", limit_s=10.0)
        assert order.json()["order"] is None
        spent = job.call("GET", f"/v1/runs/{messages.RUN}/spent", limit_s=10.0).json()
        assert (spent["energy_j"], spent["carbon_g"]) == (None, None)
        costs = job.call("GET", f"/v1/runs/{messages.RUN}/expert-costs", limit_s=10.0).json()
        assert (costs["version"], costs["scores"]) == (0, {})
        (line,) = (
            ControllerLink(f"unix://{served.socket}")
            .call("GET", "/v1/budget", limit_s=10.0)
            .json()["runs"]
        )
        assert line["energy_j"] is line["carbon_g"] is None
        assert line["unread"] == spent["why_unknown"]
        assert spent["why_unknown"].startswith("It named no GPU")
        beat, lives = (
            f"/v1/runs/{messages.RUN}/heartbeat",
            json.dumps(messages.heartbeat()).encode(),
        )
        assert job.call("POST", beat, lives, limit_s=10.0).status == 200
        for method, wrong in (("GET", "/v1/status"), ("POST", "/v1/freeze"), ("GET", "/")):
            assert job.call(method, wrong, b"{}", limit_s=10.0).status == 404
        for odd in ("//[", f"//host{target}", f"{target}#x"):
            assert _head(tmp_path / "r.sock", odd, "Content-Length: 0") == b"404"
        assert _head(tmp_path / "r.sock", target, "Content-Length: 1048577") == b"413"
        assert _head(tmp_path / "r.sock", target, "Transfer-Encoding: chunked") == b"411"
    finally:
        relay.stop()
    away = Relay(tmp_path / "s.sock", "", ControllerLink(f"unix://{tmp_path}/nobody"))
    away.start()
    try:
        job = ControllerLink(f"unix://{tmp_path}/s.sock")
        assert job.call("POST", target, body, limit_s=10.0).status == 503
        assert job.call("POST", beat, lives, limit_s=10.0).status == 503, "nobody speaks for it"
    finally:
        away.stop()


def test_idle_and_slow_jobs_hold_no_thread_and_keep_nobody_out(
    served: Served, tmp_path: Path
) -> None:
    """As many connections as a user may have, silent or in the middle of a call, and one more."""
    path = tmp_path / "r.sock"
    relay = Relay(path, "", ControllerLink(f"unix://{served.socket}"))
    relay.start()
    target = f"/v1/runs/{messages.RUN}/heartbeat"
    half = f"POST {target} HTTP/1.1\r\nContent-Length: 5\r\n\r\n{{".encode()
    with ExitStack() as stack:
        stack.callback(relay.stop)
        crowd = []
        for number in range(MOST_CONNECTIONS_PER_USER - 1):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(20.0)
            connection.connect(str(path))
            connection.sendall((b"", b"POST", half)[number % 3 if number < 60 else 0])
            crowd.append(connection)
        job = ControllerLink(f"unix://{path}")
        for _ in range(3):
            register = json.dumps(messages.register()).encode()
            answer = job.call("POST", f"/v1/runs/{messages.RUN}/register", register, limit_s=20.0)
            assert answer.status == 200
        held = [each.name for each in threading.enumerate() if each.name.startswith("relay")]
        assert len(held) <= 1 + 3, "only a call that is under way has one"
        crowd += [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        for connection in crowd[-2:]:
            connection.settimeout(20.0)
            connection.connect(str(path))
        assert crowd[-1].recv(1) == b"", "one user has so many, and no more"
        # One that was silent is served on as it was, call after call.
        for _ in range(2):
            body = json.dumps(messages.heartbeat())
            head = f"POST {target} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
            crowd[60].sendall((head + body).encode())
            assert crowd[60].recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")


def _head(path: Path, target: str, header: str) -> bytes:
    """Send the head of a request alone; give the status of the answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20.0)
        connection.connect(str(path))
        connection.sendall(f"POST {target} HTTP/1.1\r\nHost: w\r\n{header}\r\n\r\n".encode())
        return connection.recv(64).split()[1]


def test_who_connects_and_begins_no_tls_is_bounded_and_cut(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is too many is closed as it comes; whoever ended the handshake is counted no longer."""
    monkeypatch.setattr(handshakes, "MOST_OF_ONE", 3)
    with opened_to_agents(served, TOKEN) as remote, ExitStack() as held:
        context = ssl.create_default_context(cafile=remote.certificate)

        def connected() -> socket.socket:
            return held.enter_context(socket.create_connection(remote.server.address, 30.0))

        for _ in range(5):
            held.enter_context(context.wrap_socket(connected(), server_hostname="localhost"))
        for limit_s, first in ((600.0, 3), (0.3, 0)):
            monkeypatch.setattr(handshakes, "LIMIT_S", limit_s)
            silent = [connected() for _ in range(5)]
            for client in silent[first:]:
                with suppress(ConnectionResetError):
                    assert client.recv(1) == b""
            for client in silent:
                client.close()
            wait_for(lambda: reached(remote), "places to be free again")


def reached(remote: Remote) -> bool:
    """Whether an agent is served."""
    try:
        return remote.ask("GET", "/").status == 401
    except (OSError, http.client.HTTPException):
        return False


@needs_root
def test_nobody_but_an_agent_says_whose_call_it_is(served: Served) -> None:
    """Else the owner of a job would speak for every other, and as root. The twin: as itself."""
    run = f"/v1/runs/{messages.RUN}/register"
    body = json.dumps(messages.register()).encode()
    with connecting(served.socket, STRANGER) as connect:
        for said, status in (
            (f"{ATTESTED_UID}: 0", 403),
            (f"{ATTESTED_UID}: 7", 403),
            ("X: 0", 200),
        ):
            with connect() as opened:
                head = f"POST {run} HTTP/1.1\r\nHost: w\r\n{said}\r\nContent-Length: {len(body)}"
                opened.sendall(head.encode() + b"\r\nConnection: close\r\n\r\n" + body)
                assert opened.recv(64).split()[1] == str(status).encode(), said
    assert served.journal.runs.all(served.clock.wall)[0].owner_uid == STRANGER
