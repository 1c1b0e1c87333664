"""Hosts for tests: namespaces of this machine that share a disk and a cable, and nothing else.

Each has its own network, hostname and /dev/shm. Two are joined by a pair of virtual interfaces
that the tests may take down. Needs no privilege where users may make user namespaces; as root it
does without.

Invariant: everything here vanishes with the last process inside.
"""

import ctypes
import os
import shutil
import socket
import subprocess
from pathlib import Path

INTERFACE = "wm0"
"""What every host calls its end of the cable."""

# From linux/sched.h and linux/mount.h.
_NEW_MOUNTS, _NEW_HOSTNAME, _NEW_USER, _NEW_NETWORK = 0x20000, 0x4000000, 0x10000000, 0x40000000
_PRIVATE = 0x4000 | 0x40000

_libc = ctypes.CDLL(None, use_errno=True)


def address(host: int) -> str:
    """The address of host number `host` on the cable."""
    return f"10.213.0.{host + 1}"


def become_user_of_hosts() -> None:
    """Gain the right to make hosts: a user namespace of our own; a process with one thread only."""
    user, group = os.getuid(), os.getgid()
    try:
        _unshare(_NEW_USER)
    except OSError:
        if user == 0:
            return
        raise
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def become_host(host: int) -> None:
    """Move this process, and what it forks from now on, to a host of its own."""
    _unshare(_NEW_NETWORK | _NEW_MOUNTS | _NEW_HOSTNAME)
    socket.sethostname(f"host-{host}")
    _mount(None, "/", None, _PRIVATE)
    _mount("tmpfs", "/dev/shm", "tmpfs", 0)
    _ip("link", "set", "lo", "up")


def lay_cable(to: int) -> None:
    """Join this host with the one that process `to` lives in; both then `plug_in`."""
    _ip("link", "add", INTERFACE, "type", "veth", "peer", "name", INTERFACE, "netns", str(to))


def plug_in(host: int) -> None:
    """Give this host its address on the cable."""
    _ip("addr", "add", f"{address(host)}/24", "dev", INTERFACE)
    _ip("link", "set", INTERFACE, "up")


def cut_cable() -> None:
    """Take this host's end down: packets vanish, and nobody is told."""
    _ip("link", "set", INTERFACE, "down")


def _unshare(what: int) -> None:
    if _libc.unshare(what) != 0:
        error = ctypes.get_errno()
        raise OSError(
            error,
            f"unshare({what:#x}): {os.strerror(error)}; the tests of two hosts need root, or user "
            "namespaces (sysctl user.max_user_namespaces, "
            "kernel.apparmor_restrict_unprivileged_userns)",
        )


def _mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else value.encode()

    if _libc.mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), None) != 0:
        raise OSError(ctypes.get_errno(), f"mount on {target}")


def _ip(*arguments: str) -> None:
    # Where users do not look for programs, but may run this one.
    program = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise FileNotFoundError("ip (package iproute2) is not installed: see scripts/system-deps")
    subprocess.run([program, *arguments], check=True)
