"""What a process finds around it: told on stderr, for test_forking.py."""

import atexit
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _outlive() -> None:
    threading.main_thread().join()
    _say("after main")


def main(arguments: Sequence[str] | None = None) -> int | None:
    """Tell it, and end as the first argument says.

    Args:
        arguments: first the exit status, where negative that of a signal; or "stay", for ever; or
            another way to end, with what an interpreter then does.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[0] == "stay":
        signal.pause()
    if given[0] == "nothing":
        return None
    if given[0] == "exit":
        sys.exit()
    if given[0] == "sentence":
        sys.exit("a sentence")
    if given[0] == "thread":
        threading.Thread(target=_outlive).start()
        return 0
    if given[0] == "atexit":
        atexit.register(_say, "at exit")
        return 0
    found = {
        "arguments": given,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "descriptors": sorted(
            int(each)
            for each in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{each}")
        ),
        "signals": {
            each.name: str(signal.getsignal(each)) for each in (signal.SIGTERM, signal.SIGINT)
        },
        "umask": Path("/proc/self/status").read_text().partition("Umask:")[2].split()[0],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }
    print(json.dumps(found), file=sys.stderr, flush=True)
    status = int(given[0])
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main())
