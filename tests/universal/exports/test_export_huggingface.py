"""Parameters as safetensors, read back by the safetensors library."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors import safe_open
from safetensors.torch import load_file

from tests.universal.exports.scattered import bits, scatter, small_model
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.exports import huggingface
from wattmesh.reconfig.universal.exports.casts import to_bfloat16, to_float32
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index.declared import Rename


def params(tensors: dict[tuple[str, str], torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a model's state dict holds."""
    return {name: tensor for (name, state), tensor in tensors.items() if state == "param"}


def differing(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> list[str]:
    """Names whose dtype, shape or bits differ, or that one side lacks."""
    return sorted(
        name
        for name in found.keys() | wanted.keys()
        if name not in found
        or name not in wanted
        or found[name].dtype != wanted[name].dtype
        or found[name].shape != wanted[name].shape
        or bits(found[name]) != bits(wanted[name])
    )


def halves(low: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Every float32 whose lower half is `low`."""
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    return (high | np.uint32(low)).view(np.float32)


@pytest.mark.parametrize("low", [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_every_float32_near_a_border_rounds_as_torch_rounds(low: int) -> None:
    """To nearest, ties to even, for all exponents, zeros, infinities; a NaN stays one."""
    values = halves(low)
    wanted = torch.from_numpy(values.copy()).bfloat16()
    found = torch.from_numpy(to_bfloat16(values).astype(np.int16)).view(torch.bfloat16)
    nan = torch.from_numpy(np.isnan(values))
    assert torch.equal(found.isnan(), nan)
    assert torch.equal(found[~nan].view(torch.int16), wanted[~nan].view(torch.int16))
    assert torch.equal(found[nan].signbit(), torch.from_numpy(values.copy())[nan].signbit())


@given(arrays.arrays(np.uint32, st.integers(0, 50)))
@settings(max_examples=100, deadline=None)
def test_any_float32_rounds_as_torch_rounds(
    raw: np.ndarray[tuple[int], np.dtype[np.uint32]],
) -> None:
    """The same for random bits; and widening a rounded value changes nothing."""
    values = raw.view(np.float32)
    rounded = to_bfloat16(values)
    wanted = torch.from_numpy(values.copy()).bfloat16().view(torch.int16).numpy().view(np.uint16)
    known = ~np.isnan(values)
    assert (rounded[known] == wanted[known]).all()
    assert (to_bfloat16(to_float32(rounded)) == rounded).all()


def test_cutting_bits_off_is_not_rounding() -> None:
    """Sabotaged twin: a cast that only drops the lower half is told apart."""
    values = halves(0xFFFF)
    cut = (values.view(np.uint32) >> 16).astype(np.uint16)
    assert (cut != to_bfloat16(values)).any()


def test_parameters_come_back_equal(tmp_path: Path) -> None:
    """The library reads every parameter and buffer with its bits; slots stay behind."""
    tensors = small_model()
    index = scatter(tmp_path / "source", tensors)
    with Files(tmp_path / "source") as files:
        huggingface.export(index, files, tmp_path / "out")
    wanted = params(tensors)
    wanted["layers.0.half"] = wanted["layers.0.half"].float()
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert differing(found, wanted) == []
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata() == {
            "format": "pt",
            "cast": "bfloat16 -> float32 (to nearest, ties to even)",
        }
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    wanted["norm"][3] = wanted["norm"][3].nextafter(torch.tensor(9.0))
    assert differing(found, wanted) == ["norm"], "sabotaged twin: one bit is noticed"


@pytest.mark.parametrize("limit", [1, 100, 200])
def test_shards_and_their_index(tmp_path: Path, limit: int) -> None:
    """Files stay below the limit, larger tensors stand alone, and the index leads to all."""
    tensors = small_model()
    index = scatter(tmp_path / "source", tensors)
    written: list[int] = []
    with Files(tmp_path / "source") as files:
        huggingface.export(
            index, files, tmp_path / "out", dtype="bfloat16", max_shard_bytes=limit,
            progress=written.append,
        )  # fmt: skip
    shards = sorted((tmp_path / "out").glob("*.safetensors"))
    assert re.fullmatch(r"model-00001-of-\d{5}\.safetensors", shards[0].name)
    assert len(shards) == int(shards[0].stem[-5:])
    document = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_bytes())
    loaded = {path.name: load_file(path) for path in shards}
    for held in loaded.values():
        assert len(held) == 1 or sum(len(bits(each)) for each in held.values()) <= limit
    found = {name: loaded[file][name] for name, file in document["weight_map"].items()}
    wanted = {
        name: tensor.bfloat16() if tensor.is_floating_point() else tensor
        for name, tensor in params(tensors).items()
    }
    assert differing(found, wanted) == []
    assert document["metadata"]["total_size"] == sum(len(bits(each)) for each in wanted.values())
    assert sum(written) == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())


def test_tied_tensors_are_written_once(tmp_path: Path) -> None:
    """An alias is no second tensor; whoever loads the model ties it again."""
    index = scatter(tmp_path / "source", small_model(), {"head.weight": "embed.weight"})
    with Files(tmp_path / "source") as files:
        huggingface.export(index, files, tmp_path / "out")
    assert "head.weight" not in load_file(tmp_path / "out" / "model.safetensors")


def test_declared_renames(tmp_path: Path) -> None:
    """Names become those of another library, as declared."""
    tensors = small_model()
    index = scatter(tmp_path / "source", tensors)
    renames = [
        Rename(re.compile(r"^layers\.(\d+)\."), "model.layers.{0}.", 3),
        Rename(re.compile("^embed"), "model.embed_tokens"),
    ]
    with Files(tmp_path / "source") as files:
        huggingface.export(index, files, tmp_path / "out", renames=renames)
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert bits(found["model.layers.3.w"]) == bits(tensors["layers.0.w", "param"])
    assert bits(found["model.embed_tokens.weight"]) == bits(tensors["embed.weight", "param"])


@pytest.mark.parametrize(
    ("renames", "told"),
    [
        ([Rename(re.compile("blocks"), "layers")], "'blocks' changes no name"),
        ([Rename(re.compile("^norm$"), "counter")], "norm and counter would both be called"),
    ],
)
def test_renames_that_cannot_be_meant(tmp_path: Path, renames: list[Rename], told: str) -> None:
    """A rename without effect, and two names that become one, are refused."""
    index = scatter(tmp_path / "source", small_model())
    with Files(tmp_path / "source") as files, pytest.raises(InputInvalid, match=told):
        huggingface.export(index, files, tmp_path / "out", renames=renames)
    assert not (tmp_path / "out").exists()


def test_float64_and_float16_are_cast_as_torch_casts(tmp_path: Path) -> None:
    """Through float32 to bfloat16; what is too large becomes infinite."""
    values = torch.tensor([1.0, 1e300, -1e-300, 3.141592653589793], dtype=torch.float64)
    tensors = {("wide", "param"): values, ("small", "param"): values[[0, 3]].half()}
    index = scatter(tmp_path / "source", tensors)
    for dtype in huggingface.CASTS:
        with Files(tmp_path / "source") as files:
            huggingface.export(index, files, tmp_path / dtype, dtype=dtype)
        found = load_file(tmp_path / dtype / "model.safetensors")
        wanted = {n: t.float().to(getattr(torch, dtype)) for n, t in params(tensors).items()}
        assert differing(found, wanted) == []


def test_a_checkpoint_without_parameters_is_refused(tmp_path: Path) -> None:
    """Nothing to write is an error, and so is a dtype that nobody declared."""
    index = scatter(tmp_path / "source", {("w", "exp_avg"): torch.ones(2)})
    with Files(tmp_path / "source") as files:
        with pytest.raises(InputInvalid, match="holds no parameters"):
            huggingface.export(index, files, tmp_path / "out")
        with pytest.raises(InputInvalid, match="'float16' is none of"):
            huggingface.export(index, files, tmp_path / "out", dtype="float16")
