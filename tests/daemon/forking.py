"""Starts our processes by fork from one that has imported them: each import takes a CPU second.

    started = start("wattmesh.controller.daemon", "--config", path, log=file)

Every worker of a test run has one such forking process, which ends with it. Invariant: a process
that was started so has the environment, folder, file mode mask and arguments that a new interpreter
would have, no descriptor of any other, and ends as its module and the interpreter end it.
"""

import ast
import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import IO, Any, NoReturn

LONGEST = 1 << 20
"""The most bytes of a request, which holds an environment."""

LOST = -signal.SIGKILL
"""The status of a process whose parent, the forking process, was killed."""


class Started:
    """A process that was started; what tests use of `subprocess.Popen`."""

    def __init__(self, told: int) -> None:
        """Read the process's id from a pipe into which its end will be written."""
        self._told = os.fdopen(told, "rb", buffering=0)
        self._lock = threading.Lock()
        self.returncode: int | None = None
        self.pid = int(self._line())

    def poll(self) -> int | None:
        """Give the exit status; None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; give the exit status.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout_s: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._told], [], [], timeout_s)[0]:
                line = self._line()
                self.returncode = int(line) if line else LOST
                self._told.close()
            return self.returncode

    def _line(self) -> bytes:
        line = bytearray()
        while not line.endswith(b"\n"):
            byte = self._told.read(1)
            if not byte:
                break
            line += byte
        return bytes(line)


def start(
    module: str, *arguments: str, log: IO[bytes], environment: Mapping[str, str] | None = None
) -> Started:
    """Start `python -m module arguments`.

    Args:
        module: one that ends in `if __name__ == "__main__":`, or a package whose `__main__` does.
        arguments: of its command line.
        log: takes its stderr.
        environment: all of it; default ours.
    """
    request = {
        "module": module,
        "arguments": arguments,
        "environment": dict(os.environ if environment is None else environment),
        "folder": os.getcwd(),
        "umask": _umask(),
    }
    told, tell = os.pipe()
    try:
        with _LOCK:
            socket.send_fds(_forker(), [json.dumps(request).encode()], [log.fileno(), tell])
    finally:
        os.close(tell)
    return Started(told)


def start_anew(
    module: str, *arguments: str, log: IO[bytes], environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start the same in a new interpreter, which imports everything."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, stderr=log, env=environment)


Process = Started | subprocess.Popen[bytes]

_LOCK = threading.Lock()


@cache
def _forker() -> socket.socket:
    """Start this worker's forking process; it ends when the socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )

    def end() -> None:
        ours.close()
        process.wait(30.0)

    atexit.register(end)
    return ours


def _umask() -> int:
    """Read ours; os.umask() would change it for a moment, for every thread."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("Umask:")[2].split()[0], 8)


def main(descriptor: int) -> None:
    """Serve requests until the socket is closed."""
    asked = _serve(descriptor)
    if asked is not None:  # in a child
        _become(*asked)


def _serve(descriptor: int) -> tuple[ModuleType, CodeType, Mapping[str, Any], int] | None:
    """Return None when the socket is closed; in each child, what it shall be, and its log."""
    control = socket.socket(fileno=descriptor)
    children: dict[int, tuple[int, int]] = {}  # by pidfd: pid, and where its end is told
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready in children:
                poll.unregister(ready)
                _reap(ready, *children.pop(ready))
                continue
            line, descriptors, *_ = socket.recv_fds(control, LONGEST, 2)
            if not line:
                return None
            log, tell = descriptors
            request = json.loads(line)
            module, program = _imported(request["module"])
            pid = os.fork()
            if pid == 0:
                control.detach()
                return module, program, request, log
            os.close(log)
            os.write(tell, b"%d\n" % pid)
            pidfd = os.pidfd_open(pid)
            children[pidfd] = (pid, tell)
            poll.register(pidfd, select.POLLIN)


@cache
def _imported(name: str) -> tuple[ModuleType, CodeType]:
    """Import a module, and give it with what it does as a program.

    No collection in a child shall walk, and copy, what came with it.
    """
    module = importlib.import_module(name)
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{name}.__main__")
    assert threading.active_count() == 1, f"{name} starts a thread when it is imported"
    program = _program(module)
    gc.collect()
    gc.freeze()
    return module, program


def _program(module: ModuleType) -> CodeType:
    """Compile what stands under `if __name__ == "__main__":`, which also says how to end."""
    path = str(module.__file__)
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    (block,) = (
        node.body
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
    )
    return compile(ast.Module(body=block, type_ignores=[]), path, "exec")


def _reap(pidfd: int, pid: int, tell: int) -> None:
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(tell, b"%d\n" % os.waitstatus_to_exitcode(status))
    os.close(tell)
    os.close(pidfd)


def _become(
    module: ModuleType, program: CodeType, request: Mapping[str, Any], log: int
) -> NoReturn:
    """Be the process that was asked for; what it raises, and its end, are the interpreter's."""
    os.dup2(log, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.argv = [str(module.__file__), *request["arguments"]]
    exec(program, vars(module))
    sys.exit()


if __name__ == "__main__":
    main(int(sys.argv[1]))
