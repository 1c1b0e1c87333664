"""Wakes a run that sleeps before its time, as the user that it belongs to.

Nobody of ours lives while Slurm holds the next launch, so this is run by the user: on a login node,
by hand or by cron, or as a small job of its own.

Invariant: without an order of the daemon nothing is changed, unless the user says `now`; an order
that was taken is carried out by whoever looks next, should the one who took it be gone. The launch
that was held stays held until another one has begun.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from wattmesh.errors import InputInvalid
from wattmesh.integrations.slurm.client import SlurmClient
from wattmesh.integrations.slurm.own_job import number_of
from wattmesh.integrations.slurm.slurm_queue import Followed, SlurmQueue
from wattmesh.reconfig.client import waking
from wattmesh.reconfig.client.waking import BegunWake
from wattmesh.reconfig.launch import asleep
from wattmesh.reconfig.launch.asleep import AsleepNote
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.launcher import launch_book, patience
from wattmesh.reconfig.launcher.contract import HeldLaunch, HeldState, NextLaunch
from wattmesh.reconfig.launcher.launch_book import LaunchBook

STANDS = (HeldState.HELD, HeldState.STARTED)
"""States of a launch that begins, or has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleeping:
    """A run that sleeps: its note, and the job that is to wake it."""

    note: AsleepNote
    cluster: str
    job: int
    after: int
    ranks: int


def sleeping(folder: RunFolder) -> Sleeping | None:
    """Return the run that sleeps in a folder; None if none does."""
    note = asleep.read(folder.asleep_file, AsleepNote)
    held = launch_book.find(LaunchBook(folder).read(), note.key) if note else None
    if note is None or held is None or not held.jobs:
        return None
    cluster = held.jobs[-1].rpartition("/")[0]
    return Sleeping(
        note=note,
        cluster=cluster,
        job=number_of(held.jobs[-1], cluster),
        after=number_of(held.asked_by, cluster),
        ranks=held.ranks,
    )


def is_held(found: Sleeping, client: SlurmClient) -> bool:
    """Return whether Slurm still has the job that is to wake a run.

    Raises:
        SourceUnavailable, InputInvalid: Slurm does not answer.
    """
    return any(each.number == found.job and each.is_live for each in client.jobs())


def _per_node(folder: RunFolder, found: Sleeping, client: SlurmClient) -> int:
    """Return how many ranks each node of the held job has.

    Raises:
        InputInvalid: Slurm does not know the job, or it is another user's.
    """
    nodes = next((each.nodes for each in client.jobs() if each.number == found.job), 0)
    if not nodes:
        owner = _owner(folder, client.uid)
        if owner != client.uid:
            raise InputInvalid(
                f"the held job {found.job} is none of yours (uid {client.uid}): the run in "
                f"{folder.path} is uid {owner}'s, and only that user can wake it."
            )
        raise InputInvalid(
            f"the held job {found.job} is not known to Slurm any more: submit the script again."
        )
    return -(-found.ranks // nodes)


def _owner(folder: RunFolder, me: int) -> int:
    """Return whose the note of a run that sleeps is, as far as its file system says."""
    with suppress(OSError):
        return folder.asleep_file.stat().st_uid
    return me


def wake(
    folder: RunFolder,
    client: SlurmClient,
    most_per_node: int | None = None,
    *,
    now: bool = False,
    more: tuple[str, ...] = (),
    say: Callable[[str], None] = lambda sentence: None,
    patience_s: float = 0.0,
) -> HeldLaunch | None:
    """Let a run that sleeps begin where the daemon orders it, or `now`; None if it sleeps on.

    Args:
        folder: of the run.
        client: asks Slurm.
        most_per_node: how many ranks a node takes; None: as many as in the held job.
        now: without an order too.
        more: further words for `sbatch`.
        say: called with sentences for people.
        patience_s: how long Slurm is asked again to carry out an order that was taken.

    Raises:
        SourceUnavailable, InputInvalid: Slurm does not answer, or refuses.
    """
    found = sleeping(folder)
    if found is None:
        raise InputInvalid(f"no run sleeps in {folder.path}.")
    note = found.note
    followed = Followed(
        cluster=found.cluster,
        number=found.job,
        after=found.after,
        most_per_node=most_per_node or _per_node(folder, found, client),
        arguments=None,
        more=more,
    )
    queue = SlurmQueue(client, folder, followed)
    taken = waking.begun(folder, note)
    order = waking.resume_order(folder, note, resizes=True) if taken is None else None
    if order is not None:
        try:
            taken = waking.begin(folder, note, order)
        except OSError as error:
            say(f"the order to wake at {order.point} cannot be noted ({error}).")
            now = True
    if taken is None:
        return _begun_now(queue, note.key) if now else None
    say(f"the run is woken: {taken.reason}")
    begun = taken
    # An order is taken once: left here, it would wake nobody before the alarm.
    return patience.until_answered(
        lambda: _carry_out(queue, note, begun, say),
        lambda: sleeping(folder) is not None,
        say,
        patience_s,
    )


def _carry_out(
    queue: SlurmQueue, note: AsleepNote, taken: BegunWake, say: Callable[[str], None]
) -> HeldLaunch:
    """Begin what an order to wake asks for, or else wake the run as it fell asleep."""
    if max(taken.ranks) < note.launched:
        return _begun_now(queue, note.key)
    following = NextLaunch(key=taken.switch_id, run=note.run, ranks=len(taken.ranks))
    try:
        held = queue.hold(following)
        problem = "" if held.state in STANDS else f"{held.name} is {held.state}"
        if not problem:
            return held
    except InputInvalid as error:
        problem = str(error)
    say(f"it wakes in the size in which it fell asleep: {problem}")
    return _begun_now(queue, note.key)


def _begun_now(queue: SlurmQueue, key: str) -> HeldLaunch:
    held = queue.begin_now(key)
    if held.state not in STANDS:
        raise InputInvalid(
            f"{held.name} has ended or is held by people: `scontrol release` it, or submit the "
            "script again."
        )
    return held
