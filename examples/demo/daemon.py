"""One real daemon of the demo: its settings file, its process, its socket, its journal.

Invariant: it is started as a user starts it, with a settings file that `wattmesh settings check`
accepts; the demo uses no request that a user could not make.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from examples.demo.plan import TRACE, ZONE, DemoPlan
from wattmesh import durable
from wattmesh.controller.cli.client import DaemonConnection, DaemonUnreachable, segment
from wattmesh.controller.journal.database.sqlite_url import sqlite_url
from wattmesh.controller.process.children import Child, ChildFailed, Children, wait_for
from wattmesh.errors import JournalUnavailable
from wattmesh.telemetry.fake_nvml import LIBRARY

READY_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPaths:
    """Where one run of the demo keeps its files.

    Attributes:
        folder: settings, journal, checkpoints.
        socket: a short path, because the path of a Unix socket must be short.
        gpus: folder of the fake GPUs and of the NVML library that reports them.
        logs: folder of the processes' output.
    """

    folder: Path
    socket: Path
    gpus: Path
    logs: Path

    @property
    def config(self) -> Path:
        """The daemon's settings file."""
        return self.folder / "wattmesh.toml"

    @property
    def journal(self) -> Path:
        """The daemon's journal."""
        return self.folder / "journal.db"


def settings_text(plan: DemoPlan, places: RunPaths, *, mode: str, plays_at: datetime) -> str:
    """Write the settings of one daemon of the demo."""
    policy = "\n".join(f"{name} = {value}" for name, value in asdict(plan.policy).items())
    return f"""\
# Written by `wattmesh demo`.
mode = "{mode}"

[journal]
url = {json.dumps(sqlite_url(places.journal))}
trust_clock = true

[api]
socket = {json.dumps(str(places.socket))}

[metrics]
listen = ""

[loops]
cycle_s = {plan.cycle_s}
sample_s = {plan.sample_s}

[power]
source = "nvml"
library = {json.dumps(str(places.gpus / LIBRARY))}

[carbon.accounting]
provider = "csv"
zone = "{ZONE}"
file = {json.dumps(str(TRACE))}
starts_at = {_toml(plan.starts_at)}
plays_at = {_toml(plays_at)}
compress = {plan.compress}

[policy]
{policy}

[runs.{plan.run_name}]
catalogue = {json.dumps(str(plan.catalogue))}
baseline = "{plan.baseline}"
deadline_after_s = {plan.deadline_after_s}
"""


class DemoDaemon:
    """One daemon process, and the requests that a user may make to it."""

    def __init__(self, child: Child, places: RunPaths) -> None:
        """Take the process that was started."""
        self.child = child
        self.places = places
        self._api = DaemonConnection(str(places.socket))

    def get(self, path: str, **query: object) -> Any:
        """Read one answer of its API."""
        return self._api.get(path, **query)

    def order(self, run: str, point: str, reason: str) -> Mapping[str, Any]:
        """Ask for a switch, as `wattmesh switch` does."""
        answer: Mapping[str, Any] = self._api.post(
            f"/v1/runs/{segment(run)}/switch", {"point": point, "reason": reason}
        )
        return answer

    def freeze(self, reason: str) -> None:
        """Freeze all runs, as `wattmesh freeze` does."""
        self._api.post("/v1/freeze", {"run": None, "reason": reason})

    def thaw(self) -> None:
        """End the freeze, as `wattmesh thaw` does."""
        self._api.post("/v1/thaw", {"run": None})

    def planned(self, run: str) -> bool:
        """Return whether a run has a plan, as `wattmesh policy plan` shows it."""
        return self.get(f"/v1/runs/{segment(run)}/plan")["plan"] is not None

    def status(self) -> Mapping[str, Any] | None:
        """Return its status; None if it does not answer now."""
        try:
            view: Mapping[str, Any] = self._api.get("/v1/status")
        except (DaemonUnreachable, JournalUnavailable):
            return None
        return view

    def leads(self) -> bool:
        """Return whether it answers and leads."""
        view = self.status()
        return view is not None and bool(view["leading"])

    def stop(self) -> None:
        """End it as a service manager does, and check its exit status.

        Raises:
            ChildFailed: it ended with a failure.
        """
        self.child.stop()
        if self.child.ended() not in (0, -15):
            raise ChildFailed(
                f"The {self.child.name} ended with status {self.child.ended()}; what it said is in "
                f"{self.child.log}."
            )


def start(
    children: Children, plan: DemoPlan, places: RunPaths, *, mode: str, plays_at: datetime
) -> DemoDaemon:
    """Write the settings, start the daemon and wait until it answers.

    Raises:
        ChildFailed: it ended, or did not lead in time.
    """
    places.folder.mkdir(parents=True, exist_ok=True)
    durable.write_text(places.config, settings_text(plan, places, mode=mode, plays_at=plays_at))
    name = places.folder.name
    child = children.start(
        f"daemon of the {name} run",
        [sys.executable, "-m", "wattmesh.controller.daemon", "--config", str(places.config)],
        log=places.logs / f"{name}-daemon.log",
        environment={},
    )
    daemon = DemoDaemon(child, places)
    wait_for(
        daemon.leads,
        limit_s=READY_LIMIT_S,
        what=f"The daemon of the {name} run to lead",
        needed=(child,),
    )
    return daemon


def _toml(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
