"""On a real GPU: device tensors are digested, staged, written and read as those of the host are."""

import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from wattmesh.reconfig.checkpoint.dcp_storage.files import TensorPiece, write_files
from wattmesh.reconfig.checkpoint.digest import local_digest, sum_on_device
from wattmesh.reconfig.state import streams
from wattmesh.reconfig.state.boxes import LocalBox, box_of
from wattmesh.reconfig.state.caches import MeshCaches
from wattmesh.reconfig.state.memory import Staging, as_array, dtype_name
from wattmesh.reconfig.universal.index import box as logical
from wattmesh.reconfig.universal.index.names import HOOK

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]

DTYPES = (torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.int64)
SHAPES = ((), (0,), (1,), (70_001,), (3, 39_001), (600, 3, 50))


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Random bits on the host, of any dtype."""
    size = dtype.itemsize * int(np.prod(shape))
    if not size:
        return torch.zeros(shape, dtype=dtype)
    octets = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    return torch.from_numpy(octets).view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_device_digests_what_the_host_does(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """To the bit, for every size of element; two transposed tensors too."""
    tensor = drawn(shape, dtype)
    assert local_digest({"w": tensor.cuda()}) == local_digest({"w": tensor})
    if tensor.dim() > 1:
        turned = tensor.transpose(0, 1)
        assert local_digest({"w": turned.cuda()}) == local_digest({"w": turned})


def test_a_box_in_a_whole_is_digested_by_its_place() -> None:
    """The offset counts, more than one chunk long, and one flipped bit on the device shows."""
    tensor = drawn((4500, 1000), torch.float32)
    host = LocalBox(key="w", whole=(9000, 1000), offset=(700, 0), local=tensor)
    device = LocalBox(key="w", whole=(9000, 1000), offset=(700, 0), local=tensor.cuda())
    elsewhere = LocalBox(key="w", whole=(9000, 1000), offset=(701, 0), local=tensor.cuda())
    assert sum_on_device(device) == sum_on_device(host) != sum_on_device(elsewhere)
    device.local.view(torch.int32)[17, 5] ^= 1
    assert sum_on_device(device) != sum_on_device(host)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_come_to_the_host_and_go_back(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Through two small pinned buffers, also where the last block is short."""
    tensor = drawn(shape, dtype)
    staging = Staging(block=4096)
    brought = b"".join(bytes(block) for block in staging.blocks(tensor.cuda()))
    assert brought == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    back = torch.full_like(tensor, 7, device="cuda")
    staging.fill(back, partial(_copied, as_array(tensor)))
    staging.finish()
    assert back.cpu().reshape(-1).view(torch.uint8).tolist() == list(brought)


def _copied(source: NDArray[np.generic], part: logical.Box, out: NDArray[np.generic]) -> None:
    ends = zip(part.start, part.shape, strict=True)
    np.copyto(out, source[tuple(slice(start, start + size) for start, size in ends)])


def test_a_strided_tensor_on_the_device_is_filled_where_it_lies() -> None:
    """Every second column of a device tensor; its neighbours stay."""
    tensor = drawn((300, 40), torch.float32).nan_to_num()
    room = torch.zeros(300, 80, device="cuda")
    staging = Staging(block=1000)
    staging.fill(room[:, ::2], partial(_copied, as_array(tensor)))
    staging.finish()
    assert torch.equal(room[:, ::2].cpu(), tensor)
    assert not room[:, 1::2].any()


def test_a_copy_is_not_handed_over_before_it_has_arrived() -> None:
    """Blocks of a tensor that is still being computed, behind a long queue on the device."""
    left = torch.randn(4096, 4096, device="cuda")
    queued = left
    for _ in range(30):
        queued = (queued @ left).tanh()
    octets = b"".join(bytes(block) for block in Staging(block=1 << 20).blocks(queued))
    assert octets == queued.cpu().numpy().tobytes()


def test_a_data_file_from_the_device_is_the_host_s(tmp_path: Path) -> None:
    """The same bytes and digests, whichever memory they come from."""
    tensor = drawn((513, 70), torch.bfloat16)
    made = {}
    for name, local in (("host", tensor), ("device", tensor.cuda())):
        folder = tmp_path / name
        folder.mkdir()
        shape = tuple(tensor.shape)
        piece = TensorPiece(
            fqn="w",
            key=HOOK.entry_key("model.w"),
            dtype=dtype_name(tensor.dtype),
            whole=shape,
            box=logical.Box.whole(shape),
            local=local,
        )
        files, placed = write_files(folder, 0, [piece])
        made[name] = files, placed, (folder / "data-0-0.safetensors").read_bytes()
    assert made["host"] == made["device"]


def test_the_device_s_random_stream_goes_on_where_it_was() -> None:
    """Saved, drawn from, set back: the same draws; and another data rank's are others."""
    torch.cuda.manual_seed(3)
    torch.randn(5, device="cuda")
    random.seed(4)
    saved = streams.now()
    first = torch.randn(1000, device="cuda")
    with streams.undisturbed():
        torch.randn(77, device="cuda")
    second = torch.randn(1000, device="cuda")
    streams.set_to(saved)
    assert torch.equal(torch.randn(1000, device="cuda"), first)
    assert torch.equal(torch.randn(1000, device="cuda"), second)
    other = streams.derived("cuda", saved["cuda"], 1)
    streams.set_to({"cuda": other})
    assert not torch.equal(torch.randn(1000, device="cuda"), first)
    assert streams.derived("cuda", saved["cuda"], 1) == other


def test_forgetting_meshes_leaves_nothing_on_the_device() -> None:
    """The backward pass that empties the device thread's caches keeps no memory."""
    caches = MeshCaches()
    caches.forget("cuda")
    before = torch.cuda.memory_allocated()
    caches.forget("cuda")
    assert torch.cuda.memory_allocated() == before


def test_a_box_stays_on_its_device() -> None:
    """Nothing is copied to find where a tensor lies."""
    tensor = torch.randn(3, 4, device="cuda")
    box = box_of("w", tensor)
    assert box is not None
    assert box.local.data_ptr() == tensor.data_ptr()
