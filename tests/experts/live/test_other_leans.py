"""What was told, learned or proven of another lean is not told of this one."""

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.api.conftest import open_folder, served, settings
from tests.builders import messages
from tests.experts.live.test_live_costs import COSTS, GPUS, RATE, World
from tests.experts.live.test_live_job import NoStore
from tests.experts.live.test_live_strength import SteeredWorld
from wattmesh.controller.expert_costs.sentences import version_in
from wattmesh.reconfig.hook.expert_costs import RankExpertCosts
from wattmesh.reconfig.state.state import State

__all__ = ["open_folder", "served", "settings"]


@pytest.fixture
def steered(served: Any) -> SteeredWorld:
    """A run whose strength wattmesh moves."""
    return SteeredWorld(served)


def test_what_a_wattmesh_that_keeps_nothing_told_meanwhile_is_not_taken_back(
    steered: SteeredWorld,
) -> None:
    """A downgrade, in which quality stopped the lean, and an upgrade: the run stays at 0."""
    while steered.boundary() < 0.1:
        pass
    store, epoch = steered.served.journal.expert_learning, steered.served.loop_facts.lead.epoch or 0
    text = store.all()[messages.RUN]
    steered.gap = 1e6
    steered.boundary()
    steered.gap = 0.001
    steered.boundary()
    assert steered.leans["stopped"]
    newest = steered.told().version
    store.keep(messages.RUN, text, now=steered.served.clock.wall, epoch=epoch)
    steered.pass_s(3600.0)
    steered.begin_to_lead()
    assert f"has told it version {newest} meanwhile" in steered.why()[-1]
    steered.read()
    assert steered.told().version == 0
    for _ in range(4):
        steered.boundary()
    assert (steered.told().strength, steered.told().stopped) == (0.0, True)
    assert steered.told().version > newest


def test_the_version_of_a_sentence_is_read_and_nothing_else() -> None:
    """Sentences of other kinds tell none."""
    assert version_in("a (b): expert costs, version 1795: no router leans.") == 1795
    for other in ("", "a (b): what its experts cost is learned anew, as x.", "version 7: x"):
        assert version_in(other) == 0


def test_what_was_proven_in_another_layout_is_proven_anew(steered: SteeredWorld) -> None:
    """Other experts are on the cheap GPUs, so the strength waits for six pairs again."""
    steered.grid = [75.0, 525.0]
    for _ in range(12):
        strength = steered.boundary()
    assert strength == pytest.approx(0.05)
    steered.grid = [300.0, 300.0]
    counts = 1
    while steered.boundary(layout=messages.B) <= 0.05 + 1e-9:
        counts += 1
    assert counts >= 6


def test_what_was_proven_in_another_launch_is_proven_anew(steered: SteeredWorld) -> None:
    """The rank that has an expert may be on another GPU in it."""
    while steered.boundary() < 0.1:
        pass
    loop = steered.served.experts._runs[messages.RUN].loop
    assert loop.quality.proven == pytest.approx(0.05)
    assert loop.before is not None
    loop.before = replace(loop.before, launch="incarnation-0")
    steered.boundary()
    assert (loop.quality.proven, loop.quality.pairs > 6) == (0.0, True)


def test_a_sweep_that_the_settings_name_no_more_is_forgotten(served: Any) -> None:
    """A daemon that begins without it learns anew; with the same one it goes on."""
    world = SteeredWorld(served)
    world.save_steps(4)
    world.begin_to_lead()
    assert world.served.experts._runs[messages.RUN].costs.costs
    served.sweeps.clear()
    world.begin_to_lead()
    assert "another sweep of 4 GPUs, or none any more" in world.why()[-1]
    assert not world.served.experts._runs[messages.RUN].costs.costs


def test_a_pair_of_one_number_proves_nothing(steered: SteeredWorld) -> None:
    """Routers that find nothing to lean to say the same loss twice: no strength is proven by it."""
    steered.gap = 0.0
    assert max(steered.boundary() for _ in range(14)) == pytest.approx(0.05)
    steered.gap = 0.001
    assert max(steered.boundary() for _ in range(9)) > 0.05 + 1e-9


def test_at_another_limit_a_single_span_moves_no_scores(served: Any) -> None:
    """Of a single span nobody knows its noise: it takes two."""
    world = World(served)
    world.save_steps(4)
    before = world.told()
    world.limit_w = 500.0
    world.joules[GPUS[1]] = 0.003
    moved = []
    for _ in range(4):
        world.save_steps(1)
        spans = {each["spans"] for each in world.served.get(f"{COSTS}?details=yes").body["gpus"]}
        moved.append((min(spans), world.told().scores != before.scores))
    assert (1, False) in moved
    assert moved[-1][1]


def test_why_nothing_leans_is_said_as_it_is_now(served: Any) -> None:
    """GPUs of one kind, then one that is not counted, then all: each time the reason of then."""
    world = World(served)
    world.joules = dict.fromkeys(GPUS, 0.003)
    world.save_steps(8)
    told = world.told()
    assert "the GPUs cost the same" in told.neutral_because
    for _ in range(2):
        world.pass_s(60.0)
        tokens = dict.fromkeys(GPUS[:3], int(RATE * world.elapsed_s))
        assert world.report(tokens=tokens).status == 200
        world.pass_s(5.0)
        world.read()
    assert world.told().neutral_because == "the cost of 1 of 4 GPUs is not known"
    world.save_steps(3)
    assert "the GPUs cost the same" in world.told().neutral_because
    assert world.told().version == told.version


@pytest.mark.parametrize(
    ("pairs", "gap"),
    [
        ([(math.nan, 2.0), (2.0, 2.0)], 1e6),
        ([(4.0, 2.0), (2.0, 2.0)], 1.0),
        ([(2.5, 2.0), (math.nan, math.nan)], 0.25),
        ([(2.5, 2.0), (2.25, 2.0)], 0.125),
    ],
)
def test_a_pair_that_ends_a_lean_is_not_replaced_before_the_save_step(
    pairs: list[tuple[float, float]], gap: float
) -> None:
    """Nor is a pair by one that could not be measured; else the newest counts, once."""
    experts, state = RankExpertCosts(lambda *_: None, "GPU-a"), State(modules=[], optimizers=[])
    store: Any = NoStore()
    for pair in pairs:
        experts.count(1, paired=pair)
    said = [experts.fact(store, state, leads=True) for _ in range(2)]
    assert [each["gap"] for each in said if each is not None] == [gap, None]
