"""Attention over parts of sequences is attention over whole ones, whatever is sent how."""

import json
from typing import Any

import pytest

from tests.hook.harness import Zygote
from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.context_parallel.context import Context
from wattmesh.integrations.pytorch.context_parallel.ulysses import copies, head_problem


@pytest.fixture(scope="module")
def said(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What four ranks said of `attention_job`."""
    out = tmp_path_factory.mktemp("attention")
    launch = zygote.start(4, {"OUT": str(out)}, out, "tests.pytorch.attention_job:main")
    assert zygote.wait(launch) == 0, [path.read_text() for path in out.glob("*.log")]
    found: dict[str, Any] = json.loads((out / "said.json").read_text())
    return found


def test_every_method_gives_outputs_and_gradients_of_whole_sequences(said: dict[str, Any]) -> None:
    """To rounding in fp64: three methods, causal or not, many key heads or few."""
    honest = {name: each for name, each in said.items() if not name.startswith("sabotaged")}
    assert len(honest) == 12
    assert all(len(each) == 4 for each in honest.values())
    assert max(max(each) for each in honest.values()) <= 1e-12, honest


def test_positions_taken_for_others_would_be_noticed(said: dict[str, Any]) -> None:
    """Sabotaged twins: a ring that masks, and a Ulysses that orders, as if dealt in one piece."""
    for method in ("ring", "ulysses"):
        assert min(said[f"sabotaged: {method}"]) > 1e-3, said


def test_heads_that_cannot_be_dealt_are_named() -> None:
    """Too few query heads; key heads whose copies do not divide them; and what can be dealt."""
    assert "2 query heads of a tp rank cannot be dealt over cp = 4" in head_problem(2, 1, 4)
    assert "repeated to 12 for cp = 4" in head_problem(8, 3, 4)
    assert head_problem(8, 4, 4) == head_problem(8, 2, 4) == head_problem(4, 1, 4) == ""
    assert [copies(each, 4) for each in (8, 4, 2, 1, 6)] == [1, 1, 2, 4, 2]


def test_a_method_that_there_is_not_is_refused() -> None:
    """Before anything is sent."""
    with pytest.raises(InputInvalid, match="no method 'torus'"):
        Context.deal(8, 2, 0, object(), method="torus")  # type: ignore[arg-type]
