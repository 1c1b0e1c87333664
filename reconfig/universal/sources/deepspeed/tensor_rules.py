r"""How tensor-parallel ranks hold a parameter, as DeepSpeed's `universal_checkpoint_info` says it.

AutoTP writes this info itself, a training script may. It lists patterns of names: copies, slices
along dim 1, fused blocks each sliced, rows of a vocabulary; what is in no list is sliced along
dim 0. AutoTP's info also has a map of each parameter, in pieces, which must say the same.

A pattern comes from the file, so it is not run as a regular expression: it is literal text, `.`,
`\d`, and at most MAX_REPEATS of `\d+`, `.*` and `.+`.

Invariant: a parameter of which the info says anything that is not understood is refused.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import CONTAINER, Allowance
from wattmesh.reconfig.universal.archives.rebuild import brief
from wattmesh.reconfig.universal.archives.tensors import LARGEST, MAX_DIMS
from wattmesh.reconfig.universal.index.box import row_major
from wattmesh.reconfig.universal.index.names import MAX_NAME
from wattmesh.reconfig.universal.index.rules import Replicate, Rule, Shard, SubBlocks, VocabPad

INFO = "universal_checkpoint_info"

MAX_REPEATS = 2

_COPIES = "tp_replicated_parameter_patterns"
_ROWS = "parameter_with_row_parallelism_patterns"
_VOCABULARY = "vocabulary_parameter_patterns"
_HALVES = "parameter_with_2_sub_params_cat_dim_0"
_BLOCKS = "parameter_with_sub_params"
_AVERAGED = "parameter_to_average_patterns"
_UNSUPPORTED = "autotp_unsupported_parameter_patterns"
_WIDTHS = "sub_param_shard_widths"
_MAPS = "affine_map"

_LISTS = (_COPIES, _ROWS, _VOCABULARY, _HALVES, _AVERAGED)
_PIECES = re.compile(r"\^|\$|\\d\+?|\\[^0-9A-Za-z]|\.[*+]?|[\w\-/: ]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Said:
    """A rule, and whether it only follows from the name being in no list."""

    rule: Rule
    by_default: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of elements: where it lies in a rank's part and in the parameter, in elements."""

    shape: tuple[int, ...]
    part: tuple[int, tuple[int, ...]]
    whole: tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class AffineMap:
    """AutoTP's map of a parameter: its shape, and by rank the part's shape and pieces."""

    logical: tuple[int, ...]
    shards: tuple[tuple[int, ...], ...]
    pieces: tuple[tuple[Piece, ...], ...]


@dataclass(frozen=True, slots=True)
class UniversalInfo:
    """The decoded info.

    Attributes:
        lists: patterns by key.
        blocks: (pattern, dim, widths by tensor-parallel rank, then block).
        vocabulary: rows without padding.
        maps: AutoTP's, by pattern.
        auto: AutoTP made it, so it speaks of all parameters.
        unread: what is not understood of it, as a sentence; "" where all is.
    """

    lists: Mapping[str, tuple[re.Pattern[str], ...]]
    blocks: tuple[tuple[re.Pattern[str], int, tuple[tuple[int, ...], ...]], ...]
    vocabulary: int | None
    maps: Mapping[str, AffineMap]
    auto: bool
    unread: str = ""

    def rule(self, name: str) -> Said:
        """How ranks hold a trained parameter.

        Raises:
            InputInvalid: DeepSpeed cannot join it, or says two things of it.
        """
        if self.unread:
            raise InputInvalid(f"{name}: {self.unread}")
        found = [key for key in _LISTS if any(p.match(name) for p in self.lists[key])]
        blocks = [(dim, widths) for p, dim, widths in self.blocks if p.match(name)]
        kinds = [key for key in found if key != _VOCABULARY] + [_BLOCKS] * bool(blocks)
        if _VOCABULARY in found and kinds not in ([], [_COPIES]):
            kinds.append(_VOCABULARY)  # their padding is along dim 0 of what is joined otherwise
        if _AVERAGED in found or len(kinds) > 1 or len(blocks) > 1:
            said = ", ".join(kinds) or "several blocks"
            raise InputInvalid(
                f"{name}: {INFO} has it in {said}; that is no way to hold it that is supported. "
                "Declare a [[rule]]."
            )
        if self.auto and _literal(name) not in self.maps:
            raise InputInvalid(f"{name}: {INFO} has no map of it. Declare a [[rule]].")
        if blocks:
            return Said(SubBlocks(dim=blocks[0][0], widths=blocks[0][1]))
        if _HALVES in kinds:
            raise InputInvalid(
                f"{name}: {INFO} has it in {_HALVES}, without the widths of its blocks. Declare a "
                '[[rule]] of kind "sub_blocks".'
            )
        if _COPIES in kinds:
            return Said(Replicate())
        if _VOCABULARY in found and self.vocabulary is not None:
            return Said(VocabPad(size=self.vocabulary))
        if _VOCABULARY in found:
            raise InputInvalid(f"{name}: {INFO} tells no original_vocab_size.")
        return Said(Shard(dim=1)) if _ROWS in kinds else Said(Shard(), by_default=not self.auto)

    def check(
        self, name: str, rule: Rule, logical: Sequence[int], stored: Sequence[Sequence[int]]
    ) -> None:
        """Compare what a rule makes of a parameter with AutoTP's map of it, if there is one.

        Raises:
            InputInvalid: they differ.
        """
        told = self.maps.get(_literal(name))
        shapes = tuple(logical), tuple(map(tuple, stored))
        if told is not None and (told.logical, told.shards) != shapes:
            raise InputInvalid(
                f"{name}: {INFO} maps it to shape {told.logical} of parts {list(told.shards)}, the "
                f"files' parts {list(shapes[1])} make {shapes[0]}."
            )
        if told is not None and not _agrees(told, rule):
            raise InputInvalid(
                f"{name}: {INFO} maps its parts to other places than the rule {rule.kind} does; "
                "that is not supported."
            )


class _NotUnderstoodError(InputInvalid):
    """The info says something that only declared rules can replace."""


def read_info(model: Mapping[str, Any], where: str, allowance: Allowance) -> UniversalInfo | None:
    """Decode the info in a model file; None where there is none, or it has no lists.

    Raises:
        InputInvalid: it is malformed, or AutoTP says of a parameter that it cannot be joined.
    """
    info = model.get(INFO)
    if type(info) is not dict or not any(key in info for key in (*_LISTS, _BLOCKS)):
        return None
    unsupported = _dict(info.get(_UNSUPPORTED) or {}, where)
    if unsupported:
        pattern, why = next(iter(unsupported.items()))
        raise InputInvalid(
            f"{where}: DeepSpeed says that {brief(pattern)} cannot be joined: {brief(why)}."
        )
    lists: dict[str, tuple[re.Pattern[str], ...]] = {}
    blocks: list[Any] = []
    unread = ""
    try:
        for key in _LISTS:
            listed = _list(info.get(key) or [], where, allowance)
            lists[key] = tuple(_pattern(each) for each in listed)
        blocks = _blocks(info, where, allowance)
    except _NotUnderstoodError as error:
        unread = str(error)
    vocabulary = info.get("original_vocab_size")
    if vocabulary is not None and not _is_size(vocabulary):
        raise InputInvalid(f"{where}: {INFO}: original_vocab_size is {brief(vocabulary)}.")
    return UniversalInfo(
        lists=lists,
        blocks=tuple(blocks),
        vocabulary=vocabulary,
        maps=_maps(info, where, allowance),
        auto=_UNSUPPORTED in info and _MAPS in info,
        unread=unread,
    )


def _blocks(info: Mapping[Any, Any], where: str, allowance: Allowance) -> list[Any]:
    found = []
    widths_of = _dict(info.get(_WIDTHS) or {}, where)
    for each in _list(info.get(_BLOCKS) or [], where, allowance):
        block = _dict(each, where)
        dim = block.get("partition_dim")
        for pattern in _list(block.get("patterns"), where, allowance):
            by_block = widths_of.get(pattern) if type(pattern) is str else None
            if by_block is None or type(dim) is not int or not 0 <= dim < MAX_DIMS:
                raise _NotUnderstoodError(
                    f"{INFO} tells no {_WIDTHS} of {brief(pattern)}, so its blocks cannot "
                    'be joined. Declare a [[rule]] for each parameter, here of kind "sub_blocks".'
                )
            rows = [_list(row, where, allowance) for row in _list(by_block, where, allowance)]
            if not rows or len({len(row) for row in rows}) != 1 or not rows[0]:
                raise InputInvalid(f"{where}: {_WIDTHS} of {brief(pattern)} is no table.")
            if not all(_is_size(width) for row in rows for width in row):
                raise InputInvalid(f"{where}: {_WIDTHS} of {brief(pattern)} are no widths.")
            # By block, then rank; the rule wants them by rank, then block.
            by_rank = tuple(zip(*rows, strict=True))
            found.append((_pattern(pattern), dim, by_rank))
    return found


def _maps(info: Mapping[Any, Any], where: str, allowance: Allowance) -> dict[str, AffineMap]:
    maps = _dict(info.get(_MAPS) or {}, where)
    if not maps:
        return {}
    if maps.get("version") != 1:
        raise InputInvalid(f"{where}: {_MAPS} has version {brief(maps.get('version'))}, not 1.")
    found = {}
    for pattern, each in _dict(maps.get("params") or {}, where).items():
        one = _dict(each, where)
        ranks = _dict(one.get("ranks"), where)
        if type(pattern) is not str or set(ranks) != set(range(len(ranks))):
            raise InputInvalid(f"{where}: {_MAPS} of {brief(pattern)} lists no ranks.")
        allowance.made(CONTAINER * (1 + len(ranks)), where)
        parts = [_dict(ranks[rank], where) for rank in range(len(ranks))]
        found[pattern] = AffineMap(
            logical=_shape(one.get("logical_shape"), where, allowance),
            shards=tuple(_shape(part.get("shard_shape"), where, allowance) for part in parts),
            pieces=tuple(
                tuple(
                    _piece(piece, f"{where}: {pattern:.80}", allowance)
                    for piece in _list(part.get("pieces"), where, allowance)
                )
                for part in parts
            ),
        )
    return found


def _piece(value: Any, where: str, allowance: Allowance) -> Piece:
    piece = _dict(value, where)
    scale = piece.get("scale", 1.0)
    if type(scale) not in (int, float) or scale != 1:
        raise InputInvalid(
            f"{where}: ranks hold it multiplied by {brief(scale)}, as AutoTP does with the bias of "
            "a layer that is split by rows; that is not supported."
        )
    allowance.made(4 * CONTAINER, where)
    places = []
    for key in ("dest", "source"):
        place = _list(piece.get(key), where, allowance)
        if len(place) != 2 or not _is_size(place[0]):
            raise InputInvalid(f"{where}: {_MAPS} holds a piece without its {key}.")
        places.append((place[0], _shape(place[1], where, allowance)))
    return Piece(_shape(piece.get("shape"), where, allowance), *places)


def _agrees(told: AffineMap, rule: Rule) -> bool:
    """Whether a rule puts every piece of a map where the map does."""
    dim = rule.dim
    copies = type(rule) is Replicate or not told.logical
    sizes = [0 if copies else shard[dim] for shard in told.shards]
    runs = [] if copies else rule.runs(sum(sizes))
    for rank, (shard, pieces) in enumerate(zip(told.shards, told.pieces, strict=True)):
        if sum(math.prod(piece.shape) for piece in pieces) != math.prod(shard):
            return False
        for piece in pieces:
            if not math.prod(piece.shape):
                continue
            part = _start(piece.part, piece.shape, shard)
            whole = _start(piece.whole, piece.shape, told.logical)
            if part is None or whole is None:
                return False
            if copies:
                if part != whole:
                    return False
                continue
            stored = sum(sizes[:rank]) + part[dim]
            apart = [a - b for at, (a, b) in enumerate(zip(part, whole, strict=True)) if at != dim]
            inside = any(
                run.stored <= stored
                and stored + piece.shape[dim] <= run.stored + run.length
                and whole[dim] - run.logical == stored - run.stored
                for run in runs
            )
            if any(apart) or not inside:
                return False
    return True


def _start(
    place: tuple[int, tuple[int, ...]], shape: tuple[int, ...], of: tuple[int, ...]
) -> list[int] | None:
    """First index of a box by its offset and strides in a tensor; None where it is no box of it."""
    offset, strides = place
    steps = row_major(of)
    if not len(shape) == len(strides) == len(of):
        return None
    start = []
    for size, stride, step, whole in zip(shape, strides, steps, of, strict=True):
        at, offset = divmod(offset, step) if step else (0, offset)
        if (size > 1 and stride != step) or at + size > whole:
            return None
        start.append(at)
    return None if offset else start


def _literal(name: str) -> str:
    """AutoTP's pattern of one name."""
    return f"^{re.escape(name)}$"


def _shape(value: Any, where: str, allowance: Allowance) -> tuple[int, ...]:
    sizes = _list(value, where, allowance)
    if len(sizes) > MAX_DIMS or not all(map(_is_size, sizes)):
        raise InputInvalid(f"{where}: {_MAPS} holds a shape that is none.")
    return tuple(sizes)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _pattern(value: Any) -> re.Pattern[str]:
    """A pattern that cannot run for long."""
    if type(value) is str and len(value) <= 2 * MAX_NAME:
        pieces = _PIECES.findall(value)
        repeats = sum(len(each) > 1 and each[-1] in "*+" and each[-2] != "\\" for each in pieces)
        if "".join(pieces) == value and repeats <= MAX_REPEATS:
            return re.compile(value)
    raise _NotUnderstoodError(
        f"{INFO} has the pattern {brief(value)}, which is not understood. Declare a "
        "[[rule]] for each parameter."
    )


def _dict(value: Any, where: str) -> dict[Any, Any]:
    if type(value) is not dict:
        raise InputInvalid(f"{where}: {INFO} holds {brief(value)} where it should have a dict.")
    return value


def _list(value: Any, where: str, allowance: Allowance) -> Sequence[Any]:
    if type(value) not in (list, tuple):
        raise InputInvalid(f"{where}: {INFO} holds {brief(value)} where it should have a list.")
    allowance.made(len(value), where)
    found: Sequence[Any] = value
    return found
