"""Finds lost optimizer slots from the index alone. Pure.

A source refuses a parameter with fewer slots than others when it is opened, unless the user
declares that this is intended. In a checkpoint the declaration is not known, so only one case
counts as damage: a single parameter whose slots are a proper subset of another parameter's.

Invariant: two or more parameters with the same slots are a group of their own, never damage.
"""

from collections import Counter
from collections.abc import Iterator

from wattmesh.reconfig.universal.index.index import PARAM, Index
from wattmesh.reconfig.universal.index.names import EXTRA, is_average
from wattmesh.reconfig.universal.sources.source import BYTES

_NO_SLOTS = frozenset({PARAM, EXTRA, BYTES})


def slots(index: Index) -> Iterator[str]:
    """List missing slots, and slots without a parameter, as sentences."""
    having: dict[str, set[str]] = {}
    for entry in index.entries:
        if entry.state not in _NO_SLOTS and not is_average(entry.state):
            having.setdefault(entry.name, set()).add(entry.state)
    kinds = Counter(frozenset(each) for each in having.values())
    for name, mine in having.items():
        larger = [each for each in kinds if mine < each]
        if larger and kinds[frozenset(mine)] == 1:
            lost = sorted(min(larger, key=len) - mine)
            yield f"{name} lacks the optimizer slots {', '.join(lost)} that other parameters have"
        if (index.tied.get(name, name), PARAM) not in index.rows:
            yield f"{name} has the optimizer slots {', '.join(sorted(mine))} but is no parameter"
