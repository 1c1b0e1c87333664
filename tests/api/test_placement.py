"""`POST /v1/runs/{run}/placement`: an order like any, and what cannot be is said at once."""

from typing import Any

import pytest

from tests.api.conftest import Served
from tests.api.test_operators import set_mode
from tests.builders import messages
from wattmesh.policies.decision import Mode
from wattmesh.reconfig.wire import Order

PLACEMENT = "/v1/runs/llama-8b/placement"
WISH = {"placement": [[1, 0, 3, 2], [0, 1, 2, 3]], "reason": "traffic"}


def test_a_placement_is_an_order_in_the_layout_that_the_run_has(served: Served) -> None:
    """The row with who and why is there before the answer; the run is told where experts go."""
    served.register()
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
