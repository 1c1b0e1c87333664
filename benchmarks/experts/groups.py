"""Groups of GPUs, and routing of known structure, for the benchmarks of experts.

Watts and rates are the vendors' (`wattmesh.policies.parallelism.hardware`), assumed and not
measured: 40 % of the dense bf16 rate, rows through a Mixtral-sized expert (4096 x 14336), forward
and backward. A crossing costs what the group idles while 4 x 8 KiB of a token pass its adapter.

Shape suffixes: N tokens, P experts per token, X experts.
"""

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.experts.counts import balanced_counts
from wattmesh.policies.experts.layer_energy import ExpertGpu
from wattmesh.policies.experts.placement.problem import Counts, PlacementProblem
from wattmesh.policies.parallelism.hardware import CLASSES

REACHED = 0.4
FLOP_PER_ROW = 18 * 4096 * 14336
BYTES_PER_CROSSING = 4 * 8192

Chosen = NDArray[np.int64]


def group(*parts: tuple[int, str], per_node: int = 4) -> tuple[ExpertGpu, ...]:
    """Make a group of so many GPUs of each class, dealt to nodes in order."""
    names = [name for count, name in parts for _ in range(count)]
    return tuple(
        ExpertGpu(
            name=f"{name}-{at}",
            node=f"node-{at // per_node}",
            busy_w=CLASSES[name].power_w,
            idle_w=CLASSES[name].idle_w,
            tokens_per_s=REACHED * CLASSES[name].matmul_flops / FLOP_PER_ROW,
        )
        for at, name in enumerate(names)
    )


def problem(
    counts: Counts, gpus: tuple[ExpertGpu, ...], *, tolerance: float = 0.10, extra: int = 0
) -> PlacementProblem:
    """Make a placement problem: slots by speed, and `extra` on each GPU."""
    slots = balanced_counts(len(counts.loads_LX[0]), [gpu.tokens_per_s for gpu in gpus])
    idle_w = sum(gpu.idle_w for gpu in gpus)
    network = min(CLASSES[gpu.name.rpartition("-")[0]].network_bytes_per_s for gpu in gpus)
    links = min(CLASSES[gpu.name.rpartition("-")[0]].link_bytes_per_s for gpu in gpus)
    # All adapters pass rows at once, so the group waits for one GPU's share of them.
    return PlacementProblem(
        counts=counts,
        gpus=gpus,
        slots=tuple(each + extra for each in slots),
        crossing_j=idle_w / len(gpus) * BYTES_PER_CROSSING / network,
        near_crossing_j=idle_w / len(gpus) * BYTES_PER_CROSSING / links,
        tolerance=tolerance,
    )


def topical(
    experts: int, layers: int, per_token: int, tokens: int, *, seed: int, skew: float = 0.7
) -> tuple[Chosen, ...]:
    """Draw routing in which tokens of one topic share experts, and some experts are hot.

    Topics are as many as groups of 8 experts; popularity of experts is log-normal by `skew`; the
    experts of a topic have scattered numbers. A token keeps its topic through all layers.
    """
    draw = np.random.default_rng(seed)
    topics = max(2, experts // 8)
    topic_N = draw.integers(0, topics, tokens)
    found = []
    for _ in range(layers):
        scattered = draw.permutation(experts)
        own_NX = (np.arange(experts) % topics)[None, :] == topic_N[:, None]
        score_NX = draw.gumbel(size=(tokens, experts)) + 2.5 * own_NX
        score_NX += skew * draw.standard_normal(experts)[None, :]
        chosen_NP = np.argsort(-score_NX, axis=1)[:, :per_token]
        found.append(scattered[chosen_NP])
    return tuple(found)
