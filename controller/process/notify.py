"""Tell the service manager the daemon's state: the sd_notify protocol, by the standard library.

Invariant: a failed notification never fails the daemon; without NOTIFY_SOCKET nothing is sent. Only
`SystemdWatchdog` sends WATCHDOG=1, and only once every watched loop has made progress since the
last one.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence

log = logging.getLogger(__name__)


class Notifier:
    """Sends state changes to the socket that the service manager named."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Read NOTIFY_SOCKET and WATCHDOG_USEC from `environment` (default: the process's)."""
        values = os.environ if environment is None else environment
        address = values.get("NOTIFY_SOCKET", "")
        # systemd writes an abstract socket with a leading @; the kernel wants a zero byte.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_s = _watchdog_s(values)

    def ready(self) -> None:
        """Say that the daemon serves."""
        self._send("READY=1")

    def status(self, sentence: str) -> None:
        """Send the line that `systemctl status` shows."""
        self._send(f"STATUS={' '.join(sentence.split())}")

    def reloading(self) -> None:
        """Say that a reload began; `ready` ends it. The time is CLOCK_MONOTONIC (sd_notify(3))."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Say that the daemon ends."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        """Send one datagram; a service manager that is gone is only logged."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.connect(self._address)
                sender.send(message.encode())
        except OSError as error:
            log.warning(
                "the service manager did not take %r (%s)", message.partition("=")[0], error
            )


class SystemdWatchdog:
    """Feeds the watchdog when every watched loop has made progress since it was last fed."""

    def __init__(self, notifier: Notifier, progress: Sequence[Callable[[], float | None]]) -> None:
        """Watch `progress`: each gives the monotonic time of a loop's last progress, or None."""
        self._notifier = notifier
        self._progress = progress
        self._seen: list[float | None] = [None] * len(progress)

    def feed(self) -> bool:
        """Feed it if all made progress; say whether it was fed."""
        newest = [each() for each in self._progress]
        moved = all(
            new is not None and new != old for new, old in zip(newest, self._seen, strict=True)
        )
        if moved:
            self._seen = newest
            self._notifier.alive()
        return moved


def _watchdog_s(values: Mapping[str, str]) -> float | None:
    """Give the service manager's watchdog limit in seconds; None when it does not watch us."""
    micros, pid = values.get("WATCHDOG_USEC", ""), values.get("WATCHDOG_PID", "")
    if not micros.isdecimal() or int(micros) == 0:
        return None
    if pid and pid != str(os.getpid()):
        return None
    return int(micros) / 1e6
