"""A live job and expert costs: its ranks agree, its checkpoint keeps, no daemon can do harm."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tests.experts.live.costed_job import GPUS, STEPS
from tests.hook.conftest import socket_path
from tests.hook.daemon import FakeDaemon, Wish
from tests.hook.harness import Zygote
from tests.hook.unix_http import called
from wattmesh.controller.expert_costs.reports import TokenReports
from wattmesh.controller.expert_costs.strength import StrengthLoop
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.policies.experts.strength import StrengthLimits, StrengthStep
from wattmesh.reconfig.hook.expert_costs import (
    KEY,
    RankExpertCosts,
    by_gpu,
    usable,
)
from wattmesh.reconfig.launch.generation import Generation, Purpose
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.wire.experts import STALE_S, ExpertCostScores, ExpertTokenReport

__all__ = ["socket_path"]

RUN = "6d1c9d0e-0000-4000-8000-000000000001"
COSTS = ExpertCostScores(
    run=RUN, version=7, strength=0.02, age_s=1.0, scores={"GPU-a": -1.0, "GPU-b": 1.0}
)


class CostDaemon(FakeDaemon):
    """Tells costs of the run that registered, and keeps the counts that it hears.

    Attributes:
        raw: said instead, as it is, until the count of number `good_from` was heard; 0: always.
    """

    def __init__(
        self,
        path: Path,
        marks: Path,
        raw: bytes | None = None,
        *,
        old: bool = False,
        wishes: tuple[Wish, ...] = (),
        then: ExpertCostScores | None = None,
    ) -> None:
        """Tell version 7, and `then` once a count was heard; `old`: know neither call."""
        self.counts: list[ExpertTokenReport] = []
        self.raw, self.old, self.asked = raw, old, 0
        self.then, self.renewed, self.good_from = then, False, 0
        super().__init__(path, marks, list(wishes))

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Answer the two calls; the rest as ever."""
        if not called(path).startswith("expert-"):
            return super().answer(method, path, body)
        self.asked += 1
        if self.old or not self.heard.registers:
            return 404, b'{"error": "There is no such page", "kind": "not_found"}'
        if method == "POST":
            self.counts.append(ExpertTokenReport.from_json(body))
            return 200, b'{"ok": true}'
        run = self.heard.registers[-1].run
        heard = self.counts[-1].seq if self.counts else 0
        if self.raw is not None and not 0 < self.good_from <= heard:
            return 200, self.raw.replace(b"RUN", run.encode())
        costs = self.then if self.then is not None and self.counts else COSTS
        if (self.counts and self.counts[-1].pending > 0.015) or self.renewed:
            # Experts lie on each other's GPUs.
            self.renewed, costs = True, replace(costs, version=8, renewal=1)
        return 200, json.dumps(replace(costs, run=run).to_json()).encode()


class CostedRun:
    """One run of the job in a folder."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        """Nothing is launched yet."""
        self.zygote, self.out = zygote, folder / "out"
        self.out.mkdir(parents=True)

    def launch(self, *, asks: bool = True, url: str = "", **other: str) -> None:
        """Launch two ranks, and wait for their end."""
        environment = {"OUT": str(self.out), "ASKS": json.dumps(asks), "WATTMESH_URL": url, **other}
        number = self.zygote.start(2, environment, self.out, "tests.experts.live.costed_job:main")
        logs = [path.read_text() for path in self.out.glob("*.log")]
        assert self.zygote.wait(number) == 0, logs or self.logs()

    def logs(self) -> str:
        """What the ranks wrote."""
        return "\n".join(path.read_text() for path in sorted(self.out.glob("*.log")))

    def lines(self, rank: int) -> list[dict[str, Any]]:
        """Every step of a rank."""
        text = (self.out / f"lines-{rank}.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def losses(self, rank: int = 0) -> list[float]:
        """Of every step, in order."""
        return [line["loss"] for line in self.lines(rank)]


@pytest.fixture(scope="module")
def untouched(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of the job that asked for nothing."""
    run = CostedRun(zygote, tmp_path_factory.mktemp("untouched"))
    run.launch(asks=False)
    assert len(run.losses()) == STEPS
    return run.losses()


def test_ranks_agree_at_a_save_step_and_the_checkpoint_keeps_it(
    zygote: Zygote, tmp_path: Path, socket_path: Path, untouched: list[float]
) -> None:
    """Told at step 3 on both ranks; a launch without a daemon goes on with it, bit for bit."""
    whole, cut = CostedRun(zygote, tmp_path / "whole"), CostedRun(zygote, tmp_path / "cut")
    with CostDaemon(socket_path, tmp_path) as daemon:
        url = f"unix://{socket_path}"
        whole.launch(url=url, AWAITED='{"3": 7}')
        counts = daemon.counts
        cut.launch(url=url, AWAITED='{"3": 7}', STEPS="6")
    cut.launch()
    for rank in range(2):
        lines = whole.lines(rank)
        assert [line["told"] for line in lines[:2]] == [[], []]
        assert lines[2]["told"] == [[3, 7]]
        assert lines[2]["lean"] == pytest.approx([-0.02] * 3 + [0.02] * 2)
        assert whole.losses(rank) == cut.losses(rank) == whole.losses(0)
    assert cut.lines(0)[6]["told"] == [[6, 7]]
    assert whole.losses()[:3] == untouched[:3]
    assert whole.losses() != untouched
    told = [(each.incarnation, each.seq) for each in counts]
    assert len(set(told)) == len(told) > 0
    for each in counts:
        assert set(each.tokens) == set(each.busy_s) == set(GPUS)
        assert sum(each.tokens.values()) % (64 * 2) == 0
        assert sum(each.tokens.values()) > 0


HOSTILE = {
    "deep": b"[" * 100_000,
    "not a number": b'{"run": "RUN", "version": 1, "strength": 0.1, "age_s": 0, '
    b'"scores": {"GPU-a": NaN, "GPU-b": 1}}',
    "beyond": b'{"run": "RUN", "version": 1, "strength": 0.1, "age_s": 0, '
    b'"scores": {"GPU-a": -7, "GPU-b": 1}}',
    "negative": b'{"run": "RUN", "version": 1, "strength": -0.1, "age_s": 0, "scores": {}}',
    "stale": b'{"run": "RUN", "version": 1, "strength": 0.1, "age_s": 901, '
    b'"scores": {"GPU-a": -1, "GPU-b": 1}}',
    "another run's": b'{"run": "6d1c9d0e-0000-4000-8000-00000000000f", "version": 1, '
    b'"strength": 0.1, "age_s": 0, "scores": {"GPU-a": -1, "GPU-b": 1}}',
    "gone": b'{"run": "RUN", "version": 1, "strength": 0.1, "age_s": 0, '
    b'"scores": {"GPU-a": -1, "GPU-y": 1}}',
    "observed": b'{"run": "RUN", "version": 1, "strength": 0, "age_s": 0, '
    b'"scores": {"GPU-a": -1, "GPU-b": 1}}',
    "none": b'{"run": "RUN", "version": 0, "strength": 0, "age_s": 0, "scores": {}}',
    "huge": b'{"run": "RUN", "version": 1' + b"0" * 5000 + b"}",
}


@pytest.mark.parametrize("kind", ["down", "old", "gone", "not a number", "deep", "observed"])
def test_a_daemon_that_is_down_old_mad_or_observing_changes_nothing(
    zygote: Zygote, tmp_path: Path, socket_path: Path, untouched: list[float], kind: str
) -> None:
    """The losses of the job that asked for nothing, bit for bit."""
    run, url = CostedRun(zygote, tmp_path), f"unix://{socket_path}"
    if kind == "down":
        run.launch(url=url)
    else:
        awaited = '{"3": 1}' if kind in ("gone", "observed") else '{"3": -1}'
        with CostDaemon(socket_path, tmp_path, HOSTILE.get(kind), old=kind == "old") as daemon:
            run.launch(url=url, AWAITED=awaited)
        assert daemon.asked > 0
    assert run.losses(0) == run.losses(1) == untouched


def test_a_strength_of_zero_takes_the_lean_back_at_the_next_save_step(
    zygote: Zygote, tmp_path: Path, socket_path: Path
) -> None:
    """Also by an answer whose version is lower: a daemon's clock may have been ahead."""
    run, back = CostedRun(zygote, tmp_path), replace(COSTS, version=4, strength=0.0)
    with CostDaemon(socket_path, tmp_path, then=back) as daemon:
        run.launch(url=f"unix://{socket_path}", AWAITED='{"3": 7, "6": 4}', STEPS="9")
    for rank in range(2):
        lines = run.lines(rank)
        assert lines[-1]["told"] == [[3, 7], [6, 4]]
        assert any(lines[2]["lean"])
        assert not any(lines[5]["lean"])
    assert run.losses(0) == run.losses(1)
    # What a count says of the strength is what the ranks hold from that save step on.
    said = [(each.strength, each.variation, round(each.gap or 0.0, 9)) for each in daemon.counts]
    assert said[0] == (0.02, 0.02, 0.01)
    assert set(said) <= {(0.02, 0.02, 0.01), (0.0, 0.04, 0.01)}


def test_costs_stay_over_a_switch_to_another_leader_and_back(
    zygote: Zygote, tmp_path: Path, socket_path: Path
) -> None:
    """Rank 1 trains alone, then both: each generation is handed what the checkpoint kept."""
    run = CostedRun(zygote, tmp_path)
    wishes = (
        Wish(layout=Layout(), ranks=(1,), at=6),
        Wish(layout=Layout(dp_replicate=2), ranks=(0, 1), at=9),
    )
    with CostDaemon(socket_path, run.out, wishes=wishes) as daemon:
        awaited = {"3": 7, "6": "order-1", "9": "order-2"}
        run.launch(url=f"unix://{socket_path}", AWAITED=json.dumps(awaited))
    assert "confirmed" in daemon.states()
    assert run.lines(1)[-1]["told"] == [[3, 7], [6, 7], [9, 7]]
    assert run.lines(0)[-1]["told"] == [[3, 7], [9, 7]]
    alone = [each for each in daemon.counts if set(each.tokens) == {"GPU-b"}]
    assert len(alone) >= 1
    assert run.lines(1)[-2]["lean"] == run.lines(0)[-2]["lean"]


def test_a_launch_that_asks_no_more_and_one_that_asks_anew_resume(
    zygote: Zygote, tmp_path: Path, untouched: list[float]
) -> None:
    """Checkpoints with costs and without resume in jobs that ask and that do not."""
    run = CostedRun(zygote, tmp_path)
    for steps, asks in ((3, False), (6, True), (9, False), (12, True)):
        run.launch(asks=asks, STEPS=str(steps))
    assert run.losses() == untouched


WORSE_FROM, STEERED = 13, 19
MEASURED: dict[str, Any] = {
    "MEASURES": "pairs",
    "WORSE_FROM": str(WORSE_FROM),
    "SAVE_EVERY": "1",
}
"""The job measures pairs, and says from that step on that leaning is worse than it is."""


class SteeringDaemon(CostDaemon):
    """Moves the strength by the daemon's own rule, on a grid as it is all day."""

    def __init__(self, path: Path, marks: Path) -> None:
        """Nothing was counted yet."""
        self.loop, self.reports = StrengthLoop(), TokenReports()
        self.steps: list[StrengthStep] = []
        nothing = replace(COSTS, version=0, strength=0.0, scores={}).to_json() | {"run": "RUN"}
        super().__init__(path, marks, raw=json.dumps(nothing).encode())

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Decide a step for each count, and tell it as a version of its own."""
        if method == "POST" and called(path) == "expert-tokens":
            heard = ExpertTokenReport.from_json(body)
            self.reports.add(heard, 0.0)
            (count,) = self.reports.take(heard.run, lambda _: True)
            row = cast(RunRow, SimpleNamespace(tokens=0, tokens_total=1))
            # Five experts on two GPUs are never even: no cap on loads here. A wide bound is soon
            # known to hold.
            limits = StrengthLimits(most=0.1, freeze_at=0.8, load_cap=9.0, gap=0.02)
            step = self.loop.step(count, row, limits, price=1.0, differ=True)
            self.steps.append(step)
            self.raw, self.then = (
                None,
                replace(
                    COSTS, version=len(self.steps), strength=step.strength, stopped=step.stopped
                ),
            )
        return super().answer(method, path, body)


def test_a_run_is_trained_under_the_strength_controller_to_its_stop(
    zygote: Zygote, tmp_path: Path, socket_path: Path
) -> None:
    """Up by steps as pairs are measured; a worse one ends the lean, in the launch after, too."""
    run = CostedRun(zygote, tmp_path / "steered")
    url = f"unix://{socket_path}"
    awaited = {str(n + 1): n for n in range(1, STEERED)}
    with SteeringDaemon(socket_path, tmp_path) as daemon:
        run.launch(url=url, STEPS=str(STEERED), AWAITED=json.dumps(awaited), **MEASURED)
        counts, steps = list(daemon.counts), list(daemon.steps)
    assert len(counts) >= STEERED - 1
    leans = [round(count.strength, 9) for count in counts]
    told = [round(step.strength, 9) for step in steps]
    assert leans[1:] == told[: len(leans) - 1]
    assert list(dict.fromkeys(leans)) == [0.0, 0.05, 0.1]
    assert 6 <= leans.count(0.05) <= 9, "until pairs have shown that it costs less"
    gaps = [count.gap for count in counts]
    good = gaps[: WORSE_FROM - 1]
    assert all(gap is not None and gap < 0.02 for gap in good), str(gaps)
    assert gaps[0] == 0.0
    assert any(good), "what leans was measured"
    stop = [step.stopped for step in steps].index(True)
    assert stop == WORSE_FROM + 3, "the fourth very bad pair in a row"
    assert "more than 2.00%" in steps[stop].why
    assert counts[stop + 1].variation == pytest.approx(0.2)
    run.launch(STEPS=str(STEERED + 3), **MEASURED)
    for rank in range(2):
        lean = [max(line["lean"], default=0.0) for line in run.lines(rank)]
        # A job that is done has no routers to read in its last step.
        lean[STEERED - 1] = lean[-1] = 0.0
        after = leans + [0.0] * (STEERED + 3 - len(leans))
        assert lean == pytest.approx(after)
    assert run.losses(0) == run.losses(1)
    assert all(math.isfinite(loss) for loss in run.losses())


def rank_costs() -> tuple[RankExpertCosts, State, list[ExpertCostScores]]:
    """One rank's part, and what it hands to the routers."""
    taken: list[ExpertCostScores] = []
    return (
        RankExpertCosts(lambda _, costs: taken.append(costs), "GPU-a"),
        State(modules=[], optimizers=[]),
        taken,
    )


GENERATION = Generation(
    number=1,
    purpose=Purpose.START,
    run=RUN,
    incarnation="one",
    attempt=1,
    layout=Layout(dp_shard=2),
    ranks=(2, 1),
)


def fact(costs: ExpertCostScores | None, **other: Any) -> dict[str, Any]:
    """What one rank adds to the facts."""
    plain = {"gpu": "GPU-a", "gap": None, "tokens": 5, "busy_s": 1.0}
    return {**plain, "costs": costs.to_json() if costs else None, **other}


def test_ranks_that_fetched_different_versions_use_the_leaders() -> None:
    """The leader is the lowest rank, here the second of the group; the other's counts for none."""
    newer = replace(COSTS, version=9, strength=0.5)
    for facts, version in (
        ([fact(newer), fact(COSTS)], 7),
        ([fact(newer), fact(None)], None),
        ([None, fact(COSTS)], 7),
        ([fact(COSTS), fact(replace(newer, age_s=STALE_S + 1))], None),
    ):
        rank, state, taken = rank_costs()
        rank.settle(state, GENERATION, leads=True)
        rank.agree(state, GENERATION, facts)
        rank.settle(state, GENERATION, leads=True)
        assert [each.version for each in taken] == ([] if version is None else [version])


def test_what_cannot_be_used_leaves_what_was_agreed() -> None:
    """Nothing known, then something, then an answer that says nothing: it is handed once."""
    rank, state, taken = rank_costs()
    rank.settle(state, GENERATION, leads=True)
    for costs in (None, COSTS, None, replace(COSTS, version=0), replace(COSTS, run=RUN[:-1] + "9")):
        rank.agree(state, GENERATION, [fact(None), fact(costs)])
        rank.settle(state, GENERATION, leads=True)
    assert taken == [COSTS]
    rank.settle(state, replace(GENERATION, number=2), leads=False)
    assert taken == [COSTS, COSTS]
    kept = state.extra[KEY].state_dict()
    assert kept["where"].startswith("dp2 ")
    assert kept == {
        "costs": COSTS.to_json(),
        "variation": COSTS.strength,
        "since": COSTS.version,
        "where": kept["where"],
    }


@pytest.mark.parametrize(
    "raw", [raw for kind, raw in HOSTILE.items() if kind not in ("deep", "observed")]
)
def test_a_hostile_answer_is_no_costs(raw: bytes) -> None:
    """Whatever its field holds, except for GPUs that are gone, which the holders notice."""
    text = raw.replace(b"RUN", RUN.encode())
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    assert (usable(answer, RUN) is None) == (b"GPU-y" not in raw)


def test_a_gpu_of_a_rank_that_does_not_count_is_unknown() -> None:
    """Never 0; and a GPU of two ranks is counted once for both."""
    two = [fact(None), fact(None, busy_s=None), fact(None, gpu="GPU-b", tokens=None), None]
    assert by_gpu(two) == ({"GPU-a": 10}, {})
    assert by_gpu([fact(None), fact(None, gpu="")]) == ({"GPU-a": 5}, {"GPU-a": 1.0})
    assert by_gpu([fact(None), fact(None, tokens=None)]) == ({}, {})


class Left:
    """A store in which the client has left costs."""

    def peek(self, key: str) -> dict[str, Any]:
        """Give them."""
        return COSTS.to_json()


def test_costs_that_all_ranks_have_are_not_sent_again() -> None:
    """Once agreed, a save step carries none; and only ever the leader's."""
    store: Any = Left()
    rank, state, _ = rank_costs()
    rank.settle(state, GENERATION, leads=True)
    first, other = (rank.fact(store, state, leads=leads) for leads in (True, False))
    assert first is not None
    assert other is not None
    assert (first["costs"], other["costs"]) == (COSTS.to_json(), None)
    rank.agree(state, GENERATION, [other, first])
    after = rank.fact(store, state, leads=True)
    assert after is not None
    assert after["costs"] is None


class NoStore:
    """A store that nobody has written to."""

    def peek(self, key: str) -> None:
        """Nothing is there."""


@pytest.mark.parametrize("tokens", [math.nan, "many", None, torch.tensor([math.inf]), -5])
def test_what_is_no_count_makes_the_rank_unknown_from_then_on(tokens: Any) -> None:
    """Neither an error at a save step nor a zero, also where later counts are sound."""
    store: Any = NoStore()
    rank, state, _ = rank_costs()
    assert rank.fact(store, state, leads=True) == fact(None, tokens=None, busy_s=None)
    rank.count(torch.tensor([1, 2], dtype=torch.bfloat16), 0.5)
    assert rank.fact(store, state, leads=True) == fact(None, tokens=3, busy_s=0.5)
    rank.count(tokens, math.nan)
    found = rank.fact(store, state, leads=False)
    assert found is not None
    assert (found["tokens"], found["busy_s"] in (None, 0.5)) == (None, True)
    rank.count(1)
    found = rank.fact(store, state, leads=False)
    assert found is not None
    assert found["tokens"] is None
