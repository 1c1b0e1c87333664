"""An agent's life: start, signals, stop. What it does in between is in `parts`.

    python -m wattmesh.controller.agent --config FILE

SIGTERM and SIGINT stop it cleanly; kill -9 at any moment is safe, because what matters is in
the outbox. Exit status: 0 stopped, 1 failed (starting again may help), 2 settings or arguments that
a person must fix first.
"""

import gc
import logging
import signal
from collections.abc import Sequence
from pathlib import Path

from wattmesh.controller.agent.parts import AgentParts
from wattmesh.controller.process.life import STOPPING, WATCHED, leave, live
from wattmesh.controller.process.notify import Notifier, SystemdWatchdog
from wattmesh.controller.settings import read as reader

log = logging.getLogger("wattmesh")

TICK_S = 1.0


def run(parts: AgentParts, notifier: Notifier) -> int:
    """Start, work until told to stop, stop; give the exit status."""
    watchdog = SystemdWatchdog(notifier, [lambda: parts.sampler.state.last_progress_s])
    said = ""
    try:
        parts.start()
        notifier.ready()
        gc.collect()
        gc.freeze()
        while True:
            received = signal.sigtimedwait(WATCHED, TICK_S)
            if received is not None and received.si_signo in STOPPING:
                break
            if received is not None:
                log.warning("an agent takes new settings when it is restarted, which loses nothing")
            watchdog.feed()
            sentence = parts.sentence
            if sentence != said:
                said = sentence
                notifier.status(sentence)
    finally:
        notifier.stopping()
        parts.stop()
    log.info("stopped")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one agent; give the exit status."""

    def begin(path: Path) -> int:
        return run(AgentParts(reader.load(path)), Notifier())

    return live("wattmesh agent", "Run this node's agent in the foreground.", begin, arguments)


if __name__ == "__main__":
    leave(main())
