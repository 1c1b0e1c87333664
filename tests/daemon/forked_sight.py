"""What a process finds around it: told on stderr, for test_forking.py."""

import json
import os
import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Tell it, and end as the first argument says.

    Args:
        arguments: first the exit status, where negative that of a signal; or "stay", for ever.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[0] == "stay":
        signal.pause()
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
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }
    print(json.dumps(found), file=sys.stderr, flush=True)
    status = int(given[0])
    if status < 0:
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main())
