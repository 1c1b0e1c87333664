"""Layout rules: how the ranks' pieces map to the logical tensor. Declared, never guessed.

A rule concerns one dim. "Stored" coordinates number the ranks' pieces one after the other.
"Logical" coordinates are those of the unsharded tensor. A rule is a list of runs that maps the
first to the second.

Invariant: runs do not overlap in either coordinate; elements outside of all runs are padding.
"""

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from wattmesh.errors import InputInvalid


@dataclass(frozen=True, slots=True, order=True)
class Run:
    """`length` stored indices from `stored` on map to the logical ones from `logical` on."""

    stored: int
    logical: int
    length: int


@dataclass(frozen=True, slots=True)
class Rule:
    """The base of all rules, and the identity: the stored tensor is the logical one.

    Attributes:
        kind: the name in index.json.
        dim: the dim of the tensor.
    """

    kind: ClassVar[str] = "replicate"
    dim: int = 0

    def runs(self, stored: int) -> tuple[Run, ...]:
        """Return the runs of a stored dim of that size.

        Raises:
            InputInvalid: the size does not fit the declared rule.
        """
        return (Run(0, 0, stored),)

    def logical_size(self, stored: int) -> int:
        """Size of the dim without padding."""
        return sum(run.length for run in self.runs(stored))


@dataclass(frozen=True, slots=True)
class Replicate(Rule):
    """Every rank stores the whole tensor; the copies must be equal."""

    kind: ClassVar[str] = "replicate"


@dataclass(frozen=True, slots=True)
class Shard(Rule):
    """Ranks store consecutive slices of `dim`."""

    kind: ClassVar[str] = "shard"


@dataclass(frozen=True, slots=True)
class SubBlocks(Rule):
    """Fused blocks, each sharded by itself (QKV with grouped queries, gate and up projections).

    Attributes:
        widths: per rank, the width of its part of every block: ((q0, k0, v0), (q1, k1, v1)).
            Stored: rank after rank. Logical: block after block.
    """

    kind: ClassVar[str] = "sub_blocks"
    widths: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        """Refuse ranks that list different blocks."""
        if len({len(each) for each in self.widths}) != 1 or min(map(min, self.widths)) < 0:
            raise InputInvalid(
                f"rule sub_blocks: widths {list(self.widths)} must give every rank the same number "
                "of blocks, each of width 0 or more."
            )

    def runs(self, stored: int) -> tuple[Run, ...]:
        """See `Rule.runs`."""
        if sum(map(sum, self.widths)) != stored:
            raise InputInvalid(
                f"rule sub_blocks: the widths add up to {sum(map(sum, self.widths))}, the stored "
                f"dim {self.dim} has {stored}."
            )
        block_size = [sum(of_ranks) for of_ranks in zip(*self.widths, strict=True)]
        next_of_block = [0, *itertools.accumulate(block_size)][:-1]
        runs, at = [], 0
        for rank in self.widths:
            for block, width in enumerate(rank):
                if width:
                    runs.append(Run(at, next_of_block[block], width))
                next_of_block[block] += width
                at += width
        return tuple(runs)


@dataclass(frozen=True, slots=True)
class VocabPad(Rule):
    """Rows from `size` on are padding, which is not stored and is zero where a target has it."""

    kind: ClassVar[str] = "vocab_pad"
    size: int = 0

    def runs(self, stored: int) -> tuple[Run, ...]:
        """See `Rule.runs`."""
        if not 0 < self.size <= stored:
            raise InputInvalid(
                f"rule vocab_pad: size {self.size} must be between 1 and the stored dim "
                f"{self.dim}'s {stored}."
            )
        return (Run(0, 0, self.size),)


@dataclass(frozen=True, slots=True)
class ExpertStack(Rule):
    """Experts stacked along `dim`, one index each, in an order of their own.

    Attributes:
        experts: global expert id of each stored index, a permutation of 0..E-1. With uneven expert
            parallelism ranks store different numbers of them.
    """

    kind: ClassVar[str] = "expert_stack"
    experts: tuple[int, ...] = ()

    def runs(self, stored: int) -> tuple[Run, ...]:
        """See `Rule.runs`; an empty `experts` means the natural order."""
        experts = self.experts or tuple(range(stored))
        if sorted(experts) != list(range(stored)):
            raise InputInvalid(
                f"rule expert_stack: experts {list(experts)} is no permutation of the {stored} "
                "stored ones."
            )
        runs: list[Run] = []
        for at, expert in enumerate(experts):
            last = runs[-1] if runs else None
            if last and last.logical + last.length == expert:
                runs[-1] = Run(last.stored, last.logical, last.length + 1)
            else:
                runs.append(Run(at, expert, 1))
        return tuple(runs)


_KINDS: dict[str, type[Rule]] = {
    each.kind: each for each in (Replicate, Shard, SubBlocks, VocabPad, ExpertStack)
}


def to_json(rule: Rule) -> dict[str, Any]:
    """Encode a rule as JSON."""
    return {"kind": rule.kind, **asdict(rule)}


def from_json(data: Mapping[str, Any]) -> Rule:
    """Decode a rule.

    Raises:
        InputInvalid: the kind or a field is unknown or malformed.
    """
    given = dict(data)
    kind = _KINDS.get(str(given.pop("kind", "")))
    if kind is None:
        raise InputInvalid(f"rule kind {data.get('kind')!r} is not one of {', '.join(_KINDS)}.")
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(given) - known):
        raise InputInvalid(f"rule {kind.kind} has no {unknown[0]!r}; it has {sorted(known)}.")
    try:
        return kind(**{key: _tuples(value) for key, value in given.items()})
    except (TypeError, ValueError) as error:
        raise InputInvalid(f"rule {kind.kind}: {error}.") from error


def _tuples(value: Any, depth: int = 2) -> Any:
    """JSON lists of integers >= 0 as tuples, nested at most two deep."""
    if isinstance(value, list | tuple) and depth:
        return tuple(_tuples(each, depth - 1) for each in value)
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise TypeError(f"{value!r:.80} is not a whole number from 0 on")
    return value


_LARGEST = 1 << 48
