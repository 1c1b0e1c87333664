"""Forks ranks from a process that has imported torch, each on the host of the task it stands for.

    python -m tests.hosts.ranks SOCKET    serves until stdin closes

Tasks are `tests/slurm/jobs/task.py`, as torchrun's agents start them.
"""

import socket
import struct
import sys

from tests.hosts.namespaces import enter_those_of
from tests.slurm.jobs import rank_server

_rank = rank_server._rank


def _on_its_host(task: socket.socket) -> int:
    told = task.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    enter_those_of(struct.unpack("3i", told)[0])
    return _rank(task)


if __name__ == "__main__":
    rank_server._rank = _on_its_host
    sys.exit(rank_server.main())
