"""The staged copy in shared memory: what a rank maps, copies, checks and writes to the disk."""

import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.checkpoint import direct
from wattmesh.reconfig.checkpoint.checkpoint import load, save, settle
from wattmesh.reconfig.checkpoint.dcp_storage.files import TensorPiece, write_files
from wattmesh.reconfig.checkpoint.digest import logical_digest
from wattmesh.reconfig.checkpoint.header import Header, header_of
from wattmesh.reconfig.checkpoint.in_memory import staged
from wattmesh.reconfig.checkpoint.in_memory.host_memory import MEMORY, HostMemory, MappedFiles
from wattmesh.reconfig.checkpoint.in_memory.shared_memory import AreaName, PeerAreas, StagingArea
from wattmesh.reconfig.checkpoint.in_memory.staged import MappedReader
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state import copiers
from wattmesh.reconfig.state.memory import as_array
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.state.tensors import name_all, name_to_fill
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.folder import open_sealed
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.index.index import Segment, TensorEntry, build

PAGE = 4096


def test_an_area_is_seen_by_whoever_maps_it_and_keeps_its_pages() -> None:
    """What is written later is seen too; within a factor of two the size stays, beyond it not."""
    area, peers = StagingArea(), PeerAreas()
    area.reserve(3 * PAGE)[:] = 7
    mapped = peers.map(area.name)
    assert (mapped == 7).all()
    area.reserve(2 * PAGE)[0] = 9
    assert (mapped[0], area.nbytes) == (9, 3 * PAGE)
    assert not mapped.flags.writeable
    area.reserve(PAGE)
    assert area.nbytes == PAGE
    area.reserve(5 * PAGE)
    assert (area.nbytes, len(peers.map(area.name))) == (5 * PAGE, 5 * PAGE)
    assert peers.map(area.name)[0] == 9


def test_areas_that_are_not_named_any_more_are_unmapped() -> None:
    """Or the memory of a rank that left would stay, for as long as its peers train."""
    areas, peers = (StagingArea(), StagingArea()), PeerAreas()
    for each in areas:
        each.reserve(PAGE)
        peers.map(each.name)
    names = [each.name for each in areas]
    for each in areas:
        each.release()  # its own mapping goes with its bytes
    assert [_is_mapped(each.inode) for each in names] == [True, True]
    peers.keep_only(names[1:])
    assert [_is_mapped(each.inode) for each in names] == [False, True]


def _is_mapped(inode: int) -> bool:
    """Whether this process maps a file of that inode which is a staging area."""
    lines = Path("/proc/self/maps").read_text("ascii").splitlines()
    return any("wattmesh-staging" in line and line.split()[4] == str(inode) for line in lines)


def test_ranks_of_a_host_share_its_files_among_them() -> None:
    """By their place among the ranks of that host alone."""
    memory = HostMemory()
    memory.hosts = (memory.here, "away", memory.here, "away", memory.here)
    assert [memory.share_of_host(rank) for rank in (0, 2, 4)] == [(0, 3), (1, 3), (2, 3)]


def test_another_descriptor_of_that_number_is_not_taken_for_the_area(tmp_path: Path) -> None:
    """Numbers of processes and descriptors are used again; the memfd's inode tells."""
    area = StagingArea()
    area.reserve(PAGE)
    name = area.name
    with (tmp_path / "other").open("wb") as other:
        other.truncate(PAGE)
        area.release()
        os.dup2(other.fileno(), name.descriptor)
        with pytest.raises(CheckpointDamaged, match="is not the staging area"):
            PeerAreas().map(name)
        os.close(name.descriptor)
    with pytest.raises(CheckpointDamaged, match="cannot be opened"):
        PeerAreas().map(name)
    area.reserve(PAGE)
    with pytest.raises(CheckpointDamaged, match="is not the staging area"):
        PeerAreas().map(replace(area.name, nbytes=PAGE + 1))


def test_nothing_is_left_of_a_killed_process() -> None:
    """Its area goes with it: no file in /dev/shm or elsewhere names it, and nobody can map it."""
    before = sorted(os.listdir("/dev/shm"))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        area = StagingArea()
        area.reserve(PAGE)
        os.write(write, f"{area.name.descriptor} {area.name.device} {area.name.inode}".encode())
        signal.pause()
    descriptor, device, inode = map(int, os.read(read, 100).split())
    name = AreaName(pid=pid, descriptor=descriptor, device=device, inode=inode, nbytes=PAGE)
    assert len(PeerAreas().map(name)) == PAGE
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with pytest.raises(CheckpointDamaged, match=f"of process {pid} cannot be opened"):
        PeerAreas().map(name)
    assert sorted(os.listdir("/dev/shm")) == before


def pieces(tensors: dict[str, torch.Tensor]) -> list[TensorPiece]:
    """Whole tensors as pieces."""
    return [
        TensorPiece(
            fqn=f"model.{name}",
            key=(name, "param"),
            dtype=str(each.dtype)[6:],
            whole=tuple(each.shape),
            box=Box.whole(tuple(each.shape)),
            local=each,
        )
        for name, each in tensors.items()
    ]


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.uint8)


@settings(max_examples=40)
@given(data=st.data())
def test_every_box_is_copied_as_the_files_would_give_it(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Bytes, digests and places equal those of data files; any box is read bit for bit."""
    chance = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    shapes = st.lists(st.integers(1, 6), max_size=3)
    tensors = {
        f"t{number}": torch.randint(0, 250, data.draw(shapes), generator=chance).to(
            data.draw(st.sampled_from(DTYPES))
        )
        for number in range(3)
    }
    tensors["turned"] = torch.rand(5, 7, generator=chance).t()
    memory, folder = HostMemory(), tmp_path_factory.mktemp("files")
    area, cut = memory.area, pieces(tensors)
    area.reserve(staged.nbytes_of(cut))
    told = staged.write(memory, 0, cut)
    files, placed = write_files(folder, 0, cut, durable=False)
    (name,) = files
    assert told["files"][name]["size"] == files[name].size
    mapped = MappedFiles(folder, {name: PeerAreas().map(area.name)[: files[name].size]})
    assert bytes(mapped.part(name, 0, files[name].size)) == (folder / name).read_bytes()
    entries = [TensorEntry(name=p.key[0], state="param", dtype=p.dtype, shape=p.whole) for p in cut]
    index = build(
        entries,
        [
            Segment(entry=(p.fqn[6:], "param"), file=p.file, offset=p.offset, box=p.box)
            for p in placed
        ],
    )
    with Files(folder) as opened:
        for row, entry in enumerate(index.entries):
            ends = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in entry.shape]
            box = Box(tuple(a for a, _ in ends), tuple(b - a for a, b in ends))
            if box.count == 0:
                continue
            outs = [as_array(torch.empty(box.shape, dtype=tensors[entry.name].dtype)) for _ in "ab"]
            MappedReader(index, opened, mapped).read_into(row, box, outs[0])
            Reader(index, opened).read_into(row, box, outs[1])
            assert outs[0].tobytes() == outs[1].tobytes()
    for offset in (1, -1):
        with pytest.raises(CheckpointDamaged, match="were expected"):
            mapped.part(name, offset, files[name].size)


def built(seed: int) -> State:
    """A model with an optimizer that has begun."""
    torch.manual_seed(seed)
    net = torch.nn.Linear(40, 30)
    state = State(modules=[net], optimizers=[torch.optim.AdamW(net.parameters())])
    torch.autograd.backward(net(torch.ones(2, 40)).sum())
    state.optimizers[0].step()
    state.optimizers[0].zero_grad()
    return state


def digest(state: State) -> str:
    """Of the tensors."""
    return logical_digest(name_all(state).tensors, "")


def saved(folder: RunFolder, state: State, memory: HostMemory) -> Path:
    """Stage a checkpoint of one rank in memory."""
    header: Header = header_of(
        run="r",
        attempt=1,
        position=Position(step=3),
        layout=Layout(),
        ranks=(0,),
        digest=digest(state),
    )
    return save(folder, name_all(state), state, header, lambda: None, staged=True, memory=memory)


@pytest.mark.usefixtures("one_rank")
def test_a_staged_copy_is_loaded_and_then_made_durable(tmp_path: Path) -> None:
    """Before that no data lies on the disk; afterwards the folder is like any other."""
    folder, memory = RunFolder(tmp_path), HostMemory()
    first, second, third = built(1), built(2), built(3)
    path = saved(folder, first, memory)
    assert memory.refused == ""
    assert not list(path.glob("data-*"))
    load(path, name_to_fill(second), second, memory=memory)
    settle(folder, path, memory, step=3, attempt=1, fence=lambda: None)
    assert not path.exists()
    load(folder.checkpoint(3), name_to_fill(third), third)
    assert digest(first) == digest(second) == digest(third)
    assert not (folder.checkpoint(3) / MEMORY).exists()


@pytest.mark.usefixtures("one_rank")
def test_a_changed_byte_of_the_copy_never_becomes_a_checkpoint(tmp_path: Path) -> None:
    """The sabotaged twin: digests are the tensors' own, so the disk's bytes do not fit them."""
    folder, memory = RunFolder(tmp_path), HostMemory()
    path = saved(folder, built(1), memory)
    memory.area.reserve(memory.area.nbytes)[PAGE + 5] ^= 1
    mapped = memory.files(path)
    assert mapped is not None
    with pytest.raises(CheckpointDamaged, match=r"data-0-0.safetensors has changed: \S+ \(param\)"):
        staged.damage(open_sealed(path), mapped)
    with pytest.raises(CheckpointDamaged, match=r"data-0-0\.safetensors has changed"):
        settle(folder, path, memory, step=3, attempt=1, fence=lambda: None)
    assert folder.checkpoints() == []


class Table:
    """An extra state with a tensor in it."""

    def __init__(self) -> None:
        """Fill it."""
        self.rows = torch.arange(6.0)

    def state_dict(self) -> dict[str, Any]:
        """Give it."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it back."""
        self.rows = state_dict["rows"]


@pytest.mark.usefixtures("one_rank")
def test_what_other_hosts_read_as_files_is_compared_too(tmp_path: Path) -> None:
    """Tensors inside of values lie in a file beside; a changed byte there keeps it nameless."""
    folder, memory, state = RunFolder(tmp_path), HostMemory(), built(1)
    memory.spans_hosts = True
    state.extra["table"] = Table()
    path = saved(folder, state, memory)
    (beside,) = path.glob("data-*")
    whole = beside.read_bytes()
    beside.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointDamaged, match=rf"{beside.name} has changed"):
        settle(folder, path, memory, step=3, attempt=1, fence=lambda: None)
    assert folder.checkpoints() == []


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("spans_hosts", [False, True])
def test_files_that_other_hosts_read_are_on_the_disk_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, spans_hosts: bool
) -> None:
    """Where there is no shared memory; on one host the page cache will do."""

    def none(*_: object) -> int:
        raise OSError("no memfd")

    synced = set[str]()

    def noted(fd: int) -> None:
        synced.add(Path(f"/proc/self/fd/{fd}").readlink().name)

    monkeypatch.setattr(os, "memfd_create", none)
    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "fdatasync", noted)
    memory = HostMemory()
    memory.spans_hosts = spans_hosts
    path = saved(RunFolder(tmp_path), built(1), memory)
    assert "no memfd" in memory.refused
    names = {each.name for each in path.iterdir()}
    assert names & synced == (names if spans_hosts else set())


@pytest.mark.usefixtures("one_rank")
def test_memory_that_cannot_be_had_is_a_sentence() -> None:
    """The copy then lies in files, and what could not be reserved ends no process."""
    memory = HostMemory()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE * 4, hard))
    try:
        assert not memory.reserve(PAGE * 5)
        assert "of shared memory cannot be had" in memory.refused
        assert memory.area.nbytes == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert memory.reserve(PAGE * 5)
    assert memory.refused == ""
    assert np.count_nonzero(memory.area.reserve(PAGE * 5)) == 0


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gather", lambda own: [own, ["9 MB cannot be had", {}, ""]]),
        ("agree_on_problem", lambda _: "9 MB cannot be had"),
    ],
    ids=["has no memory", "cannot map"],
)
def test_what_another_rank_lacks_is_lacked_by_all(
    monkeypatch: pytest.MonkeyPatch, name: str, told: Callable[[Any], Any]
) -> None:
    """No rank keeps an area that nobody will read; all say the one reason."""
    memory = HostMemory()
    monkeypatch.setattr(group, name, told)
    assert not memory.reserve(PAGE)
    assert (memory.refused, memory.area.nbytes) == ("9 MB cannot be had", 0)


@pytest.mark.usefixtures("one_rank")
def test_what_is_read_back_comes_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block is synced and then let go of by the page cache, which else would answer."""
    folder, memory = RunFolder(tmp_path), HostMemory()
    path = saved(folder, built(1), memory)
    files, called = memory.files(path), list[tuple[str, int]]()
    sync, advise = os.fdatasync, os.posix_fadvise

    def synced(fd: int) -> None:
        called.append(("sync", os.fstat(fd).st_size))
        sync(fd)

    def advised(fd: int, at: int, nbytes: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        called.append(("let go", min(at + nbytes, os.fstat(fd).st_size)))
        advise(fd, at, nbytes, advice)

    monkeypatch.setattr(os, "fdatasync", synced)
    monkeypatch.setattr(os, "posix_fadvise", advised)
    monkeypatch.setattr(staged, "WRITE", PAGE)
    assert files is not None
    staged.make_durable(path, files)
    ends = [end for _, data in files.items() for end in _block_ends(len(data))]
    assert called == [each for end in ends for each in (("sync", end), ("let go", end))]


def _block_ends(nbytes: int) -> list[int]:
    return [min(at + PAGE, nbytes) for at in range(0, nbytes, PAGE)]


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    "text", ["", "[]", '{"data-0-0.safetensors": {"at": 0}}', '{"a": {"area": 3}}']
)
def test_a_plan_that_is_damaged_is_a_sentence(tmp_path: Path, text: str) -> None:
    """It opens nothing, and one that is gone gives no name to a folder without files.

    Beside the files of a published checkpoint nobody looks at it.
    """
    folder, memory = RunFolder(tmp_path), HostMemory()
    path = saved(folder, built(1), memory)
    whole = (path / MEMORY).read_text()
    (path / MEMORY).write_text(text)
    with pytest.raises(CheckpointDamaged, match=r"memory\.json: "):
        memory.files(path)
    (path / MEMORY).unlink()
    with pytest.raises(CheckpointDamaged, match="cannot be read"):
        settle(folder, path, memory, step=3, attempt=1, fence=lambda: None)
    assert folder.checkpoints() == []
    (path / MEMORY).write_text(whole)
    settle(folder, path, memory, step=3, attempt=1, fence=lambda: None)
    (folder.checkpoint(3) / MEMORY).write_text(text)
    state = built(2)
    load(folder.checkpoint(3), name_to_fill(state), state, memory=memory)
    assert digest(state) == digest(built(1))


def test_a_copy_stored_by_columns_is_read_by_its_strides(tmp_path: Path) -> None:
    """As many bytes as a row-major one, in another order."""
    stored = np.arange(12, dtype=np.float32)
    index = build(
        [TensorEntry(name="w", state="param", dtype="float32", shape=(3, 4))],
        [
            Segment(
                entry=("w", "param"),
                file="f",
                offset=0,
                box=Box((0, 0), (3, 4)),
                strides=(1, 3),
            )
        ],
    )
    mapped, out = MappedFiles(tmp_path, {"f": stored.view(np.uint8)}), np.empty((3, 4), np.float32)
    with Files(tmp_path) as opened:
        MappedReader(index, opened, mapped).read_into(0, Box((0, 0), (3, 4)), out)
    assert out.tolist() == stored.reshape(4, 3).T.tolist()


@pytest.mark.usefixtures("one_rank")
def test_several_threads_stage_and_load_what_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces of 128 bytes in eight threads: the same bytes, places and digests."""
    first, folder = built(1), RunFolder(tmp_path)
    monkeypatch.setattr(staged, "PIECE_BYTES", 128)
    monkeypatch.setattr(direct, "PIECE_BYTES", 128)
    written = []
    for threads in (1, 8):
        monkeypatch.setattr(copiers, "count", lambda _, threads=threads: threads)
        memory, other = HostMemory(), built(2)  # which also seeds what is saved
        path = saved(folder, first, memory)
        load(path, name_to_fill(other), other, memory=memory)
        assert digest(other) == digest(first)
        segments, files = open_sealed(path).index.segments, memory.files(path)
        assert files is not None
        data = {name: bytes(each) for name, each in files.items()}
        assert segments.digest is not None
        written.append((len(segments), segments.digest.tobytes(), segments.offset.tolist(), data))
    assert written[0] == written[1]
    assert written[0][0] > 60


def test_a_worker_is_one_thread_s_and_results_keep_their_order() -> None:
    """The twin that gives one worker to all threads is seen; an error ends the rest."""

    class Worker:
        def __init__(self) -> None:
            self.at_work, self.met, self.done = 0, 0, 0

        def __call__(self, item: int) -> int:
            self.at_work += 1
            self.met = max(self.met, self.at_work)
            time.sleep(0.001)
            self.at_work -= 1
            self.done += 1
            if item == 70:
                raise OSError("the seventieth")
            return -item

    workers = [Worker() for _ in range(4)]
    assert copiers.in_turn(workers, range(60)) == [-item for item in range(60)]
    assert all(each.done and each.met == 1 for each in workers)
    shared = Worker()
    copiers.in_turn([shared] * 4, range(60))
    assert shared.met > 1
    with pytest.raises(OSError, match="the seventieth"):
        copiers.in_turn(workers, range(60, 5000))
    assert sum(each.done for each in workers) < 1000


def test_threads_are_the_rank_s_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never none; few for few bytes; without torchrun's word all ranks count as here."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    gigabytes = 8 << 30
    assert [copiers.count(nbytes) for nbytes in (0, 40 << 20, 70 << 20)] == [1, 1, 2]
    assert copiers.count(gigabytes) == 8
    for ranks, threads in ((1, 8), (8, 8), (16, 4), (32, 2), (100, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        assert copiers.count(gigabytes) == threads
