"""The strength of a live run: it follows what the run and the grid say; `why` has each change."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.api.conftest import Served, open_folder, served, settings
from tests.builders import messages
from tests.builders.carbon import slots
from tests.builders.observations import observation
from tests.experts.live.test_live_costs import GPUS, RATE, World
from wattmesh.controller.cycle.cycle import CycleReport
from wattmesh.controller.expert_costs import steering
from wattmesh.controller.expert_costs.strength import price_of
from wattmesh.controller.loop_facts import NewestTurn
from wattmesh.policies.decision import CarbonView, Mode
from wattmesh.reconfig.hook.agreed_costs import AgreedCosts
from wattmesh.reconfig.wire.experts import MOST_PAIRS, ExpertCostScores, LossPair

__all__ = ["open_folder", "served", "settings"]

NOW = datetime(2026, 11, 20, 14, tzinfo=UTC)


def turn(grid: Sequence[float], monotonic_s: float = 0.0, trouble: str = "") -> NewestTurn:
    """The newest turn of the cycle on a grid of these hours."""
    view = CarbonView(signal="s", slots=slots(grid, NOW), age_s=60.0, trouble=trouble)
    report = CycleReport(at=NOW, sentence="", observation=observation(carbon=view))
    return NewestTurn(monotonic_s=monotonic_s, report=report)


class SteeredWorld(World):
    """A run whose strength wattmesh moves; it leans by what it was told, and counts changes."""

    def __init__(self, served: Served) -> None:
        """Begin at 0, a tenth of all tokens done."""
        super().__init__(served)
        self.leans: dict[str, Any] = {"strength": 0.0, "variation": 0.0, "stopped": False}
        self.gap: float | None = 0.001
        self.agreed = AgreedCosts()
        self.pairs: tuple[LossPair, ...] = ()
        self.step = 0
        self.grid = [300.0, 300.0]
        self.steer()

    def steer(self, *, most: float = 0.2, freeze_at: float = 0.8) -> None:
        """Let the settings say so."""
        self.act(strength=most)
        loop_facts = self.served.loop_facts
        told = {"expert_control": True, "expert_freeze_at": freeze_at}
        runs = {"llama-8b": loop_facts.settings.runs["llama-8b"].model_copy(update=told)}
        loop_facts.settings = loop_facts.settings.model_copy(update={"runs": runs})

    def steer_in(self, mode: Mode) -> None:
        """Let the daemon be in a mode, and everything else as it is."""
        loop_facts = self.served.loop_facts
        loop_facts.settings = loop_facts.settings.model_copy(update={"mode": mode})

    def boundary(self, *, heard: bool = True, **other: Any) -> float:
        """Pass a save step: the ranks agree on what was told, count, and hear the next.

        Unless it is `heard`, no daemon takes the count.
        """
        told = self.told()
        self.measure(told)
        if told.version and not self.agreed.refuses(told):
            self.leans["variation"] += abs(told.strength - self.leans["strength"])
            self.leans |= {
                "strength": told.strength,
                "stopped": told.stopped,
                "version": told.version,
            }
            self.agreed.agree(told)
        self.pass_s(55.0)
        self.served.loop_facts.turned = turn(self.grid, self.served.clock.monotonic_s)
        self.read()
        self.pass_s(5.0)
        values = {**self.leans, "gap": self.gap, "pairs": self.pairs, **other}
        if heard:
            assert self.report(**values).status == 200
        self.pass_s(5.0)
        self.read()
        return self.told().strength

    def measure(self, told: ExpertCostScores) -> None:
        """Add the pair of a save step to those that wait, as ranks do before they agree."""
        self.step += 1
        done = -1 if told.judged is None else told.judged
        self.pairs = tuple(each for each in self.pairs if each.step > done)
        if self.gap is not None and self.leans["strength"] > 0:
            pair = LossPair(
                step=self.step,
                gap=self.gap,
                strength=self.leans["strength"],
                lean=self.agreed.since,
                generation=1,
            )
            self.pairs = (*self.pairs, pair)[-MOST_PAIRS:]

    def begin_to_lead(self, *, forgotten: bool = False) -> None:
        """Another daemon takes over; what this one learned is in the journal, or is lost."""
        experts, lead = self.served.experts, self.served.loop_facts.lead
        if forgotten:
            self.served.journal.expert_learning.forget([messages.RUN], epoch=lead.epoch or 0)
        experts._recalled = None
        assert self.told().version == 0
        experts.turn()

    def why(self) -> list[str]:
        """What the journal says of expert costs, oldest first."""
        rows = self.served.journal.events.list(kind="expert_costs")
        return [each.detail for each in reversed(rows)]


@pytest.fixture
def world(served: Served) -> SteeredWorld:
    """A run that trains."""
    return SteeredWorld(served)


def test_it_rises_by_steps_to_the_clamp_and_follows_the_grid_down(world: SteeredWorld) -> None:
    """From 0 at most 0.05 a save step, once each is proven; each change is one sentence."""
    rising = [world.boundary() for _ in range(36)]
    assert rising[-1] == pytest.approx(0.2)
    below = [each for each in rising if 0.01 < each < 0.19]
    assert all(below.count(each) >= 6 for each in below)
    steps = [b - a for a, b in zip([0.0, *rising], rising, strict=False)]
    assert max(steps) <= 0.05 + 1e-9
    assert sum(step > 0 for step in steps) == 4
    world.grid = [150.0, 450.0]
    falling = [world.boundary() for _ in range(4)]
    assert falling[-1] == pytest.approx(0.1)
    assert world.leans["variation"] == pytest.approx(0.3)
    said = [each for each in world.why() if "of the strength" in each]
    assert len(said) == 6
    assert "it rises from 0, as the grid is at 100% of the mean" in said[0]
    assert "it falls from 0.2, as the grid is at 50% of the mean" in said[-2]


def test_quality_stops_it_for_good_also_over_a_restart_of_the_daemon(world: SteeredWorld) -> None:
    """A paired probe that is 2 % worse: back to 0, and no grid brings it back."""
    while world.boundary() < 0.1:
        pass
    world.gap = 0.02
    while world.boundary() > 0.0:
        pass
    assert world.told().stopped
    world.gap = 0.0
    assert {world.boundary() for _ in range(3)} == {0.0}
    assert any("the paired probes say that leaning costs" in each for each in world.why())
    # A daemon whose journal knows nothing of it hears it from the run.
    world.begin_to_lead(forgotten=True)
    assert {world.boundary() for _ in range(4)} == {0.0}
    assert world.told().stopped
    assert world.told().version > 0


def test_a_checkpoint_from_before_the_stop_does_not_undo_it(world: SteeredWorld) -> None:
    """The launch after says that it leans and was not stopped: 0 at once, for good."""
    while world.boundary() < 0.1:
        pass
    before = dict(world.leans)
    world.gap = 0.02
    while world.boundary() > 0.0:
        pass
    world.gap = 0.001
    world.boundary()
    world.leans = before
    assert {world.boundary() for _ in range(4)} == {0.0}
    assert world.told().stopped


@pytest.mark.parametrize("refuses", [True, False])
def test_a_journal_restored_from_before_the_stop_does_not_undo_it(
    world: SteeredWorld, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    """It tells an older version that leans: the run says that it was stopped, and stays at 0.

    The twin takes it, and from then on nobody knows of the stop.
    """
    while world.boundary() < 0.1:
        pass
    world.boundary()
    store, epoch = world.served.journal.expert_learning, world.served.loop_facts.lead.epoch or 0
    text = store.all()[messages.RUN]
    world.gap = 1e6
    world.boundary()
    world.gap = 0.001
    world.boundary()
    assert (world.leans["strength"], world.leans["stopped"]) == (0.0, True)
    stopped_at = world.leans["version"]
    store.keep(messages.RUN, text, now=world.served.clock.wall, epoch=epoch)
    # Its sentences are those of the backup, too.
    monkeypatch.setattr(type(world.served.experts), "_newest_told", lambda *_: 0)
    if not refuses:
        monkeypatch.setattr(AgreedCosts, "refuses", lambda *_: "")
    world.begin_to_lead()
    assert (world.told().strength, world.told().stopped) == (0.1, False)
    assert world.told().version < stopped_at
    for _ in range(3):
        world.boundary()
    assert (world.leans["strength"] == 0.0, world.told().stopped) == (refuses, refuses)
    assert world.told().version > stopped_at or not refuses


def test_another_mode_takes_the_lean_back_and_gives_no_more_than_a_step_after(
    world: SteeredWorld,
) -> None:
    """Nothing of 0.2 is left once mode was `advise`; a lower clamp counts at once, too."""
    while world.boundary() < 0.2:
        pass
    world.boundary()
    world.steer(most=0.15)
    world.served.experts.turn()
    assert world.told().strength == 0.15
    world.steer()
    world.served.experts.turn()
    assert world.told().strength == 0.15
    world.steer_in(Mode.ADVISE)
    world.served.experts.turn()
    assert world.told().strength == 0.0
    world.steer()
    world.served.experts.turn()
    assert world.told().strength == 0.0
    assert 0.0 < world.boundary() <= 0.05 + 1e-9


def test_another_mode_does_not_undo_a_stop(world: SteeredWorld) -> None:
    """Stopped for quality, told in mode `advise`, then in `act` again: 0."""
    while world.boundary() < 0.1:
        pass
    world.gap = 0.02
    while world.boundary() > 0.0:
        pass
    world.gap = 0.001
    world.boundary()
    for mode in (Mode.ADVISE, Mode.ACT):
        world.steer_in(mode)
        assert {world.boundary() for _ in range(3)} == {0.0}
        assert world.told().stopped


def test_quality_stops_a_lean_while_a_step_of_the_clock_holds(world: SteeredWorld) -> None:
    """Nothing is learned for an hour, and what is bad for the loss ends all the same."""
    while world.boundary() < 0.1:
        pass
    world.served.clock.wall += timedelta(hours=3)
    world.gap = 0.001
    strength = world.told().strength
    assert {world.boundary() for _ in range(2)} == {strength}
    assert world.served.loop_facts.trusted.held_s() > 0
    world.gap = 0.02
    while world.boundary() > 0.0:
        pass
    assert world.told().stopped


@pytest.mark.parametrize("frozen", [True, False])
def test_scores_stay_while_the_learning_rate_decays(world: SteeredWorld, frozen: bool) -> None:
    """GPUs that come to cost the same move no router from `freeze_at` on; before, they do."""
    while world.boundary() < 0.2:
        pass
    if frozen:
        body = messages.progress(tokens=850_000)
        assert world.served.post(f"/v1/runs/{messages.RUN}/progress", body).status == 200
    told = world.told().scores
    assert any(told.values())
    world.joules = dict.fromkeys(world.joules, 0.003)
    for _ in range(25):
        world.boundary()
    now = world.told()
    assert (now.scores == told) is frozen
    assert any(now.scores.values()) is frozen
    assert now.strength == pytest.approx(0.2)


def placed_elsewhere(world: SteeredWorld, *, tokens: int = 0) -> None:
    """Lean by 0.1; then experts lie on other GPUs, once so many tokens are trained."""
    world.steer(most=0.1)
    while world.boundary() < 0.1:
        pass
    world.boundary()
    if tokens:
        body = messages.progress(tokens=tokens)
        assert world.served.post(f"/v1/runs/{messages.RUN}/progress", body).status == 200
    world.leans["pending"] = 0.1


def test_experts_that_are_placed_elsewhere_are_told_to_lean_by_it_once(
    world: SteeredWorld,
) -> None:
    """While there is room: one more renewal, one sentence, and nothing new until it is taken."""
    placed_elsewhere(world)
    before = world.told()
    world.boundary()
    told = world.told()
    assert (told.renewal, told.scores) == (before.renewal + 1, before.scores)
    assert "take the scores of their GPUs, which moves the lean as 0.1 of str" in world.why()[-1]
    for _ in range(3):
        # The run has not taken it yet, and the grid would have it fall.
        world.grid = [75.0, 525.0]
        world.pass_s(60.0)
        leans = world.leans | {"version": before.version}
        assert world.report(**leans, gap=0.001).status == 200
        world.pass_s(5.0)
        world.read()
        assert world.told() == replace(told, age_s=world.told().age_s)
    world.grid = [300.0, 300.0]
    world.leans |= {"pending": 0.0, "variation": world.leans["variation"] + 0.1}
    world.boundary()
    assert world.told().renewal == told.renewal


@pytest.mark.parametrize("why", ["late", "spent"])
def test_experts_that_are_placed_elsewhere_keep_their_lean_where_it_may_not_move(
    world: SteeredWorld, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the decay, or with nothing to spend: `why` says it once. Its twin tells a renewal."""
    placed_elsewhere(world, tokens=850_000 if why == "late" else 0)
    if why == "spent":
        world.leans["variation"] = 0.25
    renewals = world.told().renewal
    for _ in range(3):
        world.boundary()
    assert world.told().renewal == renewals
    said = [each for each in world.why() if "keep the lean they had" in each]
    words = {"late": "from 80% of the run's tokens", "spent": "0.25 of 0.4 of all changes are"}
    assert len(said) == 1
    assert words[why] in said[0]
    world.begin_to_lead()
    world.boundary()
    assert len([each for each in world.why() if "keep the lean they had" in each]) == 1
    monkeypatch.setattr(steering, "why_lean_stays", lambda *_: "")
    world.boundary()
    assert world.told().renewal == renewals + 1


def test_other_gpus_move_no_lean_while_the_learning_rate_decays(
    world: SteeredWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is on GPUs that were never scored: what was told stays. Its twin tells zeros."""
    placed_elsewhere(world, tokens=850_000)
    told = world.told()
    experts = world.served.experts
    row = world.served.journal.runs.open(world.served.clock.wall)[0]
    learning, gpus = experts._runs[messages.RUN], ["GPU-a", "GPU-x"]
    newer, _, _ = experts._newer(row, gpus, learning, world.served.clock.wall)
    assert newer.told is not None
    assert newer.told.by_gpu == told.scores
    monkeypatch.setattr(steering, "scores_stay", lambda *_: False)
    newer, _, _ = experts._newer(row, gpus, learning, world.served.clock.wall)
    assert newer.told is not None
    assert newer.told.by_gpu == {"GPU-a": 0.0, "GPU-x": 0.0}


def test_a_journal_that_lost_all_moves_no_lean_while_the_learning_rate_decays(
    world: SteeredWorld,
) -> None:
    """Nobody knows by what its experts lean, so it is told nothing; but a stop, which is 0."""
    placed_elsewhere(world, tokens=850_000)
    world.begin_to_lead(forgotten=True)
    for _ in range(8):
        world.boundary()
    assert world.told().version == 0
    world.gap = 1e6
    world.boundary()
    assert (world.told().strength, world.told().stopped) == (0.0, True)


def test_other_scores_are_changes_of_the_lean_too() -> None:
    """A change of strength counts as itself; scores that flip as far as they move a router."""
    agreed = AgreedCosts()
    costs = ExpertCostScores(
        run=messages.RUN, version=1, strength=0.2, age_s=0.0, scores={"a": -1.0, "b": 1.0}
    )
    spent = []
    for each in (
        costs,
        replace(costs, scores={"a": 0.0, "b": 0.0}),
        replace(costs, scores={"a": -2.0, "b": 2.0}),
        replace(costs, scores={"a": 2.0, "b": -2.0}),
        replace(costs, strength=0.0, scores={"a": 2.0, "b": -2.0}),
    ):
        before = agreed.variation
        agreed.agree(each)
        spent.append(agreed.variation - before)
    assert spent == pytest.approx([0.2, 0.1, 0.2, 0.4, 0.2])


@pytest.mark.parametrize(
    "how", ["no pairs", "no grid", "late in the run", "loads at the cap", "not wanted"]
)
def test_it_stays_at_0_where_something_is_missing(world: SteeredWorld, how: str) -> None:
    """No paired probes, no signal, frozen for the decay, a full GPU, or no clamp: 0."""
    more: dict[str, Any] = {}
    if how == "no pairs":
        world.gap = None
    elif how == "no grid":
        world.grid = []
    elif how == "late in the run":
        body = messages.progress(tokens=850_000)
        assert world.served.post(f"/v1/runs/{messages.RUN}/progress", body).status == 200
    elif how == "not wanted":
        world.steer(most=0.0)
    for number in range(1, 6):
        if how == "loads at the cap":
            done = [int(number * RATE * 60 * share) for share in (1.3, 0.9, 0.9, 0.9)]
            more = {"tokens": dict(zip(GPUS, done, strict=True))}
        assert world.boundary(**more) == 0.0


def test_the_price_is_the_grid_now_over_the_mean_of_a_day() -> None:
    """Unknown where there is trouble, no forecast, or no fresh turn."""
    assert price_of(turn([100.0, 300.0]), 0.0) == pytest.approx(0.5)
    assert price_of(turn([200.0] * 24 + [9e9] * 24), 0.0) == pytest.approx(1.0)
    assert price_of(turn([100.0]), 0.0) is None
    assert price_of(turn([0.0, 0.0]), 0.0) is None
    assert price_of(turn([100.0, 300.0], trouble="stale"), 0.0) is None
    assert price_of(turn([100.0, 300.0]), 901.0) is None
    assert price_of(None, 0.0) is None
