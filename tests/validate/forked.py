"""Launches a job's ranks by fork from the process that has imported torch, not by torchrun.

`Forked` is a `JobLauncher`: its words start this file as a small program, which has the ranks
forked and lives as long as they do. What is not under test, the import of torch, is then paid once.
"""

import json
import os
import signal
import socket
import socketserver
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from tests.hook.harness import Zygote
    from wattmesh.controller.profile.job import ProfileJob

SAID = ("WATTMESH_", "TRAINED_", "OMP_")
"""How the names of variables begin that a launch passes on to its ranks."""


class Forked:
    """A launcher; a context manager.

    Attributes:
        started: how many launches there were.
    """

    def __init__(self, zygote: "Zygote", folder: Path, entry: str) -> None:
        """Serve in `folder`, whose path is short; `entry` is the job's module:function."""
        self.zygote, self.folder, self.entry = zygote, folder, entry
        self.path = folder / "f.sock"
        self.started = 0
        self._server = _Server(str(self.path), _Handler)
        self._server.forked = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        """Serve."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def with_variables(self, **variables: str) -> "ForkedWith":
        """Return the launcher with variables for the ranks."""
        return ForkedWith(self, variables)

    def __call__(self, job: "ProfileJob", command: Sequence[str]) -> Sequence[str]:
        """Give the words."""
        return self.with_variables()(job, command)


class ForkedWith:
    """The launcher with variables of its own for the ranks."""

    def __init__(self, forked: Forked, variables: Mapping[str, str]) -> None:
        """Take the variables."""
        self._forked, self._variables = forked, variables

    def __call__(self, job: "ProfileJob", command: Sequence[str]) -> Sequence[str]:
        """Give the words."""
        told = [f"{name}={value}" for name, value in self._variables.items()]
        number = str(job.processes)
        return ["env", *told, sys.executable, "-S", __file__, str(self._forked.path), number]


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    forked: Forked


class _Handler(socketserver.StreamRequestHandler):
    """One launch: a line in, its exit status out; ended when the caller goes away."""

    server: _Server

    def handle(self) -> None:
        """Start the ranks and wait for them."""
        forked = self.server.forked
        request = json.loads(self.rfile.readline())
        out = Path(request["out"])
        forked.started += 1
        number = forked.zygote.start(request["nproc"], request["environment"], out, forked.entry)
        threading.Thread(target=self._end_with_caller, args=(number,), daemon=True).start()
        status = forked.zygote.wait(number, 300.0)
        self.wfile.write(f"{status}\n".encode())

    def _end_with_caller(self, number: int) -> None:
        self.rfile.read()
        self.server.forked.zygote.end(number)


def main() -> int:
    """Ask for the ranks, wait for them, and say what they said."""
    path, nproc = sys.argv[1:]
    out = Path(os.environ["WATTMESH_PROFILE"])
    for old in out.glob("rank-*.log"):
        old.unlink()

    def end(number: int, frame: FrameType | None) -> None:
        server.shutdown(socket.SHUT_WR)

    signal.signal(signal.SIGTERM, end)
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        told = {name: value for name, value in os.environ.items() if name.startswith(SAID)}
        request = {"nproc": int(nproc), "environment": told, "out": str(out)}
        server.sendall(json.dumps(request).encode() + b"\n")
        answer = server.makefile("rb").readline()
    for each in sorted(out.glob("rank-*.log")):
        sys.stdout.write(each.read_text())
    return int(answer or 1)


if __name__ == "__main__":
    sys.exit(main())
