"""Attributes each device to a run: registrations, checked against the node's processes. Pure.

Invariant: every device has exactly one ledger line, so that no joule is charged twice. Energy
follows processes, not heartbeats: where the node's processes are known, a registered GPU without a
process is idle, and a GPU that another process uses is `unattributed`, whatever a run registered.
Only what the scheduler gave a job is its run's without a process: nobody else can have it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from wattmesh.errors import InputInvalid

HOST_DEVICES = ("cpu:", "dram:", "node:")
"""Prefixes of the names of devices that are not GPUs."""

SCHEDULERS = ("slurm:", "pod:")
"""Prefixes of job keys that name one job in the whole cluster; other keys are unique on one machine
only."""

STARTED_LATE_S = 60.0
"""A process that started this long after its pid was registered is another process with that
pid."""


class LaunchState(StrEnum):
    """State of a launch. Of two that could own a process, the first in this order does."""

    LIVE = "live"
    LOST = "lost"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A launch and the GPUs that its ranks registered, those of parked ranks included.

    Attributes:
        allocated: GPUs that the scheduler gave the job that the launch lives in, used or not; ():
            none, or not known.
        released: GPUs that the run released when it switched to a smaller layout.
        owner_uid: user of the run; None: not known.
        job: the scheduler's key, `slurm:<id>` or `pod:<uid>`; "" when there is none.
        host, pid: the process of rank 0 that registered it, at `registered_at` (aware UTC).
        ended_at: when the run finished or was retired (aware UTC); None: it has not.
        idles: it sleeps and keeps its GPUs, so that what they draw without any process is its own.
    """

    run: str
    incarnation: str
    gpus: tuple[str, ...]
    released: tuple[str, ...] = ()
    standing: LaunchState = LaunchState.LIVE
    owner_uid: int | None = None
    job: str = ""
    host: str = ""
    pid: int = 0
    registered_at: datetime | None = None
    ended_at: datetime | None = None
    idles: bool = False
    allocated: tuple[str, ...] = ()

    def on(self, gpus: Collection[str]) -> "Holder":
        """Keep only the GPUs of one node; a holder may have thousands elsewhere."""
        here = tuple(each for each in self.gpus if each in gpus)
        gave_back = tuple(each for each in self.released if each in gpus)
        allocated = tuple(each for each in self.allocated if each in gpus)
        return replace(self, gpus=here, released=gave_back, allocated=allocated)

    def to_json(self) -> dict[str, Any]:
        """Encode as a JSON object."""
        return {
            "run": self.run,
            "incarnation": self.incarnation,
            "gpus": list(self.gpus),
            "released": list(self.released),
            "allocated": list(self.allocated),
            "standing": self.standing.value,
            "owner_uid": self.owner_uid,
            "job": self.job,
            "host": self.host,
            "pid": self.pid,
            "registered_at": self.registered_at.isoformat() if self.registered_at else None,
            "ended_at": self.ended_at.isoformat() if self.ended_at else None,
            "idles": self.idles,
        }

    @classmethod
    def from_json(cls, data: object) -> "Holder":
        """Decode a JSON object.

        Raises:
            InputInvalid: it is malformed.
        """
        try:
            return _holder(data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputInvalid(f"holder: {error!r} in {data!r}"[:300]) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A live process as its own node shows it.

    Attributes:
        uid: its effective user; None when /proc does not show it (another pid namespace).
        job: key of the job that its cgroup belongs to; "" when the cgroup names none.
        started_at: aware UTC; None when not known.
    """

    pid: int
    uid: int | None = None
    job: str = ""
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """The processes of one node at one moment.

    Attributes:
        host: its host name.
        users: by GPU, the live processes that compute on it; a GPU that could not be read is left
            out.
        known: by pid, live processes that registered a run from this node.
    """

    host: str = ""
    users: Mapping[str, tuple[Process, ...]] = field(default_factory=dict)
    known: Mapping[int, Process] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyClaim:
    """The ledger line that a device's energy is booked to.

    `line`: run | idle | unattributed | idle_after_release.
    """

    run: str = ""
    incarnation: str = ""
    line: str = "idle"


IDLE = EnergyClaim()
DISPUTED = EnergyClaim(line="unattributed")
RELEASED = EnergyClaim(line="idle_after_release")


def attribute(
    holders: Iterable[Holder], view: NodeView | None = None, devices: Collection[str] = ()
) -> Mapping[str, EnergyClaim]:
    """Return the claim on every device that is registered, in `view` or in `devices`.

    Any other device is `IDLE`. Of two launches of one run the later one in `holders` counts.

    Args:
        holders: what runs registered.
        view: the node's processes; None: registrations are believed unchecked.
        devices: names of all devices that are read on the node, processors too.
    """
    known = tuple(holders)
    claims = {gpu: IDLE for gpu in devices if is_gpu(gpu)}
    claims |= {gpu: RELEASED for holder in known for gpu in holder.released}
    claims |= _registered(known)
    if view is not None:
        strong = _by_job(known, view)
        used = {gpu: users for gpu, users in view.users.items() if users}
        claims |= {
            gpu: _claim_by_processes(gpu, users, known, strong, view.host)
            for gpu, users in used.items()
        }
        computing = {claims[gpu].incarnation for gpu in used}
        for gpu in view.users.keys() - used.keys():
            claims[gpu] = _claim_without_processes(gpu, known, computing)
    here = set(view.users if view else ()) | {each for each in devices if is_gpu(each)}
    whole = _whole({claims[gpu] for gpu in here})
    return {**claims, **{each: whole for each in devices if not is_gpu(each)}}


def is_gpu(device: str) -> bool:
    """Tell a GPU from a processor, memory or node meter by its name."""
    return not device.startswith(HOST_DEVICES)


def _registered(holders: Sequence[Holder]) -> dict[str, EnergyClaim]:
    """Believe the registrations; a GPU registered by two runs goes to the better `LaunchState`.

    One that a job has and no live run's rank uses is the job's.
    """
    named = [(each.standing, each, each.gpus) for each in holders]
    claims = _tier(named, LaunchState.FINISHED) | _tier(named, LaunchState.LOST)
    given = [(LaunchState.LIVE, each, each.allocated) for each in holders if _lives(each)]
    inside = [
        (LaunchState.LIVE, each, [gpu for gpu in each.gpus if gpu in each.allocated])
        for each in holders
        if each.idles
    ]
    claims |= _tier(given, LaunchState.LIVE) | _tier(inside, LaunchState.LIVE)
    return claims | _tier(named, LaunchState.LIVE)


def _tier(
    named: Iterable[tuple[LaunchState, Holder, Sequence[str]]], standing: LaunchState
) -> dict[str, EnergyClaim]:
    """Give each GPU that launches of one standing name to the one run that names it."""
    tier: dict[str, EnergyClaim] = {}
    for holder, gpus in ((holder, gpus) for each, holder, gpus in named if each is standing):
        mine = _claim(holder)
        for gpu in filter(None, gpus):
            tier[gpu] = mine if tier.get(gpu, mine).run == holder.run else DISPUTED
    return tier


def _lives(holder: Holder, computing: Collection[str] = ()) -> bool:
    """Tell whether a launch lives in its job: it is heard, sleeps in it, or has a process."""
    if holder.standing is LaunchState.LOST:
        return holder.idles or holder.incarnation in computing
    return holder.standing is LaunchState.LIVE


def _claim_without_processes(
    gpu: str, holders: Sequence[Holder], computing: Collection[str]
) -> EnergyClaim:
    """Find whose a GPU is that no process uses; `computing`: launches with a process elsewhere."""
    keeps = [
        each
        for each in holders
        if (each.idles and gpu in each.gpus) or (gpu in each.allocated and _lives(each, computing))
    ]
    # Whose job has it comes before one that sleeps outside of its job; of several runs in one job
    # the one whose rank has it comes first.
    keeps = [each for each in keeps if gpu in each.allocated] or keeps
    keeps = [each for each in keeps if gpu in each.gpus] or keeps
    if keeps:
        return _claim(keeps[-1]) if len({each.run for each in keeps}) == 1 else DISPUTED
    gave_back = any(gpu in holder.released for holder in holders)
    has_it = any(gpu in holder.gpus and gpu not in holder.released for holder in holders)
    return RELEASED if gave_back and not has_it else IDLE


def _claim_by_processes(
    gpu: str,
    users: Sequence[Process],
    holders: Sequence[Holder],
    by_job: Mapping[str, Sequence[Holder]],
    host: str,
) -> EnergyClaim:
    registered = [each for each in holders if gpu in each.gpus or gpu in each.released]
    registered = registered or [each for each in holders if gpu in each.allocated]
    owners = [
        _registrant(process, holders, host) or _owner(process, registered, by_job)
        for process in users
    ]
    known = [owner for owner in owners if owner is not None]
    if len(known) < len(owners) or len({owner.run for owner in known}) != 1:
        return DISPUTED
    # Of two launches of one run the newer one is charged, in whatever order the driver lists them.
    return _claim(max(known, key=holders.index))


def _registrant(process: Process, holders: Sequence[Holder], host: str) -> Holder | None:
    """Find the launch that this very process registered, whatever its standing now.

    None when it registered none, or possibly several runs.
    """
    mine = [each for each in holders if each.host == host != "" and _is_rank_0(each, process)]
    return mine[-1] if len({each.run for each in mine}) == 1 else None


def _is_rank_0(holder: Holder, process: Process) -> bool:
    """Tell whether a process on the holder's node is the one that registered it."""
    if process.pid != holder.pid or process.uid is None or process.uid != holder.owner_uid:
        return False
    if process.started_at is None or holder.registered_at is None:
        return True
    return (process.started_at - holder.registered_at).total_seconds() <= STARTED_LATE_S


def _owner(
    process: Process, registered: Sequence[Holder], by_job: Mapping[str, Sequence[Holder]]
) -> Holder | None:
    """Find the one launch that a process belongs to; None when there is none, or several."""
    if process.uid is None:
        return None
    same_job = by_job.get(process.job, ()) if process.job else ()
    mine = [each for each in same_job if each.owner_uid in (None, process.uid)]
    if not mine:
        mine = [each for each in registered if _could_own(each, process)]
    mine = [each for each in mine if not _began_later(process, each)]
    for standing in LaunchState:
        tier = [each for each in mine if each.standing is standing]
        if tier:
            return tier[-1] if len({each.run for each in tier}) == 1 else None
    return None


def _could_own(holder: Holder, process: Process) -> bool:
    """Tell whether a process on a registered GPU has the run's user and no other job."""
    if holder.owner_uid != process.uid:
        return False
    clear = holder.job.startswith(SCHEDULERS) and process.job.startswith(SCHEDULERS)
    return not clear or holder.job == process.job


def _began_later(process: Process, holder: Holder) -> bool:
    """Tell whether a process started after the run ended: it is the user's next script."""
    if process.started_at is None or holder.ended_at is None:
        return False
    return process.started_at > holder.ended_at


def _by_job(holders: Sequence[Holder], view: NodeView) -> dict[str, list[Holder]]:
    """Group holders by job, as the scheduler named it or as the cgroup of rank 0 shows."""
    found: dict[str, list[Holder]] = {}
    for holder in holders:
        key = holder.job or _own_job(holder, view)
        if key:
            found.setdefault(key, []).append(holder)
    return found


def _own_job(holder: Holder, view: NodeView) -> str:
    """Read a run's job from the process that registered it, if that still lives here."""
    process = view.known.get(holder.pid) if holder.host == view.host else None
    return process.job if process is not None and _is_rank_0(holder, process) else ""


def _whole(claims: Collection[EnergyClaim]) -> EnergyClaim:
    """Claim for the node's other devices: the run that has all its GPUs, else unattributed."""
    if len({claim.run for claim in claims}) != 1:
        return DISPUTED
    one = max(claims, key=lambda each: each.incarnation)
    if one.run:
        return one
    lines = {claim.line for claim in claims}
    return DISPUTED if DISPUTED.line in lines else IDLE


def _claim(holder: Holder) -> EnergyClaim:
    return EnergyClaim(run=holder.run, incarnation=holder.incarnation, line="run")


def _holder(data: Any) -> Holder:
    """Decode a holder; any malformed part raises whatever the access raises."""
    owner = data.get("owner_uid")
    return Holder(
        run=str(data["run"]),
        incarnation=str(data["incarnation"]),
        gpus=tuple(str(each) for each in data["gpus"]),
        released=tuple(str(each) for each in data.get("released", ())),
        allocated=tuple(str(each) for each in data.get("allocated", ())),
        standing=LaunchState(data.get("standing", "live")),
        owner_uid=None if owner is None else int(owner),
        job=str(data.get("job", "")),
        host=str(data.get("host", "")),
        pid=int(data.get("pid", 0)),
        registered_at=_moment(data.get("registered_at")),
        ended_at=_moment(data.get("ended_at")),
        idles=data.get("idles") is True,
    )


def _moment(text: Any) -> datetime | None:
    """Parse a time; it is UTC where it names no zone."""
    found = datetime.fromisoformat(text) if text else None
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found
