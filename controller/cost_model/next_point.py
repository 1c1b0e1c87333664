"""Which point a profile should measure next: a child process, for it loads SciPy.

`python -m wattmesh.controller.cost_model.next_point`: a question as JSON on standard input, the
answer as JSON on standard output. The points are those that the job can run, corrected by what was
just measured, and ranked by what measuring each would save.

Invariant: of a job that is unlike everything the cost model was fitted to, nothing is foreseen but
by measured points that agree with each other.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattmesh import quantities
from wattmesh.controller.cost_model import fitted
from wattmesh.controller.cost_model.asked_search import from_hugging_face, known_model
from wattmesh.controller.cost_model.profile_ranking import AskedRanking, asked_ranking
from wattmesh.errors import InputInvalid, WattmeshError
from wattmesh.policies.layout_search.next_profile import (
    ProfileCandidate,
    least_grams,
    what_to_profile_next,
)
from wattmesh.policies.layout_search.own_points import OwnMeasurements
from wattmesh.policies.layout_search.runnable import (
    CorrectedPoints,
    JobLimits,
    OwnRuns,
    RunnablePoints,
    corrected,
    runnable,
)
from wattmesh.policies.layout_search.search import undominated
from wattmesh.policies.layout_search.space import Job
from wattmesh.policies.parallelism.hardware import gpu_class
from wattmesh.policies.parallelism.model_shape import ModelShape
from wattmesh.policies.parallelism.setups import FULL, NONE, LayoutColumns

SMALLEST_HIDDEN, SMALLEST_SEQ_LEN = 768, 512
"""Of the runs that the cost model was fitted to (docs/cost-model.md)."""

ENOUGH = 3
"""Measured layouts that may stand in for a fit: one is the scale, the others say if it holds."""

MOST_APART = 2.0
"""Measured points that differ more from each other, beyond what is predicted, foresee nothing."""

FASTEST, SLOWEST = 1 / 5, 100.0
"""A step that takes such a share, or so many times, what is predicted is of no hardware named."""

Asked = Mapping[str, Any]


def answer(asked: Asked) -> dict[str, Any]:
    """Answer a question.

    Args:
        asked: keys `search` (`SearchTable`, files as text), `processes`, `global_batch`, `seq_len`,
            `tokens`, `processors` (whether power is of processors alone), `has_node`,
            `layouts` (that are measured first, at full clock), `measured` (of points `id`,
            `layout`, `clock_mhz`, `tokens_per_s`, `power_w`), `known` (of points `layout`,
            `clock_mhz`), `refused` and `unfit` (layouts), `clocks` (whether they can be set).

    Returns:
        `points`, how many there are to choose from; with a measured point also `next`, or `why`
        there is none.

    Raises:
        InputInvalid: it cannot be answered at all.
    """
    search = asked["search"]
    ranking = _ranking(asked)
    jobs = _jobs(asked)
    limits = JobLimits(
        zero=search["zero"],
        micro_batches=tuple(search["micro_batches"]),
        recompute=search["recompute"],
        degrees={name: tuple(values) for name, values in search["degrees"].items()},
    )
    strange = _strange(jobs[0], asked)
    if strange and len(asked["layouts"]) < ENOUGH:
        raise InputInvalid(
            f"the cost model knows nothing of this job: {strange}. Declare {ENOUGH} points of "
            "different layouts at full clock, whose measured steps may correct it, or leave "
            "[search] out"
        )
    clocks = [1.0]
    if asked["clocks"]:
        clocks += [each / search["highest_mhz"] for each in search["clocks_mhz"]]
    points = _points(jobs, limits, clocks)
    if not len(points):
        raise InputInvalid(_empty(points))
    found: dict[str, Any] = {"points": len(points)}
    if asked["measured"]:
        found |= _next(asked, jobs[0], limits, points, ranking=ranking, strange=strange)
    return found


def _jobs(asked: Asked) -> list[Job]:
    """Give the job on each number of GPUs."""
    search = asked["search"]
    try:
        gpu = gpu_class(search["gpu"])
    except KeyError as error:
        raise InputInvalid(
            f"search.gpu: {error.args[0]}; of others, and of processors, the cost model knows "
            "nothing"
        ) from None
    shape: ModelShape = (
        from_hugging_face(Path(search["hf_config"]))
        if search["hf_config"]
        else known_model(search["model"])
    )
    return [
        Job(
            shape=shape,
            global_batch=asked["global_batch"],
            seq_len=asked["seq_len"],
            gpus=gpus,
            gpu=gpu,
        )
        for gpus in search["gpus"] or [asked["processes"]]
    ]


def _ranking(asked: Asked) -> AskedRanking:
    search = asked["search"]
    found = asked_ranking(Path(search["grid"]), search["deadline_h"], asked["tokens"], None)
    assert found is not None  # a grid was given
    return found


def _strange(job: Job, asked: Asked) -> str:
    """Say in what a job is unlike all that the cost model was fitted to; "" where it is like it."""
    if asked["processors"]:
        return "its power is read of processors, and the model is one of GPUs"
    hidden, length = float(job.shape.hidden), job.seq_len
    if hidden < SMALLEST_HIDDEN:
        return f"hidden_size is {hidden:g}, and of those it was fitted to {SMALLEST_HIDDEN} or more"
    if length < SMALLEST_SEQ_LEN:
        return f"a sample has {length} tokens, and of those it was fitted to {SMALLEST_SEQ_LEN}"
    return ""


def _points(jobs: Sequence[Job], limits: JobLimits, clocks: Sequence[float]) -> RunnablePoints:
    model = fitted.shipped()
    first, *others = (runnable(job, model, limits, clocks) for job in jobs)
    for each in others:
        first = first.joined(each)
    return first


def _empty(points: RunnablePoints) -> str:
    """Say which constraint leaves nothing."""
    *_, (last, gone) = points.excluded.items()
    return (
        f"no layout is left: none of the last {gone} keeps to the constraint that {last}; widen it"
        if "search." not in last
        else f"no layout is left: none of the last {gone} keeps to {last}; widen it"
    )


def _next(
    asked: Asked,
    job: Job,
    limits: JobLimits,
    points: RunnablePoints,
    *,
    ranking: AskedRanking,
    strange: str,
) -> dict[str, Any]:
    """Choose the next point, or say why there is none."""
    own = _own(asked, job)
    if own is None:
        return {"why": "no measured point runs at full clock, by which predictions are corrected"}
    model = fitted.shipped()
    found = corrected(job, model, points, own, strange=bool(strange))
    if not strange and not FASTEST <= found.slower <= SLOWEST:
        strange = f"its steps take {found.slower:.2g} times what {job.gpu.name} are expected to"
        found = corrected(job, model, points, own, strange=True)
    if strange and (why := _too_little(own, found, strange)):
        return {"why": why}
    found = _by_clock(asked, limits, points, found)
    open_ = _open(asked, limits, points)
    if not open_.any():
        return {"why": "every point that it can run is measured, or was tried"}
    front = undominated(
        1 / found.tokens_per_s[open_], found.j_per_token[open_], np.zeros(int(open_.sum()))
    )
    places = np.flatnonzero(open_)[front]
    candidates = [
        ProfileCandidate(
            id=f"point {place}",
            tokens_per_s=float(found.tokens_per_s[place]),
            j_per_token=float(found.j_per_token[place]),
            spread=float(found.deviation[place]),
        )
        for place in places
    ]
    mine = [_measured(each) for each in asked["measured"]]
    first, *_ = what_to_profile_next(
        (*candidates, *mine),
        hours_g_per_kwh=ranking.hours_g_per_kwh,
        tokens=ranking.tokens,
        measured={each.id for each in mine},
    )
    now_g = least_grams(mine, ranking.hours_g_per_kwh, ranking.tokens)
    chosen = next(each for each in candidates if each.id == first.id)
    least = asked["search"]["least_saving"]
    if first.expected_g is None and chosen.tokens_per_s <= max(each.tokens_per_s for each in mine):
        return {"why": "no measured point makes the deadline, and none is predicted to be faster"}
    if now_g is not None and (first.expected_g or 0.0) < least * now_g:
        return {
            "why": f"none of the others is expected to save {least:.2g} of the "
            f"{quantities.grams(now_g)} that measured points emit (search.least_saving)"
        }
    place = int(first.id.removeprefix("point "))
    clock = float(points.clock[place])
    highest = asked["search"]["highest_mhz"]
    return {
        "next": {
            "layout": points.layout_at(place, limits).to_dict(),
            "clock_mhz": None if clock == 1.0 else round(clock * highest),
            "tokens_per_s": chosen.tokens_per_s,
            "j_per_token": chosen.j_per_token,
            "expected_g": first.expected_g,
            "if_true_g": first.if_true_g,
            "now_g": now_g,
            "slower": found.slower,
            "thirstier": found.thirstier,
        }
    }


def _by_clock(
    asked: Asked, limits: JobLimits, points: RunnablePoints, found: CorrectedPoints
) -> CorrectedPoints:
    """Correct what is predicted of a lower clock by the points that were measured at it.

    How watts fall and steps grow with the clock is a prior of the cost model, alike for all
    layouts: where one is off at a clock, so are the others there.
    """
    highest = asked["search"]["highest_mhz"]
    speed, joules = found.tokens_per_s.copy(), found.j_per_token.copy()
    seen: dict[float, list[tuple[float, float]]] = {}
    for each in asked["measured"]:
        clock = 1.0 if _is_full(each, highest) else each["clock_mhz"] / max(1, highest)
        mine = _alike(points, each["layout"], limits) & np.isclose(points.clock, clock)
        if clock < 1 and mine.any():
            at, rate = int(np.flatnonzero(mine)[0]), each["tokens_per_s"]
            ratios = (rate / speed[at], each["power_w"] / rate / joules[at])
            seen.setdefault(float(points.clock[at]), []).append(ratios)
    for clock, told in seen.items():
        faster, dearer = np.median(np.array(told), axis=0)
        here = points.clock == clock
        speed[here] *= faster
        joules[here] *= dearer
    return replace(found, tokens_per_s=speed, j_per_token=joules)


def _too_little(own: OwnRuns, found: CorrectedPoints, strange: str) -> str:
    """Say why measured points foresee nothing of a strange job; "" where they do."""
    many = len(own.watts)
    if many < ENOUGH:
        return (
            f"the cost model knows nothing of this job ({strange}), and only {many} of the "
            f"{ENOUGH} layouts that it takes to correct it are measured"
        )
    if found.apart > MOST_APART:
        return (
            f"the cost model knows nothing of this job ({strange}), and measured points are up to "
            f"{found.apart:.2g} times off one common factor, so they foresee nothing either"
        )
    return ""


def _measured(each: Asked) -> ProfileCandidate:
    rate = each["tokens_per_s"]
    return ProfileCandidate(
        id=f"measured {each['id']}", tokens_per_s=rate, j_per_token=each["power_w"] / rate
    )


def _is_full(each: Asked, highest_mhz: int) -> bool:
    return each["clock_mhz"] is None or bool(highest_mhz and each["clock_mhz"] >= highest_mhz)


def _own(asked: Asked, job: Job) -> OwnRuns | None:
    """Take the measured points at full clock, as columns; None without any."""
    search = asked["search"]
    mine = [each for each in asked["measured"] if _is_full(each, search["highest_mhz"])]
    if not mine:
        return None
    layouts = [each["layout"] for each in mine]
    dp = [each["dp_replicate"] * each["dp_shard"] for each in layouts]

    def column(values: Sequence[float]) -> NDArray[np.float64]:
        return np.array(values, dtype=np.float64)

    gpus = column([_ranks(each) for each in layouts])
    shared = [many * each["cp"] > 1 for many, each in zip(dp, layouts, strict=True)]
    columns = LayoutColumns(
        gpus=gpus,
        **{name: column([each[name] for each in layouts]) for name in ("tp", "pp", "cp", "ep")},
        dp=column(dp),
        chunks=column([1.0] * len(mine)),
        zero=column([search["zero"] * float(each) for each in shared]),
        micro_batch=column([max(1, each["micro_batch"]) for each in layouts]),
        recompute=column([FULL if each["recompute"] else NONE for each in layouts]),
    )
    seconds = column([job.global_batch * job.seq_len / each["tokens_per_s"] for each in mine])
    return OwnRuns(
        steps=OwnMeasurements(layout=columns, seconds=seconds),
        watts=column([each["power_w"] for each in mine]) / gpus,
        has_node=asked["has_node"],
    )


def _ranks(layout: Asked) -> float:
    names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    return float(np.prod([layout[name] for name in names]))


def _open(asked: Asked, limits: JobLimits, points: RunnablePoints) -> NDArray[np.bool_]:
    """Tell which points are neither known nor known not to run."""
    open_ = np.ones(len(points), dtype=np.bool_)
    highest = asked["search"]["highest_mhz"]
    for each in asked["known"]:
        clock = 1.0 if _is_full(each, highest) else each["clock_mhz"] / max(1, highest)
        open_ &= ~(_alike(points, each["layout"], limits) & np.isclose(points.clock, clock))
    for layout in asked["refused"]:
        open_ &= ~_alike(points, layout, limits)
    for layout in asked["unfit"]:
        open_ &= ~_same_degrees(points, layout)
    return open_


def _same_degrees(points: RunnablePoints, layout: Asked) -> NDArray[np.bool_]:
    columns, found = points.layout, np.ones(len(points), dtype=np.bool_)
    for name in ("pp", "cp", "tp", "ep"):
        found &= np.asarray(getattr(columns, name)) == layout[name]
    found &= np.asarray(columns.dp) == layout["dp_replicate"] * layout["dp_shard"]
    return found


def _alike(points: RunnablePoints, layout: Asked, limits: JobLimits) -> NDArray[np.bool_]:
    found = _same_degrees(points, layout)
    if limits.micro_batches:
        found &= np.asarray(points.layout.micro_batch) == layout["micro_batch"]
    recomputed = np.asarray(points.layout.recompute) == FULL
    found &= recomputed == layout["recompute"]
    return found


def main() -> int:
    """Read a question, write the answer."""
    try:
        found = answer(json.load(sys.stdin))
    except WattmeshError as error:
        found = {"error": str(error)}
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
