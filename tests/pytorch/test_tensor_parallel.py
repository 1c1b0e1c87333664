"""A model cut over tensor-parallel ranks gives the whole one's outputs and gradients."""

import json
from typing import Any

import pytest

from tests.hook.harness import Zygote
from tests.pytorch.cut_job import HIDDEN, WIDTH, WORDS


@pytest.fixture(scope="module")
def said(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two ranks said of `cut_job`."""
    out = tmp_path_factory.mktemp("cut")
    launch = zygote.start(2, {"OUT": str(out)}, out, "tests.pytorch.cut_job:main")
    assert zygote.wait(launch) == 0, [path.read_text() for path in out.glob("*.log")]
    found: dict[str, Any] = json.loads((out / "said.json").read_text())
    return found


def test_a_cut_model_gives_the_outputs_of_the_whole_one(said: dict[str, Any]) -> None:
    """To rounding, in fp64; and each rank holds its part of what is cut, no more."""
    assert said["outputs"] <= 1e-12
    held = {name: tuple(shape) for name, shape in said["held"].items()}
    assert held["embedding.weight"] == held["head.weight"] == (WORDS // 2, WIDTH)
    assert held["feed.gate.weight"] == held["feed.up.weight"] == (HIDDEN // 2, WIDTH)
    assert held["feed.gate.bias"] == (HIDDEN // 2,)
    assert held["feed.down.weight"] == (WIDTH, HIDDEN // 2)
    assert held["norm.weight"] == (WIDTH,)


def test_a_cut_model_gives_the_gradients_of_the_whole_one(said: dict[str, Any]) -> None:
    """Of every parameter, cut or not."""
    assert len(said["gradients"]) == 9
    assert max(said["gradients"].values()) <= 1e-12, said["gradients"]


def test_a_gradient_that_is_not_summed_over_the_ranks_would_be_noticed(
    said: dict[str, Any],
) -> None:
    """What every rank has whole sees a part of each sequence: a summand is no gradient."""
    assert sorted(said["summands"]) == ["norm.weight", "turn.bias", "turn.weight"]
    assert min(said["summands"].values()) > 1e-3, said["summands"]


def test_what_cannot_be_cut_evenly_is_refused(said: dict[str, Any]) -> None:
    """Three features over two ranks, and a bias that both ranks would add."""
    assert "weight of shape (3, 4) cannot be cut by dim 0 over 2 ranks" in said["odd"]
    assert "bias of shape (4,) cannot be cut by dim 1 over 2 ranks" in said["bias"]
