"""The points that one job can run, predicted, and corrected by those of its own that were measured.

Pure. Imports SciPy. A job deals out what it deals out, takes the micro batches that it takes, and
is built for some degrees only, so the space is narrowed before anything is compared.
Invariant: a layout that the job cannot run, or that does not fit into memory, is not among them,
and of an empty space it is known which constraint emptied it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.layout_search.own_points import (
    OwnMeasurements,
    measured_over_predicted,
    own_errors,
)
from wattmesh.policies.layout_search.search import FRAGMENTED, RUNTIME_BYTES, megatron_like
from wattmesh.policies.layout_search.space import Job, space
from wattmesh.policies.parallelism.energy import step_energy
from wattmesh.policies.parallelism.memory import memory
from wattmesh.policies.parallelism.predict import CostModel
from wattmesh.policies.parallelism.setups import FULL, NONE, LayoutColumns, Setups
from wattmesh.policies.parallelism.step_time import step_time
from wattmesh.policies.parallelism.training_rows import hardware_columns, take_layouts
from wattmesh.reconfig.layout import Layout

Array = NDArray[np.float64]

DEGREES = ("tp", "pp", "cp", "dp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """What a job can run of all layouts.

    Attributes:
        zero: what its data-parallel ranks deal among them, 0 to 3 (`LayoutColumns.zero`).
        micro_batches: that it takes; empty: it chooses by itself, predicted as one sample.
        recompute: whether it can recompute activations.
        degrees: for which degrees it is built, by names of `DEGREES`; what is not named is free.
    """

    zero: int = 1
    micro_batches: tuple[int, ...] = ()
    recompute: bool = False
    degrees: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnablePoints:
    """Points that a job can run; arrays of shape (n,).

    Attributes:
        layout: columns. `clock`: relative to the highest.
        step_s: of a step. `gpu_w`, `node_w`: of one GPU, without and with its part of the node.
        excluded: how many layouts each constraint took away, by its sentence.
    """

    layout: LayoutColumns
    clock: Array
    step_s: Array
    gpu_w: Array
    node_w: Array
    excluded: Mapping[str, int]

    def __len__(self) -> int:
        """Count them."""
        return len(self.clock)

    def taken(self, which: NDArray[np.bool_]) -> "RunnablePoints":
        """Choose some of them."""
        at = np.flatnonzero(which)
        columns = {name: getattr(self, name)[at] for name in ("clock", "step_s", "gpu_w", "node_w")}
        return replace(self, layout=take_layouts(self.layout, at), **columns)

    def joined(self, other: "RunnablePoints") -> "RunnablePoints":
        """Put these and others, of another number of GPUs, into one list."""
        layout = LayoutColumns(
            **{
                each.name: np.concatenate(
                    [getattr(self.layout, each.name), getattr(other.layout, each.name)]
                )
                for each in fields(LayoutColumns)
            }
        )
        columns = {
            name: np.concatenate([getattr(self, name), getattr(other, name)])
            for name in ("clock", "step_s", "gpu_w", "node_w")
        }
        excluded = {
            why: self.excluded.get(why, 0) + other.excluded.get(why, 0)
            for why in (*self.excluded, *other.excluded)
        }
        return replace(self, layout=layout, excluded=excluded, **columns)

    def layout_at(self, place: int, limits: JobLimits) -> Layout:
        """Give one of them as the job is ordered to it."""

        def degree(name: str) -> int:
            return int(getattr(self.layout, name)[place])

        return Layout(
            pp=degree("pp"),
            dp_shard=degree("dp"),
            cp=degree("cp"),
            tp=degree("tp"),
            ep=degree("ep"),
            micro_batch=degree("micro_batch") if limits.micro_batches else 0,
            recompute=bool(self.layout.recompute[place] == FULL),  # type: ignore[index]
        )


def runnable(
    job: Job, model: CostModel, limits: JobLimits, clocks: Sequence[float]
) -> RunnablePoints:
    """Predict every point that a job can run on all of its GPUs.

    Args:
        job: what is laid out.
        model: the fitted cost model; its measured runs are of others and are left out.
        limits: what the job can run.
        clocks: relative, each above 0 and up to 1.
    """
    work, hardware = megatron_like(job), hardware_columns([job.gpu])
    found = space(job)
    layout, excluded = found.layout, {why: gone for why, gone in found.excluded.items() if gone}
    for why, keeps in _limits(limits):
        kept = keeps(layout)
        excluded[why] = int(len(kept) - kept.sum())
        layout = take_layouts(layout, np.flatnonzero(kept))
    everything = Setups(shape=job.shape, hardware=hardware, layout=layout, work=work)
    count = len(np.asarray(layout.tp))
    peak = np.broadcast_to(np.asarray(memory(everything).total), (count,))
    fits = peak * (1 + FRAGMENTED) + RUNTIME_BYTES <= job.gpu.memory_bytes
    excluded["it fits into memory"] = int(count - fits.sum())
    layout = take_layouts(layout, np.flatnonzero(fits))
    setups = Setups(shape=job.shape, hardware=hardware, layout=layout, work=work)
    time, count = step_time(setups, model.parameters), int(fits.sum())
    energies = [step_energy(setups, time, model.shares, clock=clock) for clock in clocks]

    def column(name: str) -> Array:
        found = [np.broadcast_to(np.asarray(getattr(each, name)), (count,)) for each in energies]
        return np.concatenate(found) if found else np.empty(0)

    return RunnablePoints(
        layout=take_layouts(layout, np.tile(np.arange(count), len(clocks))),
        clock=np.repeat(np.asarray(clocks, dtype=np.float64), count),
        step_s=column("step_s"),
        gpu_w=column("gpu_w"),
        node_w=column("node_w"),
        excluded={why: gone for why, gone in excluded.items() if gone},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRuns:
    """What was measured of the job at full clock.

    Attributes:
        steps: its layouts, and the seconds of a step.
        watts: of one GPU in use, with its part of the node or without; shape (n,).
        has_node: whether the watts contain the GPU's part of its node.
    """

    steps: OwnMeasurements
    watts: Array
    has_node: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedPoints:
    """Points beside what was measured.

    Attributes:
        tokens_per_s, j_per_token: corrected. `deviation`: of the logarithm of their step's time;
            shape (n,) each.
        slower, thirstier: factors by which the measured points take longer, and draw more, than
            predicted, in the middle.
        apart: by what factor the measured points differ, at most, once all are moved alike.
    """

    tokens_per_s: Array
    j_per_token: Array
    deviation: Array
    slower: float
    thirstier: float
    apart: float


def corrected(
    job: Job, model: CostModel, points: RunnablePoints, own: OwnRuns, *, strange: bool
) -> CorrectedPoints:
    """Correct predicted points by the job's own measured ones.

    Args:
        job: whose points they are.
        model: the fitted cost model.
        points: what is to be corrected.
        own: what was measured; one point at least.
        strange: whether the model was fitted to nothing like the job. Then all points are first
            moved alike, by the middle of the measured ones, however far that is.
    """
    work = megatron_like(job)
    errors = np.log(measured_over_predicted(job, work, model, own.steps))
    middle = float(np.median(errors))
    shift = middle if strange else 0.0
    steps = replace(own.steps, seconds=own.steps.seconds / np.exp(shift))
    correction = own_errors(job, work, model, points.layout, steps)
    step_s = points.step_s * np.exp(shift + np.asarray(correction.log_ratio))
    more = np.log(own.watts / _watts(job, model, own))
    predicted_w = points.node_w if own.has_node else points.gpu_w
    watts = predicted_w * np.exp(np.median(more)) * np.asarray(points.layout.gpus)
    tokens_per_s = job.global_batch * job.seq_len / step_s
    return CorrectedPoints(
        tokens_per_s=tokens_per_s,
        j_per_token=watts / tokens_per_s,
        deviation=np.asarray(correction.deviation),
        slower=float(np.exp(middle)),
        thirstier=float(np.exp(np.median(more))),
        apart=float(np.exp(np.abs(errors - middle).max())),
    )


def _watts(job: Job, model: CostModel, own: OwnRuns) -> Array:
    """Predict the watts of the points that were measured."""
    setups = Setups(
        shape=job.shape,
        hardware=hardware_columns([job.gpu]),
        layout=own.steps.layout,
        work=megatron_like(job),
    )
    energy = step_energy(setups, step_time(setups, model.parameters), model.shares)
    found = np.asarray(energy.node_w if own.has_node else energy.gpu_w, dtype=np.float64)
    return np.broadcast_to(found, own.watts.shape)


def _limits(
    limits: JobLimits,
) -> Iterator[tuple[str, Callable[[LayoutColumns], NDArray[np.bool_]]]]:
    """Give each thing that the job asks of a layout, as a sentence and as a test of columns."""

    def one_of(name: str, values: Sequence[float]) -> Callable[[LayoutColumns], NDArray[np.bool_]]:
        return lambda layout: np.isin(np.asarray(getattr(layout, name)), values)

    yield "it has plain stages (chunks = 1)", one_of("chunks", (1,))
    yield (
        f"search.zero = {limits.zero}",
        lambda layout: (
            (np.asarray(layout.zero) == limits.zero)
            | (np.asarray(layout.dp) * np.asarray(layout.cp) == 1)
        ),
    )
    sizes = limits.micro_batches or (1,)
    words = ", ".join(map(str, limits.micro_batches))
    yield (
        f"search.micro_batches = [{words}]" if words else "its micro batch is the job's own choice",
        one_of("micro_batch", sizes),
    )
    levels = (NONE, FULL) if limits.recompute else (NONE,)
    yield f"search.recompute = {str(limits.recompute).lower()}", one_of("recompute", levels)
    for name, values in limits.degrees.items():
        words = ", ".join(map(str, values))
        yield f"search.degrees.{name} = [{words}]", one_of(name, values)
