"""What a shipped unit says of the process it starts, in numbers and names that a kernel knows."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

UNITS = Path(__file__).parents[2] / "integrations" / "systemd"

CAPABILITIES = {
    "CAP_CHOWN": 0,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
}
"""Those that units leave (linux/capability.h)."""

_ENFORCED = """
AmbientCapabilities CapabilityBoundingSet Environment Group LimitNOFILE LoadCredential
LockPersonality NoNewPrivileges PrivateMounts PrivateNetwork PrivateTmp ProtectClock ProtectHostname
ProtectKernelLogs ProtectKernelModules ProtectSystem RestrictAddressFamilies RestrictNamespaces
RestrictRealtime RestrictSUIDSGID RuntimeDirectory RuntimeDirectoryMode StateDirectory
StateDirectoryMode SupplementaryGroups SystemCallArchitectures SystemCallErrorNumber
SystemCallFilter UMask UnsetEnvironment User
"""
ENFORCED = frozenset(_ENFORCED.split())
"""Keys of [Service] that `confine` carries out on the process."""

_JUDGED = """
DeviceAllow DevicePolicy ExecReload ExecStart ExecStopPost IPAddressDeny KeyringMode KillMode
NotifyAccess ProtectControlGroups ProtectHome ProtectKernelTunables RemoveIPC Restart
RestartPreventExitStatus RestartSec TimeoutStartSec TimeoutStopSec Type WatchdogSec
"""
JUDGED = frozenset(_JUDGED.split())
"""Keys that need systemd as init, control groups, or a machine with GPUs: `systemd-analyze verify`
and `security` judge them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The [Service] of one unit: every key with its values, in order."""

    name: str
    values: Mapping[str, tuple[str, ...]]

    def last(self, key: str, default: str = "") -> str:
        """Give the value that holds where a key has one."""
        return self.values.get(key, (default,))[-1]

    def words(self, key: str) -> tuple[str, ...]:
        """Give all words of a key that is a list; an empty assignment begins it anew."""
        found: tuple[str, ...] = ()
        for value in self.values.get(key, ()):
            found = (*found, *value.split()) if value else ()
        return found

    def yes(self, key: str) -> bool:
        """Say whether a switch is on."""
        return self.last(key) in ("true", "yes", "on", "1")


def parse(name: str, text: str) -> Unit:
    """Read the [Service] of a unit."""
    values: dict[str, tuple[str, ...]] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and line and not line.startswith(("#", ";")):
            key, _, value = line.partition("=")
            values[key] = (*values.get(key, ()), value.strip())
    return Unit(name=name, values=values)


def shipped(name: str) -> Unit:
    """Read a unit that is shipped."""
    return parse(name, (UNITS / f"{name}.service").read_text())


def allowed(unit: Unit) -> frozenset[str]:
    """Give the system calls that SystemCallFilter allows (systemd.exec(5)).

    The first line decides that it is a list of allowed ones, with @default in it; each further line
    adds, or takes away with `~`.
    """
    lines = unit.values["SystemCallFilter"]
    assert not lines[0].startswith("~"), "a list of denied calls allows what nobody thought of"
    found = set(resolved("@default"))
    for line in lines:
        calls = {call for word in line.lstrip("~").split() for call in resolved(word)}
        found = found - calls if line.startswith("~") else found | calls
    return frozenset(found)


def resolved(word: str) -> frozenset[str]:
    """Give the calls that a word stands for: itself, or a set as systemd has it."""
    if not word.startswith("@"):
        return frozenset({word})
    return frozenset(call for each in _sets()[word] for call in resolved(each))


@cache
def _sets() -> Mapping[str, tuple[str, ...]]:
    """Ask systemd what its sets hold."""
    said = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    return dict(_blocks(said))


def _blocks(said: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Read `@set` lines, and below each its indented members."""
    for block in re.split(r"(?m)^(?=@)", said)[1:]:
        name, *members = (line.split("#")[0].strip() for line in block.splitlines())
        yield name, tuple(filter(None, members))
