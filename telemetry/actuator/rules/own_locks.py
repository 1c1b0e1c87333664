"""Clocks that a user locks on GPUs which compute for that user alone, as a profile does. Pure.

The kernel says who asks, and whose the processes are. A lock is taken on only where all of them are
the user's; what comes later is judged as for any lease (`refusals`).

Invariant: where the controller wishes a GPU lowered, its wish counts and the user's does not; a
lock ends when nobody asks for it any more, `LONGEST_S` later at most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wattmesh.telemetry.actuator.rules.facts import GpuFacts
from wattmesh.telemetry.actuator.rules.leases import BootTime, ControllerWishes, WishLease, begin
from wattmesh.telemetry.actuator.wire import ProcessClaim
from wattmesh.telemetry.desired import LeaseKind, Wish

LONGEST_S = 60.0
MOST_USERS = 16
"""Who hold locks at the same time; each heartbeat judges them all."""

OwnLocks = Mapping[int, tuple[WishLease, ...]]
"""By uid; the leases of one user move together or not at all."""


def refusal(
    uid: int,
    wishes: Sequence[Wish],
    heard: ControllerWishes,
    locks: OwnLocks,
    facts: Mapping[str, GpuFacts | None],
) -> str:
    """Say why a user's locks are not taken on, with what to do; "" when they are.

    Args:
        uid: who asks.
        wishes: what is asked for; none gives back what the user holds.
        heard: what the controller wishes.
        locks: what users hold now.
        facts: of every GPU of this node, as last read.
    """
    if wishes and uid not in locks and len(locks) >= MOST_USERS:
        return f"{len(locks)} users lock clocks on this node already: try again later"
    others = {each.wish.gpu_uuid: who for who in locks if who != uid for each in locks[who]}
    for wish in wishes:
        name = wish.gpu_uuid
        if why := _too_much(wish) or _not_alone(uid, name, facts.get(name)):
            return why
        if heard.wish(name, LeaseKind.ECONOMY) is not None:
            return f"the controller sets {name} for a run: freeze that run, or take another GPU"
        if name in others:
            return f"uid {others[name]} holds a lock on {name}: take another GPU, or wait"
    return ""


def _too_much(wish: Wish) -> str:
    """Say what of a wish no user may ask for; "" where all of it may be."""
    name = wish.gpu_uuid
    if wish.clock_mhz is None or wish.cap_w is not None or wish.lease_s is None:
        return f"a user may lock the clock of {name} for some seconds, and nothing else"
    if wish.lease_s > LONGEST_S:
        return f"lease_s {wish.lease_s:g} for {name} is above {LONGEST_S:g}: renew it instead"
    return ""


def _not_alone(uid: int, name: str, facts: GpuFacts | None) -> str:
    """Say why a GPU does not compute for this user alone; "" when it does."""
    if facts is None:
        return f"{name} is no GPU of this node that answers: look at nvidia-smi"
    if facts.processes is None:
        return f"{name} does not say which processes use it: it is never set for a user"
    if not facts.processes:
        return f"no process computes on {name}: a user may lock the clock of GPUs in use alone"
    for each in facts.processes:
        if each.uid != uid:
            return f"process {each.pid} on {name} is of uid {each.uid}, not of {uid}"
    return ""


def taken(locks: OwnLocks, uid: int, wishes: Sequence[Wish], now: BootTime) -> OwnLocks:
    """Replace a user's locks by what is asked for now."""
    mine = tuple(begin(replace(each, holder=holder_of(uid)), now) for each in wishes)
    rest = {who: leases for who, leases in locks.items() if who != uid}
    return {**rest, uid: mine} if mine else rest


def live(locks: OwnLocks, now: BootTime) -> OwnLocks:
    """Leave out locks that have ended."""
    kept = {uid: tuple(e for e in leases if e.live(now)) for uid, leases in locks.items()}
    return {uid: leases for uid, leases in kept.items() if leases}


def beside(heard: ControllerWishes, locks: OwnLocks) -> ControllerWishes:
    """Add users' locks to what the controller wishes."""
    own = {
        (each.wish.gpu_uuid, LeaseKind.ECONOMY): each
        for leases in locks.values()
        for each in leases
    }
    return replace(heard, leases={**own, **heard.leases}) if own else heard


def claims_of(locks: OwnLocks) -> dict[str, ProcessClaim]:
    """Give each holder the processes of its own user."""
    return {holder_of(uid): ProcessClaim(uids=frozenset({uid})) for uid in locks}


def holder_of(uid: int) -> str:
    """Name a user as the holder of leases."""
    return f"uid-{uid}"
