"""Who may do what: the table of docs/security.md, each cell of it tried by somebody of its own.

Users are processes of their own uids on the daemon's socket; agents of nodes come over TLS, with a
token of their own, and say whose call they pass on.
"""

import http.client
import json
import socket
import ssl
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.agent.test_api import certify
from tests.api.stranger import GROUP, connecting, needs_root
from tests.builders import messages
from tests.daemon.process import daemon
from wattmesh.reconfig.switch import SwitchState

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
OWNER, OPERATORS = 54_001, "games"
"""The latter is a group of every Debian, and stands for the operators'."""

NODES = {"the agent of its node": "n1", "another node's agent": "n2"}
USERS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "its owner": (OWNER, (GROUP,)),
    "another owner": (54_002, (GROUP,)),
    "an operator": (54_003, (GROUP, OPERATORS)),
    "a stranger": (54_004, ()),
}

SETTINGS = """\
mode = "observe"
[journal]
url = "sqlite:///{folder}/journal.db"
[api]
socket = "{folder}/w.sock"
group = "{group}"
operators_group = "{operators}"
runs_per_user = 4096
listen = "127.0.0.1:{port}"
tls_certificate = "{folder}/tls.pem"
tls_key = "{folder}/tls.key"
[metrics]
listen = ""
"""

REFUSED = {"user": (403,), "agent": (403, 404, 405, 503)}
"""Agents are served few calls (404); 503: the run's launch is on another node, as far as is known,
and a launch that was moved tries again."""

KINDS = ("refused", "not_found", "invalid", "unavailable")

Call = tuple[str, str, dict[str, Any] | None]


def calls(run: str) -> dict[str, list[Call]]:
    """Every row of the table: the calls it is about, for one run that its owner has registered."""
    own = {"run": run, "incarnation": f"i-{run}", "attempt": 1}
    one = f"/v1/runs/{run}"
    screens = ("status", "runs", "decisions", "events", "budget", "report", "carbon/now")
    return {
        "read every screen": [
            *(("GET", f"/v1/{each}", None) for each in screens),
            *(("GET", f"{one}{each}", None) for each in ("", "/why", "/plan", "/audit")),
            ("GET", "/v1/powercap", None),
        ],
        "report for a run": [
            ("POST", f"{one}/progress", messages.progress(**own)),
            ("POST", f"{one}/heartbeat", messages.heartbeat(**own)),
            (
                "POST",
                f"{one}/transitions",
                messages.transition("p", 1, SwitchState.ANNOUNCED, **own),
            ),
            ("POST", f"{one}/register", messages.register(name="again", **own)),
            ("POST", f"{one}/finish", messages.finish(**own)),
        ],
        "read a run's orders": [("GET", f"{one}/order", None)],
        "switch, freeze, thaw, retire a run": [
            ("POST", f"{one}/switch", {"point": "A"}),
            ("POST", f"{one}/placement", {"placement": [[1, 0]]}),
            ("POST", "/v1/freeze", {"run": run}),
            ("POST", "/v1/thaw", {"run": run}),
            ("POST", f"{one}/retire", {}),
        ],
        "freeze and thaw everything": [("POST", "/v1/freeze", {}), ("POST", "/v1/thaw", {})],
        "order, announce and end a power cap": [
            ("POST", "/v1/powercap", {"cap_w": 1e3, "until": "2030-01-01T00:00:00Z"}),
            ("POST", "/v1/powercap/end", {}),
        ],
        "plan a budget anew": [("POST", "/v1/budget/cluster/replan", {})],
        "speak for a node": [
            ("POST", "/v1/agents/n1/readings", {}),
            ("GET", "/v1/agents/n1/desired", None),
        ],
        "retire a node, make and end its tokens": [
            ("POST", "/v1/agents/n9/retire", {}),
            ("POST", "/v1/agents/n9/token", {}),
            ("POST", "/v1/agents/n9/token/rotate", {}),
            ("POST", "/v1/agents/n9/token/revoke", {}),
        ],
    }


def promised() -> dict[str, dict[str, str]]:
    """Read the table of the page: what each person may, by row."""
    table = PAGE.read_text("utf-8").partition("| call |")[2].partition("\n\n")[0]
    people, _, *rows = [
        [cell.strip() for cell in line.strip("| \n").split("|")] for line in table.splitlines()
    ]
    return {row[0]: dict(zip(people, row[1:], strict=True)) for row in rows}


Answered = tuple[int, dict[str, Any]]
Door = Callable[[Call], Answered]


def exchanged(connection: http.client.HTTPConnection, call: Call, **headers: str) -> Answered:
    """Send one call, and close."""
    method, target, body = call
    data = None if body is None else json.dumps(body)
    try:
        connection.request(method, target, data, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def user(connect: Callable[[], socket.socket]) -> Door:
    """Give a user's way to the daemon."""

    def ask(call: Call) -> Answered:
        connection = http.client.HTTPConnection("w")
        connection.sock = connect()
        return exchanged(connection, call)

    return ask


def agent(port: int, certificate: Path, token: str) -> Door:
    """Give an agent's way to the daemon; it says that it is asked by the owner."""
    context = ssl.create_default_context(cafile=certificate)
    headers = {"Authorization": f"Bearer {token}", "Wattmesh-Attested-Uid": str(OWNER)}

    def ask(call: Call) -> Answered:
        connection = http.client.HTTPSConnection("localhost", port, context=context)
        return exchanged(connection, call, **headers)

    return ask


@pytest.fixture(scope="module")
def doors() -> Iterator[dict[str, Door]]:
    """A daemon, and each one's way to it."""
    with ExitStack() as stack:
        # Others may enter it, which pytest's own folders do not allow.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wattmesh-")))
        folder.chmod(0o755)
        certify(folder / "tls.pem", folder / "tls.key")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        text = SETTINGS.format(folder=folder, group=GROUP, operators=OPERATORS, port=port)
        running = stack.enter_context(daemon(folder, text=text))
        made = {
            name: user(stack.enter_context(connecting(running.socket, uid, groups)))
            for name, (uid, groups) in USERS.items()
        }
        for name, node in NODES.items():
            status, told = made["an operator"](("POST", f"/v1/agents/{node}/token", {}))
            assert status == 200, told
            made[name] = agent(port, folder / "tls.pem", told["token"])
        yield made


def verdict(doors: Mapping[str, Door], person: str, row: str) -> str:
    """Let one of them try the calls of a row on a run of its owner; say what came of it."""
    found = set[str]()
    for number in range(len(calls("")[row])):
        run = str(uuid.uuid4())
        body = messages.register(run=run, name="some", incarnation=f"i-{run}")
        # Its launch is on the node whose agent brings it.
        brought_by = "the agent of its node" if person in NODES else "its owner"
        status, told = doors[brought_by](("POST", f"/v1/runs/{run}/register", body))
        assert status == 200, told
        call = calls(run)[row][number]
        try:
            status, told = doors[person](call)
        except ConnectionRefusedError:
            found.add("no way in")
            continue
        refused = status in REFUSED["agent" if person in NODES else "user"]
        assert refused or status < 500, (call, told)
        found.add("no" if refused else "yes")
        assert not refused or told["kind"] in KINDS, told
    assert len(found) == 1, (person, row, found)
    return found.pop()


@needs_root
def test_each_cell_of_the_table_is_true(doors: dict[str, Door]) -> None:
    """Nobody may more, and nobody less, than the page says."""
    tried = {row: {person: verdict(doors, person, row) for person in doors} for row in calls("")}
    assert tried == promised()


@needs_root
def test_a_wrong_cell_is_found(doors: dict[str, Door]) -> None:
    """The sabotaged twin: what the page would promise if it knew no owners."""
    row = "switch, freeze, thaw, retire a run"
    assert verdict(doors, "another owner", row) != verdict(doors, "its owner", row)
