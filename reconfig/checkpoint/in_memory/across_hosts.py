"""Carries what ranks need of a staged copy from the hosts that hold it, point to point.

The hosts take turns: in turn k each host asks the k-th one after it, its i-th rank the i-th there.
So a rank receives from one rank at a time, and the bytes of a switch load every host alike. Parts
go straight from the mapped area into the new tensor where both are contiguous, else through
buffers.

Invariant: the ranks post messages in one order (turn, then number), and none waits for a message
before it has posted its own of the same number, so no rank waits in a circle; a rank holds at most
`BUFFERS` messages of `MESSAGE` bytes for each rank that it answers in a turn, and as many for what
it receives.
"""

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.checkpoint.in_memory.host_memory import MappedFiles
from wattmesh.reconfig.checkpoint.in_memory.staged import as_box, spanned
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.state.boxes import LocalBox
from wattmesh.reconfig.state.memory import boxes_within, narrow
from wattmesh.reconfig.universal.folder import Checkpoint
from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.index.index import Index
from wattmesh.reconfig.universal.index.names import HOOK
from wattmesh.reconfig.universal.index.planner import Planner

MESSAGE = 4 << 20
"""Most bytes of a message."""

ALONE = 2 << 20
"""A part of at least so many bytes is a message of its own, which needs no copy if contiguous."""

BUFFERS = 8
"""Messages in flight between two ranks, and so buffers."""

ALIGNED = 8
"""Parts begin at multiples of so many bytes in a message: the largest element."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Elements in a data file.

    Attributes:
        file: its number in the index's files.
        offset: byte of the first element.
        size: bytes of an element.
        shape, strides: of the part, in elements.
    """

    file: int
    offset: int
    size: int
    shape: Shape
    strides: Shape

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return Box.whole(self.shape).count * self.size


@dataclass(frozen=True, slots=True)
class WantedPart:
    """A part that another host holds, and the memory that it belongs in."""

    stored: StoredPart
    out: torch.Tensor


@dataclass(frozen=True, slots=True)
class HostTurn:
    """One rank's part in a turn.

    Attributes:
        host: which it asks.
        asks: rank of the group that answers for that host.
        answers: ranks of the group that ask this one.
    """

    host: str
    asks: int
    answers: tuple[int, ...]


def turns_of(hosts: Sequence[str], rank: int) -> list[HostTurn]:
    """Return a rank's turns. `hosts`: of all ranks of the group, in group order. Pure."""
    ranks_on: dict[str, list[int]] = {}
    for each, host in enumerate(hosts):
        ranks_on.setdefault(host, []).append(each)
    names = list(ranks_on)
    here = names.index(hosts[rank])
    beside = ranks_on[hosts[rank]]
    place = beside.index(rank)
    found = []
    for turn in range(1, len(names)):
        asked = names[(here + turn) % len(names)]
        asking = ranks_on[names[here - turn]]
        found.append(
            HostTurn(
                host=asked,
                asks=ranks_on[asked][place % len(ranks_on[asked])],
                answers=tuple(asking[place :: len(beside)]),
            )
        )
    return found


def wanted_parts(
    index: Index, held: Mapping[str, LocalBox], away: Mapping[str, str]
) -> dict[str, list[WantedPart]]:
    """Find what boxes need of other hosts, by host, in parts of at most `MESSAGE` bytes.

    `away`: the host of each file that is not here.

    Raises:
        CheckpointDamaged: the index does not cover a box.
    """
    planner, found = Planner(index), dict[str, list[WantedPart]]()
    for box in held.values():
        local = box.local.detach()
        row, size = index.row_of(*HOOK.entry_key(box.key)), local.element_size()
        for piece in planner.pieces(row, Box(box.offset, tuple(local.shape))):
            host = away.get(index.files[piece.file])
            if host is None:
                continue
            at = tuple(a - b for a, b in zip(piece.box.start, box.offset, strict=True))
            for cut in boxes_within(piece.box.shape, size, MESSAGE):
                skipped = sum(a * b for a, b in zip(cut.start, piece.strides, strict=True))
                start = tuple(a + b for a, b in zip(at, cut.start, strict=True))
                stored = StoredPart(
                    file=piece.file,
                    offset=piece.offset + skipped * size,
                    size=size,
                    shape=cut.shape,
                    strides=piece.strides,
                )
                out = narrow(local, Box(start, cut.shape))
                found.setdefault(host, []).append(WantedPart(stored, out))
    return found


def messages(parts: Sequence[StoredPart]) -> Iterator[slice]:
    """Divide parts, in their order, into messages; the same on both sides. Pure."""
    first, filled = 0, 0
    for number, each in enumerate(parts):
        large = each.nbytes >= ALONE
        if number > first and (large or filled + each.nbytes > MESSAGE):
            yield slice(first, number)
            first, filled = number, 0
        if large:
            yield slice(number, number + 1)
            first, filled = number + 1, 0
        else:
            filled += each.nbytes + -each.nbytes % ALIGNED
    if first < len(parts):
        yield slice(first, len(parts))


def encoded(parts: Sequence[StoredPart]) -> NDArray[np.int64]:
    """Encode parts as numbers, for `decoded`."""
    rows = [[p.file, p.offset, p.size, len(p.shape), *p.shape, *p.strides] for p in parts]
    return np.array([number for row in rows for number in row], dtype=np.int64)


def decoded(numbers: NDArray[np.int64]) -> list[StoredPart]:
    """Decode `encoded`."""
    found, told, at = [], numbers.tolist(), 0
    while at < len(told):
        file, offset, size, dims = told[at : at + 4]
        begin, at = at + 4, at + 4 + 2 * dims
        shape, strides = told[begin : begin + dims], told[begin + dims : at]
        found.append(StoredPart(file, offset, size, tuple(shape), tuple(strides)))
    return found


def fetch(
    checkpoint: Checkpoint,
    held: Mapping[str, LocalBox],
    mapped: MappedFiles,
    hosts: Sequence[str],
) -> None:
    """Fill the parts of this rank's boxes that other hosts hold. A collective call.

    Args:
        checkpoint: the staged one.
        held: this rank's boxes; what this host holds of them is left as it is.
        mapped: what this host holds.
        hosts: of all ranks of the group, in group order.

    Raises:
        CheckpointDamaged: on every rank: a host that holds a part has no rank here, or a part is
            not in the memory that should have it.
        RuntimeError: a rank was lost.
    """
    index, problem = checkpoint.index, ""
    turns = turns_of(hosts, dist.get_rank())
    wanted: dict[str, list[WantedPart]] = {}
    try:
        wanted = wanted_parts(index, held, mapped.away)
        problem = next((_unreachable(host) for host in wanted.keys() - set(hosts)), "")
    except CheckpointDamaged as error:
        problem = str(error)
    _agree(problem)
    lists = [wanted.get(turn.host, []) for turn in turns]
    asked = _requests(turns, lists)
    sources: dict[int, list[_Source]] = {}
    try:
        for rank, parts in asked.items():
            sources[rank] = [_source(index, mapped, each) for each in parts]
    except CheckpointDamaged as error:
        problem = str(error)
    _agree(problem)
    on_gpu = any(part.out.device.type == "cuda" for parts in lists for part in parts)
    buffers = _Buffers(pinned=on_gpu)
    with warnings.catch_warnings():
        # Other ranks' memory cannot be written through its mapping, and is only sent.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        for turn, mine in zip(turns, lists, strict=True):
            inbound = [mine[at] for at in messages([part.stored for part in mine])]
            outbound = {
                rank: [sources[rank][at] for at in messages(asked[rank])] for rank in turn.answers
            }
            _take(turn, inbound, outbound, buffers)


def _take(
    turn: HostTurn,
    inbound: Sequence[Sequence[WantedPart]],
    outbound: Mapping[int, Sequence[Sequence["_Source"]]],
    buffers: "_Buffers",
) -> None:
    """Take one turn: receive and send its messages, a few of them at a time."""
    flying: deque[list[Landing]] = deque()
    for number in range(max(len(inbound), *map(len, outbound.values()), 0)):
        if len(flying) >= BUFFERS:
            _land(flying.popleft())
        slot, posted = number % BUFFERS, list[Landing]()
        if number < len(inbound):
            posted.append(_receive(turn.asks, inbound[number], buffers.of(None, slot)))
        for place, (rank, sent) in enumerate(outbound.items()):
            if number < len(sent):
                posted.append(_send(rank, sent[number], buffers.of(place, slot)))
        flying.append(posted)
    while flying:
        _land(flying.popleft())


Landing = Callable[[], object]
"""Waits for a message, and puts what it brought in its place."""

TakeBuffer = Callable[[int], torch.Tensor]
"""Takes so many bytes of a buffer."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A part that this rank sends, and its elements in the mapped area."""

    stored: StoredPart
    elements: NDArray[np.generic]


class _Buffers:
    """Memory for messages, reserved when it is first needed and used again in every turn."""

    def __init__(self, *, pinned: bool) -> None:
        """Receive into pinned memory where parts go on to a GPU."""
        self._pinned = pinned
        self._held: dict[tuple[int | None, int], torch.Tensor] = {}

    def of(self, answer: int | None, slot: int) -> TakeBuffer:
        """Return how to take bytes for a message to the rank of that number; None: to here."""
        return partial(self._take, answer, slot)

    def _take(self, answer: int | None, slot: int, nbytes: int) -> torch.Tensor:
        key = answer, slot
        if key not in self._held:
            pinned = self._pinned and answer is None
            self._held[key] = torch.empty(MESSAGE, dtype=torch.uint8, pin_memory=pinned)
        return self._held[key][:nbytes]


def _agree(problem: str) -> None:
    told = group.agree_on_problem(problem)
    if told:
        raise CheckpointDamaged(told)


def _unreachable(host: str) -> str:
    return f"a part is in the memory of host {host.partition(' ')[0]}, which takes no part any more"


def _requests(
    turns: Sequence[HostTurn], lists: Sequence[Sequence[WantedPart]]
) -> dict[int, list[StoredPart]]:
    """Send each rank that this one asks what is wanted; return what others want of it, by rank."""
    asking = [rank for turn in turns for rank in turn.answers]
    sizes = {rank: torch.zeros(1, dtype=torch.int64) for rank in asking}
    arrivals = [_begun(dist.irecv(sizes[rank], src=rank)) for rank in asking]
    sent: list[Landing] = []
    for turn, parts in zip(turns, lists, strict=True):
        numbers = torch.from_numpy(encoded([part.stored for part in parts]))
        sent.append(_begun(dist.isend(torch.tensor([len(numbers)]), dst=turn.asks)))
        if len(numbers):
            sent.append(_begun(dist.isend(numbers, dst=turn.asks)))
    _land(arrivals)
    told = {rank: torch.empty(int(sizes[rank]), dtype=torch.int64) for rank in asking}
    _land([_begun(dist.irecv(told[rank], src=rank)) for rank in asking if len(told[rank])])
    _land(sent)
    return {rank: decoded(told[rank].numpy()) for rank in asking}


def _source(index: Index, mapped: MappedFiles, part: StoredPart) -> _Source:
    """Find a part in the mapped area.

    Raises:
        CheckpointDamaged: it is not there.
    """
    nbytes = spanned(part.shape, part.strides, part.size)
    stored = mapped.part(index.files[part.file], part.offset, nbytes)
    return _Source(part, as_box(stored.view(_VIEWS[part.size]), part.shape, part.strides))


_VIEWS = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}


def _send(rank: int, parts: Sequence[_Source], buffer: TakeBuffer) -> Landing:
    """Begin to send a message."""
    if len(parts) == 1 and parts[0].elements.flags.c_contiguous:
        whole = torch.from_numpy(parts[0].elements.reshape(-1).view(np.uint8))
    else:
        places = _places([part.stored for part in parts])
        whole = buffer(places[-1])
        room = whole.numpy()
        for part, at in zip(parts, places[:-1], strict=True):
            to = room[at : at + part.stored.nbytes].view(part.elements.dtype)
            np.copyto(to.reshape(part.stored.shape), part.elements)
    return _begun(dist.isend(whole, dst=rank))


def _receive(rank: int, parts: Sequence[WantedPart], buffer: TakeBuffer) -> Landing:
    """Begin to receive a message."""
    out = parts[0].out
    if len(parts) == 1 and out.device.type == "cpu" and out.is_contiguous():
        # Not view(-1): what has one element is contiguous whatever its stride, which stays then.
        flat = out.as_strided((out.numel(),), (1,)).view(torch.uint8)
        return _begun(dist.irecv(flat, src=rank))
    places = _places([part.stored for part in parts])
    whole = buffer(places[-1])
    arrive = _begun(dist.irecv(whole, src=rank))

    def land() -> None:
        arrive()
        for part, at in zip(parts, places[:-1], strict=True):
            flat = whole[at : at + part.stored.nbytes].view(part.out.dtype)
            part.out.copy_(flat.view(part.out.shape))

    return land


def _begun(work: dist.Work | None) -> Landing:
    """Return how to wait for a message; until then it holds its memory."""
    assert work is not None  # only a rank outside of the group has none
    return work.wait


def _land(posted: Sequence[Landing]) -> None:
    for each in posted:
        each()


def _places(parts: Sequence[StoredPart]) -> list[int]:
    """Where each part begins in a message, and where the last one ends.

    Nothing follows the last one: alone it is sent and received in place on either side.
    """
    found, end = list[int](), 0
    for each in parts:
        found.append(end + -end % ALIGNED)
        end = found[-1] + each.nbytes
    return [*found, end]
