"""An agent's life: start, signals, stop. What it does in between is in `parts`.

    python -m wattmesh.controller.agent --config FILE

SIGTERM and SIGINT stop it cleanly; kill -9 at any moment is safe, for everything that matters is in
the outbox. Exit status: 0 stopped, 1 failed (starting again may help), 2 settings or arguments that
a person must mend first.
"""

import argparse
import gc
import logging
import signal
from collections.abc import Sequence
from pathlib import Path

from wattmesh.controller import settings as reader
from wattmesh.controller.agent.parts import AgentParts
from wattmesh.controller.life import failed, leave, set_up_logging
from wattmesh.controller.notify import Notifier, Watchdog
from wattmesh.errors import FixInput, WattmeshError

log = logging.getLogger("wattmesh")

STOPPING = frozenset({signal.SIGTERM, signal.SIGINT})
WATCHED = frozenset({*STOPPING, signal.SIGHUP})
TICK_S = 1.0


def run(parts: AgentParts, notifier: Notifier) -> int:
    """Start, work until told to stop, stop; give the exit status."""
    watchdog = Watchdog(notifier, [lambda: parts.sampler.state.last_progress_s])
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
    parser = argparse.ArgumentParser(
        prog="wattmesh agent", description="Run this node's agent in the foreground."
    )
    parser.add_argument("--config", metavar="FILE", type=Path, required=True)
    parser.add_argument("--debug", action="store_true", help="log more, with tracebacks")
    chosen = parser.parse_args(arguments)
    set_up_logging(debug=chosen.debug)
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    try:
        return run(AgentParts(reader.load(chosen.config)), Notifier())
    except FixInput as error:
        return failed(error, 2, debug=chosen.debug)
    except WattmeshError as error:
        return failed(error, 1, debug=chosen.debug)


if __name__ == "__main__":
    leave(main())
