"""The file that says what to profile: how to start a job, its layouts, and what measures power.

    [job]
    name = "pretrain"
    directory = "../.."            # where the commands run; relative to this file
    python = ".venv/bin/python"    # the job's interpreter; relative to `directory`
    command = ["-m", "examples.pretrain"]
    processes = 4
    reference = "A"                # the layout that `command` begins in
    power = "nvml"                 # auto | nvml | agent | prometheus | rapl | static | fake
    [[point]]
    id = "A"
    layout = { dp_shard = 2, tp = 2 }

A `[search]` table (`wattmesh.controller.profile.search_table`) lets it find more points.

Invariant: a file with mistakes is refused, all mistakes are named, and nothing is started.
"""

import hashlib
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from wattmesh.controller.profile.search_table import SearchTable, check_search, read_search
from wattmesh.controller.settings.web_address import address_mistake
from wattmesh.errors import InputInvalid, SettingsInvalid
from wattmesh.named_file import SETTINGS_BYTES, read_named
from wattmesh.reconfig.catalogue import Release
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.tables import Table
from wattmesh.toml_text import read_toml

PLACES = ("steps", "every", "losses", "checkpoints", "seed")
"""What a command may name in braces; none is needed, because the hook does the same."""


MOST_OFF = 1.01
"""Tokens that a step may report, of those that batch and length make."""

MOST_PROCESSES = 1024
"""torchrun starts them all on this host; a number beyond belief would take all of its memory."""


class SwitchPairs(StrEnum):
    """Between which points switches are measured: along the tour alone, or between all."""

    TOUR = "tour"
    ALL = "all"


class PowerKind(StrEnum):
    """What measures a profiled job's power."""

    AUTO = "auto"
    NVML = "nvml"
    AGENT = "agent"
    PROMETHEUS = "prometheus"
    RAPL = "rapl"
    STATIC = "static"
    FAKE = "fake"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPower:
    """Where the watts come from, with what some of the kinds need.

    Attributes:
        watts, idle_watts: assumed of one GPU in use and of an idle one, where nothing measures it.
        url: of the Prometheus server, or of the agent's metrics.
        selector: matchers that narrow what the server gives down to the job's GPUs. every_s:
            between two queries of it.
        library: NVML's, where it is not the driver's own.
        powercap: the tree of the host's counters, where it is not in /sys/class.
        actuator: the socket of the node's actuator, where it is not the usual one.
    """

    kind: PowerKind = PowerKind.AUTO
    watts: float = 0.0
    idle_watts: float = 0.0
    url: str = ""
    selector: str = ""
    every_s: float = 5.0
    library: str = ""
    powercap: str = ""
    actuator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout to measure, under the id that its operating point will have.

    `clock_mhz`: to which its GPUs are locked; None: not locked.
    """

    id: str
    layout: Layout
    clock_mhz: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileJob:
    """What to profile.

    Attributes:
        directory: where the commands run, and the first place they import from.
        python: the interpreter that runs them; "" is the one that runs wattmesh.
        command: arguments to the launcher, which begin in the layout of `reference`. `{steps}`,
            `{every}`, `{losses}` and `{checkpoints}` are filled in where they stand.
        reference_command: arguments to Python for the same training in one process without
            switches, to whose losses every layout's are compared; empty leaves points unproven.
        tokens_per_step: 0: what the job reports.
        boundary_every: steps per checkpoint of the real job; speed and power are stated for it.
        every, intervals: while profiling, steps per checkpoint, and the fewest checkpoints per
            layout.
        tolerance: relative loss difference up to which a layout counts as equal.
        precision: a point is measured until its joules per token are known to this share.
        longest_s: or for this long, whatever the interval is then.
        idle_s: for how long the devices are read before the job begins.
        warm_switches: whether every point is gone to once more, for switches that need not compile.
        pairs: between which points switches are measured.
        start_limit_s, silence_limit_s: how long the job may take to its first step, and between two
            signs of life after that.
        seed: of this launch, for a command with `{seed}`.
        search: how further points are chosen; None: only the declared ones are measured.
        digest: sha256 of the file.
    """

    name: str
    directory: Path
    command: tuple[str, ...]
    processes: int
    reference: str
    points: tuple[Candidate, ...]
    python: str = ""
    power: JobPower = field(default_factory=JobPower)
    reference_command: tuple[str, ...] = ()
    release: Release = Release.PARKED
    tokens_total: int = 0
    tokens_per_step: int = 0
    global_batch: int = 0
    seq_len: int = 0
    boundary_every: int = 10
    every: int = 3
    intervals: int = 3
    tolerance: float = 1e-5
    precision: float = 0.02
    longest_s: float = 300.0
    idle_s: float = 5.0
    warm_switches: bool = True
    pairs: SwitchPairs = SwitchPairs.TOUR
    start_limit_s: float = 600.0
    silence_limit_s: float = 600.0
    embodied_g_per_gpu_hour: float = 0.0
    seed: int = 0
    search: SearchTable | None = None
    digest: str = ""

    @property
    def steps_per_point(self) -> int:
        """The fewest steps that each layout trains."""
        return self.every * self.intervals

    @property
    def steps(self) -> int:
        """Steps of a walk in which each layout trains no more than that."""
        return self.steps_per_point * len(self.points)

    @property
    def takes_seed(self) -> bool:
        """Whether its command names a seed."""
        return any("{seed}" in word for word in self.command)

    @property
    def walk(self) -> tuple[Candidate, ...]:
        """The points in the order of the walk: the reference first, as the job begins there."""
        first = [point for point in self.points if point.id == self.reference]
        return (*first, *(point for point in self.points if point.id != self.reference))

    @property
    def interpreter(self) -> str:
        """The Python that runs the job."""
        if not self.python:
            return sys.executable
        return self.python if "/" not in self.python else str(self.directory / self.python)

    def check_python(self) -> None:
        """Raise where the job's interpreter is not there.

        Raises:
            InputInvalid: it is not.
        """
        if shutil.which(self.interpreter) is None:
            raise InputInvalid(
                f"job.python: {self.interpreter} is no program that can be run; name the "
                "interpreter that has the job's torch and wattmesh"
            )


def read_job(path: Path) -> ProfileJob:
    """Read a job file.

    Raises:
        InputInvalid: it cannot be read, or is no TOML.
        SettingsInvalid: it has mistakes; all of them are named.
    """
    try:
        data = read_named(path, SETTINGS_BYTES)
        document = read_toml(data.decode())
    except OSError as error:
        raise InputInvalid(f"job file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputInvalid(f"job file {path} is not TOML: {error}") from error
    mistakes: list[tuple[str, str]] = []
    top = Table(document, "", mistakes)
    table = top.table("job")
    points = tuple(_candidate(each) for each in top.tables("point"))
    power = _power(table, top.table("power", required=False))
    search = read_search(top, path.parent)
    top.finish(also=("search",))
    job = ProfileJob(
        name=table.text("name"),
        directory=(path.parent / table.text("directory", ".")).resolve(),
        python=table.text("python", ""),
        power=power,
        command=table.texts("command"),
        reference_command=table.texts("reference_command"),
        processes=table.whole("processes", least=1),
        reference=table.text("reference"),
        points=points,
        release=table.choice("release", Release, Release.PARKED),
        tokens_total=table.whole("tokens_total", 0),
        tokens_per_step=table.whole("tokens_per_step", 0),
        global_batch=table.whole("global_batch", 0),
        seq_len=table.whole("seq_len", 0),
        boundary_every=table.whole("boundary_every", 10, least=1),
        every=table.whole("every", 3, least=2),
        intervals=table.whole("intervals", 3, least=2),
        tolerance=table.number("tolerance", 1e-5, above=0),
        precision=table.number("precision", 0.02, above=0),
        longest_s=table.number("longest_s", 300.0, above=0),
        idle_s=table.number("idle_s", 5.0, above=0),
        warm_switches=table.flag("warm_switches", True),
        pairs=table.choice("pairs", SwitchPairs, SwitchPairs.TOUR),
        start_limit_s=table.number("start_limit_s", 600.0, above=0),
        silence_limit_s=table.number("silence_limit_s", 600.0, above=0),
        embodied_g_per_gpu_hour=table.number("embodied_g_per_gpu_hour", 0.0),
        search=search,
        digest=hashlib.sha256(data).hexdigest(),
    )
    table.finish()
    _check(table, job)
    if search is not None:
        tokens = search.tokens or job.tokens_total
        sizes = bool(job.global_batch and job.seq_len and tokens)
        check_search(search, top, processes=job.processes, sizes=sizes)
    if mistakes:
        raise SettingsInvalid(str(path), mistakes)
    return job


def fill(command: Sequence[str], values: dict[str, str]) -> list[str]:
    """Replace a command's `{name}` placeholders; other braces stay."""
    filled = list(command)
    for name, value in values.items():
        filled = [word.replace(f"{{{name}}}", value) for word in filled]
    return filled


def _candidate(table: Table) -> Candidate:
    point_id, layout = table.text("id"), Layout()
    values = table.table("layout").values
    try:
        layout = Layout.from_dict(values)
    except InputInvalid as error:
        table.note("layout", str(error).removeprefix("layout: "))
    clock_mhz = table.whole("clock_mhz", least=1) if "clock_mhz" in table.values else None
    table.finish(also=("clock_mhz",))
    return Candidate(id=point_id, layout=layout, clock_mhz=clock_mhz)


def _power(job: Table, table: Table) -> JobPower:
    """Read `job.power`, and `[power]` with what the kind needs."""
    found = JobPower(
        kind=job.choice("power", PowerKind, PowerKind.AUTO),
        watts=table.number("watts", 0.0),
        idle_watts=table.number("idle_watts", 0.0),
        url=table.text("url", ""),
        selector=table.text("selector", ""),
        every_s=table.number("every_s", 5.0, above=0),
        library=table.text("library", ""),
        powercap=table.text("powercap", ""),
        actuator=table.text("actuator", ""),
    )
    table.finish()
    if found.kind is PowerKind.STATIC and not found.watts > found.idle_watts:
        table.note("watts", 'must be above idle_watts, in W per GPU, for power = "static"')
    if found.kind is PowerKind.PROMETHEUS and not found.url:
        table.note("url", 'is missing: the address of the server, for power = "prometheus"')
    if found.url and (wrong := address_mistake(found.url, "http://monitoring:9090")):
        table.note("url", wrong)
    return found


def _check(table: Table, job: ProfileJob) -> None:
    """Check what concerns more than one key of the file."""
    ids = [point.id for point in job.points]
    if job.reference and job.reference not in ids:
        table.note("reference", f'"{job.reference}" is not one of the points: {", ".join(ids)}')
    if job.processes > MOST_PROCESSES:
        table.note("processes", f"{job.processes} is more than this host can run, {MOST_PROCESSES}")
    if not job.directory.is_dir():
        table.note("directory", f"{job.directory} is no folder")
    if not job.command:
        table.note("command", "is missing: the words behind the launcher")
    for index, point in enumerate(job.points):
        if point.id in ids[:index]:
            table.mistakes.append((f"point[{index}].id", f'"{point.id}" is taken'))
        if point.layout.world_size > job.processes:
            table.mistakes.append(
                (
                    f"point[{index}].layout",
                    f"{point.layout} needs {point.layout.world_size} ranks, the job has "
                    f"{job.processes} processes",
                )
            )
        before = job.points[index - 1]
        if index and (point.layout, point.clock_mhz) == (before.layout, before.clock_mhz):
            table.mistakes.append((f"point[{index}].layout", "is the same as the one before"))
