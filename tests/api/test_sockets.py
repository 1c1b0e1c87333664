"""The socket: its mode and group, and one daemon per path whatever happened before."""

import grp
import os
import socket
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.api.stranger import GROUP
from wattmesh.controller.api.transport.sockets import AddressTaken, listen
from wattmesh.errors import FixInput


def test_the_socket_is_for_its_user_and_group_alone(tmp_path: Path) -> None:
    """Mode 0660 and the named group; a group that does not exist leaves the daemon's own."""
    for group, gid in ((GROUP, grp.getgrnam(GROUP).gr_gid), ("no-such-group", os.getegid())):
        listening = listen(tmp_path / "w.sock", group)
        found = (tmp_path / "w.sock").stat()
        assert stat.S_IMODE(found.st_mode) == 0o660
        assert found.st_gid == gid
        listening.close()
        assert not (tmp_path / "w.sock").exists()


def test_the_umask_is_as_it_was(tmp_path: Path) -> None:
    """Binding changes the process's umask for a moment only."""
    before = os.umask(0o022)
    try:
        listen(tmp_path / "w.sock", GROUP).close()
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def test_a_second_daemon_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    """Two daemons never share a path; the refusal names the pid that serves it."""
    first = listen(tmp_path / "w.sock", GROUP)
    with pytest.raises(AddressTaken, match=f"another daemon \\(pid {os.getpid()}\\) serves"):
        listen(tmp_path / "w.sock", GROUP)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "w.sock"))
    first.close()
    listen(tmp_path / "w.sock", GROUP).close()


def test_a_dead_daemons_socket_is_replaced(tmp_path: Path) -> None:
    """After kill -9 the socket's name is left behind without a lock: the next daemon takes it."""
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "w.sock"))
    dead.close()
    assert (tmp_path / "w.sock").is_socket()
    listening = listen(tmp_path / "w.sock", GROUP)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "w.sock"))
    listening.close()


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_what_is_no_socket_is_never_removed(tmp_path: Path, kind: str) -> None:
    """A file, a link or a folder at the path is named and stays."""
    path = tmp_path / "w.sock"
    if kind == "file":
        path.write_text("precious")
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.mkdir()
    with pytest.raises(FixInput, match="is no socket"):
        listen(path, GROUP)
    assert path.exists() or path.is_symlink()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """A folder that is not there is a sentence with the setting to change."""
    with pytest.raises(FixInput, match=r"api\.socket"):
        listen(tmp_path / "none" / "w.sock", GROUP)


def test_a_socket_that_somebody_replaced_is_left_alone(tmp_path: Path) -> None:
    """Closing removes only the name that is still ours."""
    path = tmp_path / "w.sock"
    listening = listen(path, GROUP)
    path.unlink()
    path.write_text("somebody else's")
    listening.close()
    assert path.read_text() == "somebody else's"


def test_closing_again_closes_nobody_elses_file(tmp_path: Path) -> None:
    """The lock's number may be another file's by then."""
    listening = listen(tmp_path / "w.sock", GROUP)
    listening.close()
    with ExitStack() as others:
        opened = [others.enter_context(open(os.devnull)) for _ in range(16)]
        listening.close()
        assert [os.fstat(each.fileno()).st_rdev for each in opened]


def test_a_link_in_the_place_of_the_lock_is_not_written_through(tmp_path: Path) -> None:
    """Whoever may put one there must not have a file of the daemon's emptied."""
    (tmp_path / "kept").write_text("all of it")
    (tmp_path / "w.sock.lock").symlink_to(tmp_path / "kept")
    with pytest.raises(FixInput, match=r"w\.sock\.lock: .*, or name another path in api\.socket"):
        listen(tmp_path / "w.sock", "")
    assert (tmp_path / "kept").read_text() == "all of it"
