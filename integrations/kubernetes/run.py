"""What a pod of a job does: the first one leads the run, the others start ranks as it says.

Invariant: the leader ends with status 0 only once the run is finished, another launch is let
begin, or an alarm is set; with status `EXIT_AGAIN`, or killed, Kubernetes starts its pod again, and
the run trains on where it was.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from wattmesh.errors import WattmeshError
from wattmesh.integrations.kubernetes import job_kinds
from wattmesh.integrations.kubernetes.begin import JobClaim
from wattmesh.integrations.kubernetes.client import KubernetesClient
from wattmesh.integrations.kubernetes.job_queue import KubernetesQueue, PodJob
from wattmesh.reconfig.launch import asleep
from wattmesh.reconfig.launch.folder import RunFolder, read_json, write_json
from wattmesh.reconfig.launcher import launch_book
from wattmesh.reconfig.launcher.command_line import on_stop
from wattmesh.reconfig.launcher.hosts.follower import Follower
from wattmesh.reconfig.launcher.hosts.followers import Followers
from wattmesh.reconfig.launcher.hosts.launcher import HostLauncher, HostsLauncher, LaunchSize
from wattmesh.reconfig.launcher.launch_book import BookedState, LaunchBook
from wattmesh.reconfig.launcher.supervisor import EXIT_FINISHED, Supervisor

PATIENCE_S = 600.0
"""How long the launch that follows is tried to be let begin, before this one trains on."""

LONGEST_PAUSE_S = 15.0

EXIT_AGAIN = 69
"""The pod is to be started again (sysexits' EX_UNAVAILABLE): something did not answer."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of a job.

    Attributes:
        job_uid: of the batch job whose pods are the hosts; another one after each restart.
        host: its index. `address`: its IP address.
    """

    own: PodJob
    job_uid: str
    host: int
    address: str
    folder: RunFolder

    @property
    def over_file(self) -> Path:
        """Where the leader says to the other pods of its job that their part is over, and how."""
        return self.folder.path / "over" / f"{self.job_uid}.json"

    def over(self) -> int | None:
        """Return the leader's exit status, once it has ended."""
        status = (read_json(self.over_file) or {}).get("status")
        return status if isinstance(status, int) else None


def follow(pod: Pod, ranks: HostLauncher, say: Say) -> int:
    """Be one of the other pods."""
    follower = Follower(pod.folder, pod.host, ranks, say, job=pod.job_uid, over=pod.over)
    on_stop(follower.ask_to_stop)
    return follower.run()


def lead(
    pod: Pod,
    client: KubernetesClient,
    ranks: HostLauncher,
    say: Say,
    **limits: Any,
) -> int:
    """Be the first pod: claim the run, train it, and let what follows begin."""
    stop = threading.Event()
    on_stop(stop.set)
    own, queue = pod.own, KubernetesQueue(client, pod.folder, pod.own)
    pod.over_file.unlink(missing_ok=True)
    job = job_kinds.facts(own.kind, queue.job())
    book = LaunchBook(pod.folder)
    claim = JobClaim(
        own=own,
        key=job.key,
        ranks=job.hosts * own.per_host,
        client=client,
        book=book,
        queue=queue,
    )
    problem = claim.claim(stop, say)
    if problem:
        say(f"{own.kind.name} {own.booked} has nothing to do: {problem}.")
        return _over(pod, EXIT_FINISHED)
    # What the launch before asked for is answered: this is it, or it is withdrawn.
    asleep.awake(pod.folder)
    size = LaunchSize(hosts=job.hosts, ranks=own.per_host)
    followers = Followers(pod.folder, pod.address, job.hosts, say=say, job=pod.job_uid)
    supervisor = Supervisor(
        HostsLauncher(ranks, followers, pod.address, lambda: size, say),
        pod.folder.path,
        say=say,
        queue=queue,
        resizes=True,
        ranks=size.hosts * size.ranks,
        **limits,
    )
    on_stop(supervisor.ask_to_stop)
    if stop.is_set():
        supervisor.ask_to_stop()
    followers.let_in(partial(supervisor.ask_to_stop, again_ends=False))
    status = supervisor.run()
    if supervisor.handed_over:
        status = _hand_over(queue, book, say)
        if status == EXIT_AGAIN:
            return status
    else:
        _withdraw_all(queue, book, say)
    followers.close(status)
    return _over(pod, status)


def _hand_over(queue: KubernetesQueue, book: LaunchBook, say: Say) -> int:
    """Let the launch of another size begin; one that sleeps has its alarm."""
    due = [
        each.key
        for each in book.read()
        if each.state is BookedState.HELD and each.begins_at is None
    ]
    until, pause_s = time.monotonic() + PATIENCE_S, 1.0
    for key in due:
        while True:
            try:
                say(f"{queue.begin_now(key).name} may begin.")
                break
            except WattmeshError as error:
                if time.monotonic() > until:
                    say(f"launch {key} cannot be let begin, so the run trains on here: {error}")
                    return EXIT_AGAIN
                say(f"launch {key} is not let begin yet: {error}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    return EXIT_FINISHED


def _withdraw_all(queue: KubernetesQueue, book: LaunchBook, say: Say) -> None:
    try:
        queue.delete(book.change(launch_book.withdraw_all))
    except WattmeshError as error:
        say(f"launches that are still held may start, and end at once: {error}")


def _over(pod: Pod, status: int) -> int:
    write_json(pod.over_file, {"status": status}, sync=False)
    return status


def ring_words(python: str, pod: Mapping[str, str]) -> Sequence[str]:
    """Return the command line by which an alarm's pod lets the held job begin."""
    options = [f"--{name}={text}" for name, text in pod.items()]
    return [python, "-m", "wattmesh.integrations.kubernetes", "wake", "--now", *options]
