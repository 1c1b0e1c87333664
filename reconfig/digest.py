"""The logical digest: one number for a whole distributed state, equal in every layout.

It is a sum modulo 2^64 over all elements of weight(tensor, logical index) * (bits + constant),
read from device memory where the elements are, so it needs no gather. The weight is odd, so a
change of any one element changes the sum for certain; swaps, shifts and losses change it with
probability 1 - 2^-30 or better. It guards against mistakes, not against an adversary.

Invariant: every element counts once: of equal boxes on several ranks the first rank's counts, the
boxes that count cover each tensor exactly, and replicas that differ are an error.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from wattmesh.errors import CallHuman
from wattmesh.reconfig import digest_host
from wattmesh.reconfig.boxes import Box, boxes_of, signed_hash
from wattmesh.reconfig.group import gather

CHUNK = 1 << 20
"""Elements worked on at once: bounds the extra memory to a few times 8 MiB."""

_MASK = (1 << 64) - 1
_PRESENT = 0x632BE59BD9B4E019
# The multipliers of splitmix64 (Steele, Lea, Flood, OOPSLA 2014), as signed 64-bit numbers.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Piece:
    """What one rank says of one of its boxes."""

    box_id: int
    key_id: int
    tensor_id: int
    count: int
    whole_count: int
    value: int

    @property
    def row(self) -> tuple[int, ...]:
        """The numbers in their order, as they travel (`astuple` would copy each deeply)."""
        ids = (self.box_id, self.key_id, self.tensor_id)
        return (*ids, self.count, self.whole_count, self.value)


def logical_digest(tensors: Mapping[str, torch.Tensor], facts: str) -> str:
    """Digest the state of all ranks of the process group; a collective call.

    Args:
        tensors: this rank's tensors by global name.
        facts: what belongs to the state beside tensors and is equal on every rank (position).

    Returns:
        16 hex digits, the same on every rank and in every layout of the same state.

    Raises:
        InputInvalid: on the rank that holds a tensor which cannot be digested.
        CallHuman: see `combine`.
    """
    return combine(pieces_of(boxes_of(tensors)), facts)


def pieces_of(boxes: Mapping[str, Box]) -> dict[str, Piece]:
    """Digest this rank's pieces, by name; no communication."""
    summer = digest_host.Summer()
    alike = sorted(boxes, key=lambda key: (digest_host.place_of(boxes[key]), key))
    found = {key: _piece(boxes[key], summer) for key in alike}
    return {key: found[key] for key in sorted(found)}


def combine(pieces: Mapping[str, Piece], facts: str) -> str:
    """Add up every rank's pieces, each element once; a collective call.

    Raises:
        CallHuman: on every rank: ranks hold different values under one name, or the pieces of a
            tensor leave a gap or overlap.
    """
    mine = torch.tensor([each.row for each in pieces.values()], dtype=torch.int64).reshape(-1, 6)
    rows = torch.cat(gather_rows(mine))
    first, different = _first_of_each(rows)
    if different:
        names = [key for key, piece in pieces.items() if piece.box_id in different]
        told = next((name for name in gather(names[0] if names else "") if name), "a tensor")
        raise CallHuman(
            f"ranks hold different values under the name {told!r}: either replicas have drifted "
            "apart or two parts of the model share a name; nothing was written."
        )
    problem = _cover_problem(first)
    if problem:
        raise CallHuman(problem)
    total = int(first[:, 5].sum()) + signed_hash(facts)
    return f"{total & _MASK:016x}"


def local_digest(tensors: Mapping[str, torch.Tensor]) -> int:
    """Digest one process's whole tensors, as the oracle of tests and tools."""
    return sum(each.value for each in pieces_of(boxes_of(tensors)).values()) & _MASK


def _piece(box: Box, summer: digest_host.Summer) -> Piece:
    whole_count = 1
    for size in box.whole:
        whole_count *= size
    return Piece(
        box_id=box.box_id,
        key_id=box.key_id,
        tensor_id=box.tensor_id,
        count=box.local.numel(),
        whole_count=whole_count,
        value=_sum_of_box(box, summer),
    )


def _sum_of_box(box: Box, summer: digest_host.Summer) -> int:
    """Sum weight * (bits + constant) over the elements of one box, as a signed 64-bit number."""
    if box.local.device.type == "cpu":
        return _signed(summer.sum_of_box(box))
    return sum_on_device(box)


def sum_on_device(box: Box) -> int:
    """The same with torch's operators alone, which run wherever the box is."""
    local = box.local.contiguous()
    bits = local.view(_BITS[local.element_size()]).reshape(-1)
    total = 0
    for start in range(0, bits.numel(), CHUNK):
        part = bits[start : start + CHUNK].to(torch.int64)
        if local.element_size() == 8:
            # An odd weight times the top bit is the top bit, whatever the index: a swap of x and -x
            # would not show. Folded (one to one), it counts in the lower half too.
            part = part ^ ((part >> 32) & 0xFFFFFFFF)
        index = _logical_index(box, start, part.numel(), part.device)
        weight = _mix(index * _STEP + box.tensor_id) | 1
        total += int((weight * (part + _signed(_PRESENT))).sum())
    return _signed(total & _MASK)


def _logical_index(box: Box, start: int, count: int, device: torch.device) -> torch.Tensor:
    """Row-major index in the whole tensor of elements `start`.. of the box."""
    within = torch.arange(start, start + count, dtype=torch.int64, device=device)
    index = torch.zeros_like(within)
    stride = 1
    for size, whole, offset in zip(
        reversed(box.local.shape), reversed(box.whole), reversed(box.offset), strict=True
    ):
        index += (within % size + offset) * stride
        within //= size
        stride *= whole
    return index


def _mix(value: torch.Tensor) -> torch.Tensor:
    """Finish like splitmix64; the shifts are made logical by masking the sign bits."""
    value = (value ^ ((value >> 30) & ((1 << 34) - 1))) * _MIX_1
    value = (value ^ ((value >> 27) & ((1 << 37) - 1))) * _MIX_2
    return value ^ ((value >> 31) & ((1 << 33) - 1))


def _signed(value: int) -> int:
    """A 64-bit pattern as torch's signed integer."""
    return value - (1 << 64) if value >> 63 else value


def gather_rows(rows: torch.Tensor) -> list[torch.Tensor]:
    """Give every rank's rows, in group order; a collective call."""
    world = dist.get_world_size()
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(counts, torch.tensor([len(rows)], dtype=torch.int64))
    widest = int(max(int(count) for count in counts))
    padded = torch.zeros(widest, rows.shape[1], dtype=torch.int64)
    padded[: len(rows)] = rows
    parts = [torch.zeros_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    return [part[: int(count)] for part, count in zip(parts, counts, strict=True)]


def _first_of_each(rows: torch.Tensor) -> tuple[torch.Tensor, set[int]]:
    """Keep the first row of every box; list boxes that disagree with another of their name."""
    seen: dict[int, list[int]] = {}
    tensor_of: dict[int, int] = {}
    different = set()
    for row in rows.tolist():
        box_id, key_id, tensor_id = row[:3]
        same_tensor = tensor_of.setdefault(key_id, tensor_id) == tensor_id
        if seen.setdefault(box_id, row) != row or not same_tensor:
            different.add(box_id)
    kept = torch.tensor(list(seen.values()), dtype=torch.int64).reshape(-1, rows.shape[1])
    return kept, different


def _cover_problem(rows: torch.Tensor) -> str:
    """Say whether the boxes that count fail to cover their tensors exactly; "" when they do."""
    covered: dict[int, int] = {}
    whole: dict[int, int] = {}
    for _, _, tensor_id, count, whole_count, _ in rows.tolist():
        covered[tensor_id] = covered.get(tensor_id, 0) + count
        whole[tensor_id] = whole_count
    wrong = [each for each in whole if covered[each] != whole[each]]
    if not wrong:
        return ""
    return (
        f"{len(wrong)} tensors are not covered exactly by their pieces (the first: "
        f"{covered[wrong[0]]} of {whole[wrong[0]]} elements); nothing was written."
    )
