"""Paired probes wait until a daemon has judged them for good, and each is judged once."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import open_folder, served, settings
from tests.builders import messages
from tests.experts.live.test_live_job import COSTS, GENERATION, MEASURED, CostDaemon, CostedRun
from tests.experts.live.test_live_strength import SteeredWorld
from tests.hook.conftest import socket_path
from tests.hook.harness import Zygote
from tests.hook.unix_http import called
from wattmesh.controller.expert_costs import strength as loops
from wattmesh.reconfig.client.cost_client import COSTS_KEY, TOKENS_KEY
from wattmesh.reconfig.hook.expert_costs import RankExpertCosts
from wattmesh.reconfig.hook.loss_pairs import MOST_GAP, gap_of_ranks, waiting
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.wire.experts import MOST_PAIRS, ExpertTokenReport, LossPair

__all__ = ["open_folder", "served", "settings", "socket_path"]


@pytest.fixture
def world(served: Any) -> SteeredWorld:
    """A run whose strength wattmesh moves, which leans by the first step."""
    world = SteeredWorld(served)
    while world.boundary() < 0.05:
        pass
    for _ in range(3):
        world.boundary()
    return world


def quality(world: SteeredWorld) -> Any:
    """What the daemon holds of a run's pairs."""
    return world.served.experts._runs[messages.RUN].loop.quality


@pytest.mark.parametrize("lost", [False, True])
def test_pairs_of_save_steps_that_no_daemon_heard_still_stop_a_lean(
    world: SteeredWorld, lost: bool
) -> None:
    """Four very bad ones, of which the last is heard; with the newest only, nothing happens."""
    world.gap = 0.05
    for _ in range(3):
        world.boundary(heard=False)
    if lost:
        world.pairs = ()
    world.boundary()
    assert world.told().stopped is not lost


def test_a_pair_is_judged_once_however_often_it_is_told(
    world: SteeredWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told again in each count, also to a daemon that begins anew. The twin counts it twice."""
    told = world.pairs
    judged = quality(world).pairs
    for again in (False, True):
        if again:
            world.begin_to_lead()
        world.pass_s(60.0)
        assert world.report(**world.leans, pairs=told).status == 200
        world.pass_s(5.0)
        world.read()
        assert quality(world).pairs == judged
    assert world.told().judged == told[-1].step
    monkeypatch.setattr(loops.JudgedPairs, "has", lambda *_: False)
    world.pass_s(60.0)
    assert world.report(**world.leans, pairs=told).status == 200
    world.pass_s(5.0)
    world.read()
    assert quality(world).pairs == judged + len(told)


def test_a_daemon_that_dies_before_the_journal_has_a_pair_leaves_it_waiting(
    world: SteeredWorld,
) -> None:
    """Taken, not kept: the one that leads next says the step before, and judges it."""
    kept = world.told().judged
    judged = quality(world).pairs
    world.pass_s(60.0)
    world.measure(world.told())
    assert world.report(**world.leans, gap=0.001, pairs=world.pairs).status == 200
    world.begin_to_lead()
    assert world.told().judged == kept
    assert kept is not None
    assert [each.step for each in world.pairs] == [kept + 1]
    world.boundary()
    assert world.told().judged == kept + 2
    assert quality(world).pairs == judged + 2


def test_pairs_of_another_launch_are_new_and_prove_nothing_of_this_lean(
    world: SteeredWorld,
) -> None:
    """A launch from an older checkpoint measures steps anew: `judged` is of its own."""
    loop = world.served.experts._runs[messages.RUN].loop
    loop.judged = replace(loop.judged, launch="incarnation-0")
    world.served.experts._runs[messages.RUN].in_journal = loop.judged
    assert world.told().judged is None
    before = quality(world)
    world.step = 0
    world.boundary()
    assert quality(world).pairs == before.pairs + 1
    assert quality(world).alike == 1


def test_pairs_that_wait_while_nothing_is_steered_are_not_judged_later(
    world: SteeredWorld,
) -> None:
    """Whoever turns `expert_control` off and on again begins anew."""
    loop_facts = world.served.loop_facts
    section = loop_facts.settings.runs["llama-8b"].model_copy(update={"expert_control": False})
    loop_facts.settings = loop_facts.settings.model_copy(update={"runs": {"llama-8b": section}})
    world.boundary()
    world.steer()
    assert world.told().judged == world.step
    world.boundary()
    assert quality(world).pairs == 1


def test_that_pairs_were_dropped_is_said_once(world: SteeredWorld) -> None:
    """In `why`, by how many; again only for more of them."""
    for dropped in (0, 3, 3, 5):
        world.boundary(dropped=dropped)
    world.begin_to_lead()
    world.boundary(dropped=5)
    said = [each for each in world.why() if "dropped unjudged" in each]
    assert [each.partition("): ")[2].split()[0] for each in said] == ["3", "2"]


def pair(step: int) -> LossPair:
    """One of a step."""
    return LossPair(step=step, gap=0.01, strength=0.1, lean=7, generation=1)


def test_so_many_pairs_wait_and_no_more() -> None:
    """The oldest go, and are counted; those that are judged go without."""
    left: Any = None
    for step in range(100):
        pairs, dropped = waiting(left, None, pair(step))
        left = {"report": report(pairs, dropped).to_json()}
    assert [each.step for each in pairs] == list(range(100 - MOST_PAIRS, 100))
    assert dropped == 100 - MOST_PAIRS
    pairs, dropped = waiting(left, {"judged": 97}, pair(100))
    assert ([each.step for each in pairs], dropped) == ([98, 99, 100], 100 - MOST_PAIRS)
    pairs, _ = waiting(left, {"judged": None}, None)
    assert len(pairs) == MOST_PAIRS
    assert waiting({"report": "x"}, "x", None) == ((), 0)


def report(pairs: tuple[LossPair, ...], dropped: int) -> ExpertTokenReport:
    """One with these."""
    return ExpertTokenReport(
        run=messages.RUN,
        incarnation="one",
        attempt=1,
        seq=1,
        tokens={},
        layout=messages.A,
        pairs=pairs,
        dropped=dropped,
    )


@pytest.mark.parametrize(
    ("gaps", "mean"),
    [
        ([0.01, 0.03], 0.02),
        ([0.01, None, 0.03], 0.02),
        ([0.1, 0.1, 0.1], 0.1),
        ([None, None], None),
        ([], None),
        ([0.0, 0.0, 0.0, 1.0], 1.0),
        ([0.0, MOST_GAP], MOST_GAP),
    ],
)
def test_the_pair_of_a_save_step_is_the_mean_of_its_ranks(
    gaps: list[float | None], mean: float | None
) -> None:
    """One number stays that number to the bit; what ends a lean is not averaged away."""
    assert gap_of_ranks(gaps) == mean


class Store:
    """A launch's store."""

    def __init__(self) -> None:
        """Nothing is in it."""
        self.left: dict[str, Any] = {}

    def peek(self, key: str) -> Any:
        """Give what is there."""
        return self.left.get(key)

    def put(self, key: str, value: Any) -> None:
        """Leave something."""
        self.left[key] = value

    def count(self, key: str) -> int:
        """Count."""
        self.left[key] = self.left.get(key, 0) + 1
        return int(self.left[key])


def test_a_rank_tells_all_pairs_with_what_it_leaned_by_when_they_were_measured() -> None:
    """Costs that are agreed at the same save step are of the pairs after it."""
    rank, store = RankExpertCosts(lambda *_: None, "GPU-a"), Store()
    state = State(modules=[], optimizers=[])
    link: Any = store
    alone = replace(GENERATION, ranks=(0,))
    rank.settle(state, alone, leads=True)
    said = []
    for step, costs in ((1, COSTS), (2, None), (3, replace(COSTS, version=8, strength=0.05))):
        state.position = Position(step=step, samples=step, tokens=step)
        left = None if costs is None else replace(costs, judged=1 if step == 3 else None)
        store.put(COSTS_KEY, None if left is None else left.to_json())
        rank.count(5, paired=(2.0 + step, 2.0))
        facts = [rank.fact(link, state, leads=True)]
        rank.agree(state, alone, facts)
        rank.tell(link, state, alone, facts)
        said.append(ExpertTokenReport.from_json(store.left[TOKENS_KEY]["report"]))
    assert [each.gap for each in said] == [0.5, 1.0, 1.5]
    assert [[each.step for each in report.pairs] for report in said] == [[], [2], [2, 3]]
    assert {(each.strength, each.lean) for each in said[-1].pairs} == {(0.02, 7)}
    assert (said[-1].strength, said[-1].version) == (0.05, 8)


class DeafDaemon(CostDaemon):
    """Takes no count before the sixth save step."""

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Answer 503 until then."""
        early = method == "POST" and called(path) == "expert-tokens" and body["seq"] < 6
        return (503, b'{"error": "not now"}') if early else super().answer(method, path, body)


def test_a_live_jobs_pairs_wait_for_a_daemon_that_takes_none(
    zygote: Zygote, tmp_path: Path, socket_path: Path
) -> None:
    """Two ranks, a save step each step: what is heard at last has every pair since it leaned."""
    run, then = CostedRun(zygote, tmp_path / "deaf"), replace(COSTS, version=9)
    with DeafDaemon(socket_path, tmp_path, then=then) as daemon:
        awaited = json.dumps({"1": 7, "8": 9})
        run.launch(url=f"unix://{socket_path}", STEPS="9", AWAITED=awaited, **MEASURED)
    first = daemon.counts[0]
    assert first.seq >= 6
    assert [each.step for each in first.pairs] == list(range(2, first.seq + 1))
    assert {(each.strength, each.lean, each.generation) for each in first.pairs} == {(0.02, 7, 1)}
    assert first.pairs[-1].gap == first.gap
