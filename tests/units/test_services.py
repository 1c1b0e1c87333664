"""Daemon, agent and actuator under what their units describe: they do all that they are for.

Enforced on the real processes: users and groups of the sysusers file, umask, files, capabilities,
NoNewPrivileges, a read-only system but for their own folders, and every seccomp filter. What needs
systemd as init or control groups (DeviceAllow, ProtectHome, ...) is left to `systemd-analyze`
(tests/daemon/test_unit.py, tests/actuator/test_unit.py).
"""

import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.agent.test_api import certify
from tests.builders import messages
from tests.daemon.process import Answer
from tests.daemon.waiting import wait_for
from tests.daemon.whole.test_life import trace
from tests.units.machine import PATIENCE_S, Machine, Service, as_user, machine, needs_units
from tests.units.unit_file import ENFORCED, JUDGED, UNITS, Unit, parse, shipped
from wattmesh.controller.planner.child import NICER
from wattmesh.telemetry.fake_nvml import Board, FakeNvml

pytestmark = needs_units

PEOPLE = {
    "alice": ("wattmesh-jobs",),
    "carol": ("wattmesh-jobs", "wattmesh-operators"),
    "mallory": (),
}

DAEMON = """\
mode = "act"
[api]
group = "wattmesh-jobs"
listen = "127.0.0.1:0"
tls_certificate = "tls.pem"
tls_key = "credential:wattmesh-tls.key"
[metrics]
listen = "127.0.0.1:0"
[loops]
cycle_s = 0.2
[power]
source = "agents"
[carbon.accounting]
provider = "csv"
zone = "GB"
file = "trace.csv"
compress = 12
[runs.llama-8b]
catalogue = "catalogue.toml"
deadline_after_s = 2000
"""

NODE = """\
[api]
group = "wattmesh-jobs"
[loops]
sample_s = 0.2
[power]
source = "agents"
library = "{library}"
[agent]
node = "n1"
controller = "https://localhost:{port}"
token_file = "credential:wattmesh-agent.token"
ca_file = "tls.pem"
relay = "/run/wattmesh-agent/agent.sock"
metrics = "127.0.0.1:0"
deliver_s = 0.5
[actuator]
mode = "enforce"
library = "{library}"
write_every_s = 0.0
step_share = 1.0
"""

SERVICES = ("wattmesh", "wattmesh-agent", "wattmesh-actuator")
SECOND = "6d1c9d0e-0000-4000-8000-000000000002"


@pytest.fixture
def place() -> Iterator[Machine]:
    """A machine with three people, in a folder that all of them can reach."""
    with tempfile.TemporaryDirectory(prefix="wattmesh-units-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with machine(folder, PEOPLE) as made:
            trace(folder / "etc")
            (folder / "etc/catalogue.toml").write_text(messages.CATALOGUE)
            certify(folder / "etc/tls.pem", folder / "etc/credstore/wattmesh-tls.key")
            yield made


@pytest.fixture
def gpus(place: Machine) -> Iterator[FakeNvml]:
    """Two GPUs that every service may reach, as /dev/nvidia* are."""
    fake = FakeNvml.create(place.folder / "gpus", gpus=2, board=Board.H100, update_ms=0)
    for path in (place.folder / "gpus", *(place.folder / "gpus").rglob("*")):
        path.chmod(0o777)
    yield fake
    fake.close()


def without(unit: Unit, word: str) -> Unit:
    """Give a unit without the lines that have a word, in its text as it is shipped."""
    text = (UNITS / f"{unit.name}.service").read_text()
    return parse(unit.name, re.sub(rf"(?m)^.*{word}.*$", "", text))


def opened_to(path: Path) -> tuple[int, int]:
    """Give a socket's mode and group."""
    found = path.stat()
    return stat.S_IMODE(found.st_mode), found.st_gid


def post(place: Machine, who: str, path: Path, target: str, body: Any) -> Answer:
    """Ask for an act as one of the people."""
    return as_user(place, who, path, "POST", target, body)


def test_every_line_of_the_units_is_enforced_or_judged() -> None:
    """A key that is new in a unit is thought of here: carried out, or left to systemd-analyze."""
    for name in SERVICES:
        assert set(shipped(name).values) <= ENFORCED | JUDGED


def test_the_services_do_all_they_are_for_under_their_units(place: Machine, gpus: FakeNvml) -> None:
    """Serve another uid, forecast, plan, relay, set a limit, stop: nothing needed is denied."""
    jobs = place.gid("wattmesh-jobs")
    daemon = place.start("wattmesh", DAEMON)
    api = daemon.runtime / "wattmesh.sock"
    assert opened_to(api) == (0o660, jobs)
    assert opened_to(daemon.state)[0] == 0o750

    # An operator makes the node's token; it reaches the agent as a credential.
    made = post(place, "carol", api, "/v1/agents/n1/token", {})
    assert made.status == 200, made.body
    (place.folder / "etc/credstore/wattmesh-agent.token").write_text(made.body["token"])
    port = re.findall(r"agents are served on 127.0.0.1 port (\d+)", daemon.log)[-1]
    node = NODE.format(library=gpus.library, port=port)

    actuator = place.start("wattmesh-actuator", node)
    assert opened_to(actuator.runtime / "actuator.sock") == (0o660, place.gid("wattmesh-actuator"))
    agent = place.start("wattmesh-agent", node)
    relay = agent.runtime / "agent.sock"
    assert opened_to(relay) == (0o660, jobs)

    # Another uid, over both ways in; a stranger over none.
    for path, run in ((api, messages.RUN), (relay, SECOND)):
        name = "llama-8b" if path == api else "other"
        body = messages.register(run=run, name=name, incarnation=run)
        assert post(place, "alice", path, f"/v1/runs/{run}/register", body).status == 200
        with pytest.raises(PermissionError):
            post(place, "mallory", path, f"/v1/runs/{run}/register", body)
    with pytest.raises(PermissionError):
        post(place, "alice", actuator.runtime / "actuator.sock", "/", {})
    body = messages.progress(incarnation=messages.RUN)
    assert post(place, "alice", api, f"/v1/runs/{messages.RUN}/progress", body).status == 200
    assert post(place, "alice", api, "/v1/freeze", {}).status == 403

    # What needs processes of its own: journal, forecast, plan, at a lower priority.
    def said(target: str) -> Any:
        return as_user(place, "alice", api, "GET", target).body

    wait_for(lambda: said("/v1/carbon/forecast").get("slots"), "a forecast", PATIENCE_S)
    plan = f"/v1/runs/{messages.RUN}/plan"
    wait_for(lambda: said(plan)["plan"], f"a plan; log:\n{daemon.log}", PATIENCE_S)
    ours = os.getpriority(os.PRIO_PROCESS, daemon.running.pid)
    nice = {os.getpriority(os.PRIO_PROCESS, each) for each in children(daemon)}
    assert nice == {min(19, ours + NICER)}

    # From an operator's order to the board.
    until = datetime.now(UTC) + timedelta(hours=1)
    cap = {"cap_w": 1000.0, "until": until.isoformat(), "reason": "the grid operator asks"}
    wait_for(lambda: said("/v1/status")["power"]["covered"] == 2, "both GPUs", PATIENCE_S)
    wait_for(
        lambda: post(place, "carol", api, "/v1/powercap", cap).status == 200, "a cap", PATIENCE_S
    )
    wait_for(
        lambda: sum(gpu.truth().requested_limit_w for gpu in gpus.gpus) <= 1000.0,
        f"limits on the boards; logs:\n{daemon.log}\n{agent.log}\n{actuator.log}",
        PATIENCE_S,
    )

    assert [each.stop() for each in (agent, actuator, daemon)] == [0, 0, 0]
    restore = ("--config", str(actuator.config), "--restore")
    actuator.run("-m", "wattmesh.telemetry.actuator", *restore)
    for service in (daemon, agent, actuator):
        assert not re.search("not permitted|may not|Traceback|bug in", service.log), service.log
    assert not api.exists()
    assert not relay.exists()


def children(service: Service) -> list[int]:
    """Give a service's children."""
    threads = Path(f"/proc/{service.running.pid}/task").iterdir()
    return [int(pid) for each in threads for pid in (each / "children").read_text().split()]


def test_without_chown_nobody_gets_in(place: Machine) -> None:
    """The filter as it was: the daemon's socket stays its own, so every owner of a job is out."""
    daemon = place.start("wattmesh", DAEMON, without(shipped("wattmesh"), "=@chown"))
    api = daemon.runtime / "wattmesh.sock"
    assert opened_to(api)[0] == 0o600
    assert "may not give" in daemon.log
    with pytest.raises(PermissionError):
        post(place, "alice", api, f"/v1/runs/{messages.RUN}/register", messages.register())


def test_as_it_was_the_agent_was_killed_at_each_start(place: Machine, gpus: FakeNvml) -> None:
    """By SIGSYS, as it gives the relay's socket to its group."""
    unit = without(shipped("wattmesh-agent"), "=@chown|SystemCallErrorNumber")
    (place.folder / "etc/credstore/wattmesh-agent.token").write_text("a token that nobody looks at")
    with pytest.raises(AssertionError, match=f"ended: {-signal.SIGSYS}"):
        place.start("wattmesh-agent", NODE.format(library=gpus.library, port=9), unit)


ELSEWHERE = (
    ("wattmesh", "[api]\n", '[journal]\nurl = "sqlite:////srv/j.db"\n[api]\n', "journal.url"),
    ("wattmesh", "[api]\n", '[api]\nsocket = "/srv/w.sock"\n', "api.socket"),
    ("wattmesh-agent", "/run/wattmesh-agent/agent.sock", "/srv/a.sock", "agent.relay"),
    ("wattmesh-agent", "[agent]\n", '[agent]\noutbox = "/srv/a.db"\n', "agent.outbox"),
    ("wattmesh-actuator", "[actuator]\n", '[actuator]\nsocket = "/srv/s"\n', "actuator.socket"),
    ("wattmesh-actuator", "[actuator]\n", '[actuator]\njournal = "/srv/j"\n', "no GPU is changed"),
)


def test_a_path_that_the_unit_does_not_open_is_named_with_what_to_do(
    place: Machine, gpus: FakeNvml
) -> None:
    """Each setting that names one; and a credential that is not there."""
    (place.folder / "etc/credstore/wattmesh-agent.token").write_text("a token that nobody looks at")
    settings = {"wattmesh": DAEMON} | dict.fromkeys(
        ("wattmesh-agent", "wattmesh-actuator"), NODE.format(library=gpus.library, port=9)
    )
    for name, before, after, key in ELSEWHERE:
        with pytest.raises(AssertionError) as ended:
            place.start(name, settings[name].replace(before, after))
        said = str(ended.value).splitlines()[-1]
        assert "/srv is read-only for this service: name it in ReadWritePaths= of the" in said
        assert key in said
    for name, credential in (("wattmesh", "tls.key"), ("wattmesh-agent", "agent.token")):
        with pytest.raises(AssertionError, match=f"put it into /etc/credstore/none-{credential}"):
            place.start(
                name, settings[name].replace(f"wattmesh-{credential}", f"none-{credential}")
            )


def test_a_group_that_a_service_is_not_in_gets_no_socket(place: Machine) -> None:
    """The other half of the door: the filter lets it ask, and the kernel says no."""
    daemon = place.start("wattmesh", DAEMON, without(shipped("wattmesh"), "SupplementaryGroups"))
    assert opened_to(daemon.runtime / "wattmesh.sock")[0] == 0o600
    assert "wattmesh-jobs" in daemon.log
    assert daemon.stop() == 0
    again = place.start("wattmesh", DAEMON.replace("wattmesh-jobs", "wattmesh-job"))
    api = again.runtime / "wattmesh.sock"
    assert opened_to(api) == (0o660, place.gid("wattmesh"))
    assert "no group wattmesh-job, so only this service's own group can reach" in again.log


PROBE = """
import ctypes, errno, os, socket
libc = ctypes.CDLL(None, use_errno=True)

def called(function, *arguments):
    if function(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "")

def tried(act):
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

print(
    tried(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
    tried(lambda: os.sched_setaffinity(0, {0})),
    tried(lambda: called(libc.unshare, 0x10000000)),
    tried(lambda: called(libc.personality, 0x0040000)),
    tried(lambda: os.chmod(os.environ["STATE_DIRECTORY"], 0o4750)),
    tried(lambda: os.utime(os.path.dirname(os.environ["STATE_DIRECTORY"]))),
    oct(os.umask(0)),
)
"""
"""What an ordinary process may do, and the services may not."""


@pytest.mark.parametrize("name", SERVICES)
def test_the_filters_hold(place: Machine, name: str) -> None:
    """What a unit denies is denied in the service's place: the filters that we test are filters."""
    said = Service(place, name, shipped(name)).run("-c", PROBE).split()
    assert said[:-1] == ["EAFNOSUPPORT", "EPERM", "EPERM", "EPERM", "EPERM", "EROFS"]
    assert int(said[-1], 8) == int(shipped(name).last("UMask"), 8)
    bare = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**os.environ, "STATE_DIRECTORY": str(place.folder / "lib")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert bare.stdout.split()[:-1] == ["done"] * 6
