"""The example trains the same model in every layout, and the test would notice if it did not."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.pretrain.config import preset
from examples.pretrain.memory import estimate
from examples.pretrain.options import parse_layout
from tests.examples.walker import Trained, walk
from tests.hook.harness import Zygote

# Each axis, method and schedule is met somewhere, and most pairs of axes; not in every model.
DENSE = (
    "",
    "dp_replicate=2,dp_shard=2",
    "dp_shard=2,tp=2",
    "cp=4,cp_method=ring",
    "cp=4,cp_layers=4 2 1 4",
    "cp=2,tp=2",
    "pp=2,dp_shard=2",
    "pp=2,tp=2",
    "pp=4,schedule=GPipe",
    "micro_batch=2,recompute=true",
)
EXPERTS = (
    "",
    "dp_replicate=2,dp_shard=2,ep=2",
    "dp_shard=2,cp=2,ep=4,recompute=true",
    "cp=2,tp=2,ep=4",
    "cp=4,ep=2,cp_method=ulysses",
    "pp=2,cp=2,ep=2,schedule=Interleaved1F1B",
    "pp=2,tp=2,ep=2,schedule=ZBVZeroBubble",
)
DIFFUSION = (
    "",
    "dp_replicate=2,dp_shard=2",
    "pp=2,schedule=InterleavedZeroBubble,recompute=true",
    "pp=2,tp=2,schedule=ZBVZeroBubble",
    "cp=2,tp=2,cp_method=ulysses",
)
TIMED_EXPERTS = (
    "",
    "dp_shard=2,tp=2,ep=4",
    "pp=2,dp_shard=2,ep=2,schedule=InterleavedZeroBubble",
    "pp=2,cp=2,ep=2,cp_method=ring,schedule=ZBVZeroBubble",
)
TEST_TIME = (
    "",
    "dp_replicate=2,dp_shard=2",
    "cp=4",
    "cp=2,tp=2,recompute=true",
    "pp=2,cp=2,schedule=ZBVZeroBubble",
    "pp=2,cp=2,schedule=InterleavedZeroBubble,recompute=true",
)
NARROW = (
    "ep_bottleneck=4",
    "dp_replicate=2,dp_shard=2,ep=2,ep_bottleneck=4",
    "cp=2,tp=2,ep=4,ep_bottleneck=4",
    "pp=2,dp_shard=2,ep=2,recompute=true,ep_bottleneck=4",
    "pp=2,tp=2,ep=2,schedule=ZBVZeroBubble,ep_bottleneck=4",
)
STEPS = 2


def worst(found: Trained, reference: Trained) -> float:
    """Give the largest relative difference in loss, gradient norm and probe."""
    pairs = [
        *zip(found.losses, reference.losses, strict=True),
        *zip(found.norms, reference.norms, strict=True),
        *zip(found.probes, reference.probes, strict=True),
    ]
    return max(abs(a - b) / abs(b) for a, b in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is trained, in which layouts, and how equal it must be."""

    model: str
    dtype: str
    tolerance: float
    layouts: tuple[str, ...]
    harmed: tuple[str, ...] = ()


CASES = (
    Case(model="tiny", dtype="fp64", tolerance=1e-12, layouts=DENSE),
    Case(model="tiny-moe", dtype="fp64", tolerance=1e-12, layouts=EXPERTS),
    Case(
        model="tiny-diffusion",
        dtype="fp64",
        tolerance=1e-12,
        layouts=DIFFUSION,
        harmed=(
            "dp_shard=2!noise drawn by each rank",
            "pp=2,schedule=InterleavedZeroBubble!a microbatch's weight gradients left out",
        ),
    ),
    Case(
        model="tiny-diffusion-moe",
        dtype="fp64",
        tolerance=1e-12,
        layouts=TIMED_EXPERTS,
        harmed=("dp_shard=2,ep=2!routers of one rank see other levels",),
    ),
    Case(
        model="tiny-ttt",
        dtype="fp64",
        tolerance=1e-12,
        layouts=TEST_TIME,
        harmed=(
            "cp=2!a state is not carried to the next rank",
            "cp=2!a state's gradient is not carried back",
        ),
    ),
    Case(
        model="tiny-narrow",
        dtype="fp64",
        tolerance=1e-12,
        layouts=NARROW,
        harmed=("dp_shard=2,ep_bottleneck=4!one rank sends tokens whole",),
    ),
    Case(model="tiny", dtype="fp32", tolerance=1e-5, layouts=("", "dp_shard=2,tp=2", "pp=2,cp=2")),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model}-{case.dtype}")
def test_every_layout_trains_the_same_model(zygote: Zygote, tmp_path: Path, case: Case) -> None:
    """Losses, gradient norms and the probe equal those of one rank, to rounding.

    And what the rank with the most state holds is what was estimated, to the byte. Sabotaged twins:
    the harms of a model, each seen a million times above rounding.
    """
    layouts = (*case.layouts, *case.harmed)
    found = walk(zygote, tmp_path, layouts, dtype=case.dtype, steps=STEPS, model=case.model)
    reference = found[case.layouts[0]]
    harmed = {harm: worst(found.pop(harm), reference) for harm in case.harmed}
    assert all(apart > 1e-6 for apart in harmed.values()), harmed
    assert reference.losses[-1] != reference.losses[0]
    differences = {layout: worst(each, reference) for layout, each in found.items()}
    assert max(differences.values()) <= case.tolerance, differences
    for layout, each in found.items():
        expected = estimate(preset(case.model, dtype=case.dtype), parse_layout(layout))
        assert each.held == (expected.parameters, expected.slots, expected.average), layout


def test_one_rank_with_other_data_is_noticed(zygote: Zygote, tmp_path: Path) -> None:
    """The sabotaged twin: a rank that is one sample off moves loss, norm and probe visibly."""
    layouts = ("", "dp_shard=2", "pp=2,dp_shard=2")
    honest = walk(zygote, tmp_path / "honest", layouts, dtype="fp64", steps=2)
    shifted = walk(zygote, tmp_path / "shifted", layouts, dtype="fp64", steps=2, shift=1)
    for layout in layouts[1:]:
        assert worst(honest[layout], honest[""]) <= 1e-12
    assert worst(shifted["dp_shard=2"], honest[""]) > 1e-6
