"""A stream of jobs as a file says it (TOML): cluster, caps, jobs with their catalogues. I/O in.

Invariant: all mistakes of a file are told at once, each with its key; nothing that nobody wrote
down is taken for zero.
"""

from dataclasses import dataclass, replace
from datetime import UTC
from itertools import pairwise
from pathlib import Path

from wattmesh.errors import InputInvalid, SettingsInvalid
from wattmesh.named_file import SETTINGS_BYTES, read_named
from wattmesh.policies.powercap.triggers import CapOrigin, Trigger
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Catalogue, Release
from wattmesh.reconfig.ranges import as_name
from wattmesh.reconfig.tables import Table
from wattmesh.toml_text import read_toml

HOUR_S = 3600.0
MOST_JOBS = 200
HOURS, MOST_WORST = 24, 23
MOST_HOURS = 8784.0
"""A year: no time in a file is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob:
    """One job of a stream; times in seconds from its start.

    Attributes:
        submitted: id of the point that it was submitted at. `pause`: whether it may be suspended.
        priority: whose deadline counts first; higher first.
    """

    name: str
    catalogue: Catalogue
    submitted: str
    arrival_s: float
    deadline_s: float
    tokens: float
    priority: int
    pause: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CapSpan:
    """An operator's cap for a time."""

    from_s: float
    until_s: float
    watts: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStream:
    """A file.

    Attributes:
        start_s: where the stream begins in a trace, from the trace's begin.
        cap_w: at all times; None: no cap. `caps`: for a time; the lowest rules.
        demand: what demand response would cap by the trace; None: there is none.
        grams_per_hour: that all of it may emit in any slot; None: no such limit.
        idle_w_per_gpu: of a GPU that no run owns; 0: it is switched off.
    """

    name: str
    gpus: int
    slot_s: float
    start_s: float
    idle_w_per_gpu: float
    cap_w: float | None
    caps: tuple[CapSpan, ...]
    grams_per_hour: float | None
    demand: Trigger | None
    jobs: tuple[StreamJob, ...]


def load(path: Path) -> JobStream:
    """Read a stream of jobs, with the catalogues that it names.

    Raises:
        InputInvalid: a file cannot be read, or is not TOML.
        SettingsInvalid: it has mistakes; lists all of them.
    """
    try:
        document = read_toml(read_named(path, SETTINGS_BYTES).decode())
    except OSError as error:
        raise InputInvalid(f"list of jobs {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputInvalid(f"list of jobs {path} is not TOML: {error}") from error
    mistakes: list[tuple[str, str]] = []
    top = Table(document, "", mistakes)
    cluster = top.table("cluster")
    caps = tuple(_cap(each) for each in top.tables("cap")) if "cap" in document else ()
    tables = top.tables("job")
    if len(tables) > MOST_JOBS:
        raise InputInvalid(f"list of jobs {path} has {len(tables)} jobs; {MOST_JOBS} at most")
    jobs = [_job(each, path.parent) for each in tables]
    found = JobStream(
        name=path.name.removesuffix(".toml"),
        gpus=cluster.whole("gpus", least=1),
        slot_s=cluster.number("slot_s", HOUR_S, above=0),
        start_s=cluster.number("start_h", 0.0) * HOUR_S,
        idle_w_per_gpu=cluster.number("idle_power_w_per_gpu"),
        cap_w=cluster.number("cap_w", above=0) if "cap_w" in cluster.values else None,
        caps=caps,
        grams_per_hour=(
            cluster.number("grams_per_hour", above=0)
            if "grams_per_hour" in cluster.values
            else None
        ),
        demand=_demand(top.table("demand_response")) if "demand_response" in document else None,
        jobs=tuple(sorted((each for each in jobs if each), key=lambda one: one.arrival_s)),
    )
    cluster.finish(("cap_w", "grams_per_hour"))
    top.finish(("cap", "demand_response"))
    if not HOUR_S / 60 <= found.slot_s <= 24 * HOUR_S:
        cluster.note("slot_s", f"{found.slot_s:g} must be between 60 and 86400")
    names = sorted(each.name for each in found.jobs)
    for name in sorted({one for one, other in pairwise(names) if one == other}):
        top.note("job", f"two jobs are named {name}; names tell them apart")
    if mistakes:
        raise SettingsInvalid(str(path), mistakes)
    return found


def _cap(table: Table) -> CapSpan:
    found = CapSpan(
        from_s=_hours_s(table, "from_h"),
        until_s=_hours_s(table, "until_h"),
        watts=table.number("watts", above=0),
    )
    if found.until_s <= found.from_s:
        table.note("until_h", "must be after from_h")
    table.finish()
    return found


def _demand(table: Table) -> Trigger | None:
    """Read what demand response caps; None where that cannot be, which is noted."""
    given = table.values
    above = table.number("above") if "above" in given else None
    worst = table.whole("worst_hours", least=1) if "worst_hours" in given else None
    found = Trigger(
        origin=CapOrigin.CARBON,
        above=above,
        worst_hours=worst,
        cap_w=table.number("cap_w", above=0),
        notice_s=table.number("notice_s", HOUR_S),
        longest_hours=table.whole("longest_hours", 4, least=1),
        pause_hours=table.whole("pause_hours", 2, least=0),
        timezone=UTC,
    )
    table.finish(("above", "worst_hours"))
    if above is None and worst is None:
        table.note("worst_hours", "is missing: name worst_hours, above, or both")
        return None
    if worst is not None and worst > MOST_WORST:
        table.note("worst_hours", f"{worst} must be at most {MOST_WORST}")
    if found.longest_hours > HOURS or found.pause_hours > HOURS:
        table.note("longest_hours", f"and pause_hours must be at most {HOURS}")
    return found


def _hours_s(table: Table, key: str) -> float:
    hours = table.number(key)
    if hours > MOST_HOURS:
        table.note(key, f"{hours:g} is longer than a year of {MOST_HOURS:g} hours")
    return min(hours, MOST_HOURS) * HOUR_S


def _job(table: Table, folder: Path) -> StreamJob | None:
    """Read one job; None when its catalogue cannot be."""
    name, file = table.text("name"), table.text("catalogue")
    arrival_s, deadline_s = _hours_s(table, "arrival_h"), _hours_s(table, "deadline_h")
    hours_s = _hours_s(table, "hours") if "hours" in table.values else None
    priority = table.whole("priority", 0)
    submitted = table.text("submitted", "")
    pause = table.values.get("pause", True)
    table.finish(("hours", "pause"))
    if not isinstance(pause, bool):
        table.note("pause", "must be true or false")
        pause = True
    if name and as_name(name) != name:
        table.note("name", f"{name!r} is no name; use letters, digits, dots and dashes")
    if deadline_s <= arrival_s:
        table.note("deadline_h", "must be after arrival_h")
    if hours_s is not None and hours_s <= 0:
        table.note("hours", "must be above 0")
    if not file:
        return None
    try:
        catalogue = catalogue_file.load(folder / file)
    except (InputInvalid, SettingsInvalid) as error:
        table.note("catalogue", str(error))
        return None
    point = next((each for each in catalogue.points if each.id == submitted), None)
    if submitted and point is None:
        known = ", ".join(each.id for each in catalogue.points)
        table.note("submitted", f"{submitted!r} is not one of the catalogue's points: {known}")
    point = point or catalogue.point(catalogue.reference)
    if catalogue.switch.reacquire_s is None:
        table.note("catalogue", f"{file} needs switch.reacquire_s: runs of a stream get GPUs back")
    if catalogue.tokens_total <= 0 and hours_s is None:
        table.note("hours", f"is missing, and {file} has no job.tokens_total")
    tokens = point.tokens_per_s * hours_s if hours_s else float(catalogue.tokens_total)
    return StreamJob(
        name=name,
        # GPUs that a run gives up are the cluster's, whatever the catalogue says of a run alone.
        catalogue=replace(catalogue, release=Release.RELEASED),
        submitted=point.id,
        arrival_s=arrival_s,
        deadline_s=deadline_s,
        tokens=tokens,
        priority=priority,
        pause=pause,
    )
