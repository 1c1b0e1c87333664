"""Two hosts that stand for as long as a test module needs them, and programs that run on them.

Unlike those of `tests/hook/hosts.py`, which a launch makes for itself, these outlive
supervisors that are killed.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.hook import hosts

REPOSITORY = Path(__file__).parents[2]
KINDS = ("user", "net", "uts")


class TwoHosts:
    """Hosts 0 and 1, each known by a process that lives there."""

    def __init__(self, pids: Sequence[int]) -> None:
        """Remember who lives where."""
        self.pids = pids

    def words(self, host: int, *words: str) -> list[str]:
        """Return the command line that runs words on a host."""
        target = f"--target={self.pids[host]}"
        # To enter the user namespace that one is in already is refused.
        user = () if _same("user", self.pids[host]) else ("--user", "--preserve-credentials")
        return ["nsenter", target, *user, "--net", "--uts", *words]

    def cable(self, host: int, state: str) -> None:
        """Take a host's end of the cable "up" or "down"."""
        subprocess.run(
            self.words(host, "/usr/sbin/ip", "link", "set", hosts.INTERFACE, state), check=True
        )


def _same(kind: str, pid: int) -> bool:
    return Path(f"/proc/{pid}/ns/{kind}").readlink() == Path(f"/proc/self/ns/{kind}").readlink()


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """Make two hosts; they vanish at the end of the block, or with this process."""
    words = [sys.executable, "-m", "tests.hosts.namespaces"]
    holder = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        told = holder.stdout.readline().split()
        assert len(told) == 2, "the two hosts were not made: see stderr, and scripts/system-deps"
        yield TwoHosts([int(each) for each in told])
    finally:
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()


def enter_those_of(pid: int) -> None:
    """Move this process, which has one thread, to where another one lives."""
    library = ctypes.CDLL(None, use_errno=True)
    for kind in KINDS:
        if not _same(kind, pid):
            descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
            if library.setns(descriptor, 0) != 0:
                raise OSError(ctypes.get_errno(), f"setns {kind} of {pid}")
            os.close(descriptor)


def main() -> int:
    """Hold the two hosts until stdin closes."""
    hosts.become_user_of_hosts()
    read, tell = os.pipe()
    plugged, say_plugged = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        hosts.become_host(1)
        os.write(tell, b"!")
        os.read(plugged, 1)
        hosts.plug_in(1)
        os.write(tell, b"!")
        os.read(0, 1)
        os._exit(0)
    os.close(tell)
    hosts.become_host(0)
    if os.read(read, 1) != b"!":
        return 1
    hosts.lay_cable(child)
    os.write(say_plugged, b"!")
    hosts.plug_in(0)
    if os.read(read, 1) != b"!":
        return 1
    print(os.getpid(), child, flush=True)
    os.read(0, 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
