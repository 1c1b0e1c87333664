"""A joint answer is believed only where its numbers can be."""

from math import inf, nan

import pytest

from wattmesh.controller.planner.wire import JointResult, read_joint, to_line
from wattmesh.errors import InputInvalid
from wattmesh.policies.cluster.joint_question import JointAnswer


def line(room_w: float = 500.0, grams: float = 2.0, bound_g: float = 1.0) -> bytes:
    """What a planning process would write."""
    rooms = {"r": ((0, 3, room_w),)}
    answer = JointAnswer(rooms=rooms, grams=grams, bound_g=bound_g)
    return to_line(JointResult(digest="d", seconds=1.0, answer=answer))


def test_an_answer_is_read_as_it_was_written() -> None:
    """Rooms, grams and bound."""
    found = read_joint(line())
    assert found.answer is not None
    assert found.answer.rooms == {"r": ((0, 3, 500.0),)}
    assert (found.answer.grams, found.answer.bound_g) == (2.0, 1.0)


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        *((what, wrong) for what in ("room_w", "grams") for wrong in (nan, inf, -inf, -5.0)),
        *(("bound_g", wrong) for wrong in (nan, inf, -inf)),
    ],
)
def test_numbers_that_cannot_be_are_no_answer(what: str, wrong: float) -> None:
    """A planner that lies is as one that is gone: each run plans alone."""
    with pytest.raises(InputInvalid, match="joint answer"):
        read_joint(line(**{what: wrong}))
