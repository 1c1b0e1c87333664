"""The layouts and clocks worth measuring, out of every one there is. Pure.

Invariant: what is returned fits into memory, and nothing that fits is at least as fast, as thrifty
and as small, and better in one of the three.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.hull import lower_chain
from wattmesh.policies.layout_search.space import Job, Space, space
from wattmesh.policies.parallelism.energy import step_energy
from wattmesh.policies.parallelism.memory import memory
from wattmesh.policies.parallelism.predict import CostModel
from wattmesh.policies.parallelism.setups import BF16, Setups, WorkColumns
from wattmesh.policies.parallelism.step_time import step_time
from wattmesh.policies.parallelism.training_rows import hardware_columns, take_layouts

Array = NDArray[np.float64]

RUNTIME_BYTES = 4e9
"""What driver, NCCL and their buffers hold beside PyTorch's allocator, at most."""

FRAGMENTED = 0.04
"""Share of the allocator's memory that it holds and cannot give."""

CLOCKS = (1.0, 0.9, 0.8, 0.7, 0.6)
"""Relative clocks that are tried; below them static power outweighs what is saved."""

CHUNK = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLayouts:
    """What was found, fastest first; arrays of shape (n,).

    Attributes:
        space: of all layouts. `fitting`: how many of them fit into memory.
        which: indices into the space's layouts. `clock`: relative, of each.
        step_s, j_per_token, memory_bytes: predicted. `node_w`: of a GPU and its part of the node.
        on_hull: at which no mixture of two others gives the same speed for fewer watts, from the
            least joules per token on.
    """

    space: Space
    fitting: int
    which: NDArray[np.int64]
    clock: Array
    step_s: Array
    j_per_token: Array
    memory_bytes: Array
    node_w: Array
    on_hull: NDArray[np.bool_]


def megatron_like(job: Job, number_format: float = BF16) -> WorkColumns:
    """Give the work of a job under software of today: sequence parallel, fused attention."""
    return WorkColumns(
        global_batch=float(job.global_batch),
        seq_len=float(job.seq_len),
        number_format=number_format,
        sequence_parallel=1.0,
        fused_attention=1.0,
        fused_passes=1.0,
        frozen_base=0.0,
        dropped_tokens=0.0,
        captured=0.0,
    )


def search(
    job: Job, work: WorkColumns, model: CostModel, *, clocks: Sequence[float] = CLOCKS
) -> FoundLayouts:
    """Predict every layout at every clock, and keep what nothing beats.

    Args:
        job: what is laid out.
        work: number format and software; its batch and length are those of `job`.
        model: the fitted cost model. Its measured runs are of other clusters and are left out:
            they would move all layouts alike.
        clocks: relative, each above 0 and up to 1.
    """
    found = space(job)
    hardware = hardware_columns([job.gpu])
    everything = Setups(shape=job.shape, hardware=hardware, layout=found.layout, work=work)
    peak = np.asarray(memory(everything).total) * (1 + FRAGMENTED) + RUNTIME_BYTES
    fits = np.flatnonzero(np.broadcast_to(peak, (found.size,)) <= job.gpu.memory_bytes)
    setups = Setups(
        shape=job.shape, hardware=hardware, layout=take_layouts(found.layout, fits), work=work
    )
    time = step_time(setups, model.parameters)
    energies = [step_energy(setups, time, model.shares, clock=clock) for clock in clocks]
    columns = (
        np.concatenate([np.asarray(each.step_s) for each in energies]),
        np.concatenate([np.asarray(each.j_per_token) for each in energies]),
        np.tile(peak[fits], len(energies)),
    )
    front = undominated(*columns)
    step_s, j_per_token, peaks = (column[front] for column in columns)
    tokens_per_s = job.global_batch * job.seq_len / step_s
    return FoundLayouts(
        space=found,
        fitting=len(fits),
        which=np.tile(fits, len(energies))[front],
        clock=np.repeat(np.asarray(clocks), len(fits))[front],
        step_s=step_s,
        j_per_token=j_per_token,
        memory_bytes=peaks,
        node_w=np.concatenate([np.asarray(each.node_w) for each in energies])[front],
        on_hull=on_hull(tokens_per_s, j_per_token),
    )


def on_hull(tokens_per_s: Array, j_per_token: Array) -> NDArray[np.bool_]:
    """Tell which points no mixture of two others beats, from the least joules per token on."""
    chain = lower_chain(tokens_per_s.tolist(), (tokens_per_s * j_per_token).tolist())
    # What is slower and takes more joules for a token is no use to a job that holds its GPUs.
    while len(chain) > 1 and j_per_token[chain[0]] >= j_per_token[chain[1]]:
        chain.pop(0)
    return np.isin(np.arange(len(tokens_per_s)), chain)


def undominated(first: Array, second: Array, third: Array) -> NDArray[np.int64]:
    """Find the entries that no other is at least as good as in all three and better in one.

    Of equal ones the first is kept. Less is better; the answer is in the order of `first`.
    """
    order = np.lexsort((third, second, first))
    kept = np.empty(0, dtype=np.int64)
    for begin in range(0, len(order), CHUNK):
        part = order[begin : begin + CHUNK]
        # What comes earlier is at least as good in the first: two comparisons are left.
        worse = _beaten(second[part], third[part], second[kept], third[kept])
        part = part[~worse]
        earlier = np.tri(len(part), k=-1, dtype=bool)
        among = (second[part][None, :] <= second[part][:, None]) & (
            third[part][None, :] <= third[part][:, None]
        )
        kept = np.concatenate([kept, part[~(among & earlier).any(axis=1)]])
    return kept


def _beaten(second: Array, third: Array, by_second: Array, by_third: Array) -> NDArray[np.bool_]:
    better = (by_second[None, :] <= second[:, None]) & (by_third[None, :] <= third[:, None])
    return np.asarray(better.any(axis=1))
