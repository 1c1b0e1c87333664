"""What else must change when the global batch changes (T4). Pure, and off by default.

wattmesh keeps the global batch: fewer data-parallel ranks do more microbatches. A batch that must
change anyway changes the mathematics of the run; it is refused unless the operator allows the
class `statistical`.

    linear (SGD)         lr ~ B: progress and noise per token stay; only below the critical batch
    square root (Adam)   lr ~ sqrt B, 1 - beta ~ B, eps ~ 1 / sqrt B (Malladi et al. 2022, "On the
                         SDEs and scaling rules for adaptive gradient algorithms")

Invariant: rules compose: going from B to B' to B'' is going from B to B'', and back is back.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from wattmesh.errors import InputInvalid, Refused
from wattmesh.reconfig.catalogue import Equivalence


class Rule(StrEnum):
    """How the optimizer's numbers follow the batch."""

    LINEAR = "linear"
    SQUARE_ROOT = "square_root"


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What an optimizer is set to.

    Attributes:
        batch: samples (or tokens) per step.
        betas: decay of the running means, outermost first; () without any.
        weight_decay: decoupled (AdamW), multiplied by the learning rate in every step.
    """

    batch: float
    learning_rate: float
    betas: tuple[float, ...] = ()
    eps: float = 0.0
    weight_decay: float = 0.0


def follow(
    numbers: Numbers,
    batch: float,
    *,
    rule: Rule,
    allowed: Collection[Equivalence],
    critical_batch: float | None = None,
) -> Numbers:
    """Give the numbers for another global batch.

    Args:
        numbers: as they are.
        batch: the new global batch, in the units of `numbers.batch`.
        rule: linear for SGD, square root for Adam.
        allowed: the classes that the operator allows (`policy.equivalence`).
        critical_batch: as measured; above it the linear rule no longer helps and is refused.
            None: not known, so a larger batch is refused by the linear rule.

    Raises:
        Refused: the operator does not allow runs to be equal in distribution only.
        InputInvalid: no such numbers, or the rule does not reach that far.
    """
    if Equivalence.STATISTICAL not in allowed:
        raise Refused(
            f"global batch {numbers.batch:g} -> {batch:g}: this changes the mathematics of the "
            "run, which is then equal in distribution only; add 'statistical' to "
            "policy.equivalence to allow it."
        )
    if not (batch > 0 and numbers.batch > 0 and numbers.learning_rate > 0):
        raise InputInvalid(
            f"batch rules: batches {numbers.batch:g} and {batch:g} and learning rate "
            f"{numbers.learning_rate:g} must be above 0"
        )
    factor = batch / numbers.batch
    if rule is Rule.LINEAR:
        _below_critical(numbers, batch, critical_batch)
        return replace(numbers, batch=batch, learning_rate=numbers.learning_rate * factor)
    return _square_root(numbers, batch, factor)


def ramp(old: float, new: float, *, step: int, beta: float) -> float:
    """Give the learning rate `step` steps after a change, in equal ratios over 1 / (1 - beta).

    A jump meets momentum that was collected at the old rate; a ramp no faster than the momentum
    forgets keeps every step's rate within a factor 1 + O(1 - beta) of the one before.

    Args:
        old: the rate before, above 0.
        new: the rate to reach, above 0.
        step: 0 is the last step at the old rate.
        beta: of the slowest momentum that the update direction has; 0 jumps at once.
    """
    steps = math.ceil(1 / (1 - beta) - 1e-9)
    share = min(1.0, max(0.0, step / steps))
    return old * math.exp(share * math.log(new / old))


def _square_root(numbers: Numbers, batch: float, factor: float) -> Numbers:
    betas = tuple(1 - factor * (1 - beta) for beta in numbers.betas)
    if any(beta < 1e-9 for beta in betas):
        limit = min(1 / (1 - beta) for beta in numbers.betas)
        raise InputInvalid(
            f"batch rules: {factor:g} times the batch leaves betas {list(betas)}: means would "
            f"forget within a step; stay below {limit:.3g} times"
        )
    return Numbers(
        batch=batch,
        learning_rate=numbers.learning_rate * math.sqrt(factor),
        betas=betas,
        eps=numbers.eps / math.sqrt(factor),
        # Our own algebra, not the paper's: lr * decay per token stays what it was.
        weight_decay=numbers.weight_decay * math.sqrt(factor),
    )


def _below_critical(numbers: Numbers, batch: float, critical_batch: float | None) -> None:
    if batch <= numbers.batch:
        return
    if critical_batch is None or batch > critical_batch:
        known = "is not known" if critical_batch is None else f"is {critical_batch:g}"
        raise InputInvalid(
            f"batch rules: the linear rule holds below the critical batch, which {known}; "
            f"{batch:g} cannot be reached by it"
        )
