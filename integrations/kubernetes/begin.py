"""How a job begins: its first pod asks the launch book whether it may train.

Invariant: no rank starts before the book says that this job may train, and before the job that it
follows has ended, its pods included. A job that may not train ends with status 0.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from wattmesh.errors import SourceUnavailable, WattmeshError
from wattmesh.integrations.kubernetes import job_kinds
from wattmesh.integrations.kubernetes.client import KubernetesClient, VersionExpired
from wattmesh.integrations.kubernetes.job_kinds import KnownJob
from wattmesh.integrations.kubernetes.job_queue import KubernetesQueue, PodJob
from wattmesh.reconfig.launcher.launch_book import (
    Beginning,
    BookedState,
    LaunchBook,
    LaunchRecord,
)

PATIENCE_S = 600.0
"""How long a job waits for the book, for the server's word, and for the end of the job before."""

RIVAL_S = 60.0
"""How long a job that people made waits for another one that may be ending."""

WATCH_S = 30.0
PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClaim:
    """A job that was started, and asks whether it may train; `ranks`: how many it starts."""

    own: PodJob
    key: str
    ranks: int
    client: KubernetesClient
    book: LaunchBook
    queue: KubernetesQueue

    def claim(self, stop: threading.Event, say: Callable[[str], None]) -> str:
        """Let this job train, and no held one any more; returns why it may not, or "".

        Raises:
            SourceUnavailable: whether it may train cannot be found out, or the job before does not
                end; the pod is to be started again.
        """
        began_s, pause_s = time.monotonic(), PAUSE_S
        while True:
            version, begun, problem = "", None, ""
            try:
                live, running, version = self._others()
                begun = self._try(live, running)
                problem = begun.problem
            except (OSError, WattmeshError) as error:
                problem = str(error)
            if begun is not None and not problem:
                self._clear(begun)
                return ""
            waited_s = time.monotonic() - began_s
            waits = begun is None or begun.waits
            if not waits and (self.key or waited_s > RIVAL_S or stop.is_set()):
                return problem
            if waits and (waited_s > PATIENCE_S or stop.is_set()):
                raise SourceUnavailable(f"not begun within {waited_s:.0f} s: {problem}")
            say(f"not begun yet: {problem}; asking again.")
            limit_s = (PATIENCE_S if waits else RIVAL_S) - waited_s
            if begun is None or not self._changed(version, min(limit_s, WATCH_S), stop):
                stop.wait(min(pause_s, max(limit_s, PAUSE_S)))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _others(self) -> tuple[set[str], set[str], str]:
        """Return this namespace's other jobs that have not ended, those with pods, and a version.

        Only those that the book says have trained are looked at; without any, nobody is asked.
        """
        begun_by = {each.begun_by for each in self.book.read()} - {"", self.own.booked}
        if not begun_by:
            return set(), set(), ""
        listed, version = self.client.listed(self.own.kind.path(self.own.namespace))
        known: list[KnownJob] = [job_kinds.facts(self.own.kind, each) for each in listed]
        live = {self.own.booked_as(each.name) for each in known if not each.ended} & begun_by
        idle = {self.own.booked_as(each.name) for each in known if each.suspended}
        return live, live - idle, version

    def _try(self, live: set[str], running: set[str]) -> Beginning:
        mine = LaunchRecord(
            key=self.key, ranks=self.ranks, state=BookedState.BEGUN, begun_by=self.own.booked
        )
        known = {each.begun_by for each in self.book.read()}
        return self.book.begin(mine, known, live, running)

    def _clear(self, begun: Beginning) -> None:
        """Delete what is not wanted any more: held jobs, and the alarm that woke this one."""
        gone = [each for each in begun.records if each.state is BookedState.WITHDRAWN and each.key]
        self.queue.delete(gone)
        with suppress(WattmeshError):
            for each in begun.records:
                if each.key == self.key and self.key:
                    self.queue.silence(each)

    def _changed(self, version: str, limit_s: float, stop: threading.Event) -> bool:
        """Wait until some job has changed; False: none has, or they cannot be watched."""
        path, until = self.own.kind.path(self.own.namespace), time.monotonic() + limit_s
        try:
            while version and time.monotonic() < until and not stop.is_set():
                for kind, found in self.client.watch(path, version, until - time.monotonic()):
                    if kind != "BOOKMARK":
                        return True
                    version = job_kinds.version_of(found) or version
                    if stop.is_set():
                        break
                else:
                    stop.wait(PAUSE_S)
        except (VersionExpired, WattmeshError):
            return False
        return False
