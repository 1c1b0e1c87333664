"""docs/checkpoints.md and the code say the same, and the page suffices to read a checkpoint."""

import json
import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash

from tests.universal import second_reader
from tests.universal.exports.scattered import bits, scatter, small_model
from wattmesh.reconfig.universal import columns, folder, record
from wattmesh.reconfig.universal.convert.physical import write_physical
from wattmesh.reconfig.universal.convert.virtual import write_virtual
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.folder import CheckpointKind, DataFile, Manifest
from wattmesh.reconfig.universal.index import declared, dtypes, rules
from wattmesh.reconfig.universal.index.index import COLUMNS, Index
from wattmesh.reconfig.universal.index.rules import (
    ExpertStack,
    Replicate,
    Shard,
    SubBlocks,
    VocabPad,
)
from wattmesh.reconfig.universal.sources.source import Source, fingerprints

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "checkpoints.md").read_text("utf-8")


def table(page: str, heading: str) -> list[list[str]]:
    """Cells of the table whose first column is called `heading`, without code marks."""
    found = re.search(rf"^\| {re.escape(heading)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert found, heading
    return [
        [cell.strip().strip("`") for cell in line.strip("|\n").split("|")]
        for line in found[1].splitlines()
    ]


def first_column(page: str, heading: str) -> list[str]:
    """The keys a table lists."""
    return [row[0] for row in table(page, heading)]


def tensors() -> dict[tuple[str, str], torch.Tensor]:
    """A small model and a tensor that is neither parameter nor slot."""
    return {**small_model(), ("rng", "extra"): torch.arange(9, dtype=torch.uint8)}


def source_in(path: Path) -> Source:
    """Scattered pieces, one tensor replicated, one tied, as a source of conversions."""
    index = scatter(path, tensors(), {"head.weight": "embed.weight"})
    rows = [*range(len(index.segments)), int(index.segments.entry.argmax())]
    doubled = replace(index, segments=index.segments.take(np.sort(rows)))
    with Files(path) as files:
        seen = fingerprints(files, index.files)
    return Source(kind="dcp", described="pieces", folder=path, index=doubled, values={}, files=seen)


def made(tmp_path: Path, kind: str) -> Path:
    """A checkpoint of a kind: converted, or sealed with strided and flat segments and digests."""
    source = source_in(tmp_path / "source")
    target = tmp_path / kind
    if kind == "virtual":
        return write_virtual(source, target)
    if kind == "physical":
        return write_physical(source, target, jobs=1)
    data = (tmp_path / "source" / "shards" / "data.bin").read_bytes()
    (target / "shards").mkdir(parents=True)
    (target / "shards" / "data.bin").write_bytes(data)
    manifest = Manifest(
        kind=CheckpointKind.PHYSICAL, data={"shards/data.bin": DataFile(size=len(data))}
    )
    folder.seal(target, manifest, with_digests(source.index, data), {})
    return target


def with_digests(index: Index, data: bytes) -> Index:
    """Add the digest of every segment."""
    segments = index.segments
    raw = b"".join(
        xxhash.xxh3_128_digest(data[at : at + nbytes])
        for at, nbytes in zip(segments.offset.tolist(), segments.nbytes.tolist(), strict=True)
    )
    digest = np.frombuffer(raw, ">i8").astype(np.int64).reshape(-1, 2)
    return replace(index, segments=replace(segments, digest=digest))


@pytest.mark.parametrize("kind", ["virtual", "physical", "strided"])
def test_a_second_reader_gets_equal_bytes(tmp_path: Path, kind: str) -> None:
    """Eighty lines written from the page alone read every tensor of every kind of checkpoint."""
    found = second_reader.read(made(tmp_path, kind))
    wanted = tensors()
    wanted |= {("head.weight", s): t for (name, s), t in tensors().items() if name[:5] == "embed"}
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        assert found[key] == (dtype, shape, bits(tensor)), key


@pytest.mark.parametrize("kind", ["physical", "strided"])
def test_the_second_reader_notices_a_changed_byte(tmp_path: Path, kind: str) -> None:
    """Sabotaged twin: with one byte of an element changed, its digest differs."""
    checkpoint = made(tmp_path, kind)
    path = next(path for path in checkpoint.rglob("data*") if path.is_file())
    data = bytearray(path.read_bytes())
    at = data.index(bits(tensors()["counter", "param"]))
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(AssertionError):
        second_reader.read(checkpoint)


def test_the_second_reader_is_short_and_its_own() -> None:
    """It stays a measure of the page: few lines, and nothing of ours imported."""
    text = Path(second_reader.__file__).read_text("utf-8")
    assert "wattmesh." not in text
    assert len([line for line in text.splitlines() if line.strip()]) <= 85


def test_keys_of_the_manifest(tmp_path: Path) -> None:
    """The page lists the keys that are written, of the manifest and of its data files."""
    written = json.loads((made(tmp_path, "physical") / "manifest.json").read_bytes())
    listed = first_column(PAGE, "key of the manifest")
    assert set(listed) == set(written) == {"format", "version"} | names_of(Manifest)
    assert set(first_column(PAGE, "key of a data file")) == names_of(DataFile)
    assert f'"{folder.FORMAT}"' in table(PAGE, "key of the manifest")[listed.index("format")][1]


def names_of(kind: type) -> set[str]:
    """Fields of a dataclass."""
    return {each.name for each in fields(kind)}


def test_keys_of_the_index(tmp_path: Path) -> None:
    """The page lists the keys of index.json, and the columns with their widths, in order."""
    source = source_in(tmp_path)
    written = json.loads(columns.names_to_bytes(source.index))
    assert set(first_column(PAGE, "key of the index")) == set(written)
    listed = {row[0]: row[1] for row in table(PAGE, "column")}
    assert list(listed) == [*COLUMNS, "digest"]
    hashed = with_digests(source.index, bytes(1 << 20))
    for name, width in listed.items():
        shape = getattr(hashed.segments, name).shape
        assert {"1": (), "k": (hashed.segments.dims,), "2": (2,)}[width] == shape[1:], name


def test_dtypes_rules_and_formats() -> None:
    """The page lists every dtype with its size, every rule with its keys, every export."""
    listed = {row[0]: (int(row[1]), row[2]) for row in table(PAGE, "dtype")}
    assert listed == {name: (dtypes.size_of(name), code) for name, code in dtypes.CODES.items()}
    kinds = (Replicate, Shard, SubBlocks, VocabPad, ExpertStack)
    known = {kind.kind: sorted(names_of(kind) - {"dim"}) for kind in kinds}
    assert {row[0]: row[1].split() for row in table(PAGE, "rule")} == known
    assert set(rules._KINDS) == set(known)
    assert first_column(PAGE, "`--to`") == ["hf", "dcp", "deepspeed"]


def test_keys_of_the_record(tmp_path: Path) -> None:
    """The page lists what verified.json holds."""
    virtual = folder.open_checkpoint(made(tmp_path, "virtual"))
    record.write(virtual, np.zeros((len(virtual.index.segments), 2), dtype=np.int64))
    written = json.loads((virtual.folder / record.VERIFIED).read_bytes())
    assert set(first_column(PAGE, "key of the record")) == set(written)
    assert record.HASHES in PAGE


@pytest.mark.filterwarnings("ignore")  # torch's own checkpoint warns of its internals
def test_the_lines_for_plain_torch_work(tmp_path: Path, one_rank: None) -> None:
    """The example is run as it stands, but for the path: what it saves it loads."""
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    before = model.weight.detach().clone()
    save, load = example.replace("/shared/run", str(tmp_path)).split("dcp.load(")
    state: dict[str, object] = {"model": model, "optimizer": optimizer}
    exec(save, state)
    model.weight.data.zero_()
    exec(f"dcp.load({load}", state)
    assert torch.equal(model.weight, before)
    assert len(second_reader.read(tmp_path / "step-00000120")) == 8


def test_the_toml_on_the_page_declares_something() -> None:
    """Every table of the example is read."""
    (example,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    found = declared.from_document(tomllib.loads(example), "the page")
    counts = (len(found.rules), len(found.renames), len(found.tied), len(found.slots))
    assert (*counts, len(found.numbered), len(found.averages)) == (2, 1, 1, 1, 1, 1)


def test_a_key_that_is_not_on_the_page_is_caught() -> None:
    """Sabotaged twin: a page that lost a row lists other keys."""
    spoilt = re.sub(r"^\| `inode` .*\n", "", PAGE, flags=re.MULTILINE)
    assert set(first_column(spoilt, "key of a data file")) != names_of(DataFile)
