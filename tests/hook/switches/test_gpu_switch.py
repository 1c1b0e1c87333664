"""On a real GPU: the example trainer goes through layouts in place and trains the same model."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.switch import (
    FOUR_RANKS,
    ONE_RANK,
    Case,
    difference,
    launch,
    left_share,
    options_of,
)
from benchmarks.gpu.switch_job import Seen

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]

NCCL = Case(name="nccl", config="tiny-moe", dtype="fp64", layouts=ONE_RANK, switches=4)
GLOO = Case(name="gloo", config="tiny-moe", dtype="fp64", layouts=FOUR_RANKS, switches=5)


def _both(case: Case, folder: Path) -> tuple[Seen, Seen]:
    """What rank 0 saw of an unswitched and of a switched run."""
    with ThreadPoolExecutor(2) as pool:
        plain, switched = (
            pool.submit(
                launch,
                options_of(case, folder, name, "cuda", switched=name == "switched"),
                case.ranks,
            )
            for name in ("unswitched", "switched")
        )
        return plain.result()[1][0], switched.result()[1][0]


@pytest.mark.parametrize("case", [NCCL, GLOO], ids=["one rank, NCCL", "four ranks, gloo"])
def test_a_switched_run_trains_the_same_model_on_a_gpu(case: Case, tmp_path: Path) -> None:
    """Every switch stands, and losses in fp64 are those of the run that never switched."""
    plain, switched = _both(case, tmp_path)
    assert [state for _, state, _ in switched.ends] == ["confirmed"] * case.switches, switched.ends
    found = difference(plain.losses, switched.losses)
    assert found is not None
    assert found < 1e-12


def test_a_torn_down_layout_leaves_the_device_s_memory(tmp_path: Path) -> None:
    """Also of a small model, whose kernels' workspaces are larger than its state."""
    case = replace(NCCL, dtype="fp32", switches=2)
    options = options_of(case, tmp_path, "switched", "cuda", switched=True)
    seen = launch(options, 1)[1][0]
    share = left_share(seen)
    assert share is not None
    assert share <= 0.05


def test_a_compiled_model_is_switched(tmp_path: Path) -> None:
    """torch.compile's kernels and caches keep no layout alive."""
    layouts = ONE_RANK[:2]
    case = Case(
        name="compiled",
        config="demo",
        dtype="fp32",
        layouts=layouts,
        switches=1,
        compiled=True,
    )
    options = options_of(case, tmp_path, "switched", "cuda", switched=True)
    seen = launch(options, 1)[1][0]
    assert [state for _, state, _ in seen.ends] == ["confirmed"], seen.ends
