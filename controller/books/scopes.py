"""What the meters of a run contain, beside what its catalogue's watts do."""

from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs import RunRow
from wattmesh.controller.journal.stays import LaunchRow
from wattmesh.reconfig.catalogue import PowerScope
from wattmesh.telemetry.attribution import is_gpu


def gpus_read(journal: Journal, run: RunRow, launch: LaunchRow) -> int:
    """Count the GPUs whose joules were booked to a run while one of its launches lived."""
    devices = journal.by_slot.devices_read(run.run, launch.start, launch.end)
    return sum(is_gpu(each) for each in devices)


def meter_scope(journal: Journal, run: RunRow) -> PowerScope | None:
    """Tell what was read of a run: its GPUs, or its nodes with their processors and memory.

    Returns:
        None where processors are read on some of its nodes only: what was read is then neither.

    Raises:
        JournalUnavailable: the journal does not answer.
    """
    devices = journal.by_slot.devices_read(run.run)
    gpus = {*run.gpus} | {each for each in devices if is_gpu(each)}
    hosts = {each.split(":")[1] for each in devices - gpus}
    if not hosts:
        return PowerScope.GPU
    nodes = {each.node for each in journal.nodes.all() if gpus & {*each.devices}}
    return PowerScope.NODE if nodes <= hosts else None


def scopes(journal: Journal, run: RunRow, *, read: bool) -> dict[str, str]:
    """Say what the catalogue's watts and the meters' contain, and what follows.

    Args:
        journal: the ledger.
        run: whose.
        read: whether anything was.
    """
    if run.catalogue is None:
        return {}
    declared, meters = run.catalogue.power_scope, meter_scope(journal, run)
    note = ""
    if read and meters is not declared:
        note = (
            f"the catalogue's watts are of the {declared}, the meters read {_READ[meters]}: the "
            "baseline is priced with what the meters read at its point, and no bound is told"
        )
    told = ("some nodes" if meters is None else str(meters)) if read else ""
    return {"power_scope": str(declared), "meter_scope": told, "scope_note": note}


_READ = {
    PowerScope.GPU: "the GPUs",
    PowerScope.NODE: "the nodes with their processors",
    None: "the GPUs, and the processors of some nodes",
}
