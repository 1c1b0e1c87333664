"""Every way in which the daemon can fail to answer becomes one sentence with the next step."""

import grp
from pathlib import Path

import pytest

from tests.cli.answering import answering, dead_socket
from wattmesh.controller.cli import client
from wattmesh.controller.cli.client import DaemonConnection, DaemonUnreachable, segment, socket_path
from wattmesh.errors import (
    Fenced,
    InputInvalid,
    JournalUnavailable,
    Refused,
    SourceUnavailable,
    WattmeshError,
)
from wattmesh.reconfig.wire.link import DaemonLink


def test_an_answer_is_read_and_the_question_is_exact(tmp_path: Path) -> None:
    """Path, query and body arrive as given; parts of a query that are None are left out."""
    path = tmp_path / "s"
    with answering(path, {"/v1/a": (200, {"x": 1})}) as server:
        daemon = DaemonConnection(f"unix://{path}")
        assert daemon.get("/v1/a", run="a b", limit=None) == {"x": 1}
        assert daemon.post("/v1/a", {"y": 2}) == {"x": 1}
    assert server.asked == [("GET", "/v1/a?run=a+b", None), ("POST", "/v1/a", {"y": 2})]


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("refused", Refused),
        ("fenced", Fenced),
        ("invalid", InputInvalid),
        ("not_found", InputInvalid),
        ("unavailable", JournalUnavailable),
        ("bug", WattmeshError),
    ],
)
def test_a_no_keeps_its_sentence_and_kind(
    tmp_path: Path, kind: str, raised: type[WattmeshError]
) -> None:
    """An answer that says no raises the error it names, with the daemon's own sentence."""
    path = tmp_path / "s"
    with (
        answering(path, {"/v1/a": (400, {"error": "No, because.", "kind": kind})}),
        pytest.raises(raised, match="No, because"),
    ):
        DaemonConnection(str(path)).get("/v1/a")


def test_no_socket_says_how_to_start(tmp_path: Path) -> None:
    """Without a socket, the sentence says that nothing runs and how to start it."""
    with pytest.raises(DaemonUnreachable, match="systemctl start wattmesh"):
        DaemonConnection(str(tmp_path / "none")).get("/v1/status")


def test_a_dead_daemon_is_told_from_none(tmp_path: Path) -> None:
    """A socket that nobody listens on means that the daemon is gone, and where to look why."""
    dead_socket(tmp_path / "s")
    with pytest.raises(DaemonUnreachable, match=r"gone.*journalctl"):
        DaemonConnection(str(tmp_path / "s")).get("/v1/status")


@pytest.mark.parametrize(
    ("kind", "said"),
    [("file", "is a file, not a socket"), ("folder", "is a folder, not a"), ("link", "to nothing")],
)
def test_what_is_no_socket_is_called_what_it_is(tmp_path: Path, kind: str, said: str) -> None:
    """Neither is a daemon called gone, nor is anybody sent to restart one."""
    path = tmp_path / "s"
    if kind == "link":
        path.symlink_to(tmp_path / "none")
    else:
        path.touch() if kind == "file" else path.mkdir()
    with pytest.raises(DaemonUnreachable, match=f"{said}.*--socket") as caught:
        DaemonConnection(str(path)).get("/v1/status")
    assert "restart" not in str(caught.value)
    with pytest.raises(SourceUnavailable, match=said):
        DaemonLink(str(path)).call("GET", "/v1/status", None, 5.0)


def test_a_closed_socket_names_the_group_that_opens_it(tmp_path: Path) -> None:
    """Its own group, whatever the settings call it: another one would not help."""
    dead_socket(tmp_path / "s")
    group = grp.getgrgid((tmp_path / "s").stat().st_gid).gr_name
    assert f"only {'root' if group == 'root' else f'the group {group}'}" in client._why_no_answer(
        PermissionError(), str(tmp_path / "s"), 1.0
    )
    assert "api.group" in client._why_no_answer(PermissionError(), str(tmp_path / "none"), 1.0)


def test_a_silent_daemon_is_not_waited_for(tmp_path: Path) -> None:
    """A daemon that does not answer in time is said to hang, and training said to go on."""
    path = tmp_path / "s"
    with answering(path, {"/v1/a": (200, None)}):
        daemon = DaemonConnection(str(path), timeout_s=0.1)
        with pytest.raises(DaemonUnreachable, match=r"did not answer .*training goes on"):
            daemon.get("/v1/a")


def test_nonsense_is_not_wattmesh(tmp_path: Path) -> None:
    """An answer that is no JSON means that something else listens there."""
    path = tmp_path / "s"
    with (
        answering(path, {"/v1/a": (200, b"<html>")}),
        pytest.raises(DaemonUnreachable, match="not wattmesh"),
    ):
        DaemonConnection(str(path)).get("/v1/a")


def test_addresses() -> None:
    """A path and unix:///path name a socket; anything else is misuse that says what to write."""
    assert socket_path("/run/x.sock") == socket_path("unix:///run/x.sock") == "/run/x.sock"
    # Every character of the rest belongs to the path.
    for path in ("/tmp/w.sock?x", "/tmp/w.sock#y", "/tmp/a;b%20c"):
        assert socket_path(f"unix://{path}") == path
    for wrong in ("http://host:80", "unix://host/x", "unix:run/x", "", "https://[::1"):
        with pytest.raises(InputInvalid, match="write a socket's path"):
            socket_path(wrong)
    assert segment("a/b c") == "a%2Fb%20c"
