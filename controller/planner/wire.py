"""What the daemon and its planning process exchange: one JSON value per line in each direction.

Invariant: what is read is what was written, to the last digit; any other line is an error and never
half an answer. Nothing is pickled.
"""

import json
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from math import inf, isfinite
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from wattmesh.controller.views import as_json
from wattmesh.errors import InputInvalid
from wattmesh.policies.cluster.joint_question import JointAnswer, JointQuestion
from wattmesh.policies.decision import PlanView
from wattmesh.policies.planner.mpc import Question

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveRequest:
    """A question, and the plan that is followed until the answer comes."""

    question: Question
    before: PlanView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveResult:
    """The answer to the question with this digest.

    Attributes:
        seconds: what it took. `plan`: None when no plan does the work; `reason`: why, as a clause.
    """

    digest: str
    seconds: float
    plan: PlanView | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointRequest:
    """A question about all runs. `solve_s`: how long the search may take."""

    joint: JointQuestion
    solve_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JointResult:
    """The answer to the joint question with this digest; its fields as in `SolveResult`."""

    digest: str
    seconds: float
    answer: JointAnswer | None = None
    reason: str = ""


def to_line(value: SolveRequest | SolveResult | JointRequest | JointResult) -> bytes:
    """Write one line."""
    return json.dumps(as_json(value), separators=(",", ":")).encode() + b"\n"


def read_request(line: bytes) -> SolveRequest:
    """Read a question.

    Raises:
        InputInvalid: the line is not a question.
    """
    return _read(SolveRequest, line, "question")


def read_joint_request(line: bytes) -> JointRequest:
    """Read a question about all runs.

    Raises:
        InputInvalid: the line is no such question.
    """
    return _read(JointRequest, line, "joint question")


def read_joint(line: bytes) -> JointResult:
    """Read an answer about all runs.

    Raises:
        InputInvalid: the line is no such answer.
    """
    found = _read(JointResult, line, "joint answer")
    answer = found.answer
    if answer is not None:
        rooms_w = [each[2] for steps in answer.rooms.values() for each in steps]
        known = all(0 <= each < inf for each in (answer.grams, *rooms_w))
        # A search that was stopped early may have a bound below 0.
        if not known or not isfinite(answer.bound_g):
            raise InputInvalid("no joint answer: grams or watts in it cannot be")
    return found


def read_result(line: bytes) -> SolveResult:
    """Read an answer.

    Raises:
        InputInvalid: the line is not an answer, or its plan is one to another question.
    """
    found = _read(SolveResult, line, "answer")
    if found.plan is not None and found.plan.digest != found.digest:
        raise InputInvalid("no answer: its plan answers another question")
    return found


def _read(kind: type[T], line: bytes, what: str) -> T:
    try:
        found: T = _adapter(cast(Hashable, kind)).validate_json(line)
    except ValidationError as error:
        raise InputInvalid(f"no {what}: {_first(error)}") from error
    return found


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Made on first use: no process needs all of them."""
    return TypeAdapter(kind)


def _first(error: ValidationError) -> str:
    """Give the first mistake in one line."""
    found = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, found['loc'])) or 'the line'}: {found['msg']}"
