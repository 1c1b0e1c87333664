"""Starts the ranks of one launch on all its hosts; this host is the first, and has the store.

A launch waits until every host that it needs is here, however long: which hosts a run has is not
decided here. If one is lost while ranks run, the launch ends on all hosts, and the next one waits
for that host to come back.

Invariant: ranks start on no host before every host of the launch is here; a host that is here runs
nothing of an earlier launch.
"""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from wattmesh.errors import InputInvalid, WattmeshError
from wattmesh.reconfig.launch.folder import OUTCOME_VARIABLE
from wattmesh.reconfig.launcher.hosts.followers import Followers, HostLink
from wattmesh.reconfig.launcher.supervisor import TOKEN_VARIABLE, Launch
from wattmesh.reconfig.launcher.torch_agent import HostShare

OTHERS_S = 60.0
"""How long the other hosts may take to leave once ranks of one have failed."""

END_S = 20.0
"""How long they may take to end a launch by force."""

SAY_EVERY_S = 60.0

STATUS_LOST = 1


class HostLauncher(Protocol):
    """Something that starts the ranks of one host."""

    def launch_share(self, share: HostShare, environment: Mapping[str, str]) -> Launch:
        """Start a host's part of a launch, with `environment` added to that of its ranks."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSize:
    """How many hosts a launch has, and how many ranks each of them."""

    hosts: int
    ranks: int


def size_of(ranks: int, most_hosts: int, most_per_host: int) -> LaunchSize:
    """Divide ranks among as few hosts as hold them, equally.

    Raises:
        InputInvalid: they cannot be divided so.
    """
    hosts = -(-ranks // most_per_host)
    if ranks < 1 or hosts > most_hosts or ranks % hosts:
        raise InputInvalid(
            f"{ranks} ranks do not divide among {most_hosts} hosts with at most {most_per_host} "
            "ranks each: a size must fill as few hosts as hold it, all alike."
        )
    return LaunchSize(hosts=hosts, ranks=ranks // hosts)


class HostsLauncher:
    """Launches on several hosts."""

    def __init__(
        self,
        here: HostLauncher,
        followers: Followers,
        address: str,
        size: Callable[[], LaunchSize],
        say: Callable[[str], None],
    ) -> None:
        """Start ranks of this host through `here`, of others through `followers`.

        Args:
            here: starts ranks on this host.
            followers: the other hosts.
            address: of this host, as the others reach it.
            size: asked at each launch how large it is.
            say: called with sentences for people.
        """
        self._here, self._followers = here, followers
        self._address, self._size, self._say = address, size, say
        self._count = 0

    def launch(self, environment: Mapping[str, str]) -> Launch:
        """Start a launch, which waits for its hosts; one that cannot be noted down fails."""
        self._count += 1
        try:
            self._followers.note_launch(environment[TOKEN_VARIABLE])
            size = self._size()
        except (OSError, WattmeshError) as error:
            self._say(f"nothing is launched: {error}.")
            return _NotLaunched()
        started = _HostsLaunch(
            self._here,
            self._followers,
            self._address,
            size=size,
            number=self._count,
            environment=environment,
            say=self._say,
        )
        started.poll()
        return started


class _NotLaunched:
    """A launch that never began."""

    def poll(self) -> int | None:
        """Return that it failed."""
        return STATUS_LOST

    def end(self) -> None:
        """Leave it ended."""


class _HostsLaunch:
    def __init__(
        self,
        here: HostLauncher,
        followers: Followers,
        address: str,
        *,
        size: LaunchSize,
        number: int,
        environment: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        """Wait for the hosts of launch `number`."""
        self._here, self._followers, self._address = here, followers, address
        self._size, self._number, self._environment = size, number, environment
        self._say, self._say_at_s = say, time.monotonic() + 1.0
        self._own: Launch | None = None
        self._others: list[HostLink] = []
        self._leave_by_s = float("inf")
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status of the launch; None while it waits or runs."""
        if self._status is not None:
            return self._status
        if self._own is None:
            self._begin()
            return None
        statuses = [self._own.poll(), *(each.ended(self._number) for each in self._others)]
        lost = [
            each.host for each in self._others if not each.here and each.ended(self._number) is None
        ]
        if None not in statuses:
            self._status = next((each for each in statuses if each), 0)
        elif lost:
            self._say(f"host {lost[0]} is lost while it had ranks: the launch ends on all hosts.")
            self.end()
        elif any(statuses):
            # Ranks that miss a peer leave by themselves, and say why.
            self._leave_by_s = min(self._leave_by_s, time.monotonic() + OTHERS_S)
            if time.monotonic() > self._leave_by_s:
                self.end()
        return self._status

    def end(self) -> None:
        """End it on all hosts; one that does not say so in time is lost."""
        for each in self._others:
            each.send({"do": "end", "launch": self._number})
        if self._own is not None:
            self._own.end()
        until = time.monotonic() + END_S
        for each in self._others:
            while each.here and each.ended(self._number) is None and time.monotonic() < until:
                time.sleep(0.02)
            if each.ended(self._number) is None:
                each.lose()
        self._status = STATUS_LOST if self._status is None else self._status

    def _begin(self) -> None:
        """Start ranks on all hosts, if all are here."""
        here, wanted = self._followers.here(), range(1, self._size.hosts)
        if missing := [each for each in wanted if each not in here]:
            if time.monotonic() > self._say_at_s:
                self._say(f"waiting for host {', '.join(map(str, missing))}.")
                self._say_at_s = time.monotonic() + SAY_EVERY_S
            return
        port = free_port()
        # The outcome is written by global rank 0, which is here.
        theirs = {
            name: text for name, text in self._environment.items() if name != OUTCOME_VARIABLE
        }
        for host in wanted:
            share = self._share(host, port)
            order = {
                "do": "launch",
                "launch": self._number,
                "hosts": share.hosts,
                "ranks": share.ranks,
                "address": share.address,
                "port": share.port,
                "environment": theirs,
            }
            self._others.append(here[host])
            # Should one be lost in between, the next poll finds it.
            here[host].send(order)
        self._own = self._here.launch_share(self._share(0, port), self._environment)

    def _share(self, host: int, port: int) -> HostShare:
        return HostShare(
            host=host,
            hosts=self._size.hosts,
            ranks=self._size.ranks,
            address=self._address,
            port=port,
        )


def free_port() -> int:
    """Return a port that is free on this host now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
