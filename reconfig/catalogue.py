"""The catalogue: a job's operating points with their evidence (DESIGN.md 5.3). Torch-free.

Types only; reading and writing TOML is in `wattmesh.reconfig.catalogue_file`. Only points whose
evidence is `validated` and whose equivalence the operator allowed may be switched to automatically.
"""

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.fingerprint import Fingerprint
from wattmesh.reconfig.layout import Layout


class Equivalence(StrEnum):
    """How alike two points train: bitwise, to rounding, in distribution, or unknown."""

    EXACT = "exact"
    NUMERICAL = "numerical"
    STATISTICAL = "statistical"
    NONE = "none"


class Evidence(StrEnum):
    """Where a point's numbers come from, weakest first."""

    ASSUMED = "assumed"
    PREDICTED = "predicted"
    MEASURED = "measured"
    VALIDATED = "validated"


class PowerScope(StrEnum):
    """What watts contain: the GPUs, their nodes with processors and memory, or the building."""

    GPU = "gpu"
    NODE = "node"
    FACILITY = "facility"


class Release(StrEnum):
    """What happens to GPUs that a smaller layout does not use."""

    HELD = "held"
    PARKED = "parked"
    RELEASED = "released"


HIGHEST_MHZ = 1_000_000
"""Above any clock: stands for GPUs that run as fast as they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEvidence:
    """How the probe's loss changed at a switch to the point; all relative.

    Attributes:
        moved: change from the loss before the switch.
        allowed: the limit of that change.
        noise: change at the point itself, with products summed in `orders` other orders; None: not
            measured, because it was not needed.
        computed_in: dtype of those products.
    """

    moved: float
    allowed: float
    noise: float | None = None
    orders: int = 0
    computed_in: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """A layout and a clock: the thing that is profiled, validated and chosen.

    Attributes:
        tokens_per_s: throughput including the boundaries' checkpoints.
        power_w: of everything in use, in the catalogue's power scope; > 0.
        gpu_power_w: of its GPUs; host_power_w: of its nodes without their GPUs; None: not known.
        parked_power_w: of one GPU of the job that the layout leaves idle, its process alive; None:
            not known.
        samples: how many intervals between checkpoints it was measured over; 0: none.
        spread: half of the interval of its joules per token, as a share of them; speed_spread: the
            same of `tokens_per_s`; None: not measured.
        dominated_by: the point that made its measurement stop early, because it is faster and takes
            fewer joules; "".
        sources: per number (`tokens_per_s`, `power_w`, `memory_gib`): "measured", "simulated" or
            "assumed", as screens print it.
        probe: of the switch that proved the point; None without one.
        fingerprint: what it was measured and proven on; None: not known.
        validated_at, validated_by: when it was proven, and who asked for it; None and "": not
            known.
        tolerance: by how much its losses may differ from the reference's, relative; from the
            measured noise of the reference; None: not known.
        proven_as: the `claim` that was proven; "": not known.
    """

    id: str
    layout: Layout
    gpus: int
    tokens_per_s: float
    power_w: float
    clock_mhz: int | None = None
    memory_gib: float | None = None
    host_power_w: float | None = None
    gpu_power_w: float | None = None
    parked_power_w: float | None = None
    samples: int = 0
    spread: float | None = None
    speed_spread: float | None = None
    dominated_by: str = ""
    equivalence: Equivalence = Equivalence.NONE
    evidence: Evidence = Evidence.ASSUMED
    sources: dict[str, str] = field(default_factory=dict)
    probe: ProbeEvidence | None = None
    fingerprint: Fingerprint | None = None
    validated_at: datetime | None = None
    validated_by: str = ""
    tolerance: float | None = None
    proven_as: str = ""

    def __post_init__(self) -> None:
        """Check that the numbers are positive."""
        if not (self.tokens_per_s > 0 and self.power_w > 0 and self.gpus > 0):
            raise InputInvalid(
                f"catalogue: point {self.id!r} needs gpus, tokens_per_s and power_w above 0, got "
                f"{self.gpus}, {self.tokens_per_s}, {self.power_w}"
            )

    @property
    def claim(self) -> str:
        """A digest of what a proof of this point says: of which layout and clock, and what."""
        proven = (self.gpus, self.clock_mhz, str(self.equivalence), self.tolerance)
        text = repr((sorted(self.layout.to_dict().items()), *proven))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def j_per_token(self) -> float:
        """Joules per token, without idle GPUs."""
        return self.power_w / self.tokens_per_s


PAUSED = "paused"
"""Id that means "not training" in a pair of `SwitchCost`; no point may have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairCost:
    """The measured cost of a switch from point `origin` to `target` (ids, or `paused`).

    Attributes:
        seconds, energy_j: cold, with compilation, where it was measured so.
        warm_s, warm_energy_j: once the target had been built before; None: not measured.
    """

    origin: str
    target: str
    seconds: float
    energy_j: float
    warm_s: float | None = None
    warm_energy_j: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSpend:
    """What one switch in place spent, from its boundary on, as the run measured it.

    The phases follow one another: their sum is the stall.

    Attributes:
        origin, target: ids of points.
        state_bytes: of the logical state, each element once; > 0.
        save_s: agreeing, digest, probe, and the copy in shared memory or the files.
        teardown_s: emptying the old layout. groups_s: ending its process groups, beginning others.
        build_s: the job's `build`, without the groups. load_s: filling it from the checkpoint.
        verify_s: digest and probe of what was loaded. agree_s: what is left of the time until all
            ranks stood in the new layout: messages and votes.
        first_s: from then until the first step at normal pace had ended; None: nobody saw that.
        cold: whether the target had not been built before in this launch.
    """

    origin: str
    target: str
    state_bytes: int
    save_s: float
    teardown_s: float
    groups_s: float
    build_s: float
    load_s: float
    verify_s: float
    agree_s: float
    first_s: float | None = None
    cold: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchCost:
    """The cost of a layout switch: seconds until speed is steady, joules, and their source.

    Attributes:
        layout_s, layout_energy_j: cold, with compilation; 0 joules: not measured.
        reacquire_s: 95 % quantile of the time until released GPUs are the job's again; None: not
            known, so only held GPUs count.
        pairs: switches with other costs.
        spends: what single switches spent, newest last; from them others are predicted.
    """

    layout_s: float = 300.0
    layout_energy_j: float = 0.0
    clock_s: float = 0.0
    source: str = "assumed"
    reacquire_s: float | None = None
    pairs: tuple[PairCost, ...] = ()
    spends: tuple[SwitchSpend, ...] = ()

    def between(self, origin: str, target: str) -> PairCost | None:
        """Return the measured cost of one pair; None: the general cost applies."""
        for pair in self.pairs:
            if (pair.origin, pair.target) == (origin, target):
                return pair
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All operating points of one job, with their evidence.

    Attributes:
        reference: id of the point that equivalence is measured against and the baseline.
        idle_power_w_per_gpu: a GPU and its host share, idle but held (or parked).
        power_scope: what all watts in it include.
        digest: sha256 of the file it was read from; "" when built in memory.
    """

    job: str
    tokens_total: int
    reference: str
    points: tuple[OperatingPoint, ...]
    release: Release = Release.HELD
    idle_power_w_per_gpu: float = 0.0
    embodied_g_per_gpu_hour: float = 0.0
    global_batch: int = 0
    seq_len: int = 0
    switch: SwitchCost = field(default_factory=SwitchCost)
    simulated: tuple[str, ...] = ()
    power_scope: PowerScope = PowerScope.GPU
    digest: str = ""

    def __post_init__(self) -> None:
        """Check that ids are unique and that all references exist."""
        ids = [point.id for point in self.points]
        if len(set(ids)) != len(ids):
            raise InputInvalid(f"catalogue {self.job!r}: point ids repeat: {', '.join(ids)}")
        if PAUSED in ids:
            raise InputInvalid(f"catalogue {self.job!r}: {PAUSED!r} is no name for a point")
        if self.reference not in ids:
            raise InputInvalid(
                f"catalogue {self.job!r}: reference {self.reference!r} is not one of its points: "
                f"{', '.join(ids) or 'none'}"
            )
        ends = {end for pair in self.switch.pairs for end in (pair.origin, pair.target)}
        ends |= {end for each in self.switch.spends for end in (each.origin, each.target)}
        unknown = sorted(ends.difference(ids, (PAUSED,)))
        if unknown:
            raise InputInvalid(
                f"catalogue {self.job!r}: [switch] names {', '.join(unknown)}, which "
                f"{'is' if len(unknown) == 1 else 'are'} not among its points: {', '.join(ids)}"
            )

    def point(self, point_id: str) -> OperatingPoint:
        """Find a point by id.

        Raises:
            InputInvalid: there is no such point; the message lists the points.
        """
        for point in self.points:
            if point.id == point_id:
                return point
        known = ", ".join(point.id for point in self.points)
        raise InputInvalid(f"catalogue {self.job!r} has no point {point_id!r}; it has {known}")

    def find(self, layout: Layout, clock_mhz: int | None = None) -> OperatingPoint | None:
        """Find the point of a layout with GPUs locked to `clock_mhz`; None when there is none.

        Unlocked GPUs (`clock_mhz` None) run as fast as they can: that is the layout's point
        without a clock, else the one with the highest.
        """
        alike = [point for point in self.points if point.layout == layout]
        if clock_mhz is not None:
            return next((point for point in alike if point.clock_mhz == clock_mhz), None)
        return max(alike, key=lambda each: each.clock_mhz or HIGHEST_MHZ, default=None)

    def unlocked(self) -> dict[Layout, OperatingPoint]:
        """Return `find` of every layout, in one pass over the points."""
        found: dict[Layout, OperatingPoint] = {}
        for point in self.points:
            known = found.setdefault(point.layout, point)
            if (point.clock_mhz or HIGHEST_MHZ) > (known.clock_mhz or HIGHEST_MHZ):
                found[point.layout] = point
        return found

    def comparable_power_w(
        self, point: OperatingPoint, gpus_held: int, meters: PowerScope | None
    ) -> float | None:
        """Return `held_power_w` as meters of another scope would read it.

        Args:
            point: one of its points.
            gpus_held: see `held_power_w`.
            meters: scope of the meters; None: it differs between nodes.

        Returns:
            None where the point does not have the numbers to convert.
        """
        power_w = self.held_power_w(point, gpus_held)
        if self.power_scope is meters:
            return power_w
        if {self.power_scope, meters} != {PowerScope.GPU, PowerScope.NODE}:
            return None
        if point.host_power_w is None:
            return None
        node = meters is PowerScope.NODE
        return power_w + point.host_power_w if node else power_w - point.host_power_w

    def held_power_w(self, point: OperatingPoint, gpus_held: int) -> float:
        """Return the watts charged to the job at `point` while it holds `gpus_held` GPUs.

        Held and parked GPUs draw idle power; released ones are not charged here.
        """
        unused = max(0, gpus_held - point.gpus)
        if self.release is Release.RELEASED:
            unused = 0
        return point.power_w + unused * self.idle_power_w_per_gpu
