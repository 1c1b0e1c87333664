"""What profiling has measured so far, in a file that survives a kill.

    progress.json   in the profile's folder, written after every finished point and switch

Invariant: the file belongs to one job file, by its digest; another is refused, never mixed in.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from wattmesh import durable
from wattmesh.controller.profile.kept import read_kept
from wattmesh.reconfig.catalogue import SwitchSpend
from wattmesh.reconfig.layout import Layout, without_usual

PROGRESS = "progress.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """One point's numbers.

    Attributes:
        tokens_per_s, power_w: at the job's own checkpoint interval; `power_w` of what is read.
        gpu_power_w, host_power_w: its parts; None: not read.
        parked_w: of one GPU that the layout does not use, its process alive; None: not seen.
        speed_share, share: half intervals of `tokens_per_s` and of the joules per token.
        samples: periods between checkpoints. `seconds`: their time.
        settled: False: pace or power still moved when the time was over.
        dominated_by: the point because of which the measurement was cut short; "".
        speed_source, power_source: "measured", "simulated" or "assumed".
        overruns: steps that took longer than a simulated device paces them.
        computes_with: what the job said of itself, as `Fingerprint.to_dict` gives it.
    """

    id: str
    tokens_per_s: float
    power_w: float
    gpu_power_w: float | None
    host_power_w: float | None
    parked_w: float | None
    memory_gib: float | None
    step_s: float
    boundary_s: float
    speed_share: float
    share: float
    samples: int
    steps: int
    seconds: float
    settled: bool
    dominated_by: str = ""
    speed_source: str = "measured"
    power_source: str = "measured"
    overruns: int = 0
    computes_with: dict[str, str] = field(default_factory=dict)

    @property
    def j_per_token(self) -> float:
        """Joules per token."""
        return self.power_w / self.tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSwitch:
    """One switch: what it took beyond the steps that were trained in it.

    Attributes:
        seconds: from the boundary to the end of the first step at normal pace, less the steps.
        energy_j: of all the job's devices in that time; None: not known.
        cold: whether the target had not been built before in this launch.
        spend: by phase; None: the job did not tell all of them.
    """

    origin: str
    target: str
    seconds: float
    energy_j: float | None
    cold: bool
    spend: SwitchSpend | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedPoint:
    """A point that the search proposed, as it was predicted then.

    Attributes:
        expected_g, if_true_g: grams that it would save; None: it is to make the deadline at all.
        sentence: why it was the next.
    """

    id: str
    layout: Layout
    clock_mhz: int | None
    tokens_per_s: float
    j_per_token: float
    expected_g: float | None
    if_true_g: float | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileState:
    """All that was measured.

    Attributes:
        digest: of the job file.
        idle_gpu_w: of one GPU before the job began. idle_host_w: of the host then. None: not read.
        scope: what the watts contain. models, vbios, driver: of the GPUs; "" where nothing says.
        refused: why a point has no numbers, by id.
        evidence: what the job reported of the switch to a point, by id.
        launches: how many were begun.
        proposed: points of the search, in order. unfit: ids of those that the job could not be
            brought to, or failed at other than for memory.
        closed: switches between measured points that the job did not make, from and to.
    """

    digest: str
    points: tuple[MeasuredPoint, ...] = ()
    switches: tuple[MeasuredSwitch, ...] = ()
    idle_gpu_w: float | None = None
    idle_host_w: float | None = None
    scope: str = "gpu"
    models: str = ""
    vbios: str = ""
    driver: str = ""
    refused: dict[str, str] = field(default_factory=dict)
    evidence: dict[str, dict[str, Any]] = field(default_factory=dict)
    launches: int = 0
    proposed: tuple[ProposedPoint, ...] = ()
    unfit: tuple[str, ...] = ()
    closed: tuple[tuple[str, str], ...] = ()

    def point(self, point_id: str) -> MeasuredPoint | None:
        """Return a point's numbers; None without any."""
        return next((each for each in self.points if each.id == point_id), None)

    def with_point(self, point: MeasuredPoint) -> "ProfileState":
        """Add a point, in place of an earlier one of that id."""
        others = tuple(each for each in self.points if each.id != point.id)
        return replace(self, points=(*others, point))

    def with_refusal(self, point_id: str, why: str, *, unfit: bool) -> "ProfileState":
        """Add why a point has no numbers; `unfit`: its layout cannot be run, whatever else."""
        more = (point_id,) if unfit and point_id not in self.unfit else ()
        return replace(self, refused={**self.refused, point_id: why}, unfit=(*self.unfit, *more))

    def save(self, folder: Path) -> None:
        """Write the file durably."""
        told = asdict(self, dict_factory=without_usual)
        durable.write_text(folder / PROGRESS, json.dumps(told, indent=1) + "\n")


def load(folder: Path, digest: str) -> ProfileState:
    """Read what an earlier profile left in `folder`; a new one where there is nothing.

    Raises:
        InputInvalid: the folder holds something else, or the profile of another job file.
    """
    found = read_kept(folder / PROGRESS, "profile", digest, ProfileState)
    return found if found is not None else ProfileState(digest=digest)
