"""Physical checkpoints: plain safetensors files, equal bytes, or nothing at all."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from tests.universal import oracle
from tests.universal.sources import foreign
from wattmesh.errors import Fenced, InputInvalid
from wattmesh.reconfig.universal import record
from wattmesh.reconfig.universal.convert import worker
from wattmesh.reconfig.universal.convert.physical import write_physical
from wattmesh.reconfig.universal.convert.virtual import write_virtual
from wattmesh.reconfig.universal.folder import open_checkpoint
from wattmesh.reconfig.universal.index import data_header, dtypes
from wattmesh.reconfig.universal.index.arranging import arrange
from wattmesh.reconfig.universal.index.cover import prove
from wattmesh.reconfig.universal.index.index import TensorEntry, build
from wattmesh.reconfig.universal.sources.own import open_own
from wattmesh.reconfig.universal.sources.source import Source
from wattmesh.reconfig.universal.verify import verify


@pytest.fixture
def src(tmp_path: Path) -> Path:
    """Folder of a foreign checkpoint."""
    folder = tmp_path / "src"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(("jobs", "gentle"), [(1, False), (2, False), (1, True)])
def test_every_tensor_reads_back_equal(src: Path, tmp_path: Path, jobs: int, gentle: bool) -> None:
    """In this process or in others; without the source; verified from the start."""
    source, truth = foreign.write(src)
    told: list[int] = []
    write_physical(source, tmp_path / "uc", jobs=jobs, gentle=gentle, progress=told.append)
    shutil.rmtree(src)
    opened = open_checkpoint(tmp_path / "uc")
    assert foreign.same(foreign.read_all(tmp_path / "uc", opened.index), truth)
    assert opened.index.tied == {"zero.again": "zero"}
    assert opened.trainer["header"] == {"step": 7}
    assert record.is_verified(opened)
    assert sum(told) == source.index.nbytes
    assert verify(tmp_path / "uc").good
    assert {each.name for each in (tmp_path / "uc").iterdir()} == {
        *("COMMIT", "manifest.json", "index.json", "index.safetensors", "trainer.json"),
        "data-00000.safetensors",
    }


def test_data_files_are_plain_safetensors(src: Path, tmp_path: Path) -> None:
    """The library that others use opens them: names, dtypes, shapes, bytes, alignment."""
    source, truth = foreign.write(src)
    uc = write_physical(source, tmp_path / "uc", max_file_bytes=16 << 10)
    seen = {}
    for file in sorted(uc.glob("data-*.safetensors")):
        header = int.from_bytes(file.read_bytes()[:8], "little") + 8
        assert header % data_header.ALIGNMENT == 0
        with safe_open(file, "pt") as opened:
            for key in opened.keys():  # noqa: SIM118 - it is no mapping
                state, _, name = key.partition(":")
                seen[name, state] = opened.get_tensor(key)
    assert seen.keys() == truth.keys()
    for entry in source.index.entries:
        found = seen[entry.key]
        assert str(found.dtype) == f"torch.{entry.dtype}"
        assert tuple(found.shape) == entry.shape
        bits = found.contiguous().reshape(-1).view(torch.uint8)
        assert bits.numpy().tobytes() == truth[entry.key].tobytes()


def test_digests_are_of_the_bytes(src: Path, tmp_path: Path) -> None:
    """Each segment's digest is xxh3_128 of what lies in the file."""
    source, _ = foreign.write(src)
    opened = open_checkpoint(write_physical(source, tmp_path / "uc", jobs=2))
    segments = opened.index.segments
    assert segments.digest is not None
    for row in range(len(segments)):
        data = (tmp_path / "uc" / opened.index.files[int(segments.file[row])]).read_bytes()
        at = int(segments.offset[row])
        digest = xxhash.xxh3_128_digest(data[at : at + int(segments.nbytes[row])])
        assert segments.digest[row].astype(">i8").tobytes() == digest


SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)


@given(
    st.lists(st.tuples(SHAPES, st.sampled_from(sorted(dtypes.CODES))), max_size=12),
    st.integers(1, 30_000),
    st.integers(1, 64),
)
@settings(deadline=None, max_examples=150)
def test_arrangement_is_without_holes(
    tensors: list[tuple[tuple[int, ...], str]], max_file_bytes: int, segment_bytes: int
) -> None:
    """Header and segments account for every byte once; files keep the limit; elements align."""
    entries = [
        TensorEntry(name=f"t{at}", state="param", dtype=dtype, shape=shape)
        for at, (shape, dtype) in enumerate(tensors)
    ]
    plan = arrange(build(entries, []), max_file_bytes=max_file_bytes, segment_bytes=segment_bytes)
    prove(plan.index)
    segments = plan.index.segments
    for number, file in enumerate(plan.files):
        mine = np.flatnonzero(segments.file == number)
        order = mine[np.argsort(segments.offset[mine], kind="stable")]
        at = len(file.header)
        for row in order.tolist():
            assert segments.offset[row] == at
            size = dtypes.size_of(entries[int(segments.entry[row])].dtype)
            assert at % size == 0
            assert segments.nbytes[row] <= max(segment_bytes, size)
            at += int(segments.nbytes[row])
        assert at == file.size
        assert file.size <= max_file_bytes or _tensors_of(file.header) == 1


def _tensors_of(header: bytes) -> int:
    return len(re.findall(rb"data_offsets", header))


@given(st.data())
@settings(deadline=None, max_examples=25)
def test_any_tiling_is_gathered(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Random shapes, cut at random into boxes or flat ranges: the copy is the array."""
    shape = data.draw(oracle.SHAPES)
    cuts = data.draw(st.none() | st.lists(st.integers(0, 40)).map(tuple))
    stored = oracle.stored(shape, data.draw(oracle.cuts(shape)), cuts)
    folder = tmp_path_factory.mktemp("any")
    (folder / "f").write_bytes(stored.data)
    (folder / foreign.NOTES).write_text("")
    source = foreign.source_of(
        Source(kind="any", described="", folder=folder, index=stored.index, values={})
    )
    uc = write_physical(source, folder / "uc", jobs=1)
    found = foreign.read_all(uc, open_checkpoint(uc).index)["w", "param"]
    assert found.tobytes() == stored.array.tobytes()


def test_a_virtual_one_becomes_physical(src: Path, tmp_path: Path) -> None:
    """With all that it knew."""
    source, truth = foreign.write(src)
    write_virtual(source, tmp_path / "virtual")
    write_physical(open_own(tmp_path / "virtual"), tmp_path / "uc", gentle=True, jobs=1)
    shutil.rmtree(tmp_path / "virtual")
    opened = open_checkpoint(tmp_path / "uc")
    assert foreign.same(foreign.read_all(tmp_path / "uc", opened.index), truth)
    assert opened.manifest.source["kind"] == "foreign"
    assert opened.trainer["header"] == {"step": 7}


@contextmanager
def file_size_limit(nbytes: int) -> Iterator[None]:
    """Stand for a full disk: no file may grow beyond that, here and in children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_nothing(src: Path, tmp_path: Path) -> None:
    """One sentence that says what to do."""
    source, _ = foreign.write(src)
    before = foreign.listing(tmp_path)
    with file_size_limit(4096), pytest.raises(InputInvalid, match=r"File too large.*make room"):
        write_physical(source, tmp_path / "uc")
    assert foreign.listing(tmp_path) == before


def test_drifted_replicas_are_refused(src: Path, tmp_path: Path) -> None:
    """The tensor, the box and the file are named."""
    source, _ = foreign.write(src)
    index = source.index
    row = index.segments_of(index.row_of("copied")).start + 1
    path = src / index.files[int(index.segments.file[row])]
    data = bytearray(path.read_bytes())
    data[int(index.segments.offset[row])] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputInvalid, match=r"copied \(param\): the copy of \[0:3\] in rank1.bin"):
        write_physical(foreign.source_of(source), tmp_path / "uc")
    assert not (tmp_path / "uc").exists()


@pytest.mark.parametrize("change", ["touch", "shrink", "delete", "grow"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_source_that_changes_meanwhile_is_refused(
    src: Path, tmp_path: Path, change: str, jobs: int
) -> None:
    """After the first bytes were copied; nothing is left, and the source is as it was changed."""
    source, _ = foreign.write(src, rows=400, columns=200)
    path = src / foreign.FILES[1]
    once = threading.Event()

    def disturb(_: int) -> None:
        if once.is_set():
            return
        once.set()
        if change == "touch":
            os.utime(path, ns=(1, 1))
        elif change == "delete":
            path.unlink()
        else:
            os.truncate(path, 20 if change == "shrink" else path.stat().st_size + 1)

    with pytest.raises(InputInvalid, match=r"rank1.bin (was changed|can no longer)"):
        write_physical(source, tmp_path / "uc", jobs=jobs, progress=disturb)
    assert {each.name for each in tmp_path.iterdir()} == {"src"}


def test_a_late_publisher_is_fenced(src: Path, tmp_path: Path) -> None:
    """Everything is written and synced when the fence is asked; then nothing is there."""
    source, _ = foreign.write(src)

    def fence() -> None:
        staging = next(each for each in tmp_path.iterdir() if each.name.startswith(".uc."))
        assert open_checkpoint(staging).manifest.hashed
        raise Fenced("attempt 3 exists")

    with pytest.raises(Fenced):
        write_physical(source, tmp_path / "uc", fence=fence)
    assert {each.name for each in tmp_path.iterdir()} == {"src"}


def test_a_killed_worker_ends_the_conversion(src: Path, tmp_path: Path) -> None:
    """One sentence that names the signal; the others are ended too, nothing is left."""
    source, _ = foreign.write(src, rows=200, columns=200)
    with _killer() as killed, pytest.raises(InputInvalid, match=r"ended early \(exit status -9"):
        write_physical(source, tmp_path / "uc", jobs=2)
    assert killed
    assert {each.name for each in tmp_path.iterdir()} == {"src"}
    assert not list(_workers())


@contextmanager
def _killer() -> Iterator[list[int]]:
    """Kill the first worker of this process that shows, while it still imports."""
    killed: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        while not killed and not stop.wait(0.005):
            for pid in _workers():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                break

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def _workers() -> Iterator[int]:
    """Children of this process that convert."""
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            for pid in children.read_text().split():
                if worker.__name__.encode() in Path("/proc", pid, "cmdline").read_bytes():
                    yield int(pid)


def test_workers_end_when_nobody_listens(src: Path, tmp_path: Path) -> None:
    """Their parent was killed: they stop at the next line they would have told."""
    source, _ = foreign.write(src, rows=200, columns=200)
    plan = arrange(source.index)
    for name, index in ((worker.SOURCE, source.index), (worker.TARGET, plan.index)):
        worker.leave(index, tmp_path, name)
    (tmp_path / plan.files[0].name).write_bytes(bytes(plan.files[0].size))
    share = {
        **{"folder": str(src), "into": str(tmp_path), "work": str(tmp_path)},
        **{"number": 0, "of": 1, "gentle": False},
    }
    process = subprocess.Popen(
        [sys.executable, "-m", worker.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate(json.dumps(share) + "\n", timeout=60)
    assert (process.returncode, said) == (1, "")


def test_a_folder_that_may_not_be_written_is_named(src: Path, tmp_path: Path) -> None:
    """As another user than root, who may write everywhere."""
    source, _ = foreign.write(src)
    (tmp_path / "locked").mkdir(mode=0o555)
    uid = os.geteuid()
    os.seteuid(65534 if uid == 0 else uid)
    try:
        with pytest.raises(InputInvalid, match=r"Permission denied.*that you may write"):
            write_physical(source, tmp_path / "locked" / "uc")
    finally:
        os.seteuid(uid)
    assert not list((tmp_path / "locked").iterdir())
