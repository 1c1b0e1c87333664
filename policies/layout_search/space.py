"""Every uniform layout of a model on a cluster, or why there is none. Pure.

The degrees are crossed one after the other, and what breaks a rule leaves at once, so that the
whole space of a thousand GPUs is columns of some hundred thousand entries and no Python loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.parallelism.hardware import GpuClass
from wattmesh.policies.parallelism.model_shape import ModelShape
from wattmesh.policies.parallelism.setups import FULL, NONE, SELECTIVE, LayoutColumns

Column = NDArray[np.float64]

LARGEST_TP, LARGEST_CP, LARGEST_MICRO_BATCH = 8, 64, 16
LEAST_TOKENS_OF_RANK = 1024
"""A context-parallel rank with fewer tokens only waits for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be laid out.

    Attributes:
        shape: of the model, in plain numbers.
        global_batch: samples of a step. `seq_len`: tokens of one.
        gpus: how many. `gpu`: which.
    """

    shape: ModelShape
    global_batch: int
    seq_len: int
    gpus: int
    gpu: GpuClass


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceRule:
    """What a layout must keep to.

    Attributes:
        name: of the degree that it is about.
        sentence: what it asks for.
        keeps: tells of columns, by name, which entries keep to it; shape (n,).
        needs: names of the columns that it looks at.
    """

    name: str
    sentence: str
    keeps: Callable[[Job, dict[str, Column]], NDArray[np.bool_]]
    needs: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The layouts of a job.

    Attributes:
        layout: columns of the n that keep to every rule. `size`: n.
        tried: how many were tried. `excluded`: how many of them each rule took away, by its
            sentence, in the order in which they were asked.
    """

    layout: LayoutColumns
    size: int
    tried: int
    excluded: dict[str, int]


def _divides(number: float, degree: Column) -> NDArray[np.bool_]:
    return np.asarray(np.remainder(number, degree) == 0)


def _rule(name: str, sentence: str, needs: str, keeps: Callable[..., object]) -> SpaceRule:
    def asked(job: Job, columns: dict[str, Column]) -> NDArray[np.bool_]:
        return np.asarray(keeps(job, **{each: columns[each] for each in needs.split()}), dtype=bool)

    return SpaceRule(name=name, sentence=sentence, keeps=asked, needs=frozenset(needs.split()))


RULES: tuple[SpaceRule, ...] = (
    _rule("tp", "tp divides the heads", "tp", lambda job, tp: _divides(job.shape.heads, tp)),
    _rule(
        "tp",
        "tp divides the key/value heads, or is a multiple of them",
        "tp",
        lambda job, tp: _divides(job.shape.kv_heads, tp) | (tp % job.shape.kv_heads == 0),
    ),
    _rule(
        "tp", "tp stays inside a domain of fast links", "tp", lambda job, tp: tp <= job.gpu.domain
    ),
    _rule("pp", "pp divides the layers", "pp", lambda job, pp: _divides(job.shape.layers, pp)),
    _rule(
        "cp",
        f"each cp rank has at least {LEAST_TOKENS_OF_RANK} tokens of a sequence, and 2 * cp "
        "divides it",
        "cp",
        lambda job, cp: (
            (cp == 1) | ((job.seq_len / cp >= LEAST_TOKENS_OF_RANK) & _divides(job.seq_len, 2 * cp))
        ),
    ),
    _rule(
        "dp",
        "tp * pp * cp divides the GPUs",
        "tp pp cp",
        lambda job, tp, pp, cp: _divides(job.gpus, tp * pp * cp),
    ),
    _rule(
        "dp",
        "dp divides the global batch",
        "dp",
        lambda job, dp: _divides(job.global_batch, np.maximum(dp, 1)),
    ),
    _rule(
        "ep",
        "ep divides the experts",
        "ep",
        lambda job, ep: _divides(max(job.shape.experts, 1), ep),
    ),
    _rule(
        "ep",
        "ep divides dp * cp * tp, which experts are dealt over",
        "ep dp cp tp",
        lambda _job, ep, dp, cp, tp: (dp * cp * tp) % ep == 0,
    ),
    _rule(
        "micro_batch",
        "microbatches divide the batch of a data-parallel rank",
        "dp micro_batch",
        lambda job, dp, micro_batch: _divides(job.global_batch, dp * micro_batch),
    ),
    _rule(
        "chunks",
        "chunks divide the layers of a stage",
        "pp chunks",
        lambda job, pp, chunks: (
            (chunks == 1) | ((pp > 1) & _divides(job.shape.layers, pp * chunks))
        ),
    ),
    _rule(
        "chunks",
        "with chunks, pp divides the microbatches",
        "pp chunks dp micro_batch",
        lambda job, pp, chunks, dp, micro_batch: (
            (chunks == 1) | ((job.global_batch / (dp * micro_batch)) % pp == 0)
        ),
    ),
    _rule(
        "zero",
        "with one data-parallel rank there is nothing to deal: zero is 0",
        "zero dp cp",
        lambda _job, zero, dp, cp: (zero == 0) | (dp * cp > 1),
    ),
    _rule(
        "zero",
        "FSDP (zero 3) goes without a pipeline",
        "zero pp",
        lambda _job, zero, pp: (zero < 3) | (pp == 1),
    ),
)


def space(job: Job) -> Space:
    """List every layout of a job."""
    shape = job.shape
    columns: dict[str, Column] = {}
    excluded = {rule.sentence: 0 for rule in RULES}
    tried, asked = 0, set[str]()
    for name, values in (
        ("tp", _powers(min(LARGEST_TP, job.gpus))),
        ("pp", range(1, min(int(shape.layers), job.gpus) + 1)),
        ("cp", _powers(min(LARGEST_CP, job.gpus))),
        ("dp", ()),
        ("ep", _divisors(int(shape.experts), most=job.gpus) if shape.experts else (1,)),
        ("micro_batch", _powers(LARGEST_MICRO_BATCH)),
        ("chunks", _divisors(int(shape.layers), most=int(shape.layers))),
        ("zero", (0, 1, 2, 3)),
        ("recompute", (NONE, SELECTIVE, FULL)),
    ):
        if name == "dp":
            columns["dp"] = job.gpus / (columns["tp"] * columns["pp"] * columns["cp"])
        else:
            columns = _cross(columns, name, values)
        tried = max(tried, len(columns[name]))
        columns = _left(job, columns, asked, excluded)
    size = len(columns["tp"])
    layout = LayoutColumns(gpus=np.full(size, float(job.gpus)), **columns)
    return Space(layout=layout, size=size, tried=tried, excluded=excluded)


def broken_rules(job: Job, degrees: dict[str, float]) -> list[str]:
    """List the rules that one layout breaks; `degrees` by the names of `LayoutColumns`."""
    columns = {name: np.array([float(value)]) for name, value in degrees.items()}
    columns["dp"] = job.gpus / (columns["tp"] * columns["pp"] * columns["cp"])
    return [rule.sentence for rule in RULES if not rule.keeps(job, columns)[0]]


def _cross(columns: dict[str, Column], name: str, values: Sequence[float]) -> dict[str, Column]:
    """Give every entry each of `values`."""
    fresh = np.asarray(values, dtype=np.float64)
    if not columns:
        return {name: fresh}
    count = len(next(iter(columns.values())))
    crossed = {each: np.repeat(column, len(fresh)) for each, column in columns.items()}
    return crossed | {name: np.tile(fresh, count)}


def _left(
    job: Job, columns: dict[str, Column], asked: set[str], excluded: dict[str, int]
) -> dict[str, Column]:
    """Take away what breaks a rule that could not be asked before."""
    for rule in RULES:
        if rule.sentence in asked or not rule.needs <= columns.keys():
            continue
        asked.add(rule.sentence)
        keeps = rule.keeps(job, columns)
        excluded[rule.sentence] += int(len(keeps) - keeps.sum())
        columns = {name: column[keeps] for name, column in columns.items()}
    return columns


def _powers(most: int) -> tuple[int, ...]:
    """List 1, 2, 4 ... up to `most`."""
    return tuple(1 << exponent for exponent in range(max(1, most).bit_length()))


def _divisors(number: int, *, most: int) -> tuple[int, ...]:
    """List what divides `number`, up to `most`."""
    return tuple(each for each in range(1, min(number, most) + 1) if number % each == 0)
