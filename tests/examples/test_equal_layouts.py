"""The example trains the same model in every layout, and the test would notice if it did not."""

from pathlib import Path

import pytest

from tests.examples.walker import Trained, walk

LAYOUTS = (
    "",
    "dp_shard=4",
    "dp_replicate=2,dp_shard=2",
    "dp_shard=2,tp=2",
    "tp=2",
    "pp=2,dp_shard=2",
    "pp=2,tp=2",
    "pp=4,schedule=GPipe",
    "micro_batch=2",
)
STEPS = 5


def worst(found: Trained, reference: Trained) -> float:
    """Give the largest relative difference in loss, gradient norm and probe."""
    pairs = [
        *zip(found.losses, reference.losses, strict=True),
        *zip(found.norms, reference.norms, strict=True),
        *zip(found.probes, reference.probes, strict=True),
    ]
    return max(abs(a - b) / abs(b) for a, b in pairs)


@pytest.mark.parametrize(
    ("dtype", "tolerance", "layouts"),
    [
        ("fp64", 1e-12, LAYOUTS),
        ("fp32", 1e-5, ("", "dp_shard=2,tp=2", "tp=2", "pp=2,dp_shard=2")),
    ],
)
def test_every_layout_trains_the_same_model(
    tmp_path: Path, dtype: str, tolerance: float, layouts: tuple[str, ...]
) -> None:
    """Losses, gradient norms and the probe equal those of one rank, to rounding."""
    found = walk(tmp_path, layouts, dtype=dtype, steps=STEPS)
    reference = found[""]
    assert reference.losses[-1] < reference.losses[0]
    differences = {layout: worst(each, reference) for layout, each in found.items()}
    assert max(differences.values()) <= tolerance, differences


def test_one_rank_with_other_data_is_noticed(tmp_path: Path) -> None:
    """The sabotaged twin: a rank that is one sample off moves loss, norm and probe visibly."""
    layouts = ("", "dp_shard=2", "pp=2,dp_shard=2")
    honest = walk(tmp_path / "honest", layouts, dtype="fp64", steps=2)
    shifted = walk(tmp_path / "shifted", layouts, dtype="fp64", steps=2, shift=1)
    for layout in layouts[1:]:
        assert worst(honest[layout], honest[""]) <= 1e-12
    assert worst(shifted["dp_shard=2"], honest[""]) > 1e-6
