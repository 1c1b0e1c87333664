"""The NumPy digest gives the job's own numbers, and tells tensors apart that differ in a bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.universal import oracle
from tests.universal.sources import foreign
from wattmesh.reconfig.checkpoint import digest
from wattmesh.reconfig.state.boxes import signed_hash
from wattmesh.reconfig.universal import against, logical
from wattmesh.reconfig.universal.convert.physical import write_physical
from wattmesh.reconfig.universal.folder import Checkpoint, CheckpointKind, Manifest, open_checkpoint
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.index.index import build
from wattmesh.reconfig.universal.index.names import HOOK, TORCHTITAN
from wattmesh.reconfig.universal.sources.own import open_own
from wattmesh.reconfig.universal.sources.source import Source


def as_torch(source: Source, truth: foreign.Truth) -> dict[str, torch.Tensor]:
    """The tensors as a job holds them, by its own names."""
    found = {}
    for entry in source.index.entries:
        bits = torch.from_numpy(truth[entry.key].copy())
        dtype = getattr(torch, entry.dtype)
        found[HOOK.fqn(*entry.key)] = bits.view(dtype) if bits.numel() else bits.to(dtype)
    return found


def test_it_is_the_number_that_memory_gives(tmp_path: Path) -> None:
    """Over flat ranges, boxes, strides, replicas and scalars, in both forms, with facts."""
    source, truth = foreign.write(tmp_path)
    memory = digest.local_digest(as_torch(source, truth))
    found = logical.by_tensor(source.index, tmp_path)
    assert sum(found.values()) & logical.MASK == memory
    uc = write_physical(source, tmp_path / "uc")
    assert logical.by_tensor(open_checkpoint(uc).index, uc, jobs=1) == found
    with_facts = (memory + signed_hash("facts")) & logical.MASK
    assert logical.digest(found, xxhash.xxh3_64_intdigest(b"facts")) == f"2:{with_facts:016x}"
    by_index = logical.by_tensor(source.index, tmp_path, head="")
    assert sum(by_index.values()) & logical.MASK == digest.local_digest(as_torch(source, truth), "")
    assert logical.by_tensor(source.index, tmp_path, names=TORCHTITAN) != found


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "bfloat16", "int32", "float64"])
def test_every_width_of_elements(tmp_path: Path, dtype: str) -> None:
    """Signs are widened as memory's digest widens them."""
    out = foreign.Writer()
    out.entry("w", "param", dtype, (7, 5))
    out.box(foreign.FILES[0], Box.whole((7, 5)), order=(1, 0))
    (tmp_path / foreign.FILES[0]).write_bytes(out.files[foreign.FILES[0]])
    index = build(out.entries, out.segments)
    tensor = torch.from_numpy(out.truth["w", "param"].copy()).view(getattr(torch, dtype))
    for head in ("", logical.BY_ROWS):
        found = logical.by_tensor(index, tmp_path, head=head)["w", "param"]
        assert found == digest.local_digest({"model.w": tensor}, head)


@given(st.data())
@settings(deadline=None, max_examples=30)
def test_any_tiling_gives_one_number(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """However a tensor is cut."""
    shape = data.draw(oracle.SHAPES)
    stored = oracle.stored(shape, data.draw(oracle.cuts(shape)))
    folder = tmp_path_factory.mktemp("any")
    (folder / "f").write_bytes(stored.data)
    found = logical.by_tensor(stored.index, folder)["w", "param"]
    assert found == digest.local_digest({"model.w": torch.from_numpy(stored.array)})


def test_long_pieces_are_worked_on_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of a few elements, cut anywhere in a strided or a flat piece, give the same."""
    source, _ = foreign.write(tmp_path, rows=11, columns=7)
    whole = logical.by_tensor(source.index, tmp_path)
    for chunk in (1, 3, 8):
        monkeypatch.setattr(logical, "CHUNK", chunk)
        assert logical.by_tensor(source.index, tmp_path) == whole


def test_differences_name_tensors(tmp_path: Path) -> None:
    """A flipped bit, two tensors exchanged, one lost; equal ones give nothing."""
    source, _ = foreign.write(tmp_path)
    uc = open_own(write_physical(source, tmp_path / "uc"))
    assert against.differences(uc, source) == []
    entries = list(source.index.entries)
    rows, columns = (source.index.row_of(name) for name in ("rows", "columns"))
    entries[rows], entries[columns] = entries[columns], entries[rows]
    exchanged = replace(source, index=replace(source.index, entries=tuple(entries)))
    told = against.differences(uc, exchanged)
    assert [each.split(" differs")[0] for each in told] == ["columns (param)", "rows (param)"]
    entries[rows] = replace(entries[rows], name="other")
    renamed = replace(source, index=replace(source.index, entries=tuple(entries)))
    told = against.differences(uc, renamed)
    assert any("other (param) is only in" in each for each in told)


@pytest.mark.parametrize("head", ["", logical.BY_ROWS])
def test_memory_is_matched_or_not(tmp_path: Path, head: str) -> None:
    """The digest that the job took before it saved, against what lies there now."""
    source, truth = foreign.write(tmp_path)
    held = as_torch(source, truth)
    del held["flag"]
    memory = digest.local_digest(held, head) + signed_hash("facts")

    def trainer(facts: str) -> dict[str, Any]:
        hashed = xxhash.xxh3_64_hexdigest(facts.encode())
        return {"digest": {"facts_xxh3_64": hashed, "beside": ["flag"]}}

    checkpoint = Checkpoint(
        folder=tmp_path,
        manifest=Manifest(
            kind=CheckpointKind.PHYSICAL,
            data={},
            logical_digest=f"{head}{memory & logical.MASK:016x}",
        ),
        index=source.index,
        trainer=trainer("facts"),
    )
    assert against.matches_memory(checkpoint) is True
    assert against.matches_memory(replace(checkpoint, trainer=trainer("other"))) is False
    assert against.matches_memory(replace(checkpoint, trainer={})) is None
    path = tmp_path / foreign.FILES[1]
    row = source.index.segments_of(source.index.row_of("half")).start
    data = bytearray(path.read_bytes())
    data[int(source.index.segments.offset[row])] ^= 1
    path.write_bytes(data)
    assert against.matches_memory(checkpoint) is False
