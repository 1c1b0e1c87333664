"""The logical digest: equal in every layout, and different for every other state."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hook.harness import Zygote
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.checkpoint.digest import CHUNK, local_digest, sum_on_device
from wattmesh.reconfig.checkpoint.digest_host import Summer
from wattmesh.reconfig.checkpoint.digest_rows import RowSummer
from wattmesh.reconfig.state.boxes import LocalBox, box_of, signed_hash
from wattmesh.reconfig.universal.logical import BY_ROWS

MASK = (1 << 64) - 1
HEADS = ("", BY_ROWS)


@pytest.fixture(scope="module")
def shards(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What four ranks said of many shardings."""
    out = tmp_path_factory.mktemp("shards")
    launch = zygote.start(4, {"OUT": str(out)}, out, "tests.hook.checkpoints.shards:main")
    status = zygote.wait(launch)
    assert status == 0, [path.read_text() for path in out.glob("*.log")]
    found: dict[str, Any] = json.loads((out / "shards.json").read_text())
    return found


def test_every_sharding_gives_the_digest_of_the_whole(shards: dict[str, Any]) -> None:
    """Nine placements of tensors of many shapes and dtypes, even and uneven, agree to the bit."""
    said = shards["plain_shards"]
    assert len(said) == 11
    facts = signed_hash("")
    oracle = f"2:{(int(said.pop('oracle'), 16) + facts) & MASK:016x}"
    assert set(said.values()) == {oracle}


def test_fsdp_with_tensor_parallel_gives_one_digest(shards: dict[str, Any]) -> None:
    """A trained model with uneven shards has one digest as dp4, dp2 tp2 and tp4."""
    said = shards["fsdp_and_tp"]
    assert said["dp4 tp1"] == said["dp2 tp2"] == said["dp1 tp4"]
    assert said["wrong_boxes"] == 0


@pytest.mark.parametrize("twin", ["other step", "dropped moment"])
def test_a_sabotaged_state_has_another_digest(shards: dict[str, Any], twin: str) -> None:
    """Another step, or a moment that was lost, shows."""
    assert shards["fsdp_and_tp"][twin] != shards["fsdp_and_tp"]["dp2 tp2"]


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("drifted", "norm.weight"),
        ("same_name", "layers.0.weight"),
        ("same_name_other_shape", "layers.0.weight"),
    ],
)
def test_ranks_that_disagree_are_caught_by_name(
    shards: dict[str, Any], case: str, name: str
) -> None:
    """Replicas that drifted by one bit, and two stages that share a name, are told by name."""
    assert name in shards[case]


def test_pieces_that_leave_a_gap_are_caught_though_their_sizes_add_up(
    shards: dict[str, Any],
) -> None:
    """Replicas are legal; a gap, an overlap and a piece outside are told with tensor and box."""
    said = shards["covered"]
    assert said["exact"] == ""
    assert "up.weight: [0:4] and [3:7] overlap" in said["a gap and an equal overlap"]
    assert "up.weight: [4:5] is missing" in said["a gap"]
    assert "up.weight: [5:9] is outside (8,)" in said["outside"]


def mixed(number: int) -> int:
    """Splitmix64's finalizer."""
    number &= MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
    return number ^ (number >> 31)


def plain_digest(key: str, tensor: torch.Tensor) -> int:
    """The digest written as plainly as possible: one element at a time, Python's own integers."""
    total = 0
    tensor_id = signed_hash(f"{key}|{tensor.dtype}|{tuple(tensor.shape)}")
    columns = tensor.shape[-1] if tensor.dim() else 1
    width, parts = tensor.element_size(), 1
    if width == 8:
        width, parts = 4, 2
    raw = tensor.reshape(-1).contiguous().view(torch.uint8).tolist() if tensor.numel() else []
    for number in range(tensor.numel() * parts):
        row, column = divmod(number, columns * parts)
        bits = int.from_bytes(bytes(raw[number * width : (number + 1) * width]), "little")
        along = mixed(row * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) | 1
        across = mixed(column * 0x9E3779B97F4A7C15 + 0x8CB92BA72F3D8DD7) | 1
        total += along * across * (bits + 0x632BE59BD9B4E019)
    return total * (mixed(tensor_id) | 1) & MASK


def plain_digest_by_index(key: str, tensor: torch.Tensor) -> int:
    """The digest without a head, as plainly."""
    total = 0
    tensor_id = signed_hash(f"{key}|{tensor.dtype}|{tuple(tensor.shape)}")
    width = tensor.element_size()
    raw = tensor.reshape(-1).contiguous().view(torch.uint8).tolist() if tensor.numel() else []
    for index in range(tensor.numel()):
        octets = bytes(raw[index * width : (index + 1) * width])
        bits = int.from_bytes(octets, "little", signed=width > 1)
        if width == 8:
            bits ^= (bits >> 32) & 0xFFFFFFFF
        mixed = (index * 0x9E3779B97F4A7C15 + tensor_id) & MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        weight = (mixed ^ (mixed >> 31)) | 1
        total += weight * (bits + 0x632BE59BD9B4E019)
    return total & MASK


@given(
    values=st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=24),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
@settings(max_examples=60, deadline=None)
def test_the_vectorised_digest_equals_the_plain_one(
    values: list[float], dtype: torch.dtype
) -> None:
    """Torch's wrapping 64-bit arithmetic gives what Python's integers give modulo 2^64."""
    tensor = torch.tensor(values).to(dtype).reshape(1, -1)
    assert local_digest({"w": tensor}, "") == plain_digest_by_index("w", tensor)
    for each in (tensor, tensor.reshape(-1), tensor.t(), tensor[0, 0]):
        assert local_digest({"w": each}) == plain_digest("w", each)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("whole", "offset", "shape"),
    [
        ((), (), ()),
        ((0,), (0,), (0,)),
        ((70_001,), (3,), (69_000,)),
        ((5, 40_000), (1, 17), (3, 39_000)),
        ((700, 3, 50), (10, 1, 20), (600, 2, 30)),
    ],
)
def test_the_host_and_a_device_digest_alike(
    dtype: torch.dtype, whole: tuple[int, ...], offset: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    """Memory that NumPy reaches and a device's give one number, and the last element counts."""
    local = torch.randn(shape).mul(50).to(dtype)
    box = LocalBox(key="w", whole=whole, offset=offset, local=local)
    by_index, by_rows = Summer(), RowSummer()
    for summer, on_device in ((by_index, sum_on_device), (by_rows, by_rows.sum_on_device)):
        before = summer.sum_of_box(box)
        assert before == on_device(box) & MASK
        if local.numel():
            last = local.reshape(-1)[-1:].view(torch.uint8)
            last[0] ^= 1
            assert summer.sum_of_box(box) == on_device(box) & MASK != before


def test_boxes_that_lie_alike_and_elsewhere_are_summed_one_after_the_other() -> None:
    """What is kept between boxes is their place alone: names, types and other places count."""
    by_index, by_rows = Summer(), RowSummer()
    for key, offset, dtype in [
        ("w", (0, 0), torch.float32),
        ("slot", (0, 0), torch.float32),
        ("w", (4, 0), torch.float32),
        ("w", (4, 0), torch.bfloat16),
        ("w", (4, 0), torch.float64),
    ]:
        box = LocalBox(key=key, whole=(8, 3), offset=offset, local=torch.ones(4, 3, dtype=dtype))
        assert by_index.sum_of_box(box) == sum_on_device(box) & MASK
        assert by_rows.sum_of_box(box) == RowSummer().sum_on_device(box)


@given(
    values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=16, unique=True),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_swaps_and_single_changes_show(values: list[int], data: st.DataObject) -> None:
    """Swapping two elements, or flipping any one bit, gives another digest."""
    tensor = torch.tensor(values, dtype=torch.int64)
    before = local_digest({"w": tensor})
    a, b = data.draw(st.permutations(range(len(values))))[:2]
    swapped = tensor.clone()
    swapped[a], swapped[b] = tensor[b], tensor[a]
    assert local_digest({"w": swapped}) != before
    flipped = tensor.clone()
    bit = data.draw(st.integers(0, 63))
    flipped[a] ^= (1 << bit) if bit < 63 else -(1 << 63)
    assert local_digest({"w": flipped}) != before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_swap_of_opposite_numbers_shows(dtype: torch.dtype) -> None:
    """They differ in the sign bit only, which is the top one."""
    tensor = torch.tensor([1.5, -1.5, 0.0, -0.0], dtype=dtype)
    twins = (tensor, tensor[[1, 0, 2, 3]], tensor[[0, 1, 3, 2]], -tensor, tensor[[1, 0, 3, 2]])
    for head in HEADS:
        assert len({local_digest({"w": twin}, head) for twin in twins[:3]}) == 3
        assert len({local_digest({"w": twin[:, None]}, head) for twin in twins[:3]}) == 3
    assert len({local_digest({"w": twin}) for twin in twins}) == len(twins) - 1


def test_blocks_that_change_places_or_signs_show() -> None:
    """Rows, columns and blocks of a matrix, exchanged, negated, moved or turned."""
    tensor = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
    halves = torch.arange(8).roll(4)
    negated = tensor.clone()
    negated[:4, :4] *= -1
    twins = [tensor, -tensor, tensor.t(), tensor[halves], tensor[:, halves], negated]
    twins += [tensor[halves][:, halves], tensor.roll(1, 0), tensor.roll(1, 1)]
    for head in HEADS:
        assert len({local_digest({"w": twin}, head) for twin in twins}) == len(twins)
    two = {"v": tensor, "w": -tensor}
    assert local_digest(two) != local_digest({"v": -tensor, "w": tensor})


def test_name_shape_dtype_and_presence_count() -> None:
    """Another name, shape or dtype, and a lost tensor of zeros, give another digest."""
    zeros = torch.zeros(6)
    twins = [
        {"w": zeros},
        {"v": zeros},
        {"w": zeros.reshape(2, 3)},
        {"w": zeros.to(torch.float64)},
        {"w": -zeros},
        {"w": zeros, "moment": zeros},
        {},
    ]
    assert len({local_digest(twin) for twin in twins}) == len(twins)


def test_tensors_larger_than_a_chunk_are_digested_whole() -> None:
    """A change in the last element of a tensor of more than one chunk shows."""
    tensor = torch.zeros(3, CHUNK // 2 + 1, dtype=torch.uint8)
    before = local_digest({"w": tensor})
    tensor[2, -1] = 1
    assert local_digest({"w": tensor}) != before
    assert local_digest({"w": tensor.t().contiguous().t()}) == local_digest({"w": tensor})


def test_complex_tensors_are_refused_by_name() -> None:
    """What the digest does not cover is refused, not skipped."""
    with pytest.raises(InputInvalid, match=r"'w' is complex"):
        box_of("w", torch.zeros(2, dtype=torch.complex64))


def test_values_of_every_length_reach_every_rank(shards: dict[str, Any]) -> None:
    """Short ones need one round, longer ones a second, whose rows must be aligned."""
    assert shards["gathered"] == []


def test_a_tensor_without_elements_has_the_same_box_on_every_rank(shards: dict[str, Any]) -> None:
    """What was saved of it is found again in any layout."""
    assert shards["without_elements"] == [[True] * 8] * 3
