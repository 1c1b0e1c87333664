"""What every process of ours does at its start and at its end, the daemon and the agents alike."""

import argparse
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from wattmesh.errors import FixInput, WattmeshError
from wattmesh.reconfig.ranges import clean_lines

STOPPING = frozenset({signal.SIGTERM, signal.SIGINT})
WATCHED = frozenset({*STOPPING, signal.SIGHUP})
"""Signals that a process of ours waits for itself."""

PR_SET_PDEATHSIG = 1
"""Linux, prctl(2)."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

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
        run: the whole life, from the path of the settings.
        arguments: instead of the command line.
    """
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("--config", metavar="FILE", type=Path, required=True)
    parser.add_argument("--debug", action="store_true", help="log more, with tracebacks")
    chosen = parser.parse_args(arguments)
    set_up_logging(debug=chosen.debug)
    # In every thread from here on, so that only the main one takes them; one that comes during the
    # start waits until then.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    try:
        return run(chosen.config)
    except FixInput as error:
        return failed(error, 2, debug=chosen.debug)
    except WattmeshError as error:
        return failed(error, 1, debug=chosen.debug)


def set_up_logging(*, debug: bool) -> None:
    """Log to stderr: with times of our own only where no journal adds them."""
    times = "" if os.environ.get("JOURNAL_STREAM") else "%(asctime)s "
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(CleanFormatter(f"{times}%(levelname)s %(threadName)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler])
    for name in QUIET_LIBRARIES:
        # What they would say is counted, or said by us in one sentence.
        logging.getLogger(name).setLevel(logging.CRITICAL)


class CleanFormatter(logging.Formatter):
    """Writes no character that a terminal obeys; what is no first line of ours is indented."""

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
    """End the process now: a call that hangs in a thread is not waited for, it only fetches."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)
