"""The daemon's life: start, signals, reload, stop. What it does in between is in `wiring`.

    python -m wattmesh.controller.daemon --config FILE

SIGTERM and SIGINT stop it cleanly, SIGHUP reloads the settings; kill -9 at any moment is safe, for
everything that matters is in the journal. Exit status: 0 stopped, 1 failed (starting again may
help), 2 settings or arguments that a person must mend first.
"""

import gc
import logging
import signal
from collections.abc import Sequence
from pathlib import Path

from wattmesh.controller.daemon.loop_bodies import remember
from wattmesh.controller.daemon.wiring import Parts
from wattmesh.controller.process.life import STOPPING, WATCHED, leave, live
from wattmesh.controller.process.notify import Notifier, SystemdWatchdog
from wattmesh.controller.settings import read as reader
from wattmesh.errors import SettingsInvalid, WattmeshError

log = logging.getLogger("wattmesh")

TICK_S = 1.0

COLLECT_AFTER = 20_000
"""Objects allocated between two collections of the youngest generation.

One control cycle allocates a few thousand, without reference cycles.
"""


class DaemonLifecycle:
    """One process from its first signal to its last."""

    def __init__(self, path: Path, parts: Parts, notifier: Notifier) -> None:
        """Take parts that are not started yet."""
        self._path = path
        self._parts = parts
        self._notifier = notifier
        self._watchdog = SystemdWatchdog(
            notifier,
            [
                lambda: parts.cycle.state.last_progress_s,
                lambda: parts.sampler.state.last_progress_s,
            ],
        )
        self._said = ""

    def run(self) -> int:
        """Start, serve until told to stop, stop; give the exit status."""
        try:
            self._parts.start()
            self._notifier.ready()
            # Objects loaded at the start live as long as the process: no collection walks them.
            gc.collect()
            gc.freeze()
            gc.set_threshold(COLLECT_AFTER)
            self._serve()
        finally:
            self._notifier.stopping()
            self._parts.stop()
        log.info("stopped")
        return 0

    def _serve(self) -> None:
        """Wait for signals; report to the service manager every `TICK_S`."""
        while True:
            received = signal.sigtimedwait(WATCHED, TICK_S)
            if received is not None and received.si_signo in STOPPING:
                log.info("stopping: %s", signal.Signals(received.si_signo).name)
                return
            if received is not None:
                self._reload()
            self._tell()

    def _tell(self) -> None:
        """Feed the watchdog; send the newest cycle's sentence when it changed."""
        self._watchdog.feed()
        turned = self._parts.pulse.turned
        sentence = turned.report.sentence if turned else ""
        if sentence and sentence != self._said:
            self._said = sentence
            self._notifier.status(sentence)

    def _reload(self) -> None:
        """Read the settings file again; a file with mistakes changes nothing."""
        self._notifier.reloading()
        pulse = self._parts.pulse
        try:
            log.info("%s", self._parts.reload(reader.load(self._path)))
            pulse.settings_trouble = ""
        except WattmeshError as error:
            log.error("the old settings stay in force: %s", error)
            pulse.settings_trouble = _not_taken(self._path, error)
            remember(self._parts.journal, pulse, "reload_refused", pulse.settings_trouble)
        self._notifier.ready()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one daemon; give the exit status."""

    def run(path: Path) -> int:
        return DaemonLifecycle(path, Parts(reader.load(path), path), Notifier()).run()

    return live("wattmesh daemon", "Run the daemon in the foreground.", run, arguments)


def _not_taken(path: Path, error: WattmeshError) -> str:
    """Say why a reload was refused, and what to do."""
    count = len(error.mistakes) if isinstance(error, SettingsInvalid) else 1
    mistakes = f"{count} mistake{'s' if count != 1 else ''}"
    return (
        f"The settings file {path} was not taken, it has {mistakes}, and the old settings stay in "
        f"force: run `wattmesh settings check {path}`, mend it, and reload again."
    )


if __name__ == "__main__":
    leave(main())
