"""The logical digest of a distributed state: one number, equal in every layout.

It is the sum modulo 2^64 over all elements of weight * (bits + constant), computed on the device
that holds them, without a gather. Weights are by row and column (`digest_rows.py`); digests of
older checkpoints, which have no head, have them by tensor and logical index. The weight is odd, so
a change of a single element always changes the sum; swaps, shifts and losses change it with
probability 1 - 2^-25 or better. It guards against mistakes, not against an adversary.

Plain values of an optimizer (learning rates, betas, steps) count by parameter, as pieces of one
element.

Invariant: every element counts once: of equal boxes on several ranks only the first rank's counts,
these boxes cover each tensor exactly, and replicas that differ are an error.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from wattmesh.errors import CallHuman, InputInvalid
from wattmesh.reconfig.checkpoint import digest_host
from wattmesh.reconfig.checkpoint.digest_host import Place
from wattmesh.reconfig.checkpoint.digest_rows import RowSummer
from wattmesh.reconfig.launch.group import gather, gather_bytes
from wattmesh.reconfig.state import plain
from wattmesh.reconfig.state.boxes import LocalBox, boxes_of, signed_hash
from wattmesh.reconfig.universal.index import box as whole_box
from wattmesh.reconfig.universal.index.cover import prove_boxes
from wattmesh.reconfig.universal.logical import BY_ROWS, digest_of_values

CHUNK = 1 << 22
"""Elements per step on a device, which limits the extra memory to a few times 32 MiB.

An H100 does 3.5 G elements/s in chunks of 2^20 (each operator's launch takes longer than its work),
8.8 in chunks of 2^22, and no more in larger ones.
"""

Values = Mapping[str, Mapping[str, Any]]
"""JSON values by owner (a parameter), then by their own global names."""

_NO_VALUES: Values = MappingProxyType({})
_MASK = (1 << 64) - 1
_PRESENT = 0x632BE59BD9B4E019
# The multipliers of splitmix64 (Steele, Lea, Flood, OOPSLA 2014), as signed 64-bit numbers.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class DigestPiece:
    """One rank's report of one of its boxes."""

    box_id: int
    key_id: int
    tensor_id: int
    place: Place
    value: int


def logical_digest(
    tensors: Mapping[str, torch.Tensor],
    facts: str,
    values: Values = _NO_VALUES,
    head: str = BY_ROWS,
) -> str:
    """Digest the state of all ranks of the process group. A collective call.

    Args:
        tensors: this rank's tensors by global name.
        facts: text of the other state that is equal on every rank (position, extra state).
        values: this rank's JSON values by owner and name; equal owners have equal values.
        head: of the digest, which says how it is summed.

    Returns:
        The head and 16 hex digits, the same on every rank and in every layout of the same state.

    Raises:
        InputInvalid: on the rank whose tensor cannot be digested.
        CallHuman: see `combine`.
    """
    pieces = {**pieces_of(boxes_of(tensors), head), **pieces_of_values(values)}
    return combine(pieces, facts, values, head)


def pieces_of(boxes: Mapping[str, LocalBox], head: str = BY_ROWS) -> dict[str, DigestPiece]:
    """Digest this rank's pieces, by name, without communication."""
    by_index = partial(_sum_by_index, digest_host.Summer())
    summer = RowSummer().sum_of_box if head == BY_ROWS else by_index
    alike = sorted(boxes, key=lambda key: (digest_host.place_of(boxes[key]), key))
    found = {key: _piece(boxes[key], summer) for key in alike}
    return {key: found[key] for key in sorted(found)}


def pieces_of_values(values: Values) -> dict[str, DigestPiece]:
    """Digest JSON values, one piece per owner."""
    found = {}
    for owner in sorted(values):
        number = signed_hash(owner)
        value = _signed(digest_of_values(values[owner]) & _MASK)
        found[owner] = DigestPiece(number, number, number, ((), (), ()), value)
    return found


def combine(
    pieces: Mapping[str, DigestPiece],
    facts: str,
    values: Values = _NO_VALUES,
    head: str = BY_ROWS,
) -> str:
    """Add up every rank's pieces, each element once. A collective call.

    Args:
        pieces: this rank's, including those of `values`.
        facts: text that is equal on every rank.
        values: the plain values, for the message when ranks differ.
        head: of the digest that the pieces are part of.

    Raises:
        CallHuman: on every rank: ranks hold different values under one name, or the pieces of a
            tensor leave a gap or overlap.
    """
    told = [row for part in gather_bytes(_packed(pieces.values())) for row in _unpacked(part)]
    first, different = _first_of_each(told)
    if different:
        name = _name_of([key for key, each in pieces.items() if each.box_id in different])
        raise CallHuman(
            f"ranks hold different values under the name {name!r}{_differing(values, name)}: "
            "either replicas have drifted apart or two parts of the model share a name; nothing "
            "was written."
        )
    tensor_id, problem = _cover_problem(first)
    if problem:
        name = _name_of([key for key, each in pieces.items() if each.tensor_id == tensor_id])
        raise CallHuman(f"the pieces of {name}{problem} Nothing was written.")
    total = sum(each.value for each in first) + signed_hash(facts)
    return f"{head}{total & _MASK:016x}"


def _name_of(mine: Sequence[str]) -> str:
    """The name of a piece that only some ranks hold. A collective call."""
    return next((name for name in gather(mine[0] if mine else "") if name), "a tensor")


def _differing(values: Values, name: str) -> str:
    """Say which plain values of one owner differ between ranks. A collective call."""
    told = [each for each in gather(values.get(name, {})) if each]
    for key in told[0] if told else ():
        seen = [each.get(key) for each in told]
        other = next((each for each in seen if each != seen[0]), None)
        if other is not None:
            words = [repr(plain.decode(each, {})) for each in (seen[0], other)]
            return f" ({key.removeprefix(f'{name}.')} is {words[0]} and {words[1]})"
    return ""


def local_digest(tensors: Mapping[str, torch.Tensor], head: str = BY_ROWS) -> int:
    """Digest the whole tensors of one process; an oracle for tests and tools."""
    return sum(each.value for each in pieces_of(boxes_of(tensors), head).values()) & _MASK


def _piece(box: LocalBox, sum_of_box: Callable[[LocalBox], int]) -> DigestPiece:
    place = digest_host.place_of(box)
    value = _signed(sum_of_box(box))
    return DigestPiece(box.box_id, box.key_id, box.tensor_id, place, value)


def _sum_by_index(summer: digest_host.Summer, box: LocalBox) -> int:
    """Sum weight(index) * (bits + constant) over one box, modulo 2^64."""
    if box.local.device.type == "cpu":
        return summer.sum_of_box(box)
    return sum_on_device(box) & _MASK


def sum_on_device(box: LocalBox) -> int:
    """Sum by index with torch's operators, on the device of the box.

    It works in place and synchronizes with the host only at the end: on a GPU each operator on a
    chunk takes no longer than its launch.
    """
    local = box.local.contiguous()
    bits = local.view(_BITS[local.element_size()]).reshape(-1)
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start in range(0, bits.numel(), CHUNK):
        part = bits[start : start + CHUNK].to(torch.int64, copy=True)
        if local.element_size() == 8:
            # An odd weight times the top bit is the top bit for every index, so a swap of x and -x
            # would not show. After this one-to-one fold it also counts in the lower half.
            part ^= (part >> 32) & 0xFFFFFFFF
        weight = _logical_index(box, start, part.numel(), part.device)
        _mix(weight.mul_(_STEP).add_(box.tensor_id))
        weight |= 1
        part += _signed(_PRESENT)
        total += part.mul_(weight).sum()
    return _signed(int(total) & _MASK)


def _logical_index(box: LocalBox, start: int, count: int, device: torch.device) -> torch.Tensor:
    """Row-major indices in the whole tensor of the box's elements from `start` on."""
    within = torch.arange(start, start + count, dtype=torch.int64, device=device)
    *inner, outermost = _joined_dims(box) or [(1, 1, 0)]
    index, stride = torch.zeros_like(within) if inner else None, 1
    for size, whole, offset in inner:
        assert index is not None
        further = within // size
        index += within.sub_(further * size).add_(offset).mul_(stride)
        within, stride = further, stride * whole
    within.add_(outermost[2]).mul_(stride)
    return within if index is None else index.add_(within)


def _joined_dims(box: LocalBox) -> list[tuple[int, int, int]]:
    """(Size, size of the whole, offset) of each dim, innermost first.

    A dim that the box covers fully is merged with the next outer one. A shard by rows is then one
    dim, and no index has to be divided.
    """
    dims: list[tuple[int, int, int]] = []
    for size, whole, offset in zip(
        reversed(box.local.shape), reversed(box.whole), reversed(box.offset), strict=True
    ):
        inner = dims[-1][0] if dims and dims[-1][0] == dims[-1][1] else 0
        if inner:
            dims[-1] = (size * inner, whole * inner, offset * inner)
        else:
            dims.append((size, whole, offset))
    return dims


def _mix(value: torch.Tensor) -> None:
    """Apply splitmix64's finalizer in place; masks make the shifts logical."""
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        value ^= (value >> shift).bitwise_and_((1 << (64 - shift)) - 1)
        value *= factor
    value ^= (value >> 31).bitwise_and_((1 << 33) - 1)


def _signed(value: int) -> int:
    """Convert a 64-bit pattern to torch's signed integer."""
    return value - (1 << 64) if value >> 63 else value


def _packed(pieces: Collection[DigestPiece]) -> bytes:
    """Encode pieces: their number, the number of places and dims; the pieces; the places.

    A parameter and its slots have the same place, so places are few and each is sent once.
    """
    places = {each: number for number, each in enumerate({each.place for each in pieces})}
    rows = [
        (each.box_id, each.key_id, each.tensor_id, places[each.place], each.value)
        for each in pieces
    ]
    dims = max((len(whole) for _, whole, _ in places), default=0)
    table = np.zeros((len(places), 1 + 3 * dims), dtype=np.int64)
    for number, place in enumerate(places):
        count = len(place[0])
        table[number, 0] = count
        table[number, 1 : 1 + 3 * count] = [size for part in place for size in part]
    head = np.array([len(rows), len(places), dims], dtype=np.int64)
    return head.tobytes() + np.array(rows, dtype=np.int64).tobytes() + table.tobytes()


def _unpacked(data: bytes) -> Iterator[DigestPiece]:
    numbers = np.frombuffer(data, dtype=np.int64)
    count, known, dims = numbers[:3].tolist()
    rows = numbers[3 : 3 + 5 * count].reshape(count, 5).tolist()
    places: list[Place] = []
    for row in numbers[3 + 5 * count :].reshape(known, 1 + 3 * dims).tolist():
        size = row[0]
        shape, whole, offset = (tuple(row[1 + at * size : 1 + (at + 1) * size]) for at in range(3))
        places.append((shape, whole, offset))
    for box_id, key_id, tensor_id, place, value in rows:
        yield DigestPiece(box_id, key_id, tensor_id, places[place], value)


def _first_of_each(pieces: Iterable[DigestPiece]) -> tuple[list[DigestPiece], set[int]]:
    """Keep the first piece of every box; return boxes that differ from another's."""
    seen: dict[int, DigestPiece] = {}
    tensor_of: dict[int, int] = {}
    different = set()
    for piece in pieces:
        same_tensor = tensor_of.setdefault(piece.key_id, piece.tensor_id) == piece.tensor_id
        if seen.setdefault(piece.box_id, piece) != piece or not same_tensor:
            different.add(piece.box_id)
    return list(seen.values()), different


def _cover_problem(pieces: Iterable[DigestPiece]) -> tuple[int, str]:
    """Find a tensor that the pieces do not cover exactly; (0, "") for none."""
    places_of: dict[int, set[Place]] = {}
    for piece in pieces:
        places_of.setdefault(piece.tensor_id, set()).add(piece.place)
    # A parameter's slots are sharded like it: one proof serves all.
    tensors_of = {frozenset(places): tensor for tensor, places in places_of.items()}
    for places, tensor in tensors_of.items():
        try:
            whole = next(iter(places))[1]
            cut = [whole_box.Box(offset, shape) for shape, _, offset in places]
            prove_boxes("", whole, cut)
        except InputInvalid as error:
            return tensor, str(error)
    return 0, ""
