"""Forms of DCP folders that ask first, or are written otherwise: numbers, factors, folders."""

import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint._extension import ZStandard
from torch.distributed.checkpoint.filesystem import FileSystemWriter, SerializationFormat
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import save

from tests.universal.comparing import Held, differing
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.index.declared import Average, Declared, Numbered, from_document
from wattmesh.reconfig.universal.sources.detect import open_source
from wattmesh.reconfig.universal.sources.source import Choices

pytestmark = pytest.mark.filterwarnings("ignore")
Make = Callable[[Any], torch.optim.Optimizer]


class Run:
    """A small model and its optimizer after one step."""

    def __init__(self, make: Make, *, named: bool = False) -> None:
        """Train it."""
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 3))
        params = self.model.named_parameters() if named else self.model.parameters()
        self.optimizer = make(params)
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()

    @property
    def order(self) -> tuple[str, ...]:
        """The names of the numbered parameters."""
        return tuple(name for name, _ in self.model.named_parameters())

    @property
    def nested(self) -> dict[str, Any]:
        """Torch's own state dicts, by name."""
        return {
            "model": get_model_state_dict(self.model),
            "optim": get_optimizer_state_dict(self.model, self.optimizer),
        }

    @property
    def numbered(self) -> dict[str, Any]:
        """The optimizer's own state dict."""
        return {"model": self.model.state_dict(), "optim": self.optimizer.state_dict()}

    @property
    def held(self) -> dict[tuple[str, str], torch.Tensor]:
        """What is in memory, by (name, state)."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        found = {(name, "param"): each.detach() for name, each in self.model.named_parameters()}
        for parameter, slots in self.optimizer.state.items():
            found |= {(names[id(parameter)], slot): each for slot, each in slots.items()
                      if isinstance(each, torch.Tensor)}  # fmt: skip
        return found


def adamw(params: Any) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(params, lr=0.1, foreach=False)


def put(path: Path, state: dict[str, Any], **options: Any) -> Path:
    """Save with torch, in this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(state, storage_writer=FileSystemWriter(path, **options), no_dist=True)
    return path


def same(path: Path, held: Held, declared: Declared | None = None, **choices: Any) -> None:
    """Read bit for bit; with one bit of what was held turned, the comparison names that."""
    source = open_source(path, declared or Declared(), choices=Choices(**choices))
    assert differing(source.index, source.folder, held) == []
    key = next(key for key in held if held[key].numel() > 1)
    other = held[key].clone().contiguous()
    other.view(-1).view(torch.uint8)[0] ^= 1
    assert differing(source.index, source.folder, {**held, key: other}) == [key]


def test_numbers_are_asked_for_their_names(tmp_path: Path) -> None:
    """Numbered parameters are refused until they are named, by torch itself or by the user."""
    run = Run(adamw)
    path = put(tmp_path / "it", run.numbered)
    with pytest.raises(InputInvalid, match=r"numbers its 6 parameters .* table .*numbered"):
        open_source(path)
    table = {"names": list(run.order), "optimizer": "optim."}
    declared = from_document({"numbered": [table]}, "rules")
    same(path, run.held, declared)
    settings = open_source(path, declared).values["param_groups"]
    assert (set(settings), settings["0.weight"]["lr"]) == (set(run.order), 0.1)
    named = Run(adamw, named=True)
    same(put(tmp_path / "named", named.numbered), named.held)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("0.weight",), "lists 1 names"),
        (("0.bias", "0.weight", "1.weight", "1.bias", "2.weight", "2.bias"), "is no slot"),
        (("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.weight"), "one name"),
        (("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "3.bias"), "is no slot"),
    ],
)
def test_wrong_names_of_numbers(tmp_path: Path, names: tuple[str, ...], words: str) -> None:
    """Sabotaged twins: too few names, two exchanged, one twice, one of no parameter."""
    path = put(tmp_path / "it", Run(adamw).numbered)
    with pytest.raises(InputInvalid, match=words):
        open_source(path, Declared(numbered=(Numbered(names),)))


def test_a_parameter_in_two_groups_is_refused(tmp_path: Path) -> None:
    """Which settings are its own is not known."""
    run = Run(adamw)
    state = run.nested
    first = state["optim"]["param_groups"][0]
    state["optim"]["param_groups"] = [first, {**first, "lr": 0.5, "params": ["0.weight"]}]
    with pytest.raises(InputInvalid, match=r"'0.weight' is in two groups"):
        open_source(put(tmp_path / "it", state))


def test_an_optimizer_without_slots(tmp_path: Path) -> None:
    """SGD without momentum has groups only; from them the prefixes are proven."""
    run = Run(lambda params: torch.optim.SGD(params, lr=0.1))
    path = put(tmp_path / "it", run.nested)
    same(path, run.held)
    assert set(open_source(path).values["param_groups"]) == set(run.order)


def test_factored_slots(tmp_path: Path) -> None:
    """Adafactor's rows and columns; one of them lost is a lost slot, another shape none."""
    run = Run(lambda params: torch.optim.Adafactor(params, foreach=False))
    state = run.nested
    same(put(tmp_path / "it", state), run.held)
    slots = state["optim"]["state"]["0.weight"]
    rows = slots.pop("row_var")
    with pytest.raises(InputInvalid, match=r"row_var|col_var"):
        open_source(put(tmp_path / "lost", state))
    slots["row_var"] = rows.t()
    with pytest.raises(InputInvalid, match="row_var' is no slot"):
        open_source(put(tmp_path / "turned", state))


def test_an_average_beside(tmp_path: Path) -> None:
    """Two sets of a model's tensors: asked for, chosen, or declared to be an average."""
    run = Run(adamw)
    ema = {name: each.detach() * 0.5 for name, each in run.model.named_parameters()}
    path = put(tmp_path / "it", {**run.nested, "ema": ema})
    with pytest.raises(InputInvalid, match=r"2 models fit .* --model 'ema.'"):
        open_source(path)
    beside = {(f"ema.{name}", "extra"): each for name, each in ema.items()}
    same(path, {**run.held, **beside}, model="model.")
    declared = Declared(averages=(Average("ema.", "ema"),))
    averages = {(name, "average.ema"): each for name, each in ema.items()}
    same(path, {**run.held, **averages}, declared)
    with pytest.raises(InputInvalid, match="no tensor has this prefix"):
        open_source(path, Declared(averages=(Average("mean.", "ema"),)))
    with pytest.raises(InputInvalid, match="is no slot or setting"):
        open_source(path, choices=Choices(model="nobody."))


def test_two_optimizers_of_one_model(tmp_path: Path) -> None:
    """Optimizers that share a model's parameters are both taken; with one in common, asked for."""
    run = Run(adamw)
    state = run.nested
    whole = state.pop("optim")
    parts: list[dict[str, Any]] = [{"state": {}, "param_groups": []} for _ in range(2)]
    for name, slots in whole["state"].items():
        parts[name.startswith("2")]["state"][name] = slots
    (group,) = whole["param_groups"]
    for number, part in enumerate(parts):
        part["param_groups"] = [{**group, "params": list(part["state"])}]
        state[f"optimizer_{number}"] = part
    same(put(tmp_path / "it", state), run.held)
    parts[1]["param_groups"][0]["params"].append("0.weight")
    with pytest.raises(InputInvalid, match=r"2 optimizers fit .* --optimizer 'optimizer_0.'"):
        open_source(put(tmp_path / "both", state))


def test_folders_side_by_side(tmp_path: Path) -> None:
    """Accelerate's model and optimizer folders are one source; a lost one is not another's."""
    run = Run(adamw)
    state = run.nested
    put(tmp_path / "it/pytorch_model_fsdp_0", {"model": state["model"]})
    put(tmp_path / "it/optimizer_0", {"optimizer": state["optim"]})
    torch.save({"last_epoch": 3}, tmp_path / "it/scheduler.bin")
    (tmp_path / "it/random_states_0.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    same(tmp_path / "it", run.held)
    values = open_source(tmp_path / "it").values
    assert values["other"]["scheduler.last_epoch"] == 3
    assert values["left_out"] == ["random_states_0.pkl"]
    (tmp_path / "it/pytorch_model_fsdp_0/__0_0.distcp").unlink()
    with pytest.raises(CheckpointDamaged, match=r"pytorch_model_fsdp_0/__0_0.distcp"):
        open_source(tmp_path / "it")


def test_one_key_in_two_folders_side_by_side_is_refused(tmp_path: Path) -> None:
    """Which of the two counts is not known."""
    state = Run(adamw).nested
    put(tmp_path / "it/pytorch_model_fsdp_0", {"model": state["model"], "seed": torch.ones(1)})
    put(tmp_path / "it/optimizer_0", {"optimizer": state["optim"], "seed": torch.zeros(1)})
    with pytest.raises(InputInvalid, match="'seed' is in another folder beside it, too"):
        open_source(tmp_path / "it")


def test_lightning_keeps_the_rest_in_a_file(tmp_path: Path) -> None:
    """Lightning's meta.pt is plain data beside; what is none is named."""
    run = Run(adamw)
    state = run.nested
    path = put(tmp_path / "it", {"state_dict": state["model"], "optimizer_0": state["optim"]})
    torch.save({"global_step": 7, "epoch": 1, "loops": {"a": torch.ones(2)}}, path / "meta.pt")
    same(path, run.held)
    source = open_source(path)
    assert source.position == {"step": 7}
    assert (source.values["other"]["meta.epoch"], source.values["left_out"]) == (1, ["meta.loops"])


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float8_e8m0fnu", "float8_e4m3fnuz"])
def test_buffers_of_rare_dtypes(tmp_path: Path, dtype: str) -> None:
    """Complex numbers and the newer float8 are copied as their bits."""
    values = torch.tensor([0.5, 1.0, 4.0, 8.0]).to(getattr(torch, dtype))
    path = put(tmp_path / "it", {"buffer": values, "turned": values.reshape(2, 2).t()})
    same(path, {("buffer", "param"): values, ("turned", "param"): values.reshape(2, 2).t()})


def test_safetensors_inside(tmp_path: Path) -> None:
    """Torch's safetensors form; a chunk that it lost, and a file that is cut, are refused."""
    run = Run(adamw)
    form = {"serialization_format": SerializationFormat.SAFETENSORS}
    path = put(tmp_path / "it", run.nested, **form)
    same(path, run.held)
    file = path / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    begin = data.index(b'{"__metadata__"') - 8
    for wrong, words in (
        (data[:-1], "its tensors end at byte|is cut off"),
        (data.replace(b'"model.0.bias"', b'"model.0.bios"'), "DCP_SHARDING_INFO is damaged"),
        (data[:begin] + struct.pack("<Q", 1 << 40) + data[begin + 8 :], "is cut off"),
    ):
        file.write_bytes(wrong)
        with pytest.raises((InputInvalid, CheckpointDamaged), match=words):
            open_source(path)


def test_zstd_is_unpacked(tmp_path: Path) -> None:
    """A compressed folder is read once it may be unpacked; what is damaged leaves nothing."""
    run = Run(adamw)
    path = put(tmp_path / "it", run.nested, _extensions=[ZStandard()])
    with pytest.raises(InputInvalid, match="--unpack FOLDER"):
        open_source(path)
    same(path, run.held, unpack=tmp_path / "plain")
    with pytest.raises(InputInvalid, match="cannot be made"):
        open_source(path, choices=Choices(unpack=tmp_path / "plain"))
    data = bytearray((path / "__0_0.distcp").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    (path / "__0_0.distcp").write_bytes(data)
    with pytest.raises(InputInvalid, match=r"cut off|decompressed|becomes more|archive"):
        open_source(path, choices=Choices(unpack=tmp_path / "bad"))
