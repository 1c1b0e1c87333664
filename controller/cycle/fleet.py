"""What all nodes' agents report together: coverage, clocks in force, power, owners of GPUs.

Pure. Invariant: the GPUs of a node that was not heard recently count neither as read nor as
settable, whatever the node reported before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from wattmesh.controller.cycle.cap_held import CapNow
from wattmesh.controller.journal.nodes.node_facts import STRANGE
from wattmesh.controller.journal.nodes.node_store import NodeRow
from wattmesh.controller.journal.runs.run_row import AWAY
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.errors import InputInvalid
from wattmesh.policies.isolation import cause
from wattmesh.reconfig.catalogue import Release
from wattmesh.telemetry.desired import Applied, GpuControl
from wattmesh.telemetry.energy.attribution import EnergyClaim, Holder, LaunchState, is_gpu
from wattmesh.telemetry.energy.sampler import Sample
from wattmesh.telemetry.readings import Component, PowerReading, Quality, component_of

DELIVER_S = 10.0
MISSED = 3
"""A node that missed this many deliveries in a row counts as not heard."""

SOONEST = timedelta(seconds=15)

LOST_HELD = timedelta(hours=1)
"""How long a silent run keeps its GPUs, if no node reports processes."""

SILENT_HELD = timedelta(days=7)
"""How long a silent run is matched with its processes, if nodes report them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSnapshot:
    """Nodes and runs as one turn of the cycle saw them, at a monotonic time.

    Attributes:
        by_gpu: which runs (indices in `runs`) registered a GPU, have it allocated or gave it back;
            built once, because every node needs it after every turn.
        claims: which run holds which GPU, so that during an outage of the journal energy is booked
            to its run and not as idle.
        cap: the power cap, and how it is kept.
    """

    monotonic_s: float
    frozen: str
    runs: tuple[RunRow, ...]
    nodes: Mapping[str, NodeRow]
    by_gpu: Mapping[str, tuple[int, ...]]
    claims: Mapping[str, EnergyClaim] = field(default_factory=dict)
    cap: CapNow | None = None

    @classmethod
    def of(
        cls,
        monotonic_s: float,
        runs: tuple[RunRow, ...],
        nodes: Iterable[NodeRow],
        *,
        frozen: str,
        claims: Mapping[str, EnergyClaim] | None = None,
        cap: CapNow | None = None,
    ) -> "FleetSnapshot":
        """Build a snapshot from what a turn has read."""
        places: dict[str, list[int]] = {}
        for place, row in enumerate(runs):
            for gpu in {*row.gpus, *row.allocated, *row.released} - {""}:
                places.setdefault(gpu, []).append(place)
        return cls(
            monotonic_s=monotonic_s,
            frozen=frozen,
            runs=runs,
            nodes={node.node: node for node in nodes},
            by_gpu={gpu: tuple(each) for gpu, each in places.items()},
            claims=claims or {},
            cap=cap,
        )

    def runs_on(self, node: NodeRow) -> tuple[RunRow, ...]:
        """Return the runs that registered or gave back a node's GPUs, oldest first."""
        places = {place for gpu in node.devices for place in self.by_gpu.get(gpu, ())}
        return tuple(self.runs[place] for place in sorted(places))


def recently_heard(node: NodeRow, now: datetime) -> bool:
    """Return whether a node was heard recently, measured by its own delivery interval."""
    return now - node.last_seen_at <= _lately(node)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusRead:
    """Which GPUs are read, by nodes or by this daemon's sampler; never by a run's own word.

    Attributes:
        known: GPUs that were ever read, until their node has not seen them for a day or is retired.
        lately: those of them whose power was read recently.
    """

    known: frozenset[str] = frozenset()
    lately: frozenset[str] = frozenset()

    @property
    def site(self) -> tuple[int, int]:
        """(GPUs whose power was read recently, GPUs that were ever read)."""
        return len(self.lately), len(self.known)

    def of(self, row: RunRow) -> tuple[int, int]:
        """Count (GPUs read recently, GPUs) of a run's ranks; those of the site if it named none.

        GPUs of other runs, or on their nodes, are no reason to hold this run.
        """
        used = row.gpus_used
        return (len(used & self.lately), len(used)) if used else self.site

    def unread(self, row: RunRow) -> list[str]:
        """Name the GPUs that a run's ranks use and that were never read."""
        return sorted(row.gpus_used - self.known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What is known of all GPUs at one moment.

    Attributes:
        nodes: every node that was not retired; none where the daemon reads its own machine.
        gpus: which are read; None: power is not read at all, or not yet.
        controls: the recent answers of the nodes' actuators, by GPU.
    """

    nodes: tuple[NodeRow, ...] = ()
    gpus: GpusRead | None = None
    controls: Mapping[str, GpuControl] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: tuple[NodeRow, ...], now: datetime) -> "Fleet":
        """Combine what the agents of the nodes reported."""
        return cls(nodes=nodes, gpus=gpus_read(nodes, now), controls=controls(nodes, now))


def gpus_read(nodes: Iterable[NodeRow], now: datetime) -> GpusRead:
    """Find which GPUs the nodes read."""
    known: set[str] = set()
    lately: set[str] = set()
    for node in nodes:
        gpus = {name for name in node.devices if is_gpu(name)}
        known |= gpus
        if recently_heard(node, now):
            lately |= gpus & _read_lately(node)
    return GpusRead(known=frozenset(known), lately=frozenset(lately))


def own_gpus_read(newest: Sample) -> GpusRead:
    """Find which GPUs are read, if this daemon reads the GPUs of its own machine."""
    lately = frozenset(each.gpu_uuid for each in newest.readings if is_gpu(each.gpu_uuid))
    return GpusRead(known=frozenset(filter(is_gpu, newest.devices)), lately=lately)


def limits_w(nodes: Iterable[NodeRow], own: Iterable[PowerReading]) -> dict[str, float]:
    """Return the highest settable power limit of every GPU for which it is known, however old.

    It is not the enforced limit, because a cap may have ended since the report.
    """
    found = {
        name: float(facts["highest_limit_w"])
        for node in nodes
        for name, facts in node.devices.items()
        if is_gpu(name) and facts.get("highest_limit_w")
    }
    own_w = {each.gpu_uuid: each.highest_limit_w for each in own if is_gpu(each.gpu_uuid)}
    return found | {name: limit_w for name, limit_w in own_w.items() if limit_w}


def controls(nodes: Iterable[NodeRow], now: datetime) -> dict[str, GpuControl]:
    """Return the answers of the actuators on nodes that are heard, by GPU."""
    found: dict[str, GpuControl] = {}
    for node in nodes:
        applied = node.facts.get("applied")
        if applied is None or not recently_heard(node, now):
            continue
        try:
            said = Applied.from_json(applied)
        except InputInvalid:
            continue  # an agent of another version, whose clocks are unknown
        found |= {each.gpu_uuid: each for each in said.gpus if each.gpu_uuid in node.devices}
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldByNode:
    """What one node tells, whenever it is looked at.

    Attributes:
        readings: of its devices, but the node's own meter, that were read lately.
        missing: the others of them.
        strange: what was left out of its deliveries, and why, as a sentence.
        troubles: what cannot be read of it while it is heard, as sentences.
    """

    readings: tuple[PowerReading, ...]
    missing: tuple[str, ...]
    strange: str
    troubles: tuple[str, ...]

    @classmethod
    def of(cls, node: NodeRow) -> "ToldByNode":
        """Read a node's row."""
        readings, troubles = list[PowerReading](), list[str]()
        try:
            readings = _readings(node)
        except Exception as error:
            # A last resort behind the API's range checks: one node's data must not stop the others.
            troubles.append(f"what it tells cannot be read ({cause(error)})")
        read = {each.gpu_uuid for each in readings}
        return cls(
            readings=tuple(readings),
            missing=tuple(name for name in _parts(node) if name not in read),
            strange=str(node.facts.get(STRANGE) or ""),
            troubles=(*troubles, *map(str, _own_troubles(node))),
        )


class FleetSampler:
    """Combines the newest readings of all nodes, as if one sampler had read them.

    A node's row is read once, however often it is looked at: devices may be tens of thousands.
    """

    def __init__(self) -> None:
        """Know nothing yet."""
        self._known: dict[str, tuple[NodeRow, ToldByNode]] = {}

    def sample(self, nodes: Iterable[NodeRow], now: datetime) -> Sample:
        """Combine what these nodes tell."""
        self._known = {node.node: (node, self._told(node)) for node in nodes}
        readings: list[PowerReading] = []
        missing: list[str] = []
        silent: list[str] = []
        troubles: list[tuple[str, str]] = []
        for node, told in self._known.values():
            missing += told.missing
            if recently_heard(node, now):
                readings += told.readings
                troubles += [(node.node, each) for each in told.troubles]
            else:
                silent.append(node.node)
                missing += [each.gpu_uuid for each in told.readings]
            if told.strange:
                troubles.append((node.node, told.strange))
        trouble = ""
        if silent:
            trouble = (
                f"{len(silent)} nodes are not heard ({', '.join(silent[:5])}); look at "
                "`systemctl status wattmesh-agent` there"
            )
        return Sample(
            readings=tuple(readings),
            missing=tuple(missing),
            trouble=trouble,
            troubles=tuple(troubles),
        )

    def _told(self, node: NodeRow) -> ToldByNode:
        row, told = self._known.get(node.node, (None, None))
        return told if told is not None and row is node else ToldByNode.of(node)


def _readings(node: NodeRow) -> list[PowerReading]:
    lately = _read_lately(node)
    return [_reading(name, facts) for name, facts in _parts(node).items() if name in lately]


def _own_troubles(node: NodeRow) -> Sequence[object]:
    """Give what a node's agent says that it cannot read."""
    said = node.facts.get("troubles")
    return said if isinstance(said, list | tuple) else ()


def _parts(node: NodeRow) -> Mapping[str, Mapping[str, Any]]:
    """Give the devices but the node's own meter, which its agent compares with them itself."""
    return {
        name: facts
        for name, facts in node.devices.items()
        if component_of(name) is not Component.NODE
    }


def holders(rows: Sequence[RunRow], now: datetime, *, seen: bool) -> tuple[Holder, ...]:
    """Return the runs that may own processes on GPUs.

    Args:
        rows: every run.
        now: the wall clock.
        seen: whether nodes report their processes; then a run that is silent, or has just ended,
            still owns the processes it left, for a limited time.
    """
    return tuple(holder(row) for row in rows if now - row.last_seen_at < _held(row, seen=seen))


def holder(row: RunRow) -> Holder:
    """Describe a run as an owner of GPUs; asleep it keeps them, unless its catalogue gives back.

    In a queue it has none: its job has ended. While its job lives it gives none back that this has.
    """
    away = row.state in AWAY
    ranks = set(row.ranks)
    unused = [gpu for rank, gpu in enumerate(row.gpus) if gpu and rank not in ranks]
    gives_back = row.catalogue is not None and row.catalogue.release is Release.RELEASED
    gpus = tuple(filter(None, row.gpus))
    inside = row.state == "asleep" and row.sleeps_in_job
    kept = inside or (row.state == "asleep" and not gives_back)
    if away and not kept:
        gpus, unused = (), list(dict.fromkeys((*gpus, *row.allocated)))
    allocated = row.allocated if inside or not away else ()
    released = (*row.released, *(unused if gives_back or (away and not kept) else ()))
    return Holder(
        run=row.run,
        incarnation=row.incarnation,
        gpus=gpus,
        allocated=allocated,
        released=tuple(each for each in released if each not in allocated),
        # Agents of the version before know no launch that sleeps or waits.
        standing=LaunchState.LOST if away else LaunchState(row.state),
        idles=kept,
        owner_uid=row.owner_uid,
        job=row.scheduler_key,
        host=row.host,
        pid=row.pid,
        registered_at=row.incarnation_at,
        ended_at=row.finished_at,
    )


def _held(row: RunRow, *, seen: bool) -> timedelta:
    """Return how long a silent or finished run still counts as an owner."""
    if row.state in AWAY:
        return timedelta.max
    if row.state == "finished":
        return LOST_HELD if seen else timedelta()
    return SILENT_HELD if seen else LOST_HELD


def _lately(node: NodeRow) -> timedelta:
    """Return how old the newest delivery of a node may be; at least `SOONEST`."""
    told = node.facts.get("deliver_s", DELIVER_S)
    every_s = float(told) if isinstance(told, int | float) and 0 < told <= 300 else DELIVER_S
    return max(SOONEST, timedelta(seconds=MISSED * every_s))


def _read_lately(node: NodeRow) -> set[str]:
    """Name the devices whose reading is recent, compared with their node's newest one."""
    # Compare the node's times only: its clock may differ from ours. A silent device has our time.
    told = {name: _at(each) for name, each in node.devices.items() if not each.get("silent")}
    newest, lately = max(told.values(), default=None), _lately(node)
    return {name for name, at in told.items() if newest and newest - at <= lately}


def _at(facts: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(str(facts["at"]))


def _reading(name: str, facts: Mapping[str, Any]) -> PowerReading:
    """Make a reading from a node's report; what it lacks stays unknown, or `ESTIMATED`."""
    return PowerReading(
        gpu_uuid=name,
        at=_at(facts),
        monotonic_s=0.0,
        power_w=_number(facts.get("power_w")),
        energy_mj=None,
        clock_mhz=_whole(facts.get("clock_mhz")),
        power_limit_w=_number(facts.get("power_limit_w")),
        source=str(facts.get("source", "")),
        quality=_member(Quality, facts.get("quality"), Quality.ESTIMATED),
        component=_member(Component, facts.get("component"), Component.GPU),
        temperature_c=_number(facts.get("temperature_c")),
        utilization=_number(facts.get("utilization")),
        shared=str(facts.get("shared", "")),
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _member(kind: Any, value: object, default: Any) -> Any:
    return kind(value) if value in _values(kind) else default


@cache
def _values(kind: Any) -> frozenset[Any]:
    return frozenset(kind)
