"""Boxes of a staged copy that other hosts hold: who asks whom, in what messages, and what arrives.

Ranks of one machine play hosts here: each maps the areas of its own host alone.
"""

import itertools
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import FileStore

from tests.hook.harness import Zygote
from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.checkpoint import direct
from wattmesh.reconfig.checkpoint.dcp_storage.merge import index_of
from wattmesh.reconfig.checkpoint.in_memory import across_hosts, host_memory, staged
from wattmesh.reconfig.checkpoint.in_memory.across_hosts import (
    ALIGNED,
    StoredPart,
    decoded,
    encoded,
    fetch,
    messages,
    turns_of,
)
from wattmesh.reconfig.checkpoint.in_memory.host_memory import HostMemory, MappedFiles
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.state.boxes import LocalBox
from wattmesh.reconfig.state.memory import narrow
from wattmesh.reconfig.universal.folder import (
    Checkpoint,
    CheckpointKind,
    DataFile,
    Manifest,
    open_sealed,
    seal,
)
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.names import HOOK

HOSTS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=9)


@given(hosts=HOSTS)
def test_every_rank_asks_every_other_host_once_and_is_answered(hosts: Sequence[str]) -> None:
    """In each turn the ranks that a rank answers are the ones that ask it."""
    every = [turns_of(hosts, rank) for rank in range(len(hosts))]
    for rank, turns in enumerate(every):
        assert sorted(turn.host for turn in turns) == sorted({*hosts} - {hosts[rank]})
        for number, turn in enumerate(turns):
            assert hosts[turn.asks] == turn.host
            asking = [each for each, own in enumerate(every) if own[number].asks == rank]
            assert sorted(turn.answers) == asking


@given(sizes=st.lists(st.integers(1, 60) | st.integers(1, 256), min_size=8, max_size=40))
def test_messages_hold_every_part_once_and_are_no_larger_than_a_buffer(sizes: list[int]) -> None:
    """In their order; a large part has a message of its own."""
    parts = [StoredPart(0, 0, 1, (size,), (1,)) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(across_hosts, "MESSAGE", 256)
        patch.setattr(across_hosts, "ALONE", 96)
        found = [parts[at] for at in messages(parts)]
    assert list(itertools.chain(*found)) == parts
    for message in found:
        assert sum(-(-part.nbytes // ALIGNED) * ALIGNED for part in message) <= 256
        assert len(message) == 1 or all(part.nbytes < 96 for part in message)


def test_what_a_rank_receives_at_once_is_32_mib_at_most() -> None:
    """As decision 78 says; a rank sends no more at once to each that it answers."""
    assert across_hosts.MESSAGE * across_hosts.BUFFERS == 32 << 20


@given(
    parts=st.lists(
        st.builds(
            lambda file, offset, size, dims: StoredPart(
                file, offset, size, tuple(n for n, _ in dims), tuple(s for _, s in dims)
            ),
            st.integers(0, 1 << 30),
            st.integers(0, 1 << 50),
            st.sampled_from([1, 2, 4, 8, 16]),
            st.lists(st.tuples(st.integers(1, 1 << 40), st.integers(0, 1 << 40)), max_size=5),
        )
    )
)
def test_parts_are_told_as_numbers(parts: list[StoredPart]) -> None:
    """Of any dims, none at all included."""
    assert decoded(encoded(parts)) == parts


def test_any_box_arrives_from_any_host(zygote: Zygote, tmp_path: Path) -> None:
    """Five ranks of three hosts, of which one had nothing to stage; no part is lost or mixed up."""
    launch = zygote.start(6, {"FOLDER": str(tmp_path)}, tmp_path, f"{__name__}:exchanging_rank")
    status = zygote.wait(launch)
    logs = "\n".join(each.read_text() for each in tmp_path.glob("rank-*.log"))
    assert status == 0, logs
    assert "not writable" not in logs
    told = [(tmp_path / f"told-{rank}").read_text() for rank in range(6)]
    assert all(int(each) > 120 for each in told), told


ON = ("one", "one", "two", "two", "two", "three")
STAGING = 5
"""The last rank, alone on its host, holds nothing yet."""

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.uint8, torch.bool)
ROUNDS = 25


def exchanging_rank() -> int:
    """Stage random boxes, fetch other ones, and compare them with the tensors they are of."""
    folder, rank = Path(os.environ["FOLDER"]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=FileStore(str(folder / "store"), len(ON)), rank=rank, world_size=len(ON)
    )
    memory, compared = HostMemory(), 0
    memory.here = f"{ON[rank]} boot"
    # Messages of a few parts, so that buffers are used again and again.
    across_hosts.MESSAGE, across_hosts.ALONE, across_hosts.BUFFERS = 64, 32, 2
    for number in range(ROUNDS):
        compared += _round(folder, rank, number, memory)
    _alone(folder, rank, memory)
    _refusals(folder, rank, memory)
    (folder / f"told-{rank}").write_text(str(compared))
    dist.barrier()
    dist.destroy_process_group()
    return 0


def _round(folder: Path, rank: int, number: int, memory: HostMemory) -> int:
    """One exchange; returns how many boxes it compared."""
    chance = random.Random(number)  # the same on every rank
    wholes = {f"model.t{each}": _tensor(chance) for each in range(8)}
    opened = _staged(folder / f".step-{number:08d}.attempt-1.staging", rank, wholes, chance, memory)
    mapped = memory.files(opened.folder)
    assert mapped is not None
    own = random.Random(1000 * number + rank)
    wanted = {
        key: LocalBox(
            key=key, whole=tuple(whole.shape), offset=box.start, local=_empty(whole, box, own)
        )
        for key, whole in wholes.items()
        if own.random() < 0.8
        for box in [_sub_box(tuple(whole.shape), own)]
    }
    direct.read(opened, wanted, mapped)
    fetch(opened, wanted, mapped, group.gather(memory.here))
    for key, box in wanted.items():
        expected = narrow(wholes[key], Box(box.offset, tuple(box.local.shape)))
        assert _bits(box.local) == _bits(expected), (number, key)
    return len(wanted)


def _alone(folder: Path, rank: int, memory: HostMemory) -> None:
    """A part of any size, alone in its message, in place on one side and gathered on the other."""
    chance = random.Random(3)
    wholes = {"model.t": torch.arange(81, dtype=torch.int16).view(9, 9)}
    opened = _staged(folder / ".step-00000998.attempt-1.staging", rank, wholes, chance, memory)
    mapped = memory.files(opened.folder)
    assert mapped is not None
    for place, apart in itertools.product(
        (Box((2, 3), (3, 3)), Box((4, 0), (1, 9)), Box((5, 1), (1, 1))), (1, 2)
    ):
        local = torch.zeros(18, dtype=torch.int16)[: apart * place.count : apart].view(place.shape)
        box = LocalBox(key="model.t", whole=(9, 9), offset=place.start, local=local)
        direct.read(opened, {"model.t": box}, mapped)
        fetch(opened, {"model.t": box}, mapped, group.gather(memory.here))
        assert torch.equal(local, narrow(wholes["model.t"], place)), (place, apart)


def _refusals(folder: Path, rank: int, memory: HostMemory) -> None:
    """What cannot be had is one sentence on every rank, and nobody hangs; the twin then loads."""
    chance = random.Random(7)
    wholes = {"model.t": torch.arange(600.0)}
    opened = _staged(folder / ".step-00000999.attempt-1.staging", rank, wholes, chance, memory)
    mapped = memory.files(opened.folder)
    assert mapped is not None
    hosts = group.gather(memory.here)

    def tried(mapped: MappedFiles, wanted: direct.Boxes) -> str:
        try:
            fetch(opened, wanted, mapped, hosts)
        except CheckpointDamaged as error:
            return str(error)
        return ""

    def box(size: int) -> dict[str, LocalBox]:
        local = torch.full((size,), -1.0)
        return {"model.t": LocalBox(key="model.t", whole=(600,), offset=(0,), local=local)}

    lost = MappedFiles(
        opened.folder, dict(mapped.items()), {**dict.fromkeys(mapped.away, "four k")}
    )
    assert "in the memory of host four, which takes no part" in tried(lost, box(600))
    none = MappedFiles(opened.folder, {}, mapped.away) if ON[rank] == "two" else mapped
    assert "has 0 bytes in shared memory" in tried(none, box(600))
    good = box(600)
    direct.read(opened, good, mapped)
    assert tried(mapped, good) == ""
    assert torch.equal(good["model.t"].local, wholes["model.t"])


def _tensor(chance: random.Random) -> torch.Tensor:
    """A tensor of up to three dims, of any dtype."""
    shape = [chance.randint(1, 9) for _ in range(chance.randint(0, 3))]
    generator = torch.Generator().manual_seed(chance.randint(0, 1 << 30))
    drawn = torch.randint(0, 250, shape, generator=generator)
    dtype = chance.choice(DTYPES)
    return drawn > 100 if dtype is torch.bool else drawn.to(dtype)


def _staged(
    folder: Path,
    rank: int,
    wholes: dict[str, torch.Tensor],
    chance: random.Random,
    memory: HostMemory,
) -> Checkpoint:
    """Cut the tensors, give each piece to a rank, or a whole to two, and stage this one's share."""
    held: dict[str, LocalBox] = {}
    for key, whole in wholes.items():
        cuts = _cut(tuple(whole.shape), chance)
        owners = chance.sample(range(STAGING), STAGING)
        for box, owner in zip(cuts if len(cuts) > 1 else 2 * cuts, owners, strict=False):
            if owner == rank:
                local, shape = narrow(whole, box), tuple(whole.shape)
                local = local.t().contiguous().t() if local.dim() == 2 and owner % 2 else local
                held[key] = LocalBox(key=key, whole=shape, offset=box.start, local=local)
    pieces = direct.pieces_of(held, direct.own_share(held))
    assert memory.reserve(staged.nbytes_of(pieces)), memory.refused
    every = group.gather(staged.write(memory, rank, pieces))
    if rank == 0:
        folder.mkdir()
        index = index_of([direct.part_of(*each) for each in enumerate(every)], HOOK, Declared())
        data = {name: DataFile(**f) for told in every for name, f in told["files"].items()}
        about = Manifest(kind=CheckpointKind.PHYSICAL, data=data)
        seal(folder, about, index, {"header": {}}, sync=False)
        host_memory.note(folder, every, sync=True)
    dist.barrier()
    return open_sealed(folder)


def _cut(shape: tuple[int, ...], chance: random.Random) -> list[Box]:
    """Cut a shape along one dim, in at most as many boxes as ranks stage."""
    if not shape or chance.random() < 0.2:
        return [Box.whole(shape)]
    dim = chance.randrange(len(shape))
    inner = range(1, shape[dim])
    ends = sorted(chance.sample(inner, min(len(inner), chance.randint(0, STAGING - 1))))
    return [
        Box(
            tuple(begin if each == dim else 0 for each in range(len(shape))),
            tuple(end - begin if each == dim else size for each, size in enumerate(shape)),
        )
        for begin, end in itertools.pairwise([0, *ends, shape[dim]])
    ]


def _sub_box(shape: tuple[int, ...], chance: random.Random) -> Box:
    start = tuple(chance.randrange(size) for size in shape)
    return Box(start, tuple(chance.randint(1, n - at) for n, at in zip(shape, start, strict=True)))


def _empty(whole: torch.Tensor, box: Box, chance: random.Random) -> torch.Tensor:
    """Memory for a box, by rows or by columns, or as a part of a larger tensor."""
    if len(box.shape) == 2 and chance.random() < 0.4:
        return torch.zeros(box.shape[::-1], dtype=whole.dtype).t()
    if box.shape and chance.random() < 0.3:
        return torch.zeros((*box.shape[:-1], box.shape[-1] + 3), dtype=whole.dtype)[..., :-3]
    return torch.zeros(box.shape, dtype=whole.dtype)


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
