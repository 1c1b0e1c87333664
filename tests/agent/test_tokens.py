"""One token for each node: what it opens, for how long, and that nobody finds it in the journal."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.test_api import READINGS, TOKEN, Remote, opened_to_agents, report, settings
from tests.api.conftest import Served, open_folder, served_on_each
from tests.api.stranger import as_stranger, needs_root
from tests.builders import messages
from tests.daemon.process import Answer
from wattmesh.controller.agent.link import ControllerLink
from wattmesh.controller.agent.relay import Relay
from wattmesh.controller.api import speaking
from wattmesh.controller.cli.main import main
from wattmesh.controller.journal.nodes.tokens import MOST_VALID
from wattmesh.reconfig.switch import SwitchState

__all__ = ["open_folder", "served_on_each", "settings"]

ALICE = 4242
RUN = f"/v1/runs/{messages.RUN}"


@pytest.fixture
def site(served_on_each: Served) -> Served:
    """A daemon on each database."""
    return served_on_each


@pytest.fixture
def remote(site: Served) -> Iterator[Remote]:
    """Its way in for agents, which knows of no shared token."""
    with opened_to_agents(site, token="") as opened:
        yield opened


def made(site: Served, node: str, act: str = "token", **body: Any) -> str:
    """Let an operator make a token."""
    answer = site.post(f"/v1/agents/{node}/{act}", body)
    assert answer.status == 200, answer.body
    token: str = answer.body["token"]
    return token


def ask(remote: Remote, token: str, *call: Any, uid: int | None = None) -> Answer:
    """Ask (method, target, body) as an agent with a token, for a user if one is given."""
    headers = {"Authorization": f"Bearer {token}"}
    if uid is not None:
        headers["Wattmesh_Attested_Uid"] = str(uid)
    return remote.ask(*call, **headers)


def test_a_token_opens_its_own_node_for_as_long_as_it_is_valid(
    site: Served, remote: Remote
) -> None:
    """Made once; rotated with an overlap; revoked at once; the shared one is unknown here."""
    token = made(site, "n1")
    assert ask(remote, token, "POST", READINGS, report()).status == 200
    assert ask(remote, TOKEN, "POST", READINGS, report()).status == 401
    assert ask(remote, token, "POST", "/v1/agents/n2/readings", report()).status == 403
    assert ask(remote, token, "GET", "/v1/agents/n2/desired").status == 403
    for target in ("/v1/agents/n1/token", "/v1/agents/n1/token/rotate", "/v1/freeze"):
        assert ask(remote, token, "POST", target, {}).status in (404, 405)
    assert site.post("/v1/agents/n1/token", {}).status == 422, "it has one"

    newer = made(site, "n1", "token/rotate", keep_h=1)
    site.clock.pass_s(1800.0)
    assert ask(remote, token, "POST", READINGS, report(2)).status == 200
    site.clock.pass_s(1800.0)
    assert ask(remote, token, "POST", READINGS, report(3)).status == 401
    assert ask(remote, newer, "POST", READINGS, report(3)).status == 200
    assert site.post("/v1/agents/n1/token/revoke", {}).status == 200
    assert ask(remote, newer, "POST", READINGS, report(4)).status == 401
    again = made(site, "n1")
    site.clock.step_wall(-7200.0)
    site.post("/v1/agents/n9/token/revoke", {})  # whoever asks for tokens next reads them anew
    assert ask(remote, newer, "POST", READINGS, report(4)).status == 401, "the clock was set back"
    site.clock.step_wall(7200.0)
    assert ask(remote, again, "POST", READINGS, report(4)).status == 200

    for keep_h in (-1, 1e9, "1", None, True):
        assert site.post("/v1/agents/n1/token/rotate", {"keep_h": keep_h}).status == 422
    assert site.post("/v1/agents/n%20x/token", {}).status == 422
    listed = site.get("/v1/tokens").body["tokens"]
    assert [(each["node"], each["ends_at"] is None) for each in listed] == [
        ("n1", False),
        ("n1", False),
        ("n1", True),
    ]
    for _ in range(MOST_VALID):
        made(site, "n3", "token/rotate")
    refused = site.post("/v1/agents/n3/token/rotate", {})
    assert (refused.status, "has 4 tokens that are still valid" in refused.body["error"]) == (
        422,
        True,
    )
    kept = json.dumps(listed) + str(site.get("/v1/events").body)
    with site.journal.database.reading() as connection:
        kept += str(connection.exec_driver_sql("SELECT * FROM node_tokens").all())
    assert not any(secret in kept for secret in (token, newer, again))


@needs_root
def test_only_operators_make_tokens(site: Served) -> None:
    """The owner of a job does not, nor does it see whose there are."""
    for act in ("token", "token/rotate", "token/revoke"):
        assert as_stranger(site.socket, "POST", f"/v1/agents/n1/{act}", {}).status == 403
    assert as_stranger(site.socket, "GET", "/v1/tokens").status == 403
    assert site.journal.tokens.all() == ()


def test_a_nodes_token_that_opens_nothing_costs_its_jobs_no_message(
    site: Served, remote: Remote, tmp_path: Path
) -> None:
    """They are told to ask again: a refusal would be the last word on what they report."""
    token = made(site, "n1")
    for shown, status in ((token, 200), ("revoked" * 6, 503)):
        path = tmp_path / f"{status}.sock"
        relay = Relay(path, "", ControllerLink(remote.url, token=shown, ca_file=remote.certificate))
        relay.start()
        try:
            body = json.dumps(messages.register()).encode()
            answer = ControllerLink(f"unix://{path}").call(
                "POST", f"{RUN}/register", body, limit_s=20.0
            )
            assert answer.status == status, answer.content
        finally:
            relay.stop()


def posted(site: Served) -> list[tuple[str, dict[str, Any]]]:
    """Give everything that can be said for a run."""
    epoch = site.loop_facts.lead.epoch or 0
    return [
        ("progress", messages.progress(seq=9, step=999)),
        ("heartbeat", messages.heartbeat(phase="parked")),
        ("transitions", messages.transition("p", epoch, SwitchState.ANNOUNCED)),
        ("finish", messages.finish(reason="stolen")),
        ("register", messages.register(incarnation="i-2", attempt=2, supersedes="incarnation-1")),
    ]


def test_a_tokens_holder_speaks_for_no_run_of_another_node(site: Served, remote: Remote) -> None:
    """Whoever it claims to relay: nothing ends, replaces or moves a run that lives elsewhere."""
    one, two = made(site, "n1"), made(site, "n2")
    registered = ask(remote, one, "POST", f"{RUN}/register", messages.register(), uid=ALICE)
    assert registered.status == 200, registered.body
    before = site.get(RUN).body
    for call, body in posted(site):
        answer = ask(remote, two, "POST", f"{RUN}/{call}", body, uid=ALICE)
        assert answer.status == 503, (call, answer.body)
        assert "lives on n1" in answer.body["error"]
    assert ask(remote, two, "GET", f"{RUN}/order", uid=ALICE).status == 503
    assert site.get(RUN).body == before

    beat = f"{RUN}/heartbeat"
    assert ask(remote, one, "POST", beat, messages.heartbeat(), uid=ALICE).status == 200
    assert ask(remote, one, "POST", beat, messages.heartbeat(), uid=ALICE + 1).status == 403
    assert ask(remote, one, "GET", f"{RUN}/order", uid=ALICE).status == 200
    # It fell silent: another node may take it up, and the first one may not any more.
    site.clock.pass_s(120.0)
    again = messages.register(incarnation="i-2", attempt=2)
    assert ask(remote, two, "POST", f"{RUN}/register", again, uid=ALICE + 1).status == 403
    assert ask(remote, two, "POST", f"{RUN}/register", again, uid=ALICE).status == 200
    assert ask(remote, one, "POST", beat, messages.heartbeat(), uid=ALICE).status == 503
    assert "speaks on n2 now, no longer on n1" in str(site.get("/v1/events").body)


def test_without_the_scope_a_stolen_token_would_end_any_run(
    site: Served, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twin: the same call, with nobody looking where the run lives."""
    one, two = made(site, "n1"), made(site, "n2")
    registered = ask(remote, one, "POST", f"{RUN}/register", messages.register(), uid=ALICE)
    assert registered.status == 200
    monkeypatch.setattr(speaking, "check", lambda context, call: None)
    finish = messages.finish(reason="stolen")
    assert ask(remote, two, "POST", f"{RUN}/finish", finish, uid=ALICE).status == 200


def test_a_run_of_the_heads_own_socket_is_no_nodes(site: Served, remote: Remote) -> None:
    """And one that a shared token brought is whose node's token speaks for it first."""
    one, two = made(site, "n1"), made(site, "n2")
    assert site.register().status == 200
    finish = messages.finish(reason="stolen")
    assert ask(remote, one, "POST", f"{RUN}/finish", finish, uid=os.geteuid()).status == 503
    with opened_to_agents(site, token=TOKEN) as shared:
        site.clock.pass_s(120.0)
        again = messages.register(incarnation="i-2", attempt=2)
        uid = os.geteuid()
        assert ask(shared, TOKEN, "POST", f"{RUN}/register", again, uid=uid).status == 200
        report_2 = messages.progress(incarnation="i-2", attempt=2)
        assert ask(shared, one, "POST", f"{RUN}/progress", report_2, uid=uid).status == 200
        assert ask(shared, two, "POST", f"{RUN}/finish", finish, uid=uid).status == 503


def test_the_command_makes_rotates_lists_and_revokes(
    site: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The token alone on standard output, or in a new file that only its owner reads."""

    def run(*words: str) -> tuple[int, str, str]:
        status = main(["nodes", *words, "--socket", str(site.socket)])
        said = capsys.readouterr()
        return status, said.out, said.err

    status, token, told = run("token", "make", "n1")
    assert (status, len(token.strip())) == (0, 43)
    assert "shown only this once" in told
    path = tmp_path / "n1.token"
    status, said, _ = run("token", "rotate", "n1", "--keep-hours", "0", "--out", str(path))
    assert (status, stat.S_IMODE(path.stat().st_mode)) == (0, 0o600)
    assert path.read_text().strip() not in said
    assert run("token", "rotate", "n1", "--out", str(path))[0] == 1, "it stays as it is"
    assert run("token", "list")[1].count("n1  made ") == 2
    assert "Revoked 1 tokens" in run("token", "revoke", "n1")[1]
    assert site.loop_facts.tokens == {}
    assert run("token", "make", "n1", "--out", str(tmp_path / "no" / "where"))[0] == 1
    assert site.loop_facts.tokens == {}, "nothing is made that cannot be kept"
    assert site.post(READINGS, report()).status == 200
    assert "n1 is retired" in run("retire", "n1")[1]


def test_a_credential_of_the_service_manager_is_read_where_the_settings_name_it(
    tmp_path: Path,
) -> None:
    """As systemd leaves it there (0440 where it uses an ACL); elsewhere the settings are sound."""
    folder = tmp_path / "credentials"
    folder.mkdir()
    secret = folder / "wattmesh-agent.token"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    secret.chmod(0o440)
    settings_file = tmp_path / "wattmesh.toml"
    settings_file.write_text(
        '[agent]\ncontroller = "https://head-1"\ntoken_file = "credential:wattmesh-agent.token"\n'
    )
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from wattmesh.controller.settings.read import load\n"
        "from wattmesh.controller.settings.secrets import read_secret\n"
        "print(read_secret('agent.token_file', load(Path(sys.argv[1])).agent.token_file))\n"
    )

    def read(credentials: Path | None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "CREDENTIALS_DIRECTORY": str(credentials or "")}
        return subprocess.run(
            [sys.executable, "-c", program, str(settings_file)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    assert read(folder).stdout.strip() == secret.read_text().strip()
    for nothing in (tmp_path, None):
        said = read(nothing).stderr
        assert "FixInput: agent.token_file: the service has no credential" in said
        assert "/etc/credstore/wattmesh-agent.token" in said
    bad = settings_file.read_text().replace("credential:wattmesh-agent.token", "credential:../x")
    settings_file.write_text(bad)
    assert "names no credential" in read(folder).stderr
