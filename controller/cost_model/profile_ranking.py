"""What a search's points are worth to a job: a grid, a deadline, and what is measured already.

Invariant: watts are compared in one scope only, and a catalogue of another job is refused.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wattmesh.controller.replay import grid as grids
from wattmesh.errors import InputInvalid
from wattmesh.policies.layout_search.next_profile import (
    NextProfile,
    ProfileCandidate,
    what_to_profile_next,
)
from wattmesh.policies.layout_search.own_points import (
    OwnMeasurements,
    measured_over_predicted,
    own_errors,
)
from wattmesh.policies.layout_search.search import FoundLayouts
from wattmesh.policies.layout_search.space import Job
from wattmesh.policies.parallelism.predict import CostModel
from wattmesh.policies.parallelism.setups import FULL, NONE, LayoutColumns, WorkColumns
from wattmesh.policies.parallelism.training_rows import take_layouts
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import HIGHEST_MHZ, Catalogue, Evidence, OperatingPoint, PowerScope

MEASURED = (Evidence.MEASURED, Evidence.VALIDATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRanking:
    """What points are ranked for.

    Attributes:
        hours_g_per_kwh: intensity of each hour until the deadline; of `grid`, by name.
        tokens: that are to be trained until then.
        catalogue: of the job, with what is measured already; None: nothing is.
    """

    grid: str
    hours_g_per_kwh: tuple[float, ...]
    tokens: float
    catalogue: Catalogue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRanking:
    """What measuring each point of a search is worth.

    Attributes:
        ranked: the points that were not measured, the most worthwhile first; ids count the
            search's points from 0.
        points: all of them as they were compared, corrected by what was measured.
        corrected: what measured points made of the predicted time of each: a factor.
        known: the measured ones.
        over_predicted: by id of a measured point, by what factor its step takes longer than
            predicted; of those that have all GPUs and the highest clock.
    """

    ranked: tuple[NextProfile, ...]
    points: tuple[ProfileCandidate, ...]
    corrected: tuple[float, ...]
    known: tuple[ProfileCandidate, ...]
    over_predicted: dict[str, float]


def asked_ranking(
    grid: Path | None, deadline_h: float | None, tokens: float | None, catalogue: Path | None
) -> AskedRanking | None:
    """Read for what points are to be ranked; None where nothing was asked.

    Raises:
        InputInvalid: a part is missing or cannot be read, or the trace ends before the deadline.
    """
    own = None if catalogue is None else catalogue_file.load(catalogue)
    if grid is None:
        if deadline_h is not None or tokens is not None or own is not None:
            raise InputInvalid("--deadline, --tokens and --catalogue rank points: add --grid FILE")
        return None
    tokens = tokens or (float(own.tokens_total) if own else None)
    if deadline_h is None or tokens is None:
        raise InputInvalid("--grid ranks points: add --deadline HOURS, and --tokens N to train")
    series = grids.read(grid)
    per_hour = 3600 / series.step.total_seconds()
    hours = int(len(series.values) / per_hour)
    wanted = int(np.ceil(deadline_h))
    if wanted > hours:
        raise InputInvalid(
            f"--grid {grid} has {hours} hours, fewer than the {wanted} until the deadline; give a "
            "longer trace"
        )
    ends = (np.arange(1, wanted + 1) * per_hour).astype(int)
    begins = (np.arange(wanted) * per_hour).astype(int)
    means = [
        float(np.mean(series.values[begin : max(end, begin + 1)]))
        for begin, end in zip(begins, ends, strict=True)
    ]
    return AskedRanking(
        grid=series.name, hours_g_per_kwh=tuple(means), tokens=tokens, catalogue=own
    )


def ranking_of(
    job: Job, work: WorkColumns, found: FoundLayouts, model: CostModel, asked: AskedRanking
) -> ProfileRanking:
    """Rank the points of a search.

    Raises:
        InputInvalid: the catalogue is of another job.
    """
    own = asked.catalogue
    known = [] if own is None else _measured(job, own)
    layouts = take_layouts(found.space.layout, found.which)
    timed = _at_full_clock(job, known)
    steps = _steps(job, timed)
    correction = own_errors(job, work, model, layouts, steps)
    ratios = measured_over_predicted(job, work, model, steps).tolist()
    factor = np.exp(np.asarray(correction.log_ratio))
    step_s = found.step_s * factor
    outside = model.shares.node_w_per_gpu if own and own.power_scope is PowerScope.GPU else 0.0
    watts = (found.node_w - outside) * job.gpus
    rate = job.global_batch * job.seq_len / step_s
    points = tuple(
        ProfileCandidate(
            id=str(place),
            tokens_per_s=float(rate[place]),
            j_per_token=float(watts[place] / rate[place]),
            spread=float(correction.deviation[place]),
        )
        for place in range(len(found.which))
    )
    mine = tuple(
        ProfileCandidate(
            id=f"measured {each.id}", tokens_per_s=each.tokens_per_s, j_per_token=each.j_per_token
        )
        for each in known
    )
    ranked = what_to_profile_next(
        (*points, *mine),
        hours_g_per_kwh=asked.hours_g_per_kwh,
        tokens=asked.tokens,
        measured={each.id for each in mine},
    )
    return ProfileRanking(
        ranked=ranked,
        points=points,
        corrected=tuple(map(float, factor)),
        known=mine,
        over_predicted={each.id: ratio for each, ratio in zip(timed, ratios, strict=True)},
    )


def _measured(job: Job, own: Catalogue) -> list[OperatingPoint]:
    """Give the measured points of a catalogue.

    Raises:
        InputInvalid: it is of another batch or length, of more GPUs, or of a whole facility.
    """
    for name, stated, asked in (
        ("global_batch", own.global_batch, job.global_batch),
        ("seq_len", own.seq_len, job.seq_len),
    ):
        if stated and stated != asked:
            raise InputInvalid(
                f"catalogue {own.job!r} has {name} = {stated}, the search {asked}: they are of "
                "different jobs; search with --batch and --seq-len of the catalogue"
            )
    if own.power_scope is PowerScope.FACILITY:
        raise InputInvalid(
            f"catalogue {own.job!r} states watts of the facility, predictions are of nodes; state "
            "power_scope node or gpu"
        )
    found = [each for each in own.points if each.evidence in MEASURED]
    for each in found:
        if each.gpus > job.gpus:
            raise InputInvalid(
                f"catalogue {own.job!r}: point {each.id!r} has {each.gpus} GPUs, the search only "
                f"{job.gpus}; search with as many"
            )
    return found


def _at_full_clock(job: Job, known: list[OperatingPoint]) -> list[OperatingPoint]:
    """Choose those that say how far predictions are off: all GPUs, at the highest clock."""
    highest = max((each.clock_mhz or HIGHEST_MHZ for each in known), default=0)
    return [
        each
        for each in known
        if each.gpus == job.gpus and (each.clock_mhz or HIGHEST_MHZ) == highest
    ]


def _steps(job: Job, chosen: list[OperatingPoint]) -> OwnMeasurements:
    """Turn points into columns."""
    layouts = [each.layout for each in chosen]

    def column(values: list[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array(values, dtype=np.float64)

    shared = [each.data_parallel * each.cp > 1 for each in layouts]
    columns = LayoutColumns(
        gpus=column([float(job.gpus)] * len(layouts)),
        tp=column([each.tp for each in layouts]),
        pp=column([each.pp for each in layouts]),
        dp=column([each.data_parallel for each in layouts]),
        cp=column([each.cp for each in layouts]),
        ep=column([each.ep for each in layouts]),
        chunks=column([1.0] * len(layouts)),
        zero=column([float(each) for each in shared]),
        micro_batch=column([max(1, each.micro_batch) for each in layouts]),
        recompute=column([FULL if each.recompute else NONE for each in layouts]),
    )
    tokens = job.global_batch * job.seq_len
    seconds = column([tokens / each.tokens_per_s for each in chosen])
    return OwnMeasurements(layout=columns, seconds=seconds)
