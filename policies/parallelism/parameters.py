"""What the cost model cannot know from data sheets and is fitted on measurements. Pure.

All are positive and are fitted as logarithms around a prior, so that a cluster with few
measurements keeps the prior where these say nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.parallelism.hardware import FAMILIES, GENERATIONS

Vector: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Where a parameter is expected: its centre, and how many e-folds it may well be off."""

    centre: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The fitted numbers.

    Attributes:
        matmul: share of a GPU's bf16 rate that large products reach, by generation; `family`: what
            a family of GPUs reaches relative to its generation.
        attention: the same of fused attention, by generation; `grouped`: of experts' products,
            relative to plain ones.
        fp8, fp4: share of the factor 2, or 4, by which such products are faster.
        half_rows, half_columns, half_expert_rows: rows (tokens of a microbatch), columns (hidden
            width over tp) and tokens of one expert at which a product takes twice as long for each.
        passes: times that a layer's activations are read or written besides products, per hidden
            value of 2 bytes; `cast_passes`: more of them where formats are converted;
            `permute_passes`: more of them for each expert that a token goes to.
        launch_s: time below which no layer goes, its kernels being started one by one;
            `expert_launches`: how many times more of it a layer with experts has.
        link, network: share of the links' rates. `latency_s`: of one collective's step.
        tensor_exposed, expert_exposed, context_exposed, stage_exposed: share of the time of a
            collective that computing does not hide.
        reduction_hidden: seconds of data-parallel communication that one microbatch's computing
            hides, relative to it; `reduction_tail`: share that is never hidden.
        gather_overhead: share of FSDP's communication that is seen though computing hides it.
        head: share of the last stage's loss and output layer that holds up the pipeline.
        optimizer_bytes: per parameter and step. `step_s`: once per step.
        straggling: time more per doubling of nodes.
    """

    matmul: Vector
    family: Vector
    attention: Vector
    grouped: Vector
    fp8: float
    fp4: float
    half_rows: float
    half_columns: float
    half_columns_short: float
    half_expert_rows: float
    half_expert_columns: float
    passes: float
    unfused: float
    cast_passes: float
    permute_passes: float
    launch_s: float
    expert_launches: float
    link: float
    network: float
    latency_s: float
    tensor_exposed: float
    expert_exposed: float
    context_exposed: float
    stage_exposed: float
    reduction_hidden: float
    reduction_tail: float
    gather_overhead: float
    head: float
    optimizer_bytes: float
    step_s: float
    straggling: float


CAPPED = ("h100-500w",)
"""Families whose power limit keeps them from their data sheet's rate."""

PRIORS: Mapping[str, tuple[Prior, ...]] = {
    "matmul": tuple(Prior(centre=0.65, spread=0.3) for _ in GENERATIONS),
    "family": tuple(Prior(centre=1.0, spread=0.3 if each in CAPPED else 0.1) for each in FAMILIES),
    "attention": tuple(Prior(centre=0.4, spread=0.5) for _ in GENERATIONS),
    "grouped": tuple(Prior(centre=0.9, spread=0.2) for _ in GENERATIONS),
} | {
    name: (Prior(centre=centre, spread=spread),)
    for name, centre, spread in (
        ("fp8", 0.8, 0.1),
        ("fp4", 0.7, 0.15),
        ("half_rows", 200, 1.0),
        ("half_columns", 100, 1.0),
        ("half_columns_short", 500, 1.0),
        ("half_expert_rows", 100, 1.0),
        ("half_expert_columns", 500, 1.0),
        ("passes", 30, 0.6),
        ("unfused", 2, 0.5),
        ("cast_passes", 8, 1.0),
        ("permute_passes", 8, 0.8),
        ("launch_s", 200e-6, 1.2),
        ("expert_launches", 2, 1.0),
        ("link", 0.75, 0.1),
        ("network", 0.7, 0.4),
        ("latency_s", 10e-6, 1.0),
        ("tensor_exposed", 0.7, 0.5),
        ("expert_exposed", 0.5, 0.7),
        ("context_exposed", 0.4, 0.7),
        ("stage_exposed", 0.5, 0.7),
        ("reduction_hidden", 0.7, 0.5),
        ("reduction_tail", 0.1, 1.0),
        ("gather_overhead", 0.2, 0.5),
        ("head", 1.0, 0.5),
        ("optimizer_bytes", 20, 0.5),
        ("step_s", 10e-3, 1.2),
        ("straggling", 0.01, 1.0),
    )
}
SIZE = sum(len(priors) for priors in PRIORS.values())


def unpack(logarithms: Vector) -> Parameters:
    """Make parameters of their logarithms, in the order of `PRIORS`; shape (SIZE,)."""
    values: dict[str, Vector | float] = {}
    begin = 0
    for name, priors in PRIORS.items():
        part = np.exp(logarithms[begin : begin + len(priors)])
        begin += len(priors)
        values[name] = part if len(priors) > 1 else float(part[0])
    return Parameters(**values)  # type: ignore[arg-type] # the names are those of `PRIORS`


def pack(parameters: Parameters) -> Vector:
    """Turn parameters into logarithms again."""
    each = (np.atleast_1d(getattr(parameters, field.name)) for field in fields(parameters))
    return np.asarray(np.log(np.concatenate(list(each))))


def prior_logarithms() -> Vector:
    """Give the logarithms of the priors' centres."""
    flat = (prior for priors in PRIORS.values() for prior in priors)
    return np.array([math.log(prior.centre) for prior in flat])


def prior_spreads() -> Vector:
    """Give how far each logarithm may well be off."""
    return np.array([prior.spread for priors in PRIORS.values() for prior in priors])
