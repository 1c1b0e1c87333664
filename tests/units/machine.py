"""A machine as the shipped files make it: users by the sysusers file, services by their units.

Users and groups, /run and /var/lib are those of a folder of the test's; each service sees them in
their own places, and nobody else on the machine does.
"""

import ctypes
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.api.stranger import as_somebody
from tests.daemon.process import Answer
from tests.daemon.waiting import wait_for
from tests.units import confine
from tests.units.unit_file import CAPABILITIES, UNITS, Unit, allowed, resolved, shipped

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0

MODULES = {
    "wattmesh": "wattmesh.controller.daemon",
    "wattmesh-agent": "wattmesh.controller.agent",
    "wattmesh-actuator": "wattmesh.telemetry.actuator",
}

RESTRICTIONS = (
    "LockPersonality",
    "ProtectHostname",
    "ProtectKernelLogs",
    "RestrictNamespaces",
    "RestrictRealtime",
    "RestrictSUIDSGID",
)

FORBIDDEN = {"ProtectClock": ("@clock",), "ProtectKernelModules": ("@module",)}
"""Sets of calls that other keys take away."""


def _library(name: str) -> bool:
    """Say whether a shared library is there."""
    with suppress(OSError):
        return bool(ctypes.CDLL(name))
    return False


needs_units = pytest.mark.skipif(
    os.geteuid() != 0
    or not all(map(shutil.which, ("systemd-analyze", "systemd-sysusers")))
    or not _library("libseccomp.so.2"),
    reason="needs root, systemd-analyze, systemd-sysusers and libseccomp (scripts/system-deps)",
)


@dataclass(slots=True)
class Machine:
    """The folder that stands for a machine."""

    folder: Path
    services: list["Service"] = field(default_factory=list)

    @classmethod
    def make(cls, folder: Path, users: Mapping[str, Sequence[str]]) -> "Machine":
        """Make users by the sysusers file, and `users` (each with further groups) by hand."""
        for name in ("etc", "etc/credstore", "run", "run/credentials", "lib"):
            (folder / name).mkdir()
        for name in ("passwd", "group"):
            shutil.copy(Path("/etc") / name, folder / "etc" / name)
        made = subprocess.run(
            ["systemd-sysusers", f"--root={folder}", str(UNITS / "wattmesh.conf")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        machine = cls(folder)
        for place, (user, groups) in enumerate(users.items()):
            machine._add(user, 54_000 + place, groups)
        return machine

    def _add(self, user: str, uid: int, groups: Sequence[str]) -> None:
        """Add a person."""
        with (self.folder / "etc/passwd").open("a") as passwd:
            passwd.write(f"{user}:x:{uid}:{uid}::/:/bin/sh\n")
        path = self.folder / "etc/group"
        lines = []
        for line in path.read_text().splitlines():
            joined = line.split(":")[0] in groups
            lines.append(f"{line}{'' if line.endswith(':') else ','}{user}" if joined else line)
        path.write_text("\n".join([*lines, f"{user}:x:{uid}:", ""]))

    def gid(self, group: str) -> int:
        """Give a group's number."""
        return self._number("group", group)

    def uid(self, user: str) -> int:
        """Give a user's number."""
        return self._number("passwd", user)

    def groups_of(self, user: str) -> list[int]:
        """Give the groups that a user is in beside its own."""
        rows = [line.split(":") for line in (self.folder / "etc/group").read_text().splitlines()]
        return [int(row[2]) for row in rows if user in row[3].split(",")]

    def _number(self, table: str, name: str) -> int:
        rows = [line.split(":") for line in (self.folder / "etc" / table).read_text().splitlines()]
        return next(int(row[2]) for row in rows if row[0] == name)

    def start(self, name: str, settings: str, unit: Unit | None = None) -> "Service":
        """Start a service under its unit, or under another one, and wait until it is ready."""
        service = Service(self, name, unit or shipped(name))
        self.services.append(service)
        service.start(settings)
        return service


@dataclass(slots=True)
class Service:
    """One service under its unit."""

    machine: Machine
    name: str
    unit: Unit
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return (self.machine.folder / f"{self.name}.log").read_text()

    @property
    def state(self) -> Path:
        """Its state folder, as seen from outside."""
        return self.machine.folder / "lib" / self.unit.last("StateDirectory")

    @property
    def runtime(self) -> Path:
        """Its runtime folder, as seen from outside."""
        return self.machine.folder / "run" / self.unit.last("RuntimeDirectory")

    @property
    def running(self) -> "subprocess.Popen[bytes]":
        """Its process."""
        assert self.process is not None
        return self.process

    def start(self, settings: str) -> None:
        """Start it, and wait until it says that it is ready."""
        notify = self.machine.folder / "run/notify"
        notify.unlink(missing_ok=True)
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
            (self.machine.folder / f"{self.name}.log").open("ab") as log,
        ):
            manager.bind(str(notify))
            notify.chmod(0o666)
            manager.setblocking(False)
            self.config.write_text(settings)
            command = self._confined("-m", MODULES[self.name], "--config", str(self.config))
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

            def ready() -> bool:
                ended = self.running.poll()
                assert ended is None, f"{self.name} ended: {ended}\n{self.log}"
                with suppress(BlockingIOError):
                    return b"READY=1" in manager.recv(4096)
                return False

            wait_for(ready, f"READY=1 of {self.name}", PATIENCE_S)

    def stop(self) -> int:
        """Stop it as systemd does; give its exit status."""
        if self.running.poll() is None:
            self.running.send_signal(signal.SIGTERM)
        return self.running.wait(PATIENCE_S)

    def run(self, *words: str) -> str:
        """Run Python in its place, with these words; give what it printed.

        Raises:
            AssertionError: it failed.
        """
        done = subprocess.run(
            self._confined(*words), capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def config(self) -> Path:
        """Its settings file."""
        return self.machine.folder / "etc" / f"{self.name}.toml"

    def _confined(self, *words: str) -> list[str]:
        """Prepare its folders; give the command that becomes it and then runs Python."""
        uid, gid = (
            self.machine.uid(self.unit.last("User")),
            self.machine.gid(self.unit.last("Group")),
        )
        for path, key in ((self.state, "StateDirectory"), (self.runtime, "RuntimeDirectory")):
            path.mkdir(exist_ok=True)
            path.chmod(int(self.unit.last(f"{key}Mode"), 8))
            os.chown(path, uid, gid)
        self._load_credentials(uid)
        spec = self.machine.folder / f"{self.name}.json"
        spec.write_text(json.dumps(self._spec(uid, gid, [sys.executable, *words])))
        return [sys.executable, "-I", str(Path(confine.__file__)), str(spec)]

    def _load_credentials(self, uid: int) -> None:
        """Copy what /etc/credstore holds for it, as systemd does where it uses an ACL (0440)."""
        shutil.rmtree(self.credentials, ignore_errors=True)
        self.credentials.mkdir()
        for name in self.unit.words("LoadCredential"):
            source = self.machine.folder / "etc/credstore" / name
            if source.exists():
                copy = self.credentials / name
                shutil.copy(source, copy)
                copy.chmod(0o440)
                os.chown(copy, uid, 0)
        self.credentials.chmod(0o500)
        os.chown(self.credentials, uid, 0)

    @property
    def credentials(self) -> Path:
        """Where its credentials are, as seen from outside."""
        return self.machine.folder / "run/credentials" / f"{self.name}.service"

    def _spec(self, uid: int, gid: int, command: list[str]) -> dict[str, object]:
        """Say what `confine` has to do."""
        unit, folder = self.unit, self.machine.folder
        state, run = f"/var/lib/{self.state.name}", f"/run/{self.runtime.name}"
        environment = {
            "PATH": os.environ["PATH"],
            "NOTIFY_SOCKET": "/run/notify",
            "STATE_DIRECTORY": state,
            "RUNTIME_DIRECTORY": run,
            "CREDENTIALS_DIRECTORY": f"/run/credentials/{self.name}.service",
            **dict(each.split("=", 1) for each in unit.words("Environment")),
        }
        for name in unit.words("UnsetEnvironment"):
            environment.pop(name, None)
        error = unit.last("SystemCallErrorNumber")
        return {
            "uid": uid,
            "gid": gid,
            # systemd asks the user's own groups as well (initgroups).
            "groups": [
                *self.machine.groups_of(unit.last("User")),
                *map(self.machine.gid, unit.words("SupplementaryGroups")),
            ],
            "umask": int(unit.last("UMask"), 8),
            "nofile": int(unit.last("LimitNOFILE")),
            "capabilities": [CAPABILITIES[each] for each in unit.words("CapabilityBoundingSet")],
            "no_new_privs": unit.yes("NoNewPrivileges"),
            "no_network": unit.yes("PrivateNetwork"),
            "needed": [sys.base_prefix, sys.prefix, str(ROOT), str(folder)],
            "strict": unit.last("ProtectSystem") == "strict",
            "binds": [
                (str(folder / "etc/passwd"), "/etc/passwd"),
                (str(folder / "etc/group"), "/etc/group"),
                (str(folder / "run"), "/run"),
                (str(folder / "lib"), "/var/lib"),
            ],
            "own": [state, run, "/tmp"],
            "families": [
                int(getattr(socket, each)) for each in unit.words("RestrictAddressFamilies")
            ],
            "restrictions": [each for each in RESTRICTIONS if unit.yes(each)],
            "denied": sorted(
                call
                for key, sets in FORBIDDEN.items()
                if unit.yes(key)
                for each in sets
                for call in resolved(each)
            ),
            "calls": sorted(allowed(unit)),
            "errno": int(getattr(errno, error)) if error else 0,
            "command": command,
            "environment": environment,
        }


def as_user(place: Machine, who: str, path: Path, *request: Any) -> Answer:
    """Send one request (method, target, body) as one of the people.

    Raises:
        PermissionError: they may not connect.
    """
    uid = place.uid(who)
    return as_somebody((uid, uid, place.groups_of(who)), path, *request)


@contextmanager
def machine(folder: Path, users: Mapping[str, Sequence[str]]) -> Iterator[Machine]:
    """Make a machine; whatever happens its services are gone afterwards."""
    made = Machine.make(folder, users)
    try:
        yield made
    finally:
        for service in made.services:
            if service.process is not None:
                service.process.kill()
                service.process.wait()
