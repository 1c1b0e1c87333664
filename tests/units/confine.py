"""Become what a unit describes, then the service: `python confine.py SPEC`, SPEC a file of JSON.

What systemd does between fork and exec, in its order: folders, limits, capabilities, user, filters.
The filters are made by libseccomp, as systemd makes them, and stay over exec. Stdlib only.
"""

import ctypes
import errno
import json
import os
import resource
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

NEW_NAMESPACE, NEW_NET = 0x00020000, 0x40000000
BIND, RECURSIVE, PRIVATE = 0x1000, 0x4000, 1 << 18
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, READ_ONLY = 442, -100, 0x8000, 1
CAPBSET_DROP, NO_NEW_PRIVS, HIGHEST_CAPABILITY = 24, 38, 40

ALLOW, KILL = 0x7FFF0000, 0x80000000
NE, GT, EQ, MASKED = 1, 6, 4, 7

NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
"""CLONE_NEWNS and its like (linux/sched.h)."""

SETID = (0o4000, 0o2000)
ORDINARY = (0, 3, 5)
"""SCHED_OTHER, SCHED_BATCH, SCHED_IDLE."""

HIGHEST_FAMILY = 46

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    """struct mount_attr (linux/mount.h)."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns"))


class _Compare(ctypes.Structure):
    """struct scmp_arg_cmp (seccomp_rule_add(3))."""

    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("one", ctypes.c_uint64),
        ("two", ctypes.c_uint64),
    )


def main() -> None:
    """Do it all; does not return."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    _folders(spec)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spec["nofile"], spec["nofile"]))
    os.umask(spec["umask"])
    for number in range(HIGHEST_CAPABILITY + 1):
        if number not in spec["capabilities"]:
            _call(_libc.prctl, CAPBSET_DROP, number, 0, 0, 0)
    os.setgroups(spec["groups"])
    os.setresgid(*[spec["gid"]] * 3)
    os.setresuid(*[spec["uid"]] * 3)
    if spec["no_new_privs"]:
        _call(_libc.prctl, NO_NEW_PRIVS, 1, 0, 0, 0)
    _filters(spec)
    os.execve(spec["command"][0], spec["command"], spec["environment"])


def _folders(spec: Mapping[str, Any]) -> None:
    """Give the process its own view of the machine: its users, its folders, the rest read-only."""
    _call(_libc.unshare, NEW_NAMESPACE | (NEW_NET if spec["no_network"] else 0))
    _mount("none", "/", RECURSIVE | PRIVATE)
    _let_through(spec["needed"])
    for source, target in spec["binds"]:
        _mount(source, target, BIND)
    if spec["strict"]:
        _writable("/", False)
        # What systemd leaves: devices and kernel files, and the service's own folders.
        for path in ("/dev", "/proc", "/sys"):
            _writable(path, True)
        for path in spec["own"]:
            _mount(path, path, BIND)
            _writable(path, True)


def _let_through(paths: Iterable[str]) -> None:
    """Let every user reach folders that lie in a closed one (root's home, say)."""
    held = {}
    for path in paths:
        above = [str(each) for each in reversed(Path(path).parents) if not each.stat().st_mode & 1]
        if above:
            held[path] = os.open(path, os.O_PATH), above[0]
    for closed in {closed for _, closed in held.values()}:
        _mount("none", closed, 0, kind=b"tmpfs", data=b"mode=0755")
    for path, (source, _) in held.items():
        os.makedirs(path, exist_ok=True)
        _mount(f"/proc/self/fd/{source}", path, BIND)
        os.close(source)


def _mount(
    source: str, target: str, flags: int, *, kind: bytes | None = None, data: bytes | None = None
) -> None:
    paths = os.fsencode(source), os.fsencode(target)
    _call(_libc.mount, *paths, kind, ctypes.c_ulong(flags), data)


def _writable(path: str, writable: bool) -> None:
    """Change whether all below a mount point may be written."""
    wish = _Attributes(0 if writable else READ_ONLY, READ_ONLY if writable else 0, 0, 0)
    arguments = (AT_FDCWD, os.fsencode(path), AT_RECURSIVE, ctypes.byref(wish), 32)
    _call(_libc.syscall, SYS_MOUNT_SETATTR, *arguments)


def _call(function: Callable[..., int], *arguments: object) -> None:
    """Call the C library; fail loudly."""
    if function(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function.__name__}{arguments}: {os.strerror(number)}")


class _Filter:
    """One seccomp filter: what to do by default, and rules."""

    def __init__(self, default: int) -> None:
        self._library = ctypes.CDLL("libseccomp.so.2")
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._library.seccomp_init(ctypes.c_uint32(default)))

    def rule(self, action: int, call: str, *compares: tuple[int, int, int, int]) -> None:
        """Add a rule; a call that this machine does not have needs none."""
        number = self._library.seccomp_syscall_resolve_name(call.encode())
        if number < 0:
            return
        many = (_Compare * len(compares))(*(_Compare(*each) for each in compares))
        done = self._library.seccomp_rule_add_array(
            self._context, ctypes.c_uint32(action), number, len(compares), many
        )
        if done < 0:
            raise OSError(-done, f"no rule for {call}: {os.strerror(-done)}")

    def load(self) -> None:
        """Put it in force."""
        done = self._library.seccomp_load(self._context)
        if done < 0:
            raise OSError(-done, f"no filter: {os.strerror(-done)}")


def _refuse(number: int) -> int:
    """What a filter does to a call that shall fail with an errno."""
    return 0x00050000 | number


def _filters(spec: Mapping[str, Any]) -> None:
    """Put every filter in force, that of all calls last: it may take seccomp(2) away."""
    denied = _refuse(errno.EPERM)
    restrictions: dict[str, Callable[[_Filter], None]] = {
        "LockPersonality": lambda each: each.rule(denied, "personality", (0, NE, 0, 0)),
        "ProtectHostname": lambda each: _all(each, denied, ("sethostname", "setdomainname")),
        "ProtectKernelLogs": lambda each: _all(each, denied, ("syslog",)),
        "RestrictNamespaces": lambda each: _namespaces(each, denied),
        "RestrictRealtime": lambda each: _realtime(each, denied),
        "RestrictSUIDSGID": lambda each: _setid(each, denied),
    }
    for name in spec["restrictions"]:
        made = _Filter(ALLOW)
        restrictions[name](made)
        made.load()
    if spec["denied"]:
        made = _Filter(ALLOW)
        _all(made, denied, spec["denied"])
        made.load()
    if spec["families"]:
        made = _Filter(ALLOW)
        unknown = _refuse(errno.EAFNOSUPPORT)
        made.rule(unknown, "socket", (0, GT, HIGHEST_FAMILY, 0))
        for family in set(range(HIGHEST_FAMILY + 1)) - set(spec["families"]):
            made.rule(unknown, "socket", (0, EQ, family, 0))
        made.load()
    made = _Filter(_refuse(spec["errno"]) if spec["errno"] else KILL)
    _all(made, ALLOW, spec["calls"])
    made.load()


def _all(made: _Filter, action: int, calls: Iterable[str]) -> None:
    for call in calls:
        made.rule(action, call)


def _namespaces(made: _Filter, denied: int) -> None:
    """No new namespace; clone3, whose flags no filter can see, is as if it did not exist."""
    made.rule(_refuse(errno.ENOSYS), "clone3")
    made.rule(denied, "setns")
    for call in ("clone", "unshare"):
        for flag in NAMESPACES:
            made.rule(denied, call, (0, MASKED, flag, flag))


def _realtime(made: _Filter, denied: int) -> None:
    """No policy but the ordinary ones."""
    for policy in set(range(8)) - set(ORDINARY):
        made.rule(denied, "sched_setscheduler", (1, EQ, policy, 0))


def _setid(made: _Filter, denied: int) -> None:
    """No file that lends its owner's or group's rights."""
    for call, place in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("mkdir", 1), ("mknod", 1)):
        for bit in SETID:
            made.rule(denied, call, (place, MASKED, bit, bit))


if __name__ == "__main__":
    main()
