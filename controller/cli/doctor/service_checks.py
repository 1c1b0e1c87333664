"""What `wattmesh doctor` sees of the services' own view: what their units and users may not read.

Settings that root finds in order fail where the service runs: as another user, without home
folders. Invariant: reading only; what cannot be told from here is left out.
"""

import os
import pwd
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from wattmesh.controller.cli.client import DEFAULT_CONFIG
from wattmesh.controller.cli.doctor.findings import Finding, problem
from wattmesh.controller.cli.doctor.install_checks import UNITS
from wattmesh.controller.cli.services.install import UNIT, ServiceUnit, unseen_by_units
from wattmesh.controller.settings.model import Settings
from wattmesh.controller.settings.secrets import is_credential

CHECK = "services"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service as its unit has it.

    Attributes:
        config: its settings file.
        home: it sees the home folders of the machine. `temporary`: it sees /tmp.
    """

    name: str
    config: Path
    user: str
    home: bool
    temporary: bool


def services(settings: Settings, config: Path, folder: Path = UNITS) -> Iterator[Finding]:
    """Check for each installed unit that its user is there and may read what the settings name."""
    for unit, name in UNIT.items():
        service = _installed(folder / name)
        if service is None or service.config != config.absolute():
            continue
        try:
            user = pwd.getpwnam(service.user)
        except KeyError:
            what = f"{name} runs as {service.user}, and there is no such user on this machine"
            yield problem(CHECK, what, "systemd-sysusers, with `wattmesh units --install /`")
            continue
        groups = {*os.getgrouplist(user.pw_name, user.pw_gid)}
        for key, path in (("settings", config.absolute()), *_named(settings, unit)):
            if why := _shut(path, service, user.pw_uid, groups):
                yield problem(CHECK, f"{name} may not read {path} ({key}): {why[0]}", why[1])


def _installed(path: Path) -> Service | None:
    """Read a unit and its drop-ins; None: it is not there."""
    try:
        texts = [path.read_text(encoding="utf-8")]
        beside = path.with_name(f"{path.name}.d").glob("*.conf")
        texts += [each.read_text(encoding="utf-8") for each in sorted(beside)]
    except (OSError, UnicodeDecodeError):
        return None
    text = "\n".join(texts)
    said = dict(re.findall(r"(?m)^(User|ProtectHome|PrivateTmp)=(\S*)", text))
    config = re.findall(r"(?m)^ExecStart=.* --config[ =](\S+)", text)
    hidden = {"true", "yes", "1", "on", "tmpfs"}
    return Service(
        name=path.name,
        config=Path(config[-1]) if config else DEFAULT_CONFIG,
        user=said.get("User") or "root",
        home=said.get("ProtectHome", "no") not in hidden,
        temporary=said.get("PrivateTmp", "no") not in hidden,
    )


def _named(settings: Settings, unit: ServiceUnit) -> Iterator[tuple[str, Path]]:
    """Give the files that the settings name for a service, by their keys; no credentials."""
    for name, section in settings:
        of = {"agent": ServiceUnit.AGENT, "actuator": ServiceUnit.ACTUATOR}
        if of.get(name, ServiceUnit.DAEMON) is unit:
            yield from _paths(name, section)
    url = settings.journal.url
    if unit is ServiceUnit.DAEMON and url.startswith("sqlite"):
        path = Path(url.partition("///")[2])
        if unseen_by_units(path):  # whose it is, the checks of the journal say
            yield "journal.url", path


def _paths(key: str, value: Any) -> Iterator[tuple[str, Path]]:
    if isinstance(value, Path):
        if not is_credential(value):
            yield key, value
    elif isinstance(value, BaseModel):
        for name, inner in value:
            yield from _paths(f"{key}.{name}", inner)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _paths(f"{key}.{name}", inner)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _paths(f"{key}[{number}]", inner)


def _shut(path: Path, service: Service, uid: int, groups: set[int]) -> tuple[str, str] | None:
    """Say why a service may not read a regular file, and what to do; None where it may."""
    real = Path(os.path.realpath(path))
    hidden = unseen_by_units(real)
    if hidden and not (service.home if hidden.startswith(("/home", "/r")) else service.temporary):
        return (
            f"the unit hides {hidden}",
            "move it to /etc/wattmesh, and name that place in the settings",
        )
    try:
        if not stat.S_ISREG(os.stat(real).st_mode):
            return None
        chain = [(real, 4), *((each, 1) for each in real.parents)]
        closed = next((each for each, bit in chain if not _may(each, bit, uid, groups)), None)
    except OSError:
        return None  # missing, or not seen from here: other checks say so
    if closed is None:
        return None
    if closed != real:
        return f"{closed} is closed to {service.user}", f"chmod o+x {closed}"
    return f"it is not {service.user}'s", f"chown {service.user} {real}"


def _may(path: Path, bit: int, uid: int, groups: set[int]) -> bool:
    """Say whether a user has a right of `rwx` (4, 2, 1) by the file's mode."""
    if uid == 0:
        return True
    found = os.stat(path)
    if _listed(path):
        return True  # its list may let the user in: not told from the mode
    shift = 6 if found.st_uid == uid else 3 if found.st_gid in groups else 0
    return bool(found.st_mode >> shift & bit)


def _listed(path: Path) -> bool:
    try:
        return bool(os.getxattr(path, "system.posix_acl_access"))
    except OSError:
        return False
