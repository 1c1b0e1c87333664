"""The file that says what to profile: how to start a job, and the layouts to walk it through.

    [job]
    name = "pretrain"
    directory = "../.."            # where the commands run; relative to this file
    command = ["-m", "examples.pretrain", "--steps", "{steps}", "--boundary-every", "{every}",
               "--losses", "{losses}", "--checkpoint-dir", "{checkpoints}"]
    reference_command = [...]      # the same training, one process, never switched
    processes = 4
    reference = "A"                # the layout that `command` begins in
    [[point]]
    id = "A"
    layout = { dp_shard = 2, tp = 2 }

Invariant: a file with mistakes is refused, all mistakes are named, and nothing is started.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattmesh.errors import InputInvalid, SettingsInvalid
from wattmesh.named_file import SETTINGS_BYTES, read_named
from wattmesh.reconfig.catalogue import Release
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.tables import Table
from wattmesh.toml_text import read_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout to measure, under the id that its operating point will have."""

    id: str
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileJob:
    """What to profile.

    Attributes:
        directory: where the commands run, and the first place they import from.
        command: arguments to the torchrun launcher; `{steps}`, `{every}`, `{losses}` and
            `{checkpoints}` are filled in. It begins in the layout of `reference`.
        reference_command: arguments to Python for the same training in one process without
            switches, to whose losses every layout's are compared; empty leaves points unproven.
        boundary_every: steps per checkpoint of the real job; speed and power are stated for it.
        every, intervals: while profiling, steps per checkpoint, and checkpoints per layout.
        tolerance: relative loss difference up to which a layout counts as equal.
    """

    name: str
    directory: Path
    command: tuple[str, ...]
    processes: int
    reference: str
    points: tuple[Candidate, ...]
    reference_command: tuple[str, ...] = ()
    release: Release = Release.PARKED
    tokens_total: int = 0
    tokens_per_step: int
    global_batch: int = 0
    seq_len: int = 0
    boundary_every: int = 10
    every: int = 3
    intervals: int = 3
    tolerance: float = 1e-5
    embodied_g_per_gpu_hour: float = 0.0

    @property
    def steps_per_point(self) -> int:
        """Steps that each layout trains."""
        return self.every * self.intervals

    @property
    def steps(self) -> int:
        """Steps of the whole walk."""
        return self.steps_per_point * len(self.points)

    @property
    def walk(self) -> tuple[Candidate, ...]:
        """The points in the order of the walk: the reference first, as the job begins there."""
        first = [point for point in self.points if point.id == self.reference]
        return (*first, *(point for point in self.points if point.id != self.reference))


def read_job(path: Path) -> ProfileJob:
    """Read a job file.

    Raises:
        InputInvalid: it cannot be read, or is no TOML.
        SettingsInvalid: it has mistakes; all of them are named.
    """
    try:
        document = read_toml(read_named(path, SETTINGS_BYTES).decode())
    except OSError as error:
        raise InputInvalid(f"job file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputInvalid(f"job file {path} is not TOML: {error}") from error
    mistakes: list[tuple[str, str]] = []
    top = Table(document, "", mistakes)
    table = top.table("job")
    points = tuple(_candidate(each) for each in top.tables("point"))
    top.finish()
    job = ProfileJob(
        name=table.text("name"),
        directory=(path.parent / table.text("directory", ".")).resolve(),
        command=table.texts("command"),
        reference_command=table.texts("reference_command"),
        processes=table.whole("processes", least=1),
        reference=table.text("reference"),
        points=points,
        release=table.choice("release", Release, Release.PARKED),
        tokens_total=table.whole("tokens_total", 0),
        tokens_per_step=table.whole("tokens_per_step", least=1),
        global_batch=table.whole("global_batch", 0),
        seq_len=table.whole("seq_len", 0),
        boundary_every=table.whole("boundary_every", 10, least=1),
        every=table.whole("every", 3, least=2),
        intervals=table.whole("intervals", 3, least=2),
        tolerance=table.number("tolerance", 1e-5, above=0),
        embodied_g_per_gpu_hour=table.number("embodied_g_per_gpu_hour", 0.0),
    )
    table.finish()
    _check(table, job)
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
    table.finish()
    return Candidate(id=point_id, layout=layout)


def _check(table: Table, job: ProfileJob) -> None:
    """Check what concerns more than one key of the file."""
    ids = [point.id for point in job.points]
    if job.reference and job.reference not in ids:
        table.note("reference", f'"{job.reference}" is not one of the points: {", ".join(ids)}')
    if not job.command:
        table.note("command", "is missing: the words behind the torchrun launcher")
    for name in ("steps", "every", "losses", "checkpoints"):
        if not any(f"{{{name}}}" in word for word in job.command):
            table.note("command", f"needs the place {{{name}}}, which profiling fills in")
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
        if index and point.layout == job.points[index - 1].layout:
            table.mistakes.append((f"point[{index}].layout", "is the same as the one before"))
