"""Saving through DCP: universal checkpoints, and what torch's own writer loses in silence."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from tests.universal.exports.scattered import bits
from wattmesh.errors import CheckpointDamaged, Fenced, InputInvalid
from wattmesh.reconfig.checkpoint import damage
from wattmesh.reconfig.checkpoint.dcp import (
    TORCHTITAN,
    CheckpointMetadata,
    UniversalReader,
    UniversalWriter,
    cause_of,
)
from wattmesh.reconfig.state.memory import Staging, as_array, boxes_within, narrow
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.folder import CheckpointKind, open_checkpoint
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.index.data_header import ALIGNMENT
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.names import HOOK, Names
from wattmesh.reconfig.universal.index.rules import VocabPad

pytestmark = pytest.mark.usefixtures("one_rank")


def some_state() -> dict[str, Any]:
    """Tensors of many kinds, and values."""
    chance = torch.Generator().manual_seed(5)
    wide = torch.randn((40, 30), generator=chance)
    return {
        "model": {
            "w": wide,
            "half": wide[:7].bfloat16(),
            "small": wide[:3, :5].to(torch.float8_e4m3fn),
            "mask": wide[0] > 0,
            "count": torch.tensor(2**40 + 1),
            "empty": torch.zeros(0, 4),
            "turned": wide.t(),
            "sparse_view": wide[::2, 1:20:3],
        },
        "optim": {"state": {"w": {"exp_avg": -wide, "step": torch.tensor(3.0)}}},
        "sched": {"last": 3, "table": torch.arange(4), "pair": (1, 2.5, None)},
    }


def refused(state: dict[str, Any], path: Path, **options: Any) -> BaseException:
    """What a save is refused with."""
    with pytest.raises(CheckpointException) as caught:
        save(state, storage_writer=UniversalWriter(path, **options))
    return cause_of(caught.value)


def test_what_is_written_is_what_was_in_memory(tmp_path: Path) -> None:
    """Every tensor, bit by bit, through our reader and through safetensors' own."""
    state = some_state()
    path = tmp_path / "uc"
    save(state, storage_writer=UniversalWriter(path))
    opened = open_checkpoint(path)
    damage.check(opened)
    named = {("w", "exp_avg"): state["optim"]["state"]["w"]["exp_avg"]}
    named |= {("w", "step"): torch.tensor(3.0), ("sched.table", "extra"): torch.arange(4)}
    named |= {(name, "param"): tensor for name, tensor in state["model"].items()}
    assert {entry.key for entry in opened.index.entries} == set(named)
    plain = load_file(path / "data-0-0.safetensors")
    with Files(path) as files:
        reader = Reader(opened.index, files)
        for (name, slot), tensor in named.items():
            row = opened.index.row_of(name, slot)
            entry = opened.index.entries[row]
            assert (entry.dtype, entry.shape) == (str(tensor.dtype)[6:], tuple(tensor.shape))
            assert reader.read(row).tobytes() == bits(tensor)
            assert bits(plain[f"{slot}:{name}#0"]) == bits(tensor)
    assert opened.trainer == {
        "values": {"sched.last": 3, "sched.pair": {"__tuple__": [1, 2.5, None]}}
    }
    assert opened.manifest.kind is CheckpointKind.PHYSICAL
    assert opened.manifest.hashed


def test_digests_are_of_the_memory(tmp_path: Path) -> None:
    """Each segment's digest is what xxh3_128 says of the tensor, in row-major order."""
    state = some_state()
    path = tmp_path / "uc"
    save(state, storage_writer=UniversalWriter(path))
    index = open_checkpoint(path).index
    row = index.segments_of(index.row_of("turned"))
    assert index.segments.digest is not None
    digest = index.segments.digest[row].astype(">i8").tobytes()
    assert digest == xxhash.xxh3_128_digest(bits(state["model"]["turned"]))


def test_files_are_split_and_aligned(tmp_path: Path) -> None:
    """No data file holds more than it may, not even for one large tensor; data begin aligned."""
    tensor = torch.arange(5000.0).reshape(50, 100)
    state = {"model": {"big": tensor, "b": torch.ones(3, dtype=torch.bool), "v": torch.ones(7)}}
    path = tmp_path / "uc"
    save(state, storage_writer=UniversalWriter(path, file_bytes=4096))
    opened = open_checkpoint(path)
    assert len(opened.manifest.data) >= 5
    for name, file in opened.manifest.data.items():
        raw = (path / name).read_bytes()
        assert file.header_nbytes % ALIGNMENT == 0
        assert file.size - file.header_nbytes <= 4096
        assert file.header_xxh3_128 == xxhash.xxh3_128_hexdigest(raw[: file.header_nbytes])
        load_file(path / name)
    read = {"model": {"big": torch.zeros(50, 100)}}
    from_dcp(read, path)
    assert torch.equal(read["model"]["big"], tensor)


def from_dcp(state: dict[str, Any], path: Path, **options: Any) -> None:
    """Load through DCP."""
    load(state, storage_reader=UniversalReader(path, **options))


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"model": {"a.b": object()}}, r"model\.a\.b is a object"),
        ({"sched": {"f": print}}, r"sched\.f is a builtin_function"),
        ({"model": {"c": torch.zeros(2, dtype=torch.complex64)}}, "'model.c' is complex"),
        ({"model": {"m": torch.zeros(2, device="meta")}}, "'model.m' has no plain memory"),
        ({"model": {"s": torch.eye(3).to_sparse()}}, "'model.s' has no plain memory"),
        ({"optim": {"state": {"w": {"param": torch.ones(1)}}}}, "slot called 'param'"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(
    tmp_path: Path, state: dict[str, Any], told: str
) -> None:
    """Objects are not pickled, numbers are not bent; nothing appears under the name."""
    error = refused(state, tmp_path / "uc")
    assert isinstance(error, InputInvalid)
    assert re.search(told, str(error))
    assert not (tmp_path / "uc").exists()


def test_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    """An older checkpoint is never replaced unless the caller moves it away."""
    state = {"model": {"w": torch.ones(2)}}
    save(state, storage_writer=UniversalWriter(tmp_path / "uc"))
    error = refused(state, tmp_path / "uc")
    assert "exists already" in str(error)
    assert open_checkpoint(tmp_path / "uc").index.entries


def test_a_fence_stops_the_publishing(tmp_path: Path) -> None:
    """What the caller raises before the rename keeps the checkpoint from appearing at all."""

    def fenced(path: Path) -> None:
        raise Fenced(f"a newer attempt exists, {path.name} is not published")

    error = refused({"model": {"w": torch.ones(2)}}, tmp_path / "uc", before_publish=fenced)
    assert isinstance(error, Fenced)
    assert list(tmp_path.iterdir()) == []


def test_leavings_of_a_save_that_died_are_cleared(tmp_path: Path) -> None:
    """The staging folder carries the attempt; the next save of it begins anew."""
    writer = UniversalWriter(
        tmp_path / "uc", about=CheckpointMetadata(attempt=7, run="r", logical_digest="d")
    )
    writer.staging.mkdir()
    (writer.staging / "data-0-0.safetensors").write_bytes(b"half")
    save({"model": {"w": torch.ones(2)}}, storage_writer=writer)
    manifest = open_checkpoint(tmp_path / "uc").manifest
    assert (manifest.attempt, manifest.run, manifest.logical_digest) == (7, "r", "d")
    assert [each.name for each in tmp_path.iterdir()] == ["uc"]


def test_cached_plans_lose_nothing(tmp_path: Path) -> None:
    """A planner that sends its plan only once still has every value and tensor saved."""
    for number in range(2):
        state = some_state()
        planner = DefaultSavePlanner(enable_plan_caching=True)
        save(state, storage_writer=UniversalWriter(tmp_path / f"{number}"), planner=planner)
    first, second = (open_checkpoint(tmp_path / name) for name in "01")
    assert first.index.entries == second.index.entries
    assert first.trainer == second.trainer


def test_saving_without_collectives_is_refused(tmp_path: Path) -> None:
    """It would make one checkpoint per rank."""
    with pytest.raises(InputInvalid, match="use_collectives=False"):
        save(
            {"model": {"w": torch.ones(2)}},
            storage_writer=UniversalWriter(tmp_path / "uc"),
            use_collectives=False,
        )


@pytest.mark.parametrize("spot", ["header", "data"])
def test_a_flipped_bit_is_named(tmp_path: Path, spot: str) -> None:
    """In the header no segment would show it, so the manifest vouches for that one."""
    path = tmp_path / "uc"
    save(some_state(), storage_writer=UniversalWriter(path))
    file = path / "data-0-0.safetensors"
    raw = bytearray(file.read_bytes())
    raw[ALIGNMENT - 1 if spot == "header" else -1] ^= 1
    file.write_bytes(raw)
    with pytest.raises(
        CheckpointDamaged, match="header of data-0-0" if spot == "header" else "mask"
    ):
        damage.check(open_checkpoint(path))


def test_padding_is_not_stored(tmp_path: Path) -> None:
    """Rows beyond the declared vocabulary are no data."""
    rules = Declared(rules=((re.compile("embed"), VocabPad(size=5)),))
    table = torch.arange(16.0).reshape(8, 2)
    path = tmp_path / "uc"
    save({"model": {"embed": table}}, storage_writer=UniversalWriter(path, rules=rules))
    opened = open_checkpoint(path)
    assert opened.index.entries[0].shape == (5, 2)
    assert opened.index.segments.nbytes.sum() == 5 * 2 * 4


def test_stages_that_share_a_name_are_refused(said: dict[str, Any]) -> None:
    """Both stages of the control read stage 0's layer; ours names the tensor and leaves nothing."""
    assert said["stages"]["torch"] == [[1, 1], [1, 1], [2, 1], [2, 1]]
    assert "'model.layers.0.w'" in said["stages"]["ours"]
    assert said["stages"]["left"] == []
    assert "'model.layers.0.w'" in said["stages_of_other_shape"]


def test_experts_under_one_name_are_refused(said: dict[str, Any]) -> None:
    """Every rank of the control reads rank 0's experts."""
    assert said["experts"]["torch"] == [[1, 1], [2, 1], [3, 1], [4, 1]]
    assert "'model.experts.w1'" in said["experts"]["ours"]


def test_values_that_differ_between_ranks_are_refused(said: dict[str, Any]) -> None:
    """Rank 2's learning rate of the control is lost."""
    assert said["drifted_values"]["torch"][2] == [0.2, 0.1]
    assert "'optim.param_groups.w.lr'" in said["drifted_values"]["ours"]


def test_partial_sums_are_refused(said: dict[str, Any]) -> None:
    """Equal on every rank, so that no digest would show it."""
    assert "partial" in said["partial"]


def test_a_full_disk_on_one_rank_is_told_to_all(said: dict[str, Any]) -> None:
    """Nothing is published; the same save works when there is room."""
    assert all("File too large" in told for told in said["full_disk"]["told"])
    assert said["full_disk"]["again"] == ""
    assert said["full_disk"]["there"]


HEADS = ("", "model.", "optim.", "optim.state.", "optimizer.state.", "a.", "b.state.")


@given(
    names=st.sampled_from([HOOK, TORCHTITAN, Names("a.", "b.")]),
    head=st.sampled_from(HEADS),
    tail=st.text("ab.", max_size=6),
)
def test_names_go_there_and_back(names: Names, head: str, tail: str) -> None:
    """No two names of a trainer share a logical key."""
    assert names.fqn(*names.entry_key(head + tail)) == head + tail


@given(shape=st.lists(st.integers(0, 5), max_size=4).map(tuple), limit=st.integers(1, 40))
def test_boxes_within_a_limit_tile_the_tensor(shape: tuple[int, ...], limit: int) -> None:
    """In row-major order, each contiguous and none larger than the limit or one element."""
    whole = torch.arange(Box.whole(shape).count).reshape(shape)
    boxes = list(boxes_within(shape, 4, limit))
    parts = [narrow(whole, box) for box in boxes]
    assert all(part.is_contiguous() for part in parts)
    assert all(box.count * 4 <= max(limit, 4) for box in boxes)
    assert torch.equal(torch.cat([part.reshape(-1) for part in parts]), whole.reshape(-1))


def test_bounded_buffers_carry_every_byte() -> None:
    """What a GPU's tensors go through, tried with the CPU's: blocks out, and blocks in."""
    tensor = torch.randn(50, 30).t()[:, ::2]
    staging = Staging(block=256)
    flat = tensor.contiguous().view(torch.uint8).reshape(-1)
    out = b"".join(bytes(block) for block in staging.fetched(torch.split(flat, 256)))
    assert out == bits(tensor) == b"".join(bytes(block) for block in staging.blocks(tensor))
    back = torch.zeros(25, 60)[:, ::2].t()

    def read(box: Box, array: np.ndarray[Any, Any]) -> None:
        assert array.nbytes <= 256
        array[...] = as_array(narrow(tensor, box))

    staging.fill_staged(back, read)
    staging.finish()
    assert torch.equal(back, tensor)
