"""What the daemon and the agents do alike from their start to their end.

SIGTERM and SIGINT stop a process cleanly. Exit status: 0 stopped, 1 failed (starting again may
help), 2 settings or arguments that a person must fix first.
"""

import argparse
import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from wattmesh.controller.process.notify import Notifier, SystemdWatchdog
from wattmesh.errors import FixInput, WattmeshError
from wattmesh.reconfig.ranges import clean_lines

STOPPING = frozenset({signal.SIGTERM, signal.SIGINT})
WATCHED = frozenset({*STOPPING, signal.SIGHUP})
"""Signals that our processes block, and wait for in their main thread."""

PR_SET_PDEATHSIG = 1
"""Linux, prctl(2)."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

TICK_S = 1.0

COLLECT_AFTER = 20_000
"""Objects allocated between two collections of the youngest generation.

One control cycle allocates a few thousand, without reference cycles.
"""

QUIET_LIBRARIES = ("apscheduler", "uvicorn", "urllib3", "asyncio")

log = logging.getLogger("wattmesh")


def boot_id() -> str:
    """Name this boot of this machine; "" where the kernel does not say."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def end_with(parent: int, number: signal.Signals) -> None:
    """Let the kernel send this process a signal when its parent ends; end now if it has ended.

    The parent's thread that started this process counts as the parent.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def live(
    name: str, description: str, run: Callable[[Path], int], arguments: Sequence[str] | None
) -> int:
    """Run a process from its command line to its end; give the exit status.

    Args:
        name: of the command.
        description: what it does, for its help.
        run: does the work, given the path of the settings, and gives the exit status.
        arguments: parsed instead of the command line.
    """
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("--config", metavar="FILE", type=Path, required=True)
    parser.add_argument("--debug", action="store_true", help="log more, with tracebacks")
    chosen = parser.parse_args(arguments)
    set_up_logging(debug=chosen.debug)
    # Blocked in every thread from here on, so that only the main one takes them; a signal that
    # comes during the start stays pending until the main thread waits for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    try:
        return run(chosen.config)
    except FixInput as error:
        return failed(error, 2, debug=chosen.debug)
    except WattmeshError as error:
        return failed(error, 1, debug=chosen.debug)


def serve(
    start: Callable[[], None],
    stop: Callable[[], None],
    progress: Sequence[Callable[[], float | None]],
    *,
    sentence: Callable[[], str],
    reload: Callable[[Notifier], None],
) -> int:
    """Start, serve until told to stop, stop; give the exit status.

    Args:
        start: starts all parts.
        stop: stops them, started or not.
        progress: the loops that the service manager's watchdog watches; see `SystemdWatchdog`.
        sentence: the line that the service manager shows, sent when it changed; "" for none.
        reload: what SIGHUP does.
    """
    notifier, said = Notifier(), ""
    watchdog = SystemdWatchdog(notifier, progress)
    try:
        start()
        notifier.ready()
        # Objects loaded at the start live as long as the process: no collection walks them.
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)
        while True:
            received = signal.sigtimedwait(WATCHED, TICK_S)
            if received is not None and received.si_signo in STOPPING:
                log.info("stopping: %s", signal.Signals(received.si_signo).name)
                break
            if received is not None:
                reload(notifier)
            watchdog.feed()
            newest = sentence()
            if newest and newest != said:
                said = newest
                notifier.status(newest)
    finally:
        notifier.stopping()
        stop()
    log.info("stopped")
    return 0


def set_up_logging(*, debug: bool) -> None:
    """Log to stderr, with timestamps only where systemd's journal does not add them."""
    times = "" if os.environ.get("JOURNAL_STREAM") else "%(asctime)s "
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(CleanFormatter(f"{times}%(levelname)s %(threadName)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler])
    for name in QUIET_LIBRARIES:
        # We count what they would log, or say it ourselves in one sentence.
        logging.getLogger(name).setLevel(logging.CRITICAL)


class CleanFormatter(logging.Formatter):
    """Removes terminal control characters; indents every line of a record after its first."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        return clean_lines(super().format(record)).replace("\n", "\n  ")


def failed(error: Exception, status: int, *, debug: bool) -> int:
    """Say in one sentence why the process ends; give its exit status."""
    print(f"wattmesh: {clean_lines(str(error))}", file=sys.stderr)
    if debug:
        log.exception("the traceback")
    return status


def leave(status: int) -> NoReturn:
    """End the process now, without waiting for threads that hang: those only fetch."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)
