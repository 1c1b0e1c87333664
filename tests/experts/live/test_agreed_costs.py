"""What a daemon says of expert costs: used, or all zeros with one sentence; equal on all ranks."""

import json
import math
from typing import Any

import pytest

from tests.builders import messages
from tests.experts.live.agree_job import HOLDERS
from tests.hook.harness import Zygote
from wattmesh.integrations.pytorch.experts.costs import costs_of, of_experts
from wattmesh.integrations.pytorch.experts.router import unusable
from wattmesh.reconfig.wire.experts import STALE_S, ExpertCostScores

ANSWER: dict[str, Any] = {
    "run": "r",
    "version": 3,
    "strength": 0.2,
    "age_s": 10.0,
    "scores": {"GPU-a": -1.0, "GPU-b": 1.0, "GPU-unused": 0.5},
}
OF_EXPERTS = ("GPU-a", "GPU-a", "GPU-b", "GPU-b", "GPU-b")


def test_an_answer_gives_each_expert_the_cost_of_its_gpu() -> None:
    """Five experts on two GPUs: no count needs to divide."""
    found = costs_of(ANSWER, run="r", holders=OF_EXPERTS)
    assert found.costs == (-1.0, -1.0, 1.0, 1.0, 1.0)
    assert (found.strength, found.version, found.neutral_because) == (0.2, 3, "")


def test_experts_that_lie_on_gpus_of_all_kinds_cost_the_same() -> None:
    """One node of H100 and two of A100, each with all experts: nobody has to lean."""
    kinds = {"h100": -math.sqrt(2), "a100": math.sqrt(0.5), "other": math.sqrt(0.5)}
    scores = {f"{kind}-{at}": each for kind, each in kinds.items() for at in range(2)}
    told = ExpertCostScores(run=messages.RUN, version=3, strength=0.2, age_s=0.0, scores=scores)
    held = [(gpu, [2 * int(gpu[-1]), 2 * int(gpu[-1]) + 1]) for gpu in scores]
    costs, reason = of_experts(told, held, 4)
    assert (costs, "all experts cost the same" in reason) == ((0.0,) * 4, True)
    # The twin: one group over both kinds.
    costs, reason = of_experts(told, held[1:3], 4)
    assert (costs, reason) == ((scores["a100-0"],) * 2 + (scores["h100-1"],) * 2, "")
    assert unusable(costs, 0.2, 4) == ""


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"run": "another"}, "of another run"),
        ({"age_s": STALE_S + 1}, "older than 900 s"),
        ({"age_s": -5}, "nobody knows how old"),
        ({"age_s": None}, "nobody knows how old"),
        ({"age_s": math.nan}, "nobody knows how old"),
        ({"version": -1}, "version"),
        ({"version": True}, "version"),
        ({"version": "3"}, "version"),
        ({"version": 2**60}, "version"),
        ({"scores": {"GPU-a": -1.0}}, "1 GPU that holds experts has no cost"),
        ({"scores": {}}, "2 GPUs"),
        ({"scores": None}, "there are no expert costs"),
        ({"scores": {"GPU-a": math.nan, "GPU-b": 1}}, "no finite number"),
        ({"scores": {"GPU-a": "1", "GPU-b": 1}}, "no finite number"),
        ({"scores": {"GPU-a": True, "GPU-b": 1}}, "no finite number"),
        ({"scores": {"GPU-a": 10**400, "GPU-b": 1}}, "no finite number"),
        ({"scores": {"GPU-a": -7, "GPU-b": 1}}, "beyond"),
        ({"strength": -0.1}, "the strength -0.1"),
        ({"strength": math.inf}, "no finite number"),
        ({"strength": None}, "no finite number"),
    ],
)
def test_an_answer_that_cannot_be_used_is_no_costs(other: dict[str, Any], sentence: str) -> None:
    """One sentence; all zeros, which train as without."""
    found = costs_of(ANSWER | other, run="r", holders=OF_EXPERTS)
    assert sentence in found.neutral_because
    assert (found.costs, found.strength) == ((0.0,) * 5, 0.0)


@pytest.mark.parametrize("answer", [None, [], "no", 4, {}, {"scores": []}, b"\x00"])
def test_nonsense_is_no_costs(answer: object) -> None:
    """No daemon, or one gone mad."""
    found = costs_of(answer, run="r", holders=OF_EXPERTS)
    assert "there are no expert costs" in found.neutral_because
    assert not any(found.costs)


def test_an_answer_grows_old_in_the_hands_of_its_reader() -> None:
    """Held for longer than it may be old."""
    assert costs_of(ANSWER, run="r", holders=OF_EXPERTS, held_s=STALE_S - 11).neutral_because == ""
    assert "older" in costs_of(ANSWER, run="r", holders=OF_EXPERTS, held_s=STALE_S).neutral_because


@pytest.fixture(scope="module")
def said(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks with different versions said."""
    out = tmp_path_factory.mktemp("agree")
    launch = zygote.start(2, {"OUT": str(out)}, out, "tests.experts.live.agree_job:main")
    assert zygote.wait(launch) == 0, [path.read_text() for path in out.glob("*.log")]
    names = ("said", "paired")
    return [
        {name: json.loads((out / f"{name}-{rank}.json").read_text()) for name in names}
        for rank in range(2)
    ]


def test_ranks_that_fetched_different_versions_use_the_first_ones(
    said: list[dict[str, Any]],
) -> None:
    """Also where only the other rank has any, and where the first one's are gone."""
    first, second = (each["said"] for each in said)
    assert first["newer on the second"]["version"] == 3
    assert first == second
    assert first["none on the second"]["costs"] == [-1.0, 1.0]
    assert first["none on the first"]["costs"] == [0.0, 0.0]
    assert len(HOLDERS) == 2


def test_a_rank_without_mixtures_takes_part_in_both_probes(said: list[dict[str, Any]]) -> None:
    """A pipeline stage of dense layers: the others would wait for it until the launch is ended."""
    first, second = (each["paired"] for each in said)
    assert first == second
    assert first[0] != first[1]
