"""The leader's connections to the other hosts of its run.

A host is here from when it has greeted until its connection breaks or is silent. A host that comes
back has ended whatever it ran before, and is a new `HostLink`.

Invariant: threads only move messages; what they mean is decided by who polls.
"""

import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher.hosts import meeting
from wattmesh.reconfig.launcher.hosts.channel import Channel, Gone, admit
from wattmesh.reconfig.launcher.hosts.meeting import Meeting
from wattmesh.reconfig.launcher.torch_agent import end_all_with

PING_S = 2.0
SILENCE_S = 20.0
"""A host that says nothing for so long is lost; the others say something every `PING_S`."""

MOST_GREETING = 64
"""How many connections may be greeting at once; more are closed."""


class HostLink:
    """One host that is here."""

    def __init__(self, host: int, channel: Channel) -> None:
        """Speak with host number `host`."""
        self.host, self._channel = host, channel
        self.here = True
        self._ended: dict[int, int] = {}

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send a message; False: the host is lost."""
        try:
            self._channel.send(message)
        except Gone:
            self.lose()
        return self.here

    def ended(self, launch: int) -> int | None:
        """Return the exit status of its part of a launch; None while it runs, or if it is lost."""
        return self._ended.get(launch)

    def lose(self) -> None:
        """Let go of it; it ends what it runs once it notices, and may come back."""
        self.here = False
        self._channel.close()

    def listen(self, heed_stop: Callable[[], None]) -> None:
        """Receive what it says until it is lost."""
        heard_s = time.monotonic()
        while self.here:
            try:
                told = self._channel.receive(PING_S)
            except Gone:
                break
            if told is None:
                if time.monotonic() - heard_s > SILENCE_S or not self.send({"do": "ping"}):
                    break
                continue
            heard_s = time.monotonic()
            launch, status = told.get("ended"), told.get("status")
            if type(launch) is int and type(status) is int:
                self._ended[launch] = status
            if told.get("stop") is True:
                heed_stop()
        self.lose()


class Followers:
    """The other hosts of one run, as its leader knows them."""

    def __init__(
        self,
        folder: RunFolder,
        address: str,
        hosts: int,
        *,
        say: Callable[[str], None],
        job: str = "",
    ) -> None:
        """Lead the run, and end what an earlier leader left on this host.

        Args:
            folder: the run's.
            address: of this host, as the others reach it.
            hosts: how many there are, this one included.
            say: called with sentences for people.
            job: the scheduler's job whose hosts these are; "".

        Raises:
            Refused: another process leads the run.
            OSError: the run folder cannot be written, or no port is free.
        """
        self._hosts, self._say = hosts, say
        self._folder, self._members = folder, dict[int, HostLink]()
        self._lock, self._greeting = threading.Lock(), threading.Semaphore(MOST_GREETING)
        self._led = meeting.lead(folder)
        before = meeting.read(folder)
        left_behind = before.launch if before else ""
        if left_behind:
            end_all_with(left_behind)
        self._server = socket.create_server(("", 0), backlog=hosts)
        self._meeting = Meeting(
            session=str(uuid.uuid4()),
            address=address,
            port=int(self._server.getsockname()[1]),
            secret=secrets.token_hex(32),
            job=job,
            launch=left_behind,
        )
        meeting.write(folder, self._meeting)

    def let_in(self, heed_stop: Callable[[], None]) -> None:
        """Let hosts in from now on; `heed_stop` is called, by any thread, when one is to stop."""
        threading.Thread(
            target=self._accept, args=(heed_stop,), name="wattmesh-hosts", daemon=True
        ).start()

    def here(self) -> dict[int, HostLink]:
        """Return the hosts that are here, by number."""
        with self._lock:
            return {host: each for host, each in self._members.items() if each.here}

    def note_launch(self, token: str) -> None:
        """Write down which launch is about to start.

        Raises:
            OSError: the file system refuses; it must not start.
        """
        self._meeting = replace(self._meeting, launch=token)
        meeting.write(self._folder, self._meeting)

    def close(self, status: int) -> None:
        """Let all hosts end with an exit status, those too that ask only later."""
        self._meeting = replace(self._meeting, over=status)
        with suppress(OSError):
            meeting.write(self._folder, self._meeting)
        for each in self.here().values():
            each.send({"do": "over", "status": status})
        self._server.close()
        self._led.close()

    def _accept(self, heed_stop: Callable[[], None]) -> None:
        while True:
            try:
                connected, (address, *_) = self._server.accept()
            except OSError:
                return
            if not self._greeting.acquire(blocking=False):
                connected.close()
                continue
            serve = threading.Thread(
                target=self._serve, args=(Channel(connected), address, heed_stop), daemon=True
            )
            serve.start()

    def _serve(self, channel: Channel, address: str, heed_stop: Callable[[], None]) -> None:
        try:
            try:
                host = admit(channel, self._meeting.secret)
            finally:
                self._greeting.release()
            if not 0 < host < self._hosts:
                raise Gone(f"it says that it is host {host} of {self._hosts}")
        except Gone as error:
            self._say(f"a connection from {address} is refused: {error}.")
            channel.close()
            return
        member = HostLink(host, channel)
        with self._lock:
            before, self._members[host] = self._members.get(host), member
        if before is not None:
            before.lose()
        self._say(f"host {host} is here, at {address}.")
        member.listen(heed_stop)
        with self._lock:
            replaced = self._members.get(host) is not member
        if not replaced:
            self._say(f"host {host} is lost.")
