"""The socket in a real process: strict, private, and never held up by one client."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.safety.node import DEADLINE_S, Node, kill, stop
from tests.laws.processes import loaded_after
from wattmesh.errors import Fenced, RetryLater
from wattmesh.telemetry.actuator import server
from wattmesh.telemetry.actuator.client import ActuatorClient
from wattmesh.telemetry.actuator.wire import LONGEST_LINE
from wattmesh.telemetry.desired import Desired

NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become a second user")


@pytest.fixture
def node() -> Iterator[Node]:
    """A node whose actuator answers."""
    with Node() as made:
        made.job()
        made.start()
        yield made


def say(node: Node, data: bytes) -> dict[str, Any]:
    """Send bytes, end the sending side, read one answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(DEADLINE_S)
        channel.connect(str(node.folder / "actuator.sock"))
        channel.sendall(data)
        channel.shutdown(socket.SHUT_WR)
        with channel.makefile("rb") as lines:
            answer: dict[str, Any] = json.loads(lines.readline())
    return answer


NO_WISHES = b'"desired":{"node":"n","epoch":1,"serial":"s"'
HOSTILE = [
    b"\n",
    b"hello\n",
    b"[]\n",
    b'{"v":2,"op":"state"}\n',
    b'{"v":1,"op":"become-root"}\n',
    b'{"v":1,"op":"state","more":1}\n',
    b'{"v":1,"op":"state","desired":{}}\n',
    b'{"v":1,"op":"apply"}\n',
    b'{"v":1,"op":"apply","claims":{},"desired":{"node":"n","epoch":-1,"serial":"s"}}\n',
    b'{"v":1,"op":"apply","claims":{"r":{"uids":[-1]}},' + NO_WISHES + b"}}\n",
    b'{"v":1,"op":"apply","claims":{"r":{"uids":[true]}},' + NO_WISHES + b"}}\n",
    b'{"v":1,"op":"restore","obligations":1}\n',
    b'{"v":1,"v":1,"op":"state"}\n',
    b'{"v":1,"op":"state"} {"v":1,"op":"restore"}\n',
    b'{"v":1,"op":"apply","claims":{},' + NO_WISHES + b',"wishes":[{"cap_w":NaN}]}}\n',
    b'{"v":1,"op":"apply","claims":{},'
    + NO_WISHES
    + b',"wishes":[{"gpu_uuid":"g","kind":"economy","holder":"h","cap_w":1'
    + 400 * b"0"
    + b"}]}}\n",
    b'{"v":1,"op":"apply","claims":{},"desired":{"node":"a\\nERROR b","epoch":1,"serial":"s"}}\n',
    b"[" * 50_000 + b"\n",
    b'{"v":1,"op":"state"}',
    b"x" * (LONGEST_LINE + 10),
    b"\xff\xfe\xfd\n",
]


def test_what_is_not_understood_is_refused_whole(node: Node) -> None:
    """Nothing of it is obeyed, and the next client is served."""
    for data in HOSTILE:
        answer = say(node, data)
        assert answer["ok"] is False, data[:80]
        assert answer["error"] in ("invalid", "refused"), answer
    assert node.client.state().mode == "enforce"
    assert node.free()


def test_clients_that_hang_hold_nobody_up(node: Node) -> None:
    """As many as may come, each saying half a line: those that were there are served on."""
    hanging = []
    try:
        for _ in range(20):
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            channel.connect(str(node.folder / "actuator.sock"))
            channel.sendall(b'{"v":1,')
            hanging.append(channel)
        node.start_agent()
        node.wish(*node.economy(cap=None))
        node.until(lambda: all(each.lock_mhz == 1200 for each in node.truths()))
    finally:
        for channel in hanging:
            channel.close()


def test_a_client_has_its_time_for_a_whole_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte every second ends as silence does; a line that was whole in time is given first."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'{"v":1}\n' + 60 * b" ")
        seconds = iter(range(1000))
        monkeypatch.setattr(server, "READ_BYTES", 1)
        monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
        lines = server.Lines(ours)
        assert lines.next() == b'{"v":1}\n'
        with pytest.raises(TimeoutError, match="no whole line within 10 s"):
            lines.next()


def test_errors_reach_the_client_as_they_were(node: Node) -> None:
    """Fenced stays Fenced; no actuator is something to try again."""
    node.client.apply(Desired(node="n1", epoch=5, serial="a"), {})
    with pytest.raises(Fenced, match="epoch 4"):
        node.client.apply(Desired(node="n1", epoch=4, serial="b"), {})
    kill(node.actuator)
    with pytest.raises(RetryLater, match="is wattmesh-actuator running"):
        node.client.state()


def test_a_socket_that_a_killed_actuator_left_is_taken_over(node: Node) -> None:
    """And a second actuator beside a living one is refused by the journal's lock."""
    done = node.run()
    assert done.returncode == 1
    assert "in use by process" in done.stderr
    kill(node.actuator)
    node.start()
    assert node.client.state().mode == "enforce"


@needs_root
def test_the_socket_is_for_root_and_its_group(node: Node) -> None:
    """Without a group it is 0600; with one 0660, and a stranger gets no word in."""
    path = node.folder / "actuator.sock"
    assert path.stat().st_mode & 0o777 == 0o600
    node.folder.chmod(0o755)
    assert "must be in the group" in as_nobody(f"ActuatorClient(Path({str(path)!r})).state()")
    path.chmod(0o666)  # whoever opens it wide has not opened the actuator
    assert "may not speak to the actuator" in as_nobody(
        f"ActuatorClient(Path({str(path)!r})).state()"
    )


@needs_root
def test_a_second_user_cannot_restore(node: Node) -> None:
    """`wattmesh restore-all` of another uid is refused in a sentence, and changes nothing."""
    node.start_agent()
    node.wish(*node.economy())
    node.until(node.lowered)
    node.folder.chmod(0o755)
    node.config.chmod(0o644)
    for life in ("with an actuator", "without"):
        told = as_nobody(f"sys.exit(main(['restore-all', '--config', {str(node.config)!r}]))")
        assert "may not write" in told, life
        assert "only the actuator's own user (root) may change GPUs" in told
        assert node.lowered()
        if life == "with an actuator":
            kill(node.agent)
            stop(node.actuator)


def as_nobody(code: str) -> str:
    """Run Python as a user without rights; give what it wrote to stderr."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, sys\n"
            "from pathlib import Path\n"
            "from wattmesh.controller.cli.main import main\n"
            "from wattmesh.controller.cli.services import restore_all\n"
            "from wattmesh.telemetry.actuator.client import ActuatorClient\n"
            "import decimal\n"
            "main(['restore-all', '--help'])  # loads what a second user may not be able to read\n"
            f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n" + code,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 1, done
    return done.stderr


def test_restore_all_with_a_running_actuator_asks_that_one(node: Node) -> None:
    """It gives everything back and obeys nobody, until --resume."""
    node.start_agent()
    node.wish(*node.economy())
    node.until(node.lowered)
    told = cli("restore-all", "--config", str(node.config))
    assert "locked to 1200 MHz, capped at 500 W (found 700 W)" in told
    assert told.count("no lock of ours, limit 700 W") == 2
    node.until(node.free)
    answer = node.client.state()
    assert "restore-all" in answer.trouble
    assert not any(each.settable for each in answer.gpus)
    assert node.free()
    cli("restore-all", "--resume", "--config", str(node.config))
    node.until(node.lowered)


def test_restore_all_after_everything_was_killed(node: Node) -> None:
    """Controller, agent and actuator gone: the journal is enough; --json says each GPU."""
    node.start_agent()
    node.wish(*node.economy())
    node.until(node.lowered)
    kill(node.agent)
    kill(node.actuator)
    told = json.loads(cli("restore-all", "--json", "--config", str(node.config)))
    assert told["ok"] is True
    assert {each["gpu_uuid"] for each in told["gpus"]} == {node.uuid(0), node.uuid(1)}
    for each in told["gpus"]:
        assert each["was"] == {"clock_mhz": 1200, "cap_w": 500.0, "found_w": 700.0}
        assert each["now"] == {
            "clock_mhz": None,
            "cap_w": None,
            "found_w": None,
            "limit_w": 700.0,
        }
    assert node.free()


def cli(*words: str) -> str:
    """Run a command; give what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "wattmesh.controller.cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sigterm_gives_back_only_when_asked(node: Node) -> None:
    """Under systemd ExecStopPost does it; elsewhere --restore-at-stop."""
    node.start_agent()
    node.wish(*node.economy())
    node.until(node.lowered)
    stop(node.actuator)
    assert node.lowered()
    node.start("--restore-at-stop")
    node.until(node.lowered)
    stop(node.actuator)
    assert node.free()


def test_a_group_that_does_not_exist_is_a_mistake_in_the_settings(tmp_path: Path) -> None:
    """Exit status 2: systemd does not try again."""
    with Node() as node:
        text = node.config.read_text().replace('group = ""', 'group = "no-such-group"')
        node.config.write_text(text)
        done = node.run()
    assert done.returncode == 2
    assert "groupadd --system no-such-group" in done.stderr


def test_the_privileged_process_is_small() -> None:
    """The standard library and nvidia-ml-py: nothing else runs as root."""
    loaded = loaded_after("import wattmesh.telemetry.actuator.__main__")
    foreign = loaded - sys.stdlib_module_names - loaded_after("import wattmesh")
    assert foreign == {"pynvml"}
    assert "pydantic" in loaded_after("import wattmesh.controller.settings.model")


def test_no_actuator_is_something_to_try_again(tmp_path: Path) -> None:
    """A socket that is not there does not mean that anything is wrong with the wish."""
    with pytest.raises(RetryLater):
        ActuatorClient(tmp_path / "nothing").state()


def test_the_actuator_is_a_process_of_its_own(tmp_path: Path) -> None:
    """`wattmesh actuator` becomes the actuator's process: its exit status and sentence are seen."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "wattmesh.controller.cli.main",
            "actuator",
            "--config",
            str(tmp_path / "none.toml"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 2
    assert "none.toml has 1 mistake" in done.stderr


def test_restore_all_where_no_actuator_ever_ran_says_so(tmp_path: Path) -> None:
    """A node without a journal has nothing of ours, and a wrong path is not taken for that."""
    config = tmp_path / "w.toml"
    config.write_text('[actuator]\njournal = "nowhere/journal"\n')
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "wattmesh.controller.cli.main",
            "restore-all",
            "--config",
            str(config),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1
    assert "no actuator has ever run here" in done.stderr
