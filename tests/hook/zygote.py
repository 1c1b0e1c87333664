"""Starts ranks by fork from one process that has imported torch, so a launch costs no import.

What torch imports or learns late (with the first optimizer, half a second of each rank) it has
done too (warm.py).

    python -m tests.hook.zygote      JSON lines in: {"id", "nproc", "environment", "out",
                                     "job", "hosts"?}, {"end": id} or {"load": module};
                                     out: {"id", "pids"}, {"id", "agents"}, {"id", "status"}

Each launch has its own agent process, which behaves like torchrun's: it hosts the store in a
process apart, ends the other ranks by SIGTERM when one fails, and by SIGKILL 30 s later. With
"hosts", the number of ranks on each of one or two, every host has an agent and none knows what
becomes of the other; SIGUSR1 to the first one's agent cuts the cable.
"""

import atexit
import faulthandler
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.onnx.operators
from torch._C._distributed_c10d import TCPStore

import tests.hook.tiny  # noqa: F401 - imported once here, for every rank
from tests.hook import hosts
from tests.hook.warm import warm
from wattmesh.reconfig.state.caches import MeshCaches

AGENT_PATIENCE_S = 30.0
"""torchrun's own, before it resorts to SIGKILL."""


def main() -> None:
    """Serve launches until stdin closes."""
    torch.set_num_threads(1)
    warm()
    _set_aside()
    agents: dict[int, int] = {}
    buffer = b""
    while True:
        ready, _, _ = select.select([0], [], [], 0.02 if agents else None)
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


def _set_aside() -> None:
    """Do here once what every child would do with what has been imported.

    A child has a copy of all the pages that it writes to: of those that a walk of the garbage
    collector marks, and of those that torch's libraries of operators are taken apart in at the end.
    """
    MeshCaches(gc_freeze=True)
    for each in vars(weakref.finalize)["_registry"]:
        each.atexit = False


def _serve(request: dict[str, Any], agents: dict[int, int]) -> None:
    if "load" in request:
        if request["load"] not in sys.modules:
            importlib.import_module(request["load"])
            _set_aside()
        return
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
    asked = _heed_term()
    if "hosts" in request:
        return _agent_of_hosts(request, asked)
    port, store = _fork_store("127.0.0.1")
    try:
        return _wait_for(_fork_ranks(range(request["nproc"]), port, request), request, asked)
    finally:
        _kill(store)


def _heed_term() -> list[int]:
    """Collect requests to end instead of ending."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    return asked


def _agent_of_hosts(request: dict[str, Any], asked: list[int]) -> int:
    """Be the agent of host 0, which has the store, and have another for host 1."""
    counts: list[int] = request["hosts"]
    hosts.become_user_of_hosts()
    hosts.become_host(0)
    signal.signal(signal.SIGUSR1, lambda number, frame: _cut_cable(request))
    other, tell = _fork_host(request, range(counts[0], sum(counts))) if counts[1:] else (0, -1)
    agents = {0: os.getpid()}
    if other:
        hosts.lay_cable(other)
        hosts.plug_in(0)
        agents[1] = other
    port, store = _fork_store("0.0.0.0")
    _say({"id": request["id"], "agents": agents})
    try:
        if other:
            os.write(tell, str(port).encode())
            os.close(tell)
        request["environment"] |= _reach(0) if other else {}
        code = _wait_for(_fork_ranks(range(counts[0]), port, request), request, asked)
        if other:
            code = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) or code
        return 1 if code else 0
    finally:
        _kill(store)


def _fork_host(request: dict[str, Any], ranks: range) -> tuple[int, int]:
    """Start the agent of host 1; gives its pid, once it is one, and where to write the port."""
    read, tell = os.pipe()
    ready, say_ready = os.pipe()

    def run() -> int:
        os.close(tell)
        hosts.become_host(1)
        os.write(say_ready, b"!")
        port = int(os.read(read, 16))
        hosts.plug_in(1)
        request["environment"] |= _reach(1)
        return _wait_for(_fork_ranks(ranks, port, request), request, _heed_term())

    pid = os.fork()
    if pid == 0:
        _child(run)
    os.close(read)
    os.close(say_ready)
    if os.read(ready, 1) != b"!":
        raise RuntimeError("host 1 did not come up")
    os.close(ready)
    return pid, tell


def _cut_cable(request: dict[str, Any]) -> None:
    hosts.cut_cable()
    (Path(request["out"]) / "cut").touch()


def _reach(host: int) -> dict[str, str]:
    """How ranks on `host` reach the store and each other."""
    return {
        "MASTER_ADDR": hosts.address(0),
        "GLOO_SOCKET_IFNAME": hosts.INTERFACE,
        "TEST_HOST": str(host),
    }


def _wait_for(ranks: dict[int, int], request: dict[str, Any], asked: list[int]) -> int:
    """Wait for ranks, by pid, to end; when one fails, or when asked to, end the others."""
    _say({"id": request["id"], "pids": {rank: pid for pid, rank in ranks.items()}})
    failed, ended_at = 0, None
    while ranks:
        for pid in list(ranks):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                with (Path(request["out"]) / f"rank-{ranks.pop(pid)}.log").open("a") as log:
                    log.write(f"(pid {pid} ended with {code})\n")
                failed = failed or code
        if (failed or asked) and ended_at is None:
            ended_at = time.monotonic()
            for pid in ranks:
                _signal(pid, signal.SIGTERM)
        if ended_at is not None and time.monotonic() - ended_at > AGENT_PATIENCE_S:
            for pid in ranks:
                _signal(pid, signal.SIGKILL)
        time.sleep(0.025)
    return 1 if failed else 0


def _fork_store(at: str) -> tuple[int, int]:
    """Host the launch's store in a process apart; gives its port and pid."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(lambda: _host_store(at, write))
    os.close(write)
    port = int(os.read(read, 16))
    os.close(read)
    return port, pid


def _host_store(at: str, write: int) -> int:
    store = TCPStore(at, 0, is_master=True, wait_for_workers=False)
    os.write(write, str(store.port).encode())
    while os.getppid() != 1:
        time.sleep(0.5)
    return 0


def _kill(store: int) -> None:
    _signal(store, signal.SIGKILL)
    os.waitpid(store, 0)


def _fork_ranks(numbers: range, port: int, request: dict[str, Any]) -> dict[int, int]:
    """Start ranks; gives their numbers by pid."""
    ranks = {}
    for rank in numbers:
        pid = os.fork()
        if pid == 0:
            _child(lambda rank=rank: _rank(rank, port, request))  # type: ignore[misc]
        ranks[pid] = rank
    return ranks


def _rank(rank: int, port: int, request: dict[str, Any]) -> int:
    """Become one rank of the job."""
    log = Path(request["out"]) / f"rank-{rank}.log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Whoever waits for a rank that hangs asks it where.
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(request["nproc"]),
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        **{"MASTER_ADDR": "127.0.0.1", **request["environment"]},
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
