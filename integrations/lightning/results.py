"""What a training logs by epoch (`self.log(..., on_epoch=True)`), in the middle of an epoch.

Lightning's own checkpoints leave these sums out: after a resume its epoch's mean is that of the
rest. Here they are gathered from all data parallel ranks, and each goes on with an equal part.

Invariant: sum, mean, least and largest over an epoch do not depend on where a run was moved.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pytorch_lightning.trainer.connectors.logger_connector.result import (
        _ResultCollection as Base,
    )
else:
    Base = object
    """What stands behind it: the class of the collection; see `put_before`."""

Sums = dict[str, list[Any]]
"""By what was logged where: how it is reduced, its value, and samples behind a mean (else 0)."""

KINDS = ("mean", "sum", "max", "min")


class ResultsGoneOn(Base):
    """A collection that begins a metric with what the run has seen of it before."""

    before: Sums

    def __setitem__(self, key: str, metric: Any) -> None:
        super().__setitem__(key, metric)
        found = self.before.pop(key, None)
        if found is None or not metric.is_tensor or kind_of(metric) != found[0]:
            return
        _, value, samples = found
        metric.value = torch.as_tensor(value, dtype=metric.value.dtype)
        if found[0] == "mean":
            metric.cumulated_batch_size = torch.as_tensor(samples, dtype=metric.value.dtype)

    def reset(self, metrics: bool | None = None, fx: str | None = None) -> None:
        """Forget what an epoch that is over has seen."""
        if fx is None:
            self.before.clear()
        super().reset(metrics, fx)


def put_before(results: Any, before: Sums) -> None:
    """Have a collection that is empty go on with sums, as `part_of` gives them."""
    kind = type(results)
    if not issubclass(kind, ResultsGoneOn):
        results.__class__ = type(f"{kind.__name__}GoneOn", (ResultsGoneOn, kind), {})
    results.before = dict(before)


def kind_of(metric: Any) -> str:
    """Return how a logged value is reduced over an epoch."""
    return next(each for each in KINDS if getattr(metric.meta, f"is_{each}_reduction"))


def sums_of(results: Any) -> Sums:
    """Read this rank's sums of an epoch that has begun."""
    found: Sums = {key: list(each) for key, each in getattr(results, "before", {}).items()}
    for key, metric in results.items():
        if metric.is_tensor and metric.meta.on_epoch and not metric.has_reset:
            kind = kind_of(metric)
            samples = float(metric.cumulated_batch_size) if kind == "mean" else 0.0
            found[key] = [kind, float(metric.value), samples]
    return found


def over_ranks(every: Sequence[Sums]) -> Sums:
    """Reduce what all data parallel ranks have read."""
    found: Sums = {}
    for sums in every:
        for key, (kind, value, samples) in sums.items():
            if key not in found:
                found[key] = [kind, value, samples]
                continue
            mine = found[key]
            least_or_largest = {"max": max, "min": min}.get(kind)
            mine[1] = least_or_largest(mine[1], value) if least_or_largest else mine[1] + value
            mine[2] += samples
    return found


def part_of(sums: Mapping[str, Sequence[Any]], ranks: int) -> Sums:
    """Return one rank's equal part of sums over all; `ranks`: data parallel ones."""
    return {
        key: [kind, value / ranks if kind in ("mean", "sum") else value, samples / ranks]
        for key, (kind, value, samples) in sums.items()
    }
