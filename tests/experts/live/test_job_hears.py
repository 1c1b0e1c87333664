"""A live job hears costs that it cannot use, and costs of GPUs that its experts have left."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.experts.live.test_live_job import COSTS, HOSTILE, RUN, CostDaemon, CostedRun
from tests.hook.conftest import socket_path
from tests.hook.daemon import Wish
from tests.hook.harness import Zygote
from wattmesh.reconfig.hook.expert_costs import why_unusable
from wattmesh.reconfig.layout import Layout

__all__ = ["socket_path"]


@pytest.mark.parametrize("kind", ["not a number", "stale", "another run's"])
def test_costs_that_are_not_used_are_said_once(
    zygote: Zygote, tmp_path: Path, socket_path: Path, kind: str
) -> None:
    """In the job's log, whichever part of the hook finds it; the next good answer is used."""
    run, url = CostedRun(zygote, tmp_path), f"unix://{socket_path}"
    with CostDaemon(socket_path, tmp_path, HOSTILE[kind]) as daemon:
        daemon.good_from = 2
        awaited = {"9": 7} | ({"6": 1} if kind == "another run's" else {})
        run.launch(url=url, AWAITED=json.dumps(awaited))
    words = {
        "not a number": "malformed: ExpertCostScores.scores.GPU-a: nan is out of range",
        "stale": "the newest that the daemon said are older than 900 s",
        "another run's": "they are of the run 6d1c9d0e-0000-4000-8000-00000000000f",
    }
    said = [line for line in run.logs().splitlines() if "expert costs are not used" in line]
    assert len(said) == 1
    assert words[kind] in said[0]
    assert run.lines(0)[9]["told"] == [[9, 7]]


def test_why_costs_are_not_used_is_one_sentence() -> None:
    """Of another run, old, malformed; and nothing of what is used, or says nothing."""
    told = COSTS.to_json()
    assert why_unusable(None, RUN) == why_unusable(told, RUN) == ""
    assert why_unusable({**told, "version": 0}, RUN) == ""
    assert why_unusable(told, RUN[:-1] + "9") == f"they are of the run {RUN}"
    assert why_unusable({**told, "age_s": 901.4}, RUN) == "they are 901 s old, more than 900 s"
    assert "they are malformed: Expe" in why_unusable({**told, "scores": {"a": math.nan}}, RUN)


@pytest.mark.parametrize("how", ["keeps", "plain"])
def test_experts_that_lie_elsewhere_keep_their_lean_until_they_are_told(
    zygote: Zygote, tmp_path: Path, socket_path: Path, how: str
) -> None:
    """All on one rank, then exchanged: no lean moves, until a renewal; a plain function's do."""
    run = CostedRun(zygote, tmp_path)
    wishes = (
        Wish(layout=Layout(), ranks=(1,), at=6),
        Wish(layout=Layout(dp_replicate=2), ranks=(0, 1), at=9),
    )
    more: dict[str, Any] = {"SWAPS_FROM": "9", "STEPS": "18"} | (
        {"PLAIN": "yes"} if how == "plain" else {}
    )
    with CostDaemon(socket_path, run.out, wishes=wishes) as daemon:
        awaited = {"3": 7, "6": "order-1", "9": "order-2"} | ({"15": 8} if how == "keeps" else {})
        run.launch(url=f"unix://{socket_path}", AWAITED=json.dumps(awaited), **more)
    leans = [line["lean"] for line in run.lines(1)]
    back = pytest.approx([-each for each in leans[3]])
    assert leans[3] == pytest.approx([-0.02] * 3 + [0.02] * 2)
    said = {(each.version, each.pending, round(each.variation, 9)) for each in daemon.counts}
    if how == "plain":
        assert (any(leans[6]), leans[10]) == (False, back)
        assert said <= {(7, 0.0, 0.02), (7, 0.0, 0.04), (7, 0.0, 0.06)}
        return
    assert leans[6] == leans[10] == leans[13] == leans[3]
    assert leans[15] == back
    # A count that is not posted by the next save step is replaced.
    assert said <= {(7, 0.0, 0.02), (7, 0.01, 0.02), (7, 0.02, 0.02), (8, 0.0, 0.04)}
    assert (7, 0.02, 0.02) in said
    assert [line["lean"] for line in run.lines(0)[-4:-1]] == leans[-4:-1]
