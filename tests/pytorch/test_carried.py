"""A state carried from rank to rank along sequences is the state of whole sequences."""

import json

import pytest

from tests.hook.harness import Zygote


@pytest.fixture(scope="module")
def said(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """What four ranks said of `carried_job`."""
    out = tmp_path_factory.mktemp("carried")
    launch = zygote.start(4, {"OUT": str(out)}, out, "tests.pytorch.carried_job:main")
    assert zygote.wait(launch) == 0, [path.read_text() for path in out.glob("*.log")]
    found: dict[str, dict[str, float]] = json.loads((out / "said.json").read_text())
    return found


def test_outputs_and_gradients_are_those_of_whole_sequences(
    said: dict[str, dict[str, float]],
) -> None:
    """To rounding in fp64, over two and four ranks; the first state's gradient included."""
    for case in ("over 2", "over 4"):
        assert len(said[case]) == 6
        assert max(said[case].values()) <= 1e-13, said[case]


def test_a_state_or_gradient_that_stays_on_its_rank_would_be_noticed(
    said: dict[str, dict[str, float]],
) -> None:
    """Sabotaged twins: one that every output shows, one that none does."""
    assert min(said["sabotaged: own state"].values()) > 1e-3, said
    output, *gradients = said["sabotaged: own gradient"].values()
    assert output <= 1e-13
    assert max(gradients) > 1e-3, said
