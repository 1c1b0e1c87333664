"""Who may do what: the table of docs/security.md, each cell of it tried by a user of its own."""

import http.client
import json
import re
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.api import facts
from tests.api.stranger import GROUP, connecting, needs_root
from tests.daemon.process import daemon
from wattmesh.reconfig.switch import SwitchState

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
OPERATORS = "games"
"""A group of every Debian that stands for the operators'."""

PEOPLE: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "its owner": (54_001, (GROUP,)),
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
[metrics]
listen = ""
"""

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
            ("POST", f"{one}/progress", facts.progress(**own)),
            ("POST", f"{one}/heartbeat", facts.heartbeat(**own)),
            ("POST", f"{one}/transitions", facts.transition("p", 1, SwitchState.ANNOUNCED, **own)),
            ("POST", f"{one}/register", facts.register(name="again", **own)),
            ("POST", f"{one}/finish", facts.finish(**own)),
        ],
        "read a run's orders": [("GET", f"{one}/order", None)],
        "switch, freeze, thaw, retire a run": [
            ("POST", f"{one}/switch", {"point": "A"}),
            ("POST", "/v1/freeze", {"run": run}),
            ("POST", "/v1/thaw", {"run": run}),
            ("POST", f"{one}/retire", {}),
        ],
        "freeze and thaw everything": [("POST", "/v1/freeze", {}), ("POST", "/v1/thaw", {})],
        "order and end a power cap": [
            ("POST", "/v1/powercap", {"cap_w": 1e3, "until": "2030-01-01T00:00:00Z"}),
            ("POST", "/v1/powercap/end", {}),
        ],
        "plan a budget anew": [("POST", "/v1/budget/cluster/replan", {})],
        "speak for a node, retire one": [
            ("POST", "/v1/agents/n1/readings", {}),
            ("GET", "/v1/agents/n1/desired", None),
            ("POST", "/v1/agents/n1/retire", {}),
        ],
    }


def promised() -> dict[str, dict[str, str]]:
    """Read the table of the page: what each person may, by row."""
    table = PAGE.read_text("utf-8").partition("| call |")[2].partition("\n\n")[0]
    people, _, *rows = [
        [cell.strip() for cell in line.strip("| \n").split("|")] for line in table.splitlines()
    ]
    return {row[0]: dict(zip(people, row[1:], strict=True)) for row in rows}


Connect = Callable[[], socket.socket]


@pytest.fixture(scope="module")
def doors() -> Iterator[dict[str, Connect]]:
    """A daemon, and each person's way to it."""
    with ExitStack() as stack:
        # Others may enter it, which pytest's own folders do not allow.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wattmesh-")))
        folder.chmod(0o755)
        text = SETTINGS.format(folder=folder, group=GROUP, operators=OPERATORS)
        running = stack.enter_context(daemon(folder, text=text))
        yield {
            name: stack.enter_context(connecting(running.socket, uid, groups))
            for name, (uid, groups) in PEOPLE.items()
        }


def ask(connect: Connect, call: Call) -> tuple[int, dict[str, Any]]:
    """Send one call."""
    method, target, body = call
    connection = http.client.HTTPConnection("w")
    connection.sock = connect()
    try:
        connection.request(method, target, body=None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def verdict(doors: Mapping[str, Connect], person: str, row: str) -> str:
    """Let one person try the calls of a row on a run of its owner; say what came of it."""
    found = set[str]()
    for number in range(len(calls("")[row])):
        run = str(uuid.uuid4())
        body = facts.register(run=run, name="some", incarnation=f"i-{run}")
        status, told = ask(doors["its owner"], ("POST", f"/v1/runs/{run}/register", body))
        assert status == 200, told
        call = calls(run)[row][number]
        try:
            status, told = ask(doors[person], call)
        except ConnectionRefusedError:
            found.add("no way in")
            continue
        assert status < 500, (call, told)
        found.add("no" if status == 403 else "yes")
        if status == 403:
            assert told["kind"] == "refused"
            assert re.search(r"uid \d+ may not|belongs to uid", told["error"]), told
    assert len(found) == 1, (person, row, found)
    return found.pop()


@needs_root
def test_each_cell_of_the_table_is_true(doors: dict[str, Connect]) -> None:
    """Nobody may more, and nobody less, than the page says."""
    tried = {row: {person: verdict(doors, person, row) for person in PEOPLE} for row in calls("")}
    assert tried == promised()


@needs_root
def test_a_wrong_cell_is_found(doors: dict[str, Connect]) -> None:
    """The sabotaged twin: what the page would promise if it knew no owners."""
    row = "switch, freeze, thaw, retire a run"
    assert verdict(doors, "another owner", row) != verdict(doors, "its owner", row)
