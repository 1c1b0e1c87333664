"""The API's answers without a daemon: its own handlers, over a journal that nobody writes.

For looking back at a run whose daemon is gone (the demo's, a copy from another machine).
Invariant: it only reads, and gives the same JSON as the daemon would.
"""

import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from wattmesh.controller.api.handlers import reading, reports
from wattmesh.controller.api.request_context import Call, RequestContext
from wattmesh.controller.api.transport.peers import PeerIdentity
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.process.change_signal import ChangeSignal
from wattmesh.controller.process.loops import Clock
from wattmesh.controller.settings import read as reader
from wattmesh.controller.settings.journal_address import journal_url
from wattmesh.controller.signals.grid import grid
from wattmesh.controller.views import as_json
from wattmesh.errors import InputInvalid

Handler = Callable[[RequestContext, Call], Any]

HANDLERS: tuple[tuple[str, Handler], ...] = (
    (r"/v1/runs", reading.runs),
    (r"/v1/runs/(?P<run>[^/]+)", reading.run),
    (r"/v1/runs/(?P<run>[^/]+)/why", reading.why),
    (r"/v1/runs/(?P<run>[^/]+)/audit", reading.audit),
    (r"/v1/runs/(?P<run>[^/]+)/report", reports.one_run),
    (r"/v1/decisions", reading.decisions),
    (r"/v1/budget", reading.budget),
    (r"/v1/report", reports.month),
    (r"/v1/carbon/history", reading.carbon_history),
    (r"/v1/carbon/forecast", reading.carbon_forecast),
)


class JournalAnswers:
    """Answers like a daemon, from the journal that a settings file names."""

    def __init__(self, config: Path) -> None:
        """Open the journal.

        Raises:
            SettingsInvalid: the settings have mistakes.
            JournalUnavailable: the journal cannot be read.
        """
        settings = reader.load(config, by_a_person=True)
        loop_facts = LoopFacts(
            clock=Clock(),
            settings=settings,
            started_s=time.monotonic(),
            settings_path=str(config),
            signals=grid(settings, datetime.now(UTC)).signals,
        )
        self._context = RequestContext(
            journal=Journal.open(journal_url(settings)),
            loop_facts=loop_facts,
            changes=ChangeSignal(),
            plan_for=lambda _: RunPlan(),
            wake=lambda: None,
        )

    def get(self, path: str, **query: object) -> Any:
        """Read one answer; see `DaemonConnection.get`.

        Raises:
            InputInvalid: only a daemon can answer that.
            WattmeshError: as the daemon would say.
        """
        for pattern, handler in HANDLERS:
            found = re.fullmatch(pattern, path)
            if found is not None:
                parts = {key: unquote(value) for key, value in found.groupdict().items()}
                return as_json(handler(self._context, _call(parts, query)))
        raise InputInvalid(f"{path} needs a daemon; leave --offline out.")


def _call(path: dict[str, str], query: dict[str, object]) -> Call:
    """Make the request that a daemon would have received from this user."""
    return Call(
        peer=PeerIdentity(uid=os.getuid(), groups=frozenset()),
        path=path,
        query={key: str(value) for key, value in query.items() if value is not None},
        body={},
    )
