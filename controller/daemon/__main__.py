"""The daemon's process. What it does is in `wiring`; what it shares with an agent's, in `life`.

    python -m wattmesh.controller.daemon --config FILE

SIGHUP reloads the settings; kill -9 at any moment is safe, for everything that matters is in the
journal.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from wattmesh.controller.daemon.loop_bodies import remember
from wattmesh.controller.daemon.wiring import Parts
from wattmesh.controller.process.life import leave, live, serve
from wattmesh.controller.process.notify import Notifier
from wattmesh.controller.settings import read as reader
from wattmesh.errors import SettingsInvalid, WattmeshError

log = logging.getLogger("wattmesh")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one daemon; give the exit status."""

    def begin(path: Path) -> int:
        parts = Parts(reader.load(path), path)
        loop_facts, cycle, sampler = parts.loop_facts, parts.cycle, parts.sampler
        return serve(
            parts.start,
            parts.stop,
            [lambda: cycle.state.last_progress_s, lambda: sampler.state.last_progress_s],
            sentence=lambda: loop_facts.turned.report.sentence if loop_facts.turned else "",
            reload=lambda notifier: _reload(path, parts, notifier),
        )

    return live("wattmesh daemon", "Run the daemon in the foreground.", begin, arguments)


def _reload(path: Path, parts: Parts, notifier: Notifier) -> None:
    """Read the settings file again; a file with mistakes changes nothing."""
    notifier.reloading()
    loop_facts = parts.loop_facts
    try:
        log.info("%s", parts.reload(reader.load(path)))
        loop_facts.settings_trouble = ""
    except WattmeshError as error:
        log.error("the old settings stay in force: %s", error)
        loop_facts.settings_trouble = _why_not_reloaded(path, error)
        remember(parts.journal, loop_facts, "reload_refused", loop_facts.settings_trouble)
    notifier.ready()


def _why_not_reloaded(path: Path, error: WattmeshError) -> str:
    count = len(error.mistakes) if isinstance(error, SettingsInvalid) else 1
    mistakes = f"{count} mistake{'s' if count != 1 else ''}"
    return (
        f"The settings file {path} was not taken, it has {mistakes}, and the old settings stay in "
        f"force: run `wattmesh settings check {path}`, mend it, and reload again."
    )


if __name__ == "__main__":
    leave(main())
