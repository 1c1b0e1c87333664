"""DCP folders written without torch, loaded by torch's own distributed checkpoint."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import BytesStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict, load

from tests.universal.exports.scattered import bits, scatter, small_model
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.exports import dcp, values
from wattmesh.reconfig.universal.exports.values import OptimizerValues
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.names import HOOK, Names
from wattmesh.reconfig.universal.sources.detect import open_source

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # DCP warns of its own internals


def read_all(folder: Path) -> dict[str, Any]:
    """Everything in a DCP folder, by flat key, through DCP's own planner and reader."""
    found: dict[str, Any] = {}
    planner = _EmptyStateDictLoadPlanner()  # type: ignore[no-untyped-call]
    _load_state_dict(found, FileSystemReader(folder), planner=planner, no_dist=True)
    return {f"{top}.{key}": value for top, inner in found.items() for key, value in inner.items()}


def key_of(name: str, state: str) -> str:
    """Flat keys under the usual names."""
    return f"model.{name}" if state == "param" else f"optim.state.{name}.{state}"


@pytest.mark.parametrize("chunk_bytes", [1, 24, 1 << 20])
def test_every_tensor_comes_back_equal(
    tmp_path: Path, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the size of chunks and files, DCP reads every dtype and shape with its bits."""
    monkeypatch.setattr(dcp, "FILE_BYTES", 100)
    tensors = small_model()
    index = scatter(tmp_path / "source", tensors)
    written: list[int] = []
    with Files(tmp_path / "source") as files:
        dcp.export(index, files, tmp_path / "out", chunk_bytes=chunk_bytes, progress=written.append)
    found = read_all(tmp_path / "out")
    assert found.keys() == {key_of(*key) for key in tensors}
    for key, tensor in tensors.items():
        loaded = found[key_of(*key)]
        assert (loaded.dtype, loaded.shape) == (tensor.dtype, tensor.shape)
        assert bits(loaded) == bits(tensor), key
    assert len(list((tmp_path / "out").glob("__0_*.distcp"))) > 1
    # Checksums are put in afterwards: four bytes per record of an archive are written twice.
    assert sum(written) >= sum(path.stat().st_size for path in (tmp_path / "out").iterdir())


def test_settings_are_values_with_their_types(tmp_path: Path) -> None:
    """Learning rates, tuples, None and bools come back as they were, and are no tensors."""
    settings: dict[str, dict[str, Any]] = {
        "norm": {"lr": 0.001, "betas": (0.9, 0.999), "foreach": None, "amsgrad": False},
        "layers.0.w": {"lr": 3e-4},
    }
    index = scatter(tmp_path / "source", small_model())
    with Files(tmp_path / "source") as files:
        dcp.export(index, files, tmp_path / "out", values=OptimizerValues(settings=settings))
    found = read_all(tmp_path / "out")
    for name, group in settings.items():
        for setting, value in group.items():
            loaded = found[f"optim.param_groups.{name}.{setting}"]
            assert (type(loaded), loaded) == (type(value), value)
    described = FileSystemReader(tmp_path / "out").read_metadata().state_dict_metadata
    assert described["optim.param_groups.norm.lr"] == BytesStorageMetadata()


class Tiny(nn.Module):
    """A model with a buffer and a tied weight."""

    def __init__(self, seed: int) -> None:
        """Weights from a seed."""
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(11, 6)
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.count: torch.Tensor
        self.register_buffer("count", torch.tensor(seed))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next token."""
        logits: torch.Tensor = self.head(torch.tanh(self.inner(self.embed(tokens))))
        return logits


def train(model: Tiny, optimizer: torch.optim.Optimizer, seeds: range) -> list[float]:
    """Losses of some steps."""
    losses = []
    for seed in seeds:
        chance = torch.Generator().manual_seed(seed)
        tokens = torch.randint(0, 11, (4, 5), generator=chance)
        loss = nn.functional.cross_entropy(
            model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss))
    return losses


def source_of(
    model: Tiny, optimizer: torch.optim.Optimizer
) -> tuple[dict[tuple[str, str], torch.Tensor], dict[str, dict[str, Any]]]:
    """A model's state as entries and settings, by the flat names torch gives it."""
    tensors: dict[tuple[str, str], torch.Tensor] = {}
    settings: dict[str, dict[str, Any]] = {}
    held, slots = get_state_dict(model, optimizer, options=FLAT)
    for name, tensor in held.items():
        if name != "head.weight":
            assert isinstance(tensor, torch.Tensor)
            tensors[name, "param"] = tensor
    for key, value in slots.items():
        kind, _, rest = key.partition(".")
        name, _, last = rest.rpartition(".")
        if kind == "state":
            assert isinstance(value, torch.Tensor)
            tensors[name, last] = value
        else:
            settings.setdefault(name, {})[last] = value
    return tensors, settings


@pytest.mark.parametrize("names", [HOOK, Names(model="app.model.", optim="app.optimizer.")])
def test_training_goes_on_as_if_nothing_happened(tmp_path: Path, names: Names) -> None:
    """A fresh model with the export loaded has the losses of the one that never stopped."""
    model = Tiny(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    train(model, optimizer, range(3))
    tensors, settings = source_of(model, optimizer)
    index = scatter(tmp_path / "source", tensors, {"head.weight": "embed.weight"})
    with Files(tmp_path / "source") as files:
        dcp.export(
            index,
            files,
            tmp_path / "out",
            values=OptimizerValues(settings=settings),
            names=names,
            chunk_bytes=50,
        )
    wanted = train(model, optimizer, range(3, 6))

    other = Tiny(2)
    fresh = torch.optim.AdamW(other.parameters(), lr=0.5)
    train(other, fresh, range(1))
    held, slots = get_state_dict(other, fresh, options=FLAT)
    nested: dict[str, Any] = {"model": held, names.optim.split(".")[-2]: slots}
    for part in reversed(names.model.split(".")[:-2]):
        nested = {part: nested}
    load(nested, checkpoint_id=tmp_path / "out", no_dist=True)
    set_state_dict(other, fresh, model_state_dict=held, optim_state_dict=slots, options=FLAT)
    assert int(other.count) == 1
    held = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    assert train(other, fresh, range(3, 6)) == wanted
    forgetful = Tiny(2)
    forgetful.load_state_dict(held)
    losses = train(forgetful, torch.optim.AdamW(forgetful.parameters(), lr=0.02), range(3, 6))
    assert losses != wanted, "sabotaged twin: without the moments the losses differ"


def test_dcp_to_torch_save_reads_it(tmp_path: Path) -> None:
    """The converter of torch makes one nested file of it."""
    tensors = small_model()
    index = scatter(tmp_path / "source", tensors)
    with Files(tmp_path / "source") as files:
        dcp.export(
            index, files, tmp_path / "out", values=OptimizerValues(settings={"norm": {"lr": 0.5}})
        )
    dcp_to_torch_save(tmp_path / "out", tmp_path / "all.pt")
    found = torch.load(tmp_path / "all.pt", weights_only=True)
    assert found["optim"]["param_groups.norm.lr"] == 0.5
    assert bits(found["model"]["layers.0.w"]) == bits(tensors["layers.0.w", "param"])
    assert bits(found["optim"]["state.norm.exp_avg"]) == bits(tensors["norm", "exp_avg"])


def test_every_archive_passes_the_restricted_reader(tmp_path: Path) -> None:
    """No archive needs trust: each one loads with weights_only, plain values too."""
    index = scatter(tmp_path / "source", small_model())
    with Files(tmp_path / "source") as files:
        dcp.export(
            index,
            files,
            tmp_path / "out",
            values=OptimizerValues(settings={"norm": {"betas": (0.9, 0.95)}}),
        )
    storage = FileSystemReader(tmp_path / "out").read_metadata().storage_data
    for place in storage.values():
        data = (tmp_path / "out" / place.relative_path).read_bytes()
        torch.load(io.BytesIO(data[place.offset :][: place.length]), weights_only=True)


@pytest.mark.parametrize("chunk_bytes", [24, 1 << 20])
def test_our_own_source_reads_it(tmp_path: Path, chunk_bytes: int) -> None:
    """Converted again, the export gives every entry and every value back."""
    tensors = small_model()
    opaque = io.BytesIO()
    torch.save({"no plain data": 1 + 2j}, opaque)
    raw = torch.frombuffer(bytearray(opaque.getvalue()), dtype=torch.uint8)
    tensors["loader.state", "pickle"] = raw
    tensors["schedule.table", "extra"] = torch.arange(4)
    told = OptimizerValues(
        settings={"norm": {"lr": 0.5, "betas": [0.9, 0.99]}},
        numbers={"layers.0.half": {"step": 3}},
        other={"epoch": 4},
    )
    index = scatter(tmp_path / "source", tensors)
    with Files(tmp_path / "source") as files:
        dcp.export(index, files, tmp_path / "out", values=told, chunk_bytes=chunk_bytes)
    slots = re.compile("^layers.0.half$"), frozenset({"step"})
    source = open_source(tmp_path / "out", Declared(slots=(slots,)), HOOK)
    assert {entry.key for entry in source.index.entries} == tensors.keys()
    with Files(tmp_path / "out") as files:
        reader = Reader(source.index, files)
        for row, entry in enumerate(source.index.entries):
            assert reader.read(row).tobytes() == bits(tensors[entry.key]), entry
    assert values.from_trainer({"values": source.values}) == told


def test_a_dropped_moment_is_noticed(tmp_path: Path) -> None:
    """Sabotaged twin: two slots exchanged in the source make the comparison fail."""
    tensors = small_model()
    swapped = dict(tensors)
    one, other = ("norm", "exp_avg"), ("norm", "exp_avg_sq")
    swapped[one], swapped[other] = tensors[other], tensors[one]
    index = scatter(tmp_path / "source", swapped)
    with Files(tmp_path / "source") as files:
        dcp.export(index, files, tmp_path / "out")
    found = read_all(tmp_path / "out")
    wrong = [key for key in tensors if bits(found[key_of(*key)]) != bits(tensors[key])]
    assert wrong == [one, other]


@pytest.mark.parametrize(
    ("setting", "told"), [({1, 2}, "is a set"), (torch.ones(1), "is a Tensor")]
)
def test_settings_that_are_no_plain_data(tmp_path: Path, setting: Any, told: str) -> None:
    """They are named, and nothing is written."""
    index = scatter(tmp_path / "source", small_model())
    with Files(tmp_path / "source") as files, pytest.raises(InputInvalid, match=told):
        dcp.export(
            index,
            files,
            tmp_path / "out",
            values=OptimizerValues(settings={"norm": {"odd": setting}}),
        )
    assert not (tmp_path / "out").exists()


def test_two_things_under_one_key(tmp_path: Path) -> None:
    """Prefixes that make two keys equal are refused."""
    tensors = {("w", "exp_avg"): torch.ones(2), ("state.w.exp_avg", "param"): torch.ones(2)}
    index = scatter(tmp_path / "source", tensors)
    same = Names(model="", optim="")
    with Files(tmp_path / "source") as files, pytest.raises(InputInvalid, match="would both be"):
        dcp.export(index, files, tmp_path / "out", names=same)


def test_a_source_cut_short(tmp_path: Path) -> None:
    """An error names the file, and no target remains."""
    index = scatter(tmp_path / "source", small_model())
    (tmp_path / "source" / "shards" / "data.bin").write_bytes(b"")
    with Files(tmp_path / "source") as files, pytest.raises(CheckpointDamaged, match=r"data\.bin"):
        dcp.export(index, files, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
