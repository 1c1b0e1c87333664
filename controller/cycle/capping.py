"""The power cap in one cycle: rows and nodes in, what each board is held at out. Pure.

Invariant: a cap holds without carbon data, in every mode, and for frozen runs. While it is in
force, every board that any node ever reported counts, at its power limit if nothing lower is known.
A GPU that only a run's registration names takes no watts from others: it is reported, not counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from wattmesh.controller.cycle.cap_held import CapNow, lasting
from wattmesh.controller.cycle.fleet import LOST_HELD, recently_heard
from wattmesh.controller.journal.nodes.caps import CapRow
from wattmesh.controller.journal.nodes.node_store import NodeRow
from wattmesh.controller.journal.runs.run_row import AWAY
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.errors import InputInvalid
from wattmesh.policies.decision import Observation
from wattmesh.policies.powercap.capped import announced, loads, under
from wattmesh.policies.powercap.powercap import Capping, GpuPowerLimits, cap
from wattmesh.telemetry.desired import Applied, GpuControl
from wattmesh.telemetry.energy.attribution import is_gpu


def apply(
    seen: Observation,
    row: CapRow,
    nodes: Sequence[NodeRow],
    runs: Iterable[RunRow],
    beside: Sequence[CapRow] = (),
) -> tuple[Observation, CapNow]:
    """Plan how a cap is kept; return the observation as restricted by it, and the plan.

    Args:
        seen: what the cycle saw.
        row: the cap in force.
        nodes: every node that was not retired.
        runs: every run.
        beside: others that hold and are no lower.
    """
    at = working(runs, seen.now)
    known = boards(nodes, seen.now)
    plan = cap(row.cap_w, known, loads(seen, at))
    named = {gpu for gpus in at.values() for gpu in gpus}
    slowed = {
        run.name: run.current.id
        for run in seen.runs
        if run.current and plan.points.get(run.run, run.current).id != run.current.id
    }
    now = CapNow(
        row=row,
        plan=plan,
        before=seen,
        slowed=slowed,
        obeying=sum(each.obeys for each in known),
        unreported=tuple(sorted(named - {each.gpu_uuid for each in known})),
        kept_until=lasting(row, beside),
    )
    return under(seen, plan, row.until), now


def announce(
    seen: Observation,
    rows: Sequence[CapRow],
    nodes: Sequence[NodeRow],
    runs: Sequence[RunRow],
    in_force: CapRow | None = None,
) -> Observation:
    """Give the observation with what caps will leave each run, once it trains.

    A run that is away is taken to be back on the GPUs it had, if no other run has them.

    Args:
        seen: what the cycle saw, under no cap.
        rows: the caps that are announced, the next first.
        nodes: every node that was not retired.
        runs: every run.
        in_force: the cap in force, which a run that is away does not feel, and will.
    """
    known, at = boards(nodes, seen.now), loads(seen, away(runs, seen.now))

    def planned(row: CapRow) -> tuple[Capping, datetime, datetime]:
        return cap(row.cap_w, known, at), row.start, row.until

    now = planned(in_force) if in_force is not None else None
    return announced(seen, [planned(row) for row in rows], now)


def working(rows: Iterable[RunRow], now: datetime) -> dict[str, tuple[str, ...]]:
    """List the GPUs that each run trains on, without those of parked ranks.

    A run silent for up to `LOST_HELD` may still train, unless it said that it leaves, or another
    run has its GPUs. If two live runs name one GPU, the one registered first has it: a new claim
    takes nothing from others.
    """
    taken: set[str] = set()
    found: dict[str, tuple[str, ...]] = {}
    for row in sorted(rows, key=_claim):
        silent = row.state != "live"
        if row.state in ("finished", *AWAY) or (silent and now - row.last_seen_at > LOST_HELD):
            continue
        found[row.run] = tuple(sorted(row.gpus_used - taken))
        taken |= row.gpus_used
    return found


def away(rows: Sequence[RunRow], now: datetime) -> dict[str, tuple[str, ...]]:
    """List the GPUs that each run trains on, or will on its return, as far as they are free."""
    found = working(rows, now)
    taken = {gpu for gpus in found.values() for gpu in gpus}
    for row in sorted(rows, key=_claim):
        if row.state in AWAY:
            found[row.run] = tuple(sorted(row.gpus_used - taken))
            taken |= row.gpus_used
    return found


def _claim(row: RunRow) -> tuple[bool, datetime, str]:
    """Sort key: whose claim on a GPU comes first."""
    return row.state != "live", row.registered_at, row.run


def boards(nodes: Iterable[NodeRow], now: datetime) -> tuple[GpuPowerLimits, ...]:
    """List every GPU that a node ever reported, with its actuator's last answer."""
    found: dict[str, GpuPowerLimits] = {}
    for node in nodes:
        answers, fresh = _controls(node), recently_heard(node, now)
        for gpu, facts in node.devices.items():
            if is_gpu(gpu):
                found[gpu] = _board(gpu, facts, answers.get(gpu), fresh=fresh)
    return tuple(found.values())


def highest_w(known: Iterable[GpuPowerLimits]) -> float | None:
    """Give what boards may draw together while nobody lowers them; None: no limit is known.

    A board whose limit nobody tells counts like the largest.
    """
    boards_known = tuple(known)
    limits = [each.limit_w for each in boards_known if each.limit_w is not None]
    if not limits:
        return None
    return sum(limits) + (len(boards_known) - len(limits)) * max(limits)


def shared_boards(nodes: Iterable[NodeRow], now: datetime) -> tuple[str, ...]:
    """List the GPUs that no actuator may set because several share them, as their nodes report."""
    return tuple(
        gpu
        for node in nodes
        if recently_heard(node, now)
        for gpu, facts in node.devices.items()
        if is_gpu(gpu) and facts.get("shared")
    )


def _controls(node: NodeRow) -> dict[str, GpuControl]:
    """Return the last answer of a node's actuator, however old: limits of boards do not age."""
    try:
        applied = Applied.from_json(node.facts.get("applied"))
    except InputInvalid:
        return {}
    return {each.gpu_uuid: each for each in applied.gpus}


def _board(
    gpu: str, facts: Mapping[str, object], control: GpuControl | None, *, fresh: bool
) -> GpuPowerLimits:
    """Describe one GPU. The limit in a reading may be our own cap, so the highest limit counts."""
    told = facts.get("power_limit_w")
    limits = [float(told)] if isinstance(told, int | float) else []
    if control is None:
        return GpuPowerLimits(gpu_uuid=gpu, limit_w=max(limits, default=None), obeys=False)
    if control.limit_w is not None:
        limits.append(control.limit_w)
    kept = control.cap_w is not None and not control.trouble
    return GpuPowerLimits(
        gpu_uuid=gpu,
        limit_w=max(limits, default=None),
        floor_w=control.floor_w,
        obeys=fresh and (control.settable or kept),
    )
