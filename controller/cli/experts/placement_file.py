"""A file of GPUs and routing as a placement problem; its answer, and the placement as a file.

Routing is given as `chosen` (experts of every token, by layer) or as `counts` (docs/experts.md).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattmesh.controller.cli.experts.json_file import (
    known_keys,
    listed,
    number,
    read_object,
    text,
)
from wattmesh.controller.cli.output import to_json
from wattmesh.durable import write_text
from wattmesh.errors import InputInvalid, WattmeshError
from wattmesh.policies.experts.counts import balanced_counts
from wattmesh.policies.experts.layer_energy import ExpertGpu
from wattmesh.policies.experts.placement.affinity import count_choices
from wattmesh.policies.experts.placement.objective import PlacementCost, cost, loads_on_gpus
from wattmesh.policies.experts.placement.problem import (
    TOLERANCE,
    Counts,
    Gpus,
    PlacementProblem,
    contiguous,
)
from wattmesh.policies.experts.placement.replicas import replicate
from wattmesh.policies.experts.placement.search import place
from wattmesh.reconfig.recorded_routing import KEY, check_recorded

MOST_GPUS, MOST_EXPERTS, MOST_LAYERS = 512, 1024, 256
MOST_WORK = 256 * 1024 * 1024
"""Layers times experts squared: a search of it ends within minutes."""

GROUP_KEYS = frozenset({"gpus", "crossing_j", "near_crossing_j", "tolerance", "tokens_stay"})
FILE_KEYS = GROUP_KEYS | {"experts", "chosen", "counts", KEY}
GPU_KEYS = frozenset({"name", "node", "busy_w", "idle_w", "tokens_per_s", "slots"})
COUNT_KEYS = frozenset({"loads", "together", "onward"})


def read_problem(path: Path, group: Path | None = None) -> PlacementProblem:
    """Read a file; its GPUs, and what crossings cost, from another one where `group` is given.

    Raises:
        InputInvalid: it cannot be read or placed; with the reason.
    """
    given = known_keys(read_object(path), FILE_KEYS, f"{path}")
    if KEY in given:
        check_recorded(given, f"{path}")
    return problem_of(given, path, group)


def problem_of(given: dict[str, Any], path: Path, group: Path | None = None) -> PlacementProblem:
    """Make a problem of what `path` holds, which was checked if a job recorded it.

    Raises:
        InputInvalid: it cannot be placed, or `group` cannot be read; with the reason.
    """
    if group is not None:
        theirs = known_keys(read_object(group), GROUP_KEYS, f"{group}")
        if both := sorted(set(given) & set(theirs)):
            raise InputInvalid(f"{path} and {group} both have {both[0]!r}; leave out one of them")
        given = given | theirs
    elif KEY in given and "gpus" not in given:
        raise InputInvalid(f"{path} has routing only; give the GPUs of the group with --gpus FILE")
    asked = [
        known_keys(each, GPU_KEYS, f"GPU {at}")
        for at, each in enumerate(listed(given.get("gpus"), "gpus", MOST_GPUS))
    ]
    gpus = tuple(_gpu(each, at) for at, each in enumerate(asked))
    if len({gpu.name for gpu in gpus}) < len(gpus):
        raise InputInvalid(f"{path} names a GPU twice")
    counts = _counts(given)
    return PlacementProblem(
        counts=counts,
        gpus=gpus,
        slots=_slots(asked, gpus, len(counts.loads_LX[0])),
        crossing_j=number(given, "crossing_j", f"{path}"),
        near_crossing_j=number(given, "near_crossing_j", f"{path}", 0.0),
        tolerance=number(given, "tolerance", f"{path}", TOLERANCE),
    )


def present_placement(problem: PlacementProblem, rows: list[Any]) -> Gpus | None:
    """Give a live job's placement, by layer the expert in each row, as one of `problem`.

    None where it is none of it: another number of experts or GPUs, or not each expert once.
    """
    each, rest = divmod(problem.experts, len(problem.gpus))
    natural = list(range(problem.experts))
    if rest or len(rows) != problem.layers:
        return None
    if not all(isinstance(row, list) and sorted(map(str, row)) == sorted(map(str, natural))
               and all(type(one) is int for one in row) for row in rows):  # fmt: skip
        return None
    found = np.empty((problem.layers, problem.experts), dtype=np.int64)
    for at_X, row in zip(found, rows, strict=True):
        at_X[np.array(row)] = np.arange(problem.experts) // each
    fits = all(each <= slots for slots in problem.slots)
    return found if fits else None


def place_json(
    problem: PlacementProblem, copies: int, present: Gpus | None = None
) -> dict[str, Any]:
    """Place, and say what that changes against `present`; against experts by number without it."""
    plain, placed = contiguous(problem) if present is None else present, place(problem)
    if cost(problem, plain).objective_j <= cost(problem, placed).objective_j:
        placed = plain
    copied = replicate(problem, placed, (copies,) * len(problem.gpus))
    loads_LG = loads_on_gpus(problem, placed)
    answer = {
        "gpus": [gpu.name for gpu in problem.gpus],
        "layers": problem.layers,
        "experts": problem.experts,
        "energy": "modelled",
        "before_is": "by number" if present is None else "as it is",
        "gains": not np.array_equal(plain, placed),
        "before": _cost_json(cost(problem, plain)),
        "after": _cost_json(cost(problem, placed)),
        "seconds_by_gpu_before": _seconds(problem, loads_on_gpus(problem, plain)),
        "seconds_by_gpu_after": _seconds(problem, loads_LG),
        "placement": placed.tolist(),
        "copies": [
            {"layer": int(layer), "expert": int(expert), "gpu": problem.gpus[int(gpu)].name}
            for layer, expert, gpu in np.argwhere(copied.held_LXG)
            if placed[layer, expert] != gpu
        ],
    }
    if copies:
        loads_LG = np.einsum("lx,lxg->lg", problem.counts.loads_LX, copied.share_LXG)
        answer["seconds_by_gpu_with_copies"] = _seconds(problem, loads_LG)
    return answer


def rows_of(answer: dict[str, Any]) -> list[list[int]]:
    """Return by layer the expert in each row of a stack, as a live job holds them.

    The GPUs of the file are the ranks of an expert-parallel group, in their order.

    Raises:
        InputInvalid: GPUs hold different numbers of experts, or copies: no live job does.
    """
    if answer["copies"]:
        raise InputInvalid("a live job holds each expert once; leave --copies out with --run")
    gpus, experts = len(answer["gpus"]), answer["experts"]
    if experts % gpus:
        raise InputInvalid(
            f"{experts} experts do not divide among {gpus} GPUs, and a live job has as many on each"
        )
    found = []
    for layer, holders in enumerate(answer["placement"]):
        rows = sorted(range(experts), key=lambda expert: (holders[expert], expert))
        counts = [holders.count(gpu) for gpu in range(gpus)]
        if set(counts) != {experts // gpus}:
            raise InputInvalid(
                f"layer {layer} has {min(counts)} to {max(counts)} experts on a GPU, and a live "
                f"job has {experts // gpus} on each; give every GPU so many `slots`"
            )
        found.append(rows)
    return found


def write_placement(path: Path, answer: dict[str, Any]) -> None:
    """Write which GPU holds which expert, whole or not at all.

    Raises:
        WattmeshError: it cannot be written.
    """
    told = {key: answer[key] for key in ("gpus", "placement", "copies")}
    try:
        write_text(path, to_json(told) + "\n")
    except OSError as error:
        raise WattmeshError(f"{path} cannot be written: {error.strerror}") from None


def _cost_json(found: PlacementCost) -> dict[str, float]:
    return {
        "crossings": found.crossings,
        "near_crossings": found.near_crossings,
        "layer_energy_j": found.layer_energy_j,
        "total_j": found.objective_j,
        "layer_s": found.layer_s,
        "worst_load": found.worst_load,
    }


def _seconds(problem: PlacementProblem, loads_LG: NDArray[np.float64]) -> list[float]:
    return [float(each) for each in (loads_LG / problem.speeds_G()).sum(axis=0)]


def _gpu(given: dict[str, Any], at: int) -> ExpertGpu:
    what = f"GPU {at}"
    return ExpertGpu(
        name=text(given, "name", what),
        node=text(given, "node", what),
        busy_w=number(given, "busy_w", what),
        idle_w=number(given, "idle_w", what),
        tokens_per_s=number(given, "tokens_per_s", what),
    )


def _slots(
    asked: list[dict[str, Any]], gpus: tuple[ExpertGpu, ...], experts: int
) -> tuple[int, ...]:
    """Take the slots of every GPU; by speed where none says any."""
    told = [each.get("slots") for each in asked]
    if all(each is None for each in told):
        return balanced_counts(experts, [gpu.tokens_per_s for gpu in gpus])
    if any(type(each) is not int or not 0 <= each <= MOST_EXPERTS for each in told):
        raise InputInvalid(
            f"slots must be given for all GPUs or for none, as whole numbers up to {MOST_EXPERTS}"
        )
    return tuple(each for each in told if each is not None)


def _counts(given: dict[str, Any]) -> Counts:
    if ("chosen" in given) == ("counts" in given):
        raise InputInvalid("routing must be given as `chosen` or as `counts`, one of them")
    if "chosen" in given:
        return _from_chosen(given)
    layers = listed(given["counts"], "counts", MOST_LAYERS)
    layers = [
        known_keys(each, COUNT_KEYS, f"counts of layer {at}") for at, each in enumerate(layers)
    ]
    loads = _table([each.get("loads") for each in layers], "loads", 2)
    _check_work(*loads.shape)
    together = _table([each.get("together") for each in layers], "together", 3)
    onward = [each.get("onward") for each in layers[:-1]]
    if "onward" in layers[-1]:
        raise InputInvalid("counts of the last layer have `onward`, but no layer follows it")
    experts = loads.shape[1]
    nothing = np.zeros((len(layers) - 1, experts, experts))
    return Counts(
        loads_LX=loads,
        together_LXX=together,
        onward_LXX=_table(onward, "onward", 3) if any(onward) else nothing,
    )


def _from_chosen(given: dict[str, Any]) -> Counts:
    layers = listed(given["chosen"], "chosen", MOST_LAYERS)
    experts = given.get("experts")
    if type(experts) is not int or not 1 <= experts <= MOST_EXPERTS:
        raise InputInvalid(f"`experts` must be a whole number from 1 to {MOST_EXPERTS}")
    _check_work(len(layers), experts)
    tables = [_table(each, "chosen", 2) for each in layers]
    if any((each != np.floor(each)).any() for each in tables):
        raise InputInvalid("chosen has an expert that is no whole number")
    found = count_choices([each.astype(np.int64) for each in tables], experts)
    stay = given.get("tokens_stay", False)
    if type(stay) is not bool:
        raise InputInvalid("tokens_stay must be true or false")
    return found if stay else replace(found, onward_LXX=np.zeros_like(found.onward_LXX))


def _table(value: Any, what: str, axes: int) -> NDArray[np.float64]:
    try:
        found = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputInvalid(f"{what} is no table of numbers with rows of one length") from None
    if found.ndim != axes or not np.isfinite(found).all():
        raise InputInvalid(f"{what} is no table of finite numbers with rows of one length")
    return found


def _check_work(layers: int, experts: int) -> None:
    if experts > MOST_EXPERTS or layers * experts**2 > MOST_WORK:
        raise InputInvalid(f"{layers} layers of {experts} experts are more than can be placed")
