"""What breaks T1 (docs/convergence.md), each beside what holds, and the check that sees it.

A breaker here is the real thing in small: the loss, loader, router or accumulator that jobs have.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from wattmesh.integrations.pytorch.dropout import dropout
from wattmesh.integrations.pytorch.gradients import clip, local_gradients, squared_norm_share
from wattmesh.integrations.pytorch.loss import IGNORED, token_loss
from wattmesh.reconfig.equivalence.checks.masks import same_masks, same_routes
from wattmesh.reconfig.equivalence.checks.ragged import ragged_mask, same_loss
from wattmesh.reconfig.equivalence.checks.samples import merge, same_samples
from wattmesh.reconfig.equivalence.whole import WholeState, close_gradients, round_trip

SAMPLES, SEQ, VOCAB, EXPERTS = 8, 12, 16, 4
Loss = Callable[[Tensor, Tensor], Tensor]


def batch() -> tuple[Tensor, Tensor]:
    """Logits and targets of a batch whose samples keep very different numbers of tokens."""
    generator = torch.Generator().manual_seed(3)
    shape = (SAMPLES, SEQ, VOCAB)
    logits_BSV = torch.randn(shape, generator=generator, dtype=torch.float64)
    targets_BS = torch.randint(VOCAB, (SAMPLES, SEQ), generator=generator)
    kept = torch.from_numpy(ragged_mask(SAMPLES, SEQ))
    return logits_BSV, torch.where(kept, targets_BS, IGNORED)


def by_microbatch(loss: Loss, *, mean: bool = False) -> dict[int, float]:
    """The batch's loss by microbatch size: the sum over microbatches, or their mean."""
    logits_BSV, targets_BS = batch()
    found = {}
    for size in (1, 2, 4, 8):
        pairs = zip(torch.split(logits_BSV, size), torch.split(targets_BS, size), strict=True)
        parts = [float(loss(*pair)) for pair in pairs]
        found[size] = sum(parts) / (len(parts) if mean else 1)
    return found


def _global(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    kept = int((batch()[1] != IGNORED).sum())
    return token_loss(logits_BSV, targets_BS, kept)


def _mean(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    flat = logits_BSV.flatten(0, 1), targets_BS.flatten()
    return nn.functional.cross_entropy(*flat, ignore_index=IGNORED)


def _balance(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    """The auxiliary loss of Switch Transformers, over whatever batch it is given."""
    scores_NX = logits_BSV[..., :EXPERTS].softmax(-1).flatten(0, 1)
    share_X = nn.functional.one_hot(scores_NX.argmax(-1), EXPERTS).double().mean(0)
    return EXPERTS * (share_X * scores_NX.mean(0)).sum()


def _normalised(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    """A loss behind a batch norm: its statistics are of the microbatch."""
    norm = nn.BatchNorm1d(VOCAB, affine=False).double()
    normalised_BSV = norm(logits_BSV.flatten(0, 1)).view_as(logits_BSV)
    return _global(normalised_BSV, targets_BS)


def test_a_sum_over_the_global_token_count_holds() -> None:
    """V5: the example's own loss is the same in every cut."""
    found = same_loss(by_microbatch(_global))
    assert found.ok, found.sentence


@pytest.mark.parametrize(
    ("loss", "mean"),
    [(_mean, True), (_balance, True), (_normalised, False)],
    ids=["mean of means", "auxiliary loss per microbatch", "batch norm"],
)
def test_statistics_of_a_microbatch_are_seen(loss: Loss, mean: bool) -> None:
    """V5's sabotaged twins: whatever is computed per microbatch follows the layout."""
    found = same_loss(by_microbatch(loss, mean=mean))
    assert not found.ok
    assert found.measured > 1e-3


def test_one_size_of_microbatch_compares_nothing() -> None:
    """A single figure is no comparison."""
    assert not same_loss({8: 1.0}).ok


def routes(ranks: int, capacity: int) -> dict[str, np.ndarray]:
    """Top-2 experts of 64 tokens dealt over `ranks`; per rank an expert takes `capacity` tokens."""
    scores = np.random.default_rng(4).standard_normal((64, EXPERTS))
    chosen = np.argsort(-scores, axis=1)[:, :2]
    for part in np.array_split(np.arange(64), ranks):
        taken: Counter[int] = Counter()
        for token in part:
            for slot, expert in enumerate(chosen[token]):
                taken[int(expert)] += 1
                if taken[int(expert)] > capacity:
                    chosen[token, slot] = -1
    return {"layer 0": chosen}


def test_dropless_routing_does_not_follow_the_ranks() -> None:
    """V6: without a capacity every token reaches its experts, however tokens are dealt."""
    assert same_routes(routes(4, capacity=64), routes(1, capacity=64)).ok


def test_capacity_per_rank_is_seen() -> None:
    """V6's sabotaged twin: one capacity factor drops other tokens on four ranks than on one."""
    found = same_routes(routes(4, capacity=9), routes(1, capacity=36))
    assert not found.ok
    assert "token" in found.sentence


def test_the_order_of_a_tokens_experts_is_no_difference() -> None:
    """A set has no order; two experts that changed places in it are the same choice."""
    chosen = routes(1, capacity=64)
    assert same_routes({"layer 0": chosen["layer 0"][:, ::-1]}, chosen).ok
    assert not same_routes({}, chosen).ok
    assert not same_routes({"layer 0": chosen["layer 0"][:60]}, chosen).ok


def by_position(ranks: int) -> dict[int, dict[int, int]]:
    """What ranks read when the loader seeks by global position."""
    share = SAMPLES // ranks
    return {
        step: merge(
            (
                range(step * SAMPLES + rank * share, step * SAMPLES + (rank + 1) * share)
                for rank in range(ranks)
            ),
            copies=1,
        )
        for step in range(8)
    }


def by_rank(ranks: int) -> dict[int, dict[int, int]]:
    """What ranks read when each shuffles a shard of its own."""
    shards = np.array_split(np.arange(8 * SAMPLES), ranks)
    orders = [np.random.default_rng(rank).permutation(each) for rank, each in enumerate(shards)]
    share = SAMPLES // ranks
    return {
        step: merge(
            (order[step * share : (step + 1) * share].tolist() for order in orders), copies=1
        )
        for step in range(8)
    }


def packed(ranks: int) -> dict[int, dict[int, int]]:
    """Documents packed greedily into each rank's window of 32 tokens: what each step consumes."""
    lengths = np.random.default_rng(9).integers(4, 20, 400)
    queues = [list(range(rank, 400, ranks)) for rank in range(ranks)]
    found: dict[int, dict[int, int]] = {}
    for step in range(8):
        taken: list[list[int]] = []
        for queue in queues:
            for _ in range(4 // ranks):
                room, window = 32, []
                while lengths[queue[0]] <= room:
                    room -= lengths[queue[0]]
                    window.append(queue.pop(0))
                taken.append(window)
        found[step] = merge(taken, copies=1)
    return found


def test_a_loader_by_position_does_not_follow_the_ranks() -> None:
    """V3: two, four and eight ranks consume the same samples in every step."""
    for ranks in (2, 4, 8):
        assert same_samples(by_position(ranks), by_position(1)).ok


@pytest.mark.parametrize("loader", [by_rank, packed], ids=["shuffle per rank", "packing per rank"])
def test_a_loader_by_rank_is_seen(loader: Callable[[int], dict[int, dict[int, int]]]) -> None:
    """V3's sabotaged twins: the same epoch, but other samples in each step."""
    assert same_samples(loader(2), loader(2)).ok
    found = same_samples(loader(4), loader(2))
    assert not found.ok
    assert "sample" in found.sentence


def test_ranks_that_should_share_samples_and_do_not_are_seen() -> None:
    """V3: a tensor-parallel rank that reads something else leaves a count that is no multiple."""
    assert merge([[0, 1], [0, 1]], copies=2) == {0: 1, 1: 1}
    assert -1 in merge([[0, 1], [0, 2]], copies=2).values()


def masks(parts: int, *, keyed: bool) -> dict[Hashable, bytes]:
    """Dropout masks of a batch that is cut into `parts`, by sample."""
    found: dict[Hashable, bytes] = {}
    torch.manual_seed(0)
    for samples in torch.arange(SAMPLES).chunk(parts):
        ones_BSD = torch.ones(len(samples), SEQ, 4)
        if keyed:
            positions_S = torch.arange(SEQ)
            dropped_BSD = dropout(
                ones_BSD, 0.3, seed=1, site=2, samples_B=samples, positions_S=positions_S
            )
        else:
            torch.manual_seed(0)  # every rank begins with the same stream
            dropped_BSD = nn.functional.dropout(ones_BSD, 0.3)
        for sample, row in zip(samples.tolist(), dropped_BSD, strict=True):
            found[sample] = np.packbits((row != 0).numpy()).tobytes()
    return found


def test_masks_keyed_by_position_hold_and_streams_are_seen() -> None:
    """V4: the example's own dropout, and its sabotaged twin, torch's stream on every rank."""
    assert same_masks(masks(4, keyed=True), masks(1, keyed=True)).ok
    assert not same_masks(masks(4, keyed=False), masks(1, keyed=False)).ok
    assert not same_masks({}, {}).ok


def accumulated(parts: int, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """A gradient added up over microbatches in an accumulator of `dtype`."""
    generator = torch.Generator().manual_seed(5)
    terms = torch.rand(1024, 64, generator=generator, dtype=torch.float64)
    total = torch.zeros(64, dtype=dtype)
    for part in terms.chunk(parts):
        total += part.sum(0).to(dtype)
    return {"w": total.double().numpy()}


def test_accumulation_in_bf16_is_seen() -> None:
    """V7: fp32 accumulators agree over 8 and 512 microbatches; those in bf16 lose what they add."""
    fp32 = (accumulated(parts, torch.float32) for parts in (512, 8))
    assert close_gradients(*fp32, dtype="float32").ok
    bf16 = (accumulated(parts, torch.bfloat16) for parts in (512, 8))
    assert not close_gradients(*bf16, dtype="bfloat16").ok


def clipped(*, globally: bool) -> dict[str, np.ndarray]:
    """Gradients of two pipeline stages, clipped by the norm of both or by each stage's own."""
    torch.manual_seed(8)
    stages = [nn.Linear(4, 4, bias=False) for _ in range(2)]
    for stage, scale in zip(stages, (1.0, 9.0), strict=True):
        stage.weight.grad = torch.randn(4, 4) * scale
    for part in [stages] if globally else [[stage] for stage in stages]:
        gradients = local_gradients(part)
        clip(gradients, float(squared_norm_share(gradients, 1).sqrt()), 1.0)
    return {
        str(n): stage.weight.grad.numpy()
        for n, stage in enumerate(stages)
        if stage.weight.grad is not None
    }


def test_clipping_by_a_stages_own_norm_is_seen() -> None:
    """V7 after clipping: the global norm keeps the gradient's direction, a stage's own does not."""
    whole = clipped(globally=True)
    assert sum(float(np.square(each).sum()) for each in whole.values()) == pytest.approx(1.0)
    assert close_gradients(whole, clipped(globally=True), dtype="float32").ok
    assert not close_gradients(clipped(globally=False), whole, dtype="bfloat16").ok


def orthogonalised(parts: int) -> dict[str, np.ndarray]:
    """Muon's update, the nearest orthogonal matrix, of row shards of one gradient."""
    gradient = np.random.default_rng(2).standard_normal((8, 8))
    shards = [np.linalg.svd(each, full_matrices=False) for each in np.split(gradient, parts)]
    return {"w": np.concatenate([u @ v for u, _, v in shards])}


def test_a_matrix_optimizer_on_shards_is_seen() -> None:
    """V7 on updates: Muon on each rank's rows is another optimizer than Muon on the matrix."""
    assert close_gradients(orthogonalised(1), orthogonalised(1), dtype="float64").ok
    assert not close_gradients(orthogonalised(4), orthogonalised(1), dtype="bfloat16").ok


def test_moments_that_went_through_bf16_are_seen() -> None:
    """V1: a checkpoint that keeps optimizer state in bf16 only is a lossy switch (T3)."""
    moment = np.random.default_rng(6).standard_normal((8, 8)).astype(np.float32)
    before = WholeState(arrays={"exp_avg": moment}, dtypes={"exp_avg": "torch.float32"})
    rounded = torch.from_numpy(moment).bfloat16().float().numpy()
    assert round_trip(before, before).ok
    assert not round_trip(before, replace(before, arrays={"exp_avg": rounded})).ok
