"""`POST /v1/runs/{run}/placement`: an order like any, and what cannot be is said at once."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.api.conftest import Served
from tests.api.test_operators import set_mode
from tests.builders import messages
from tests.builders.observations import NOW, observation, run
from tests.hook.reporting.test_orders import GOOD
from wattmesh.controller.api.handlers.placement import known_placement
from wattmesh.controller.cycle.cycle import CycleReport
from wattmesh.controller.journal.runs.switches import SwitchRow
from wattmesh.controller.loop_facts import NewestTurn
from wattmesh.policies.decision import Mode
from wattmesh.policies.run_context import examine
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import Order, SwitchMode

PLACEMENT = "/v1/runs/llama-8b/placement"
WISH = {"placement": [[1, 0, 3, 2], [0, 1, 2, 3]], "reason": "traffic"}


def looked(served: Served, slack_s: float = 3600.0) -> None:
    """The run has registered, and a cycle saw it with so much slack to its deadline."""
    served.register()
    view = run(run=messages.RUN)
    guard = examine(observation(view), view).guard
    assert guard is not None
    assert view.current is not None
    more_s = slack_s - guard.slack_s(view.current)
    view = replace(view, deadline=(view.deadline or NOW) + timedelta(seconds=more_s))
    report = CycleReport(at=NOW, sentence="", observation=observation(view))
    served.loop_facts.turned = NewestTurn(monotonic_s=served.clock.monotonic_s, report=report)


def test_a_placement_is_an_order_in_the_layout_that_the_run_has(served: Served) -> None:
    """The row with who and why is there before the answer; the run is told where experts go."""
    looked(served)
    before = served.journal.runs.find("llama-8b", served.clock.wall)
    assert before is not None
    found = served.post(PLACEMENT, WISH)
    assert found.status == 200, found.body
    assert "place its experts anew at a coming boundary" in found.body["done"]
    told = Order.from_json(served.get(f"/v1/runs/{messages.RUN}/order").body["order"])
    assert told.placement == ((1, 0, 3, 2), (0, 1, 2, 3))
    assert (told.layout, told.ranks) == (before.layout, before.ranks)
    row = served.journal.switches.open(messages.RUN)
    assert row is not None
    assert row.from_point == row.to_point
    assert "4 experts in each of 2 layers are placed anew. Asked by " in row.reason
    assert "uid" in row.reason
    assert row.reason.endswith("traffic.")
    again = served.post(PLACEMENT, WISH)
    assert again.status == 409
    assert "has a switch under way" in again.body["error"]


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        ([[0, 0]], "does not place each of 2 experts once"),
        ([[0, 1], [0]], "places 1 experts in layer 1"),
        ([[0, -1]], "out of range"),
        ([[0, 1.5]], "expected int"),
        ([], "places no expert"),
        ([[]], "places no expert"),
        ("all", "expected a list"),
        (None, "expected a list"),
    ],
)
def test_what_is_no_placement_is_refused(served: Served, placement: Any, words: str) -> None:
    """Twice, missing, negative, broken or no experts: one sentence, and no order."""
    served.register()
    found = served.post(PLACEMENT, {"placement": placement, "reason": "x"})
    assert found.status == 422
    assert words in found.body["error"], found.body
    assert served.journal.switches.open(messages.RUN) is None


def test_nobody_is_ordered_outside_mode_act_or_without_a_reason(served: Served) -> None:
    """Mode, freeze, observed runs and a missing reason."""
    served.register()
    assert served.post(PLACEMENT, {"placement": [[1, 0]]}).status == 422
    set_mode(served, Mode.ADVISE)
    assert "mode is advise" in served.post(PLACEMENT, WISH).body["error"]
    set_mode(served, Mode.ACT)
    served.post("/v1/freeze", {"run": messages.RUN, "reason": "debugging"})
    assert "debugging" in served.post(PLACEMENT, WISH).body["error"]
    assert served.journal.switches.open(messages.RUN) is None


def test_a_placement_that_makes_a_run_late_is_refused(served: Served) -> None:
    """Half a minute of slack, a switch of a minute: one sentence, as for an order to a point."""
    served.register()
    assert "no cycle has looked at the run yet" in served.post(PLACEMENT, WISH).body["error"]
    looked(served, slack_s=30.0)
    found = served.post(PLACEMENT, WISH)
    assert found.status == 409
    assert "are not placed anew, because with 36 M tokens left" in found.body["error"]
    assert "late after it" in found.body["error"]
    assert served.journal.switches.open(messages.RUN) is None


def test_a_placement_of_another_group_of_gpus_is_refused(served: Served) -> None:
    """Made for four ranks of an expert-parallel group, where the run has one."""
    looked(served)
    found = served.post(PLACEMENT, {**WISH, "gpus": 4})
    assert found.status == 422
    assert "a placement on 4 GPUs, and llama-8b trains as" in found.body["error"]
    assert "1 ranks in an expert-parallel group" in found.body["error"]
    assert served.post(PLACEMENT, {**WISH, "gpus": 1}).status == 200


def switched(
    attempt: int,
    placement: tuple[tuple[int, ...], ...],
    state: SwitchState = SwitchState.CONFIRMED,
    mode: SwitchMode = SwitchMode.IN_PLACE,
) -> SwitchRow:
    """A switch of a launch, as the journal has it."""
    return SwitchRow(
        switch_id="s",
        run=messages.RUN,
        attempt=attempt,
        epoch=1,
        from_point="A",
        to_point="A",
        order=replace(GOOD, placement=placement, mode=mode),
        state=state,
        requested_by="operator",
        reason="",
        predicted_ug=None,
        switch_cost_ug=None,
        created_at=NOW,
        updated_at=NOW,
    )


ONE, TWO = ((1, 0),), ((0, 1),)


@pytest.mark.parametrize(
    ("history", "known", "placement"),
    [
        ([], True, ()),
        ([switched(3, ONE)], True, ONE),
        ([switched(3, ()), switched(3, ONE)], True, ONE),
        ([switched(3, TWO), switched(3, ONE)], True, TWO),
        ([switched(3, TWO, SwitchState.ROLLED_BACK), switched(3, ONE)], True, ONE),
        ([switched(3, TWO, SwitchState.ANNOUNCED), switched(3, ONE)], True, ONE),
        ([switched(2, ONE)], False, ()),
        ([switched(2, ONE, mode=SwitchMode.RESTART)], True, ONE),
        ([switched(3, ONE, mode=SwitchMode.RESTART)], False, ()),
    ],
)
def test_where_experts_lie_is_what_this_launch_has_confirmed(
    history: list[SwitchRow], known: bool, placement: tuple[tuple[int, ...], ...]
) -> None:
    """An earlier launch's placement may be older than the checkpoint: then nobody says it."""
    found = known_placement(3, history)
    assert (found.known, found.placement) == (known, placement)
    assert bool(found.why) is not known


def test_where_experts_lie_can_be_asked(served: Served) -> None:
    """By number before any order, and while one is under way."""
    looked(served)
    for _ in range(2):
        found = served.get(PLACEMENT)
        assert (found.status, found.body["placement"], found.body["known"]) == (200, [], True)
        served.post(PLACEMENT, WISH)
    assert served.get("/v1/runs/nobody/placement").status == 404
