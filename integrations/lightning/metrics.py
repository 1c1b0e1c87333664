"""Metrics of torchmetrics that a module keeps, in the middle of an epoch.

What they have seen lies on each rank, outside of the module's state, and Lightning's own
checkpoints leave it out. Here it is reduced over ranks as the metric itself would reduce it.

Invariant: what is carried of a metric is what it would compute from; one that keeps more than sums,
means, least or largest values begins anew, as at any resume of Lightning, and is named.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)

Seen = dict[str, dict[str, Any]]
"""By a metric's name in the module: `count` of updates, and the values of its `states`."""

REDUCTIONS = {
    "dim_zero_sum": torch.sum,
    "dim_zero_mean": torch.mean,
    "dim_zero_max": torch.amax,
    "dim_zero_min": torch.amin,
}
"""By the name of the function that torchmetrics has for each."""


def seen_of(module: nn.Module) -> Seen:
    """Read what this rank's metrics have seen, where they have seen anything."""
    return {
        name: {
            "count": metric._update_count,
            "states": {each: getattr(metric, each).tolist() for each in metric._defaults},
        }
        for name, metric in _begun(module)
        if not _why_anew(module, name, metric)
    }


def over_ranks(module: nn.Module, every: Sequence[Seen]) -> Seen:
    """Reduce what all data parallel ranks have read."""
    found: Seen = {}
    for name in every[0]:
        metric: Any = module.get_submodule(name)
        ranks = [seen[name] for seen in every if name in seen]
        states = {}
        for each, default in metric._defaults.items():
            stacked = torch.stack([_like(rank["states"][each], default) for rank in ranks])
            states[each] = _reduction(metric, each)(stacked, dim=0).tolist()
        found[name] = {"count": ranks[0]["count"], "states": states}
    return found


def restore(module: nn.Module, seen: Mapping[str, Mapping[str, Any]], data_rank: int) -> None:
    """Have this rank's metrics go on; sums lie on the first data parallel rank."""
    for name, of_all in seen.items():
        metric: Any = module.get_submodule(name)
        for each, value in of_all["states"].items():
            before = getattr(metric, each)
            if data_rank == 0 or _reduction(metric, each) is not torch.sum:
                setattr(metric, each, _like(value, before).to(before.device))
        metric._update_count, metric._computed = of_all["count"], None


def warn_of_others(module: nn.Module) -> None:
    """Name the metrics that begin anew."""
    for name, metric in _begun(module):
        if why := _why_anew(module, name, metric):
            log.warning(
                "Lightning: what the metric %s has seen of this epoch is not carried: %s. Its "
                "next value is that of the rest of the epoch.",
                name,
                why,
            )


def _begun(module: nn.Module) -> Iterator[tuple[str, Any]]:
    # By what they have: torchmetrics need not be there.
    for name, each in module.named_modules():
        if getattr(each, "_update_count", 0) and hasattr(each, "_reductions"):
            yield name, each


def _why_anew(module: nn.Module, name: str, metric: Any) -> str:
    above = name.rpartition(".")[0]
    if hasattr(module.get_submodule(above), "_groups_checked"):
        return "it shares its state with others of a MetricCollection"
    for each in metric._defaults:
        reduced = getattr(metric._reductions[each], "__name__", "")
        if not isinstance(getattr(metric, each), Tensor) or reduced not in REDUCTIONS:
            return f"{each} is no sum, mean, least or largest value"
    return ""


def _reduction(metric: Any, state: str) -> Any:
    return REDUCTIONS[metric._reductions[state].__name__]


def _like(value: Any, other: Tensor) -> Tensor:
    return torch.tensor(value, dtype=other.dtype)
