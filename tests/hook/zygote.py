"""Starts ranks by fork from one process that has imported torch, so a launch costs no import.

    python -m tests.hook.zygote      JSON lines in: {"id", "nproc", "environment", "out",
                                     "job"} or {"end": id}; out: {"id", "pids"}, {"id", "status"}

Each launch has its own agent process, which behaves like torchrun's: it hosts the store in a
process apart, ends the other ranks by SIGTERM when one fails, and by SIGKILL 30 s later.
"""

import atexit
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

import tests.hook.tiny  # noqa: F401 - imported once here, for every rank

AGENT_PATIENCE_S = 30.0
"""torchrun's own, before it resorts to SIGKILL."""


def main() -> None:
    """Serve launches until stdin closes."""
    agents: dict[int, int] = {}
    buffer = b""
    while True:
        ready, _, _ = select.select([0], [], [], 0.02)
        if ready:
            chunk = os.read(0, 1 << 16)
            if not chunk:
                break
            buffer += chunk
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                _serve(json.loads(line), agents)
        _reap(agents)
    for pid in agents:
        _signal(pid, signal.SIGTERM)


def _serve(request: dict[str, Any], agents: dict[int, int]) -> None:
    if "end" in request:
        for pid, number in agents.items():
            if number == request["end"]:
                _signal(pid, signal.SIGTERM)
        return
    pid = os.fork()
    if pid == 0:
        _child(lambda: _agent(request))
    agents[pid] = request["id"]


def _reap(agents: dict[int, int]) -> None:
    for pid in list(agents):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            _say({"id": agents.pop(pid), "status": os.waitstatus_to_exitcode(status)})


def _agent(request: dict[str, Any]) -> int:
    """Start the ranks of one launch and wait for them, as torchrun's agent does."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    port, store = _fork_store()
    ranks = {_fork_rank(rank, port, request): rank for rank in range(request["nproc"])}
    _say({"id": request["id"], "pids": {rank: pid for pid, rank in ranks.items()}})
    failed, ended_at = 0, None
    while ranks:
        done, status = os.waitpid(-1, os.WNOHANG)
        if done in ranks:
            code = os.waitstatus_to_exitcode(status)
            ranks.pop(done)
            failed = failed or code
        if (failed or asked) and ended_at is None:
            ended_at = time.monotonic()
            for pid in ranks:
                _signal(pid, signal.SIGTERM)
        if ended_at is not None and time.monotonic() - ended_at > AGENT_PATIENCE_S:
            for pid in ranks:
                _signal(pid, signal.SIGKILL)
        time.sleep(0.01)
    _signal(store, signal.SIGKILL)
    os.waitpid(store, 0)
    return 1 if failed else 0


def _fork_store() -> tuple[int, int]:
    """Host the launch's store in a process apart; gives its port and pid."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(lambda: _host_store(write))
    os.close(write)
    port = int(os.read(read, 16))
    os.close(read)
    return port, pid


def _host_store(write: int) -> int:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(write, str(store.port).encode())
    while os.getppid() != 1:
        time.sleep(0.5)
    return 0


def _fork_rank(rank: int, port: int, request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _child(lambda: _rank(rank, port, request))
    return pid


def _rank(rank: int, port: int, request: dict[str, Any]) -> int:
    """Become one rank of the job."""
    log = Path(request["out"]) / f"rank-{rank}.log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(request["nproc"]),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        **request["environment"],
    )
    module, _, function = request["job"].partition(":")
    act: Callable[[], int] = getattr(importlib.import_module(module), function)
    return act()


def _child(act: Callable[[], int]) -> None:
    """Run `act` in a forked child and end it as an interpreter would."""
    code = 1
    try:
        code = act()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        traceback.print_exc()
        sys.last_value = error
    with suppress(BaseException):
        atexit._run_exitfuncs()
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _say(message: dict[str, Any]) -> None:
    os.write(1, (json.dumps(message) + "\n").encode())


if __name__ == "__main__":
    main()
