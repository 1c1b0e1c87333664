"""The supervisor of another host: it starts and ends ranks as the leader of the run says.

It decides nothing. Invariant: no rank of this host outlives the connection to the leader by more
than `SILENCE_S`, and none is left when this host says that it is here. One supervisor at a time is
host N of a run: another one touches nothing of what that one runs.
"""

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from wattmesh import durable
from wattmesh.reconfig.launch.folder import HOLDS_VARIABLE, RESIZES_VARIABLE, RunFolder
from wattmesh.reconfig.launcher.hosts import meeting
from wattmesh.reconfig.launcher.hosts.channel import GREETING_S, Channel, Gone, introduce
from wattmesh.reconfig.launcher.hosts.followers import PING_S, SILENCE_S
from wattmesh.reconfig.launcher.hosts.launcher import HostLauncher
from wattmesh.reconfig.launcher.hosts.meeting import Meeting
from wattmesh.reconfig.launcher.supervisor import EXIT_STOPPED, TOKEN_VARIABLE, Launch
from wattmesh.reconfig.launcher.torch_agent import HostShare, end_all_with

LOOK_S = 0.5
"""How often the run folder is looked at for the leader."""

TURN_S = 0.1
SAY_EVERY_S = 60.0

TAKEN = (TOKEN_VARIABLE, HOLDS_VARIABLE, RESIZES_VARIABLE)
"""The variables that the leader may set on another host; all others are that host's own."""


class Follower:
    """One of the other hosts of a run."""

    def __init__(
        self,
        folder: RunFolder,
        host: int,
        launcher: HostLauncher,
        say: Callable[[str], None],
        *,
        job: str = "",
        over: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Be host number `host` (1 or more) of the run in `folder`.

        Args:
            folder: the run's, which all hosts share.
            host: which host this is.
            launcher: starts ranks here.
            say: called with sentences for people.
            job: the scheduler's job that this host is of; a leader of another one is none; "".
            over: asked while there is no leader whether this host's part is over, and how.
        """
        self._folder, self._host, self._launcher = folder, host, launcher
        self._say, self._job, self._over = say, job, over
        self._stop = threading.Event()
        self._joined = folder.path / f"host-{host}.joined"
        self._alone: durable.Lock | None = None
        self._found_first = self._leader()
        self._say_at_s = 0.0
        self._launch: Launch | None = None
        self._number = 0

    def ask_to_stop(self) -> None:
        """Have the whole run checkpoint and end; a host that has no leader ends at once."""
        self._stop.set()

    def run(self) -> int:
        """Serve until the leader has ended; return its exit status."""
        try:
            return self._run()
        finally:
            if self._alone is not None:
                self._alone.close()

    def _run(self) -> int:
        while True:
            found, over = self._leader(), self._over()
            if found is not None and found.over is not None and self._is_of_this_start(found):
                over = found.over
            if over is not None:
                return self._leave(over)
            if found is not None and found.over is None:
                status = self._serve(found) if self._is_alone() else None
                if status is not None:
                    return self._leave(status)
            elif time.monotonic() > self._say_at_s:
                self._say("no leader (host 0) of the run is there yet.")
                self._say_at_s = time.monotonic() + SAY_EVERY_S
            if self._stop.wait(LOOK_S):
                return EXIT_STOPPED

    def _is_alone(self) -> bool:
        """Return whether this is the only supervisor that is this host; another one is waited for.

        Raises:
            OSError: the run folder cannot be written.
        """
        if self._alone is not None:
            return True
        try:
            self._alone = durable.hold(self._joined)
        except durable.Held as held:
            if time.monotonic() > self._say_at_s:
                self._say(
                    f"process {held.holder}, of this host or another, is host {self._host} of the "
                    "run already: waiting for its end. Give this one another --host."
                )
                self._say_at_s = time.monotonic() + SAY_EVERY_S
            return False
        return True

    def _leader(self) -> Meeting | None:
        """Return where the leader of this host's job is, or was."""
        found = meeting.read(self._folder)
        return found if found is not None and found.job == self._job else None

    def _is_of_this_start(self, over: Meeting) -> bool:
        """Return whether a leader that has ended led since this host was started.

        It did if this host, perhaps before it was started anew, followed it, or if another one was
        there when this host began: it may have come and gone while this host did not reach it.
        """
        first = self._found_first
        if over.session != (first.session if first is not None else ""):
            return True
        try:
            return self._joined.read_text(encoding="ascii") == over.session
        except (OSError, ValueError):
            return False

    def _leave(self, status: int) -> int:
        """End with a status; the next start waits for a leader of its own."""
        with suppress(OSError):
            self._joined.unlink(missing_ok=True)
        return status

    def _serve(self, found: Meeting) -> int | None:
        """Follow a leader until it is lost (None) or has ended; returns its exit status."""
        if found.launch:
            end_all_with(self._token(found.launch))
        try:
            connected = socket.create_connection((found.address, found.port), GREETING_S)
        except OSError as error:
            if time.monotonic() > self._say_at_s:
                self._say(f"the leader at {found.address}:{found.port} is not reached ({error}).")
                self._say_at_s = time.monotonic() + SAY_EVERY_S
            return None
        channel = Channel(connected)
        try:
            introduce(channel, found.secret, self._host)
            self._joined.write_text(found.session, encoding="ascii")
            self._say(f"this is host {self._host}; the leader at {found.address} decides.")
            return self._follow(channel)
        except (Gone, OSError) as error:
            self._say(f"the leader at {found.address} is lost: {error}.")
            return None
        finally:
            self._end()
            channel.close()

    def _follow(self, channel: Channel) -> int:
        heard_s = spoke_s = time.monotonic()
        told_stop = False
        while True:
            told = channel.receive(TURN_S)
            now_s = time.monotonic()
            if told is not None:
                heard_s = now_s
                if told.get("do") == "over":
                    return _whole(told, "status")
                self._heed(told)
            if self._launch is not None and (status := self._launch.poll()) is not None:
                self._launch = None
                channel.send({"ended": self._number, "status": status})
            if self._stop.is_set() and not told_stop:
                channel.send({"stop": True})
                told_stop = True
            if now_s - spoke_s > PING_S:
                channel.send({"here": True})
                spoke_s = now_s
            if now_s - heard_s > SILENCE_S:
                raise Gone(f"it has said nothing for {SILENCE_S:g} s")

    def _heed(self, told: Mapping[str, Any]) -> None:
        match told.get("do"):
            case "launch":
                self._end()
                self._number = _whole(told, "launch")
                self._begin(told)
            case "end" if told.get("launch") == self._number and self._launch is not None:
                self._launch.end()

    def _begin(self, told: Mapping[str, Any]) -> None:
        environment = told.get("environment")
        if not isinstance(environment, dict) or TOKEN_VARIABLE not in environment:
            raise Gone("it starts a launch without a token")
        share = HostShare(
            host=self._host,
            hosts=_whole(told, "hosts"),
            ranks=_whole(told, "ranks"),
            address=str(told.get("address")),
            port=_whole(told, "port"),
        )
        taken = {name: str(environment[name]) for name in TAKEN if name in environment}
        taken[TOKEN_VARIABLE] = self._token(taken[TOKEN_VARIABLE])
        self._launch = self._launcher.launch_share(share, taken)

    def _token(self, launch: str) -> str:
        """Return what this host's processes of a launch carry: hosts may share a kernel."""
        return f"{launch}.{self._host}"

    def _end(self) -> None:
        launch, self._launch = self._launch, None
        if launch is not None:
            launch.end()


def _whole(told: Mapping[str, Any], name: str) -> int:
    value = told.get(name)
    if type(value) is not int:
        raise Gone(f"its {name} is {value!r}")
    return value
