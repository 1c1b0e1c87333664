"""Forks ranks from a process that has imported torch; a Slurm step's tasks stand for them.

    python -m tests.slurm.jobs.rank_server SOCKET    serves until stdin closes

A task sends its environment and forwards SIGTERM; the rank ends when its task does, however.
"""

import gc
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

from tests.hook.zygote import _child


def main() -> int:
    """Serve."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(sys.argv[1])
        server.listen(64)
        while True:
            task, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _child(lambda task=task: _rank(task))  # type: ignore[misc]
            task.close()


def _end_with_stdin() -> None:
    os.read(0, 1)
    os._exit(0)


def _rank(task: socket.socket) -> int:
    """Be the rank of a task, and tell it how that ended."""
    from tests.hook import tiny  # noqa: PLC0415 - imported by the parent already

    reader = task.makefile("rb")
    os.environ.clear()
    os.environ.update(json.loads(reader.readline()))
    log = os.open(
        Path(os.environ["RANK_LOGS"]) / f"rank-{os.environ['RANK']}.log",
        os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    )
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def heed_task() -> None:
        while word := reader.read(1):
            if word == b"T":
                os.kill(os.getpid(), signal.SIGTERM)
        os._exit(1)

    threading.Thread(target=heed_task, daemon=True).start()
    code = tiny.main()
    task.sendall(f"{code}\n".encode())
    return code


if __name__ == "__main__":
    sys.exit(main())
