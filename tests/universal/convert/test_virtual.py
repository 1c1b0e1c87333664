"""Virtual checkpoints: no byte copied, nothing left behind, pinned against deletion."""

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.universal.sources import foreign
from wattmesh.errors import CheckpointDamaged, Fenced, InputInvalid
from wattmesh.reconfig.universal import record
from wattmesh.reconfig.universal.convert.virtual import write_virtual
from wattmesh.reconfig.universal.folder import open_checkpoint
from wattmesh.reconfig.universal.sources.own import open_own
from wattmesh.reconfig.universal.sources.source import Source
from wattmesh.reconfig.universal.verify import hash_in_background, verify


@pytest.fixture
def src(tmp_path: Path) -> Path:
    """Folder of a foreign checkpoint."""
    folder = tmp_path / "src"
    folder.mkdir()
    return folder


def test_every_tensor_reads_back_equal(src: Path, tmp_path: Path) -> None:
    """Through the links, after the source's own folder is gone."""
    source, truth = foreign.write(src)
    write_virtual(source, tmp_path / "uc")
    shutil.rmtree(src)
    opened = open_checkpoint(tmp_path / "uc")
    assert foreign.same(foreign.read_all(tmp_path / "uc", opened.index), truth)
    assert opened.trainer == {
        "header": {"step": 7}, "values": {"other": {"lr": 0.1}}, "extra": {},
    }  # fmt: skip
    assert opened.manifest.source == {"kind": "foreign", "folder": str(src)}
    assert opened.index.tied == {"zero.again": "zero"}


def test_no_data_is_copied_and_every_file_is_pinned(src: Path, tmp_path: Path) -> None:
    """Each file of the source, data or not, has one more name and the same inode."""
    source, _ = foreign.write(src)
    write_virtual(source, tmp_path / "uc")
    for name in (*foreign.FILES, foreign.NOTES):
        assert (src / name).stat().st_ino == (tmp_path / "uc/files" / name).stat().st_ino


def test_a_link_put_where_a_file_was_is_refused(src: Path, tmp_path: Path) -> None:
    """It would pin nothing, and may lead to a file of somebody else."""
    source, _ = foreign.write(src)
    real = tmp_path / "elsewhere.bin"
    (src / foreign.FILES[0]).rename(real)
    (src / foreign.FILES[0]).symlink_to(real)
    with pytest.raises(InputInvalid, match=r"rank0\.bin was changed while it was read"):
        write_virtual(source, tmp_path / "uc")
    assert not (tmp_path / "uc").exists()


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EACCES])
def test_where_no_link_can_be_made_the_other_kind_is_named(
    src: Path, tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file system, or another's files under protected_hardlinks."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    source, _ = foreign.write(src)
    before = foreign.listing(tmp_path)
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(InputInvalid, match="--kind physical"):
        write_virtual(source, tmp_path / "uc")
    assert foreign.listing(tmp_path) == before


@pytest.mark.parametrize("name", [foreign.FILES[1], foreign.NOTES])
def test_a_source_that_changed_is_refused(src: Path, tmp_path: Path, name: str) -> None:
    """Touched, replaced by equal bytes, or deleted since it was indexed; nothing is left."""
    for change in ("touch", "replace", "delete"):
        source, _ = foreign.write(src)
        path = src / name
        data = path.read_bytes()
        if change == "touch":
            os.utime(path, ns=(1, 1))
        else:
            path.unlink()
        if change == "replace":
            (src / "new").write_bytes(data)
            (src / "new").rename(path)
        before = foreign.listing(tmp_path)
        with pytest.raises(InputInvalid, match=f"{name} was (changed|deleted)"):
            write_virtual(source, tmp_path / "uc")
        assert foreign.listing(tmp_path) == before
        shutil.rmtree(src)
        src.mkdir()


def test_a_late_publisher_is_fenced(src: Path, tmp_path: Path) -> None:
    """The fence is asked last; when it refuses, nothing is there."""
    source, _ = foreign.write(src)

    def fence() -> None:
        assert any(each.name.startswith(".uc.") for each in tmp_path.iterdir())
        raise Fenced("attempt 3 exists")

    with pytest.raises(Fenced):
        write_virtual(source, tmp_path / "uc", fence=fence)
    assert {each.name for each in tmp_path.iterdir()} == {"src"}


def test_what_exists_is_never_replaced(src: Path, tmp_path: Path) -> None:
    """A folder, a file, a dangling link."""
    source, _ = foreign.write(src)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("folder", "link"):
        with pytest.raises(InputInvalid, match="exists already"):
            write_virtual(source, tmp_path / name)
    with pytest.raises(InputInvalid, match="create its parent folder first"):
        write_virtual(source, tmp_path / "no" / "parent")


def test_born_unverified_and_verified_once_hashed(src: Path, tmp_path: Path) -> None:
    """The record belongs to its manifest; a record of another one is damage."""
    source, _ = foreign.write(src)
    uc = write_virtual(source, tmp_path / "uc")
    assert not record.is_verified(open_checkpoint(uc))
    assert not open_checkpoint(uc).manifest.hashed
    told = verify(uc)
    assert (told.good, told.damage) == (False, ())
    assert hash_in_background(uc).recorded
    assert record.is_verified(open_checkpoint(uc))
    assert verify(uc).good
    other = write_virtual(replace(source, position={"step": 8}), tmp_path / "other")
    for name in (record.HASHES, record.VERIFIED):
        shutil.copy(uc / name, other / name)
    with pytest.raises(CheckpointDamaged, match="does not match"):
        record.is_verified(open_checkpoint(other))
    assert not verify(other).good


def test_drifted_replicas_are_never_recorded(src: Path, tmp_path: Path) -> None:
    """Two copies of one box that differ: hashing finds it, and it stays unverified."""
    source, _ = foreign.write(src)
    uc = write_virtual(_drift(source), tmp_path / "uc")
    result = hash_in_background(uc)
    assert [(each.tensor, each.box) for each in result.damage] == [("copied", "[0:3]")]
    assert not record.is_verified(open_checkpoint(uc))


def test_a_virtual_over_a_virtual_keeps_what_is_known(src: Path, tmp_path: Path) -> None:
    """Origin and position survive; the bytes are still those of the first source."""
    source, truth = foreign.write(src)
    write_virtual(source, tmp_path / "one")
    write_virtual(open_own(tmp_path / "one"), tmp_path / "two")
    two = open_checkpoint(tmp_path / "two")
    assert two.manifest.source["kind"] == "foreign"
    assert two.trainer["header"] == {"step": 7}
    assert foreign.same(foreign.read_all(tmp_path / "two", two.index), truth)


def _drift(source: Source) -> Source:
    """Change the second copy of `copied`."""
    index = source.index
    row = index.segments_of(index.row_of("copied")).start + 1
    path = source.folder / index.files[int(index.segments.file[row])]
    data = bytearray(path.read_bytes())
    data[int(index.segments.offset[row])] ^= 1
    path.write_bytes(data)
    return foreign.source_of(source)
