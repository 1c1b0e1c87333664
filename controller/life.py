"""What every process of ours does at its start and at its end, the daemon and the agents alike."""

import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

QUIET_LIBRARIES = ("apscheduler", "uvicorn", "urllib3", "asyncio")

log = logging.getLogger("wattmesh")


def boot_id() -> str:
    """Name this boot of this machine; "" where the kernel does not say."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def set_up_logging(*, debug: bool) -> None:
    """Log to stderr: with times of our own only where no journal adds them."""
    times = "" if os.environ.get("JOURNAL_STREAM") else "%(asctime)s "
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.INFO,
        format=f"{times}%(levelname)s %(threadName)s: %(message)s",
        stream=sys.stderr,
    )
    for name in QUIET_LIBRARIES:
        # What they would say is counted, or said by us in one sentence.
        logging.getLogger(name).setLevel(logging.CRITICAL)


def failed(error: Exception, status: int, *, debug: bool) -> int:
    """Say in one sentence why the process ends; give its exit status."""
    print(f"wattmesh: {error}", file=sys.stderr)
    if debug:
        log.exception("the traceback")
    return status


def leave(status: int) -> NoReturn:
    """End the process now: a call that hangs in a thread is not waited for, it only fetches."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)
