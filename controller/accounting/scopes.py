"""What the meters of a run include, compared with its catalogue's watts.

Invariant: one energy boundary for the whole of a run, over all its launches, or none.
"""

from collections.abc import Sequence
from itertools import pairwise

from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.journal.runs.stays import LaunchRow
from wattmesh.reconfig.catalogue import PowerScope
from wattmesh.telemetry.energy.attribution import is_gpu

MIXED = "processors and memory were not read on the same nodes throughout"
NOT_SEEN_YET = "whether processors and memory are read since its newest launch is not known yet"
FEWER_SPARE = (
    "a launch that nobody ordered had fewer GPUs beyond those of its ranks, or it is not known "
    "which: what they drew before is no saving"
)


def gpus_read(journal: Journal, run: RunRow, launch: LaunchRow) -> int:
    """Count the GPUs whose joules were booked to a run during one of its launches."""
    devices = journal.by_slot.devices_read(run.run, launch.start, launch.end)
    return sum(is_gpu(each) for each in devices)


def meter_scope(journal: Journal, run: RunRow) -> PowerScope | None:
    """Tell what was read of a run: its GPUs, or its nodes with their processors and memory.

    Returns:
        None where processors are read on some of its nodes only, or in some of its launches: the
        joules then match neither scope.

    Raises:
        JournalUnavailable: the journal does not answer.
    """
    devices = journal.by_slot.devices_read(run.run)
    gpus = {*run.gpus} | {each for each in devices if is_gpu(each)}
    hosts = {_node_of_meter(each) for each in devices - gpus}
    if not hosts:
        return PowerScope.GPU
    nodes = {each.node for each in journal.nodes.all() if gpus & {*each.devices}}
    mixed = mixed_launches(journal, run, journal.stays.launches(run.run))
    return PowerScope.NODE if nodes <= hosts and not mixed else None


def mixed_launches(journal: Journal, run: RunRow, launches: Sequence[LaunchRow]) -> str:
    """Say that processors and memory were not read alike in all launches; "" if they were.

    Alike means by the same meters; or, on other nodes that are known, by meters of the same kinds
    on every node. Slots that two launches share are left out.

    Raises:
        JournalUnavailable: the journal does not answer.
    """
    seen = [_meters(journal, run, each, then) for each, then in pairwise((*launches, None)) if each]
    if len(seen) > 1 and seen[-1] is None:
        return NOT_SEEN_YET
    return "" if _alike(journal, [each for each in seen if each]) else MIXED


def fewer_spare(launches: Sequence[LaunchRow]) -> str:
    """Say that a run came back by itself without GPUs that its ranks never used; "" if not. Pure.

    Its baseline is priced with what it drew at its points, with these GPUs; who submits it in a
    smaller job, or says no more what its job has, saves nothing by that. What an order gave back is
    booked as `idle_after_release`.

    Args:
        launches: of one run, in time order.
    """
    fell = (
        not each.ours and then.spare < each.spare and len(then.gpus) < len(each.gpus)
        for each, then in pairwise(launches)
    )
    return FEWER_SPARE if any(fell) else ""


def _alike(journal: Journal, seen: Sequence[tuple[frozenset[str], frozenset[str]]]) -> bool:
    """Whether launches, given as (GPUs, other meters), were read alike."""
    if len({meters for _, meters in seen}) <= 1:
        return True
    node_of = {gpu: each.node for each in journal.nodes.all() for gpu in each.devices}
    kinds = set[frozenset[str]]()
    by_host: dict[str, frozenset[str]] = {}
    for gpus, meters in seen:
        for node in {node_of.get(gpu, "") for gpu in gpus} or {""}:
            here = frozenset(each for each in meters if _node_of_meter(each) == node)
            if by_host.setdefault(node, here) != here:
                return False
            kinds.add(frozenset(each.split(":")[0] for each in here))
    return len(kinds) == 1 and frozenset() not in kinds


def _meters(
    journal: Journal, run: RunRow, launch: LaunchRow, following: LaunchRow | None
) -> tuple[frozenset[str], frozenset[str]] | None:
    """Give the GPUs of a launch, and what else was read in its own slots; None: it has none."""
    slots = journal.ledger_slots.whole(launch.start, following.start if following else None)
    if slots is None:
        return None
    devices = journal.by_slot.devices_read(run.run, *slots)
    gpus = frozenset({*launch.gpus} | {each for each in devices if is_gpu(each)})
    return gpus, devices - gpus


def _node_of_meter(meter: str) -> str:
    return meter.split(":")[1]


def scopes(journal: Journal, run: RunRow, *, read: bool) -> dict[str, str]:
    """Say what the catalogue's watts and the meters' include, and what follows if they differ.

    Args:
        journal: the ledger.
        run: whose scopes.
        read: whether anything was read of it.
    """
    if run.catalogue is None:
        return {}
    declared, meters = run.catalogue.power_scope, meter_scope(journal, run)
    note = ""
    if read and meters is not declared:
        note = (
            f"the catalogue's watts are of the {declared}, the meters read {_READ[meters]}: the "
            "baseline is priced with what the meters read at its point, and no bound is given"
        )
    told = ("some nodes" if meters is None else str(meters)) if read else ""
    return {"power_scope": str(declared), "meter_scope": told, "scope_note": note}


_READ = {
    PowerScope.GPU: "the GPUs",
    PowerScope.NODE: "the nodes with their processors",
    None: "the GPUs, and the processors of some nodes",
}
