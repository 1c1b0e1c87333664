"""A task of a Slurm step that stands for a rank of the rank server.

python task.py SOCKET
"""

import json
import os
import signal
import socket
import sys
from types import FrameType


def main() -> int:
    """Have the rank forked, and end as it does."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(sys.argv[1])
        server.sendall(json.dumps(dict(os.environ)).encode() + b"\n")

        def forward(number: int, frame: FrameType | None) -> None:
            server.sendall(b"T")

        signal.signal(signal.SIGTERM, forward)
        told = server.makefile("rb").readline()
    return int(told) if told else 1


if __name__ == "__main__":
    sys.exit(main())
