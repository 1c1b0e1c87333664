"""What `wattmesh doctor` sees of the installation: groups, units, and what the daemon runs with.

Invariant: reading only.
"""

import grp
import os
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from wattmesh.controller.cli.doctor.findings import Finding, problem, unknown
from wattmesh.controller.cli.services.install import IN_UNITS, UNIT, hidden_part
from wattmesh.controller.settings.model import ApiSection, Settings

UNITS = Path("/etc/systemd/system")


def groups(api: ApiSection) -> Iterator[Finding]:
    """Check that the groups which the settings name are there, and whom that leaves out."""
    for key, name in (("api.group", api.group), ("api.operators_group", api.operators_group)):
        if not name or key.removeprefix("api.") not in api.model_fields_set:
            continue
        try:
            grp.getgrnam(name)
        except KeyError:
            what = f"{key}: there is no group {name} on this machine"
            do = "systemd-sysusers, with the file of `wattmesh units --install /`"
            # Without operators root still operates; without the jobs' group no job is heard.
            yield (problem if key == "api.group" else unknown)("groups", what, do)


def units(folder: Path = UNITS) -> Iterator[Finding]:
    """Check the units that stand there: their program, and whether they are this version's."""
    for service, name in UNIT.items():
        path = folder / name
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            continue
        found = re.search(r"(?m)^ExecStart=(\S+)", text)
        program = found[1] if found else ""
        replace = f"wattmesh units {service} --install / --replace && systemctl daemon-reload"
        if not os.access(program, os.X_OK):
            yield problem(
                "units", f"{path} starts {program or 'nothing'}, which is not there", replace
            )
            continue
        if hidden := hidden_part(Path(program)):
            yield problem(
                "units",
                f"{path} starts {program}, which needs {hidden}: the unit cannot see that folder",
                "install wattmesh anew with the system's own `python3 -m venv /opt/wattmesh`",
            )
        shipped = (files("wattmesh.integrations") / "systemd" / name).read_text(encoding="utf-8")
        if text != shipped.replace(IN_UNITS, program):
            yield unknown("units", f"{path} is not as this version ships it", replace)


def acting(settings: Settings) -> Iterator[Finding]:
    """Check that a daemon which may act has something that it may switch to."""
    if settings.mode == "act" and not any(run.catalogue for run in settings.runs.values()):
        yield problem(
            "mode",
            "it is act, and no run of the settings has a catalogue, so nothing is ever switched",
            "name one in runs.NAME.catalogue (`wattmesh configs profile` makes it)",
        )


def running(settings: Settings, view: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that the daemon runs with what the file says."""
    if view["mode"] != settings.mode:
        yield problem(
            "mode",
            f"the file says {settings.mode}, the daemon runs in {view['mode']}",
            "systemctl reload wattmesh",
        )
