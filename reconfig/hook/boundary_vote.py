"""What all ranks of a generation conclude from the facts that they gathered at a save step. Pure.

Invariant: the conclusion depends only on facts that are equal on every rank, so all ranks leave the
boundary on the same branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattmesh.errors import Diverged
from wattmesh.reconfig.hook import consumed
from wattmesh.reconfig.launch.generation import Outcome
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.wire.messages import Order

Fact = dict[str, Any]
"""One rank's facts: position, stop, finish, consumed, live, writing, order, acted_on, experts (see
`Boundary._facts`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResult:
    """What all ranks agreed on at a save step.

    Attributes:
        deferred: why no rank may save or switch at this step (live gradients, a save in flight);
            "" when all may.
        outcome: how training ends here; None when it goes on.
        acted_on: whether the run may be switched; such a run must stop when its ranks diverge.
        told: how many sample numbers the ranks reported since the last check, summed over ranks;
            -1 where they were not compared.
    """

    deferred: str
    outcome: Outcome | None
    detail: str
    order: Order | None
    acted_on: bool = True
    told: int = -1


def conclude(
    facts: Sequence[Fact], ranks: Sequence[int], position: Position, tokens_total: int
) -> VoteResult:
    """Conclude from every rank's facts.

    Args:
        facts: in group order.
        ranks: the global ranks, in the same order.
        position: this rank's; the others' are among the facts.
        tokens_total: the run is done at this many tokens; 0: it never ends by itself.

    Raises:
        Diverged: the ranks stand at different positions, or trained on other samples than the run's
            next ones.
    """
    _refuse_other_places(facts, ranks)
    _refuse_other_data(facts, ranks, position.samples)
    outcome, detail = _outcome(facts, position.tokens, tokens_total)
    ordered = next((fact["order"] for fact in facts if fact["order"]), None)
    return VoteResult(
        deferred=_why_deferred(facts),
        outcome=outcome,
        detail=detail,
        order=Order.from_json(ordered) if ordered and outcome is None else None,
        acted_on=any(fact["acted_on"] for fact in facts),
        told=sum(fact["consumed"]["count"] for fact in facts),
    )


def left_out(wishes: Sequence[Fact], tokens_total: int) -> VoteResult:
    """Conclude whether training ends at a boundary that was skipped after a failure.

    Args:
        wishes: every rank's finish, stop and tokens.
        tokens_total: the run is done at this many tokens; 0: it never ends by itself.
    """
    outcome, detail = _outcome(wishes, max(each["tokens"] for each in wishes), tokens_total)
    return VoteResult(deferred="", outcome=outcome, detail=detail, order=None)


def _refuse_other_places(facts: Sequence[Fact], ranks: Sequence[int]) -> None:
    places = [fact["position"] for fact in facts]
    if any(place != places[0] for place in places):
        raise Diverged(
            f"ranks {list(ranks)} disagree on (step, samples, tokens): {places}; "
            "what they trained since the last checkpoint is not one run and was not saved."
        )


def _refuse_other_data(facts: Sequence[Fact], ranks: Sequence[int], samples: int) -> None:
    problem = consumed.problem([fact["consumed"] for fact in facts], ranks, samples)
    if problem:
        raise Diverged(
            f"{problem}: what was trained since the last checkpoint is not this run and was "
            "not saved. Does the loader follow session.position? Samples of a later epoch are "
            "numbered on: index + epoch * len(data)."
        )


def _outcome(facts: Sequence[Fact], tokens: int, total: int) -> tuple[Outcome | None, str]:
    if 0 < total <= tokens or any(fact["finish"] for fact in facts):
        return Outcome.DONE, f"{tokens} tokens trained"
    stop = next((fact["stop"] for fact in facts if fact["stop"]), "")
    return (Outcome.STOPPED, stop) if stop else (None, "")


def _why_deferred(facts: Sequence[Fact]) -> str:
    """Say why no rank may save or switch now; "" when all may."""
    if any(fact["live"] for fact in facts):
        return "gradients are live, so it is done at the first step after zero_grad"
    if any(fact["writing"] for fact in facts):
        return "the job's own checkpointer is still writing; it is done when that has ended"
    return ""
