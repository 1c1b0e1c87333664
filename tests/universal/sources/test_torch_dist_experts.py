"""Mixtures of experts of Megatron-core are read bit for bit, and hostile ones are refused."""

import re
import shutil
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from tests.universal.exports.scattered import bits
from tests.universal.megatron_runs import EXPERTS, Piece, Saved, differing
from tests.universal.sources.megatron_job import LAYERS, Case
from tests.universal.sources.megatron_lies import (
    changed_common,
    edited,
    lose,
    moved,
    rename,
    without_chunk,
)
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.convert.convert import convert
from wattmesh.reconfig.universal.convert.exporting import ExportFormat, export
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.folder import CheckpointKind, open_checkpoint
from wattmesh.reconfig.universal.sources.detect import locate, open_source
from wattmesh.reconfig.universal.sources.source import Choices, Source

FC1 = "decoder.layers.1.mlp.experts.experts.linear_fc1.weight"
STACK = "decoder.layers.mlp.experts.experts.linear_fc1.weight"
ROUTER = "decoder.layers.mlp.router.weight"
NORM = "decoder.final_layernorm.weight"
POSITIONS = "embedding.position_embeddings.weight"
WEIGHTS = Choices(weights_only=True)


@pytest.mark.parametrize("case", EXPERTS, ids=lambda case: case.name)
def test_every_expert_is_what_megatron_loads(megatron_runs: Saved, case: Case) -> None:
    """Experts are one tensor a layer, experts first, in every way in which Megatron saves them."""
    source = open_source(megatron_runs.folder / case.name)
    pieces = megatron_runs.pieces(case)
    assert len({each.name for each in pieces}) >= 7 * LAYERS
    assert differing(source, pieces) == []
    shapes = {entry.key: entry.shape for entry in source.index.entries}
    assert {shapes[FC1, state] for state in ("param", "exp_avg", "exp_avg_sq")} == {(4, 64, 16)}
    assert ("from their fp32 masters" in source.described) == case.bf16
    assert _step(source) == 2.0


@pytest.mark.parametrize("case", EXPERTS, ids=lambda case: case.name)
def test_swapped_experts_are_seen(megatron_runs: Saved, case: Case) -> None:
    """Negative control: two experts in each other's place are noticed."""
    source = open_source(megatron_runs.folder / case.name)
    others = {0: 1, 1: 0}

    def swapped(piece: Piece) -> Piece:
        if (piece.name, piece.state) != (FC1, "weight"):
            return piece
        if piece.tensor.shape[0] > 1:
            return replace(piece, tensor=piece.tensor[[1, 0, *range(2, len(piece.tensor))]])
        return replace(piece, start=(others.get(piece.start[0], piece.start[0]), *piece.start[1:]))

    assert differing(source, list(map(swapped, megatron_runs.pieces(case)))) == [(FC1, "param")]


def _step(source: Source) -> Any:
    plain = source.values["slots"].get(FC1)
    if plain is not None:
        return plain["step"]
    with Files(source.folder) as files:
        return Reader(source.index, files).read(source.index.row_of(FC1, "step"))


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_physical_copy_and_export_for_torch(megatron_runs: Saved, tmp_path: Path) -> None:
    """A copy is what Megatron loads in another layout; torch loads what is exported of it."""
    (case, *_) = EXPERTS
    convert(
        open_source(megatron_runs.folder / case.name),
        tmp_path / "uc",
        CheckpointKind.PHYSICAL,
        jobs=1,
    )
    source = open_source(tmp_path / "uc")
    assert differing(source, megatron_runs.pieces(case)) == []
    export(open_checkpoint(tmp_path / "uc"), tmp_path / "dcp", ExportFormat.DCP)
    keys = {f"model.{FC1}": "param", f"optim.state.{FC1}.exp_avg": "exp_avg"}
    told = {key: torch.empty(4, 64, 16) for key in keys}
    dcp_load(told, checkpoint_id=tmp_path / "dcp", no_dist=True)
    with Files(source.folder) as files:
        reader = Reader(source.index, files)
        for key, state in keys.items():
            read = torch.from_numpy(reader.read(source.index.row_of(FC1, state)).copy())
            assert bits(read) == bits(told[key])


def _integers(told: Metadata) -> None:
    """A master's type is one that holds no weights."""
    for key in (f"optimizer.state.param.{ROUTER}",):
        tensor = told.state_dict_metadata[key]
        assert isinstance(tensor, TensorStorageMetadata)
        tensor.properties.dtype = torch.int16


def _collide(told: Metadata) -> None:
    """A parameter has the name of a layer that a stack holds."""
    for prefix in (
        "",
        *(f"optimizer.state.{slot}." for slot in ("param", "exp_avg", "exp_avg_sq")),
    ):
        rename(f"{prefix}{NORM}", f"{prefix}decoder.layers.0.mlp.router.weight")(told)


def _without_expert(told: Metadata) -> None:
    """One expert of one layer is there no more."""
    tensor = told.state_dict_metadata[f"optimizer.state.param.{STACK}"]
    assert isinstance(tensor, TensorStorageMetadata)
    tensor.chunks.pop(5)


EXTRA = "decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard"
LIES = {
    "two chunks of an expert overlap": (
        moved(f"optimizer.state.param.{STACK}", 1, (0, 0, -1, 0)),
        "overlap",
    ),
    "an expert is lost": (
        _without_expert,
        "is missing from the checkpoint",
    ),
    "the first layer is lost": (without_chunk(f"optimizer.state.param.{ROUTER}", 0), "layer 0 of"),
    "a layer is beyond the last": (
        moved(f"optimizer.state.param.{STACK}", 0, (2, 0, 0, 0)),
        "layer 2 of .* is beyond its last",
    ),
    "a master is lost": (lose(f"optimizer.state.param.{ROUTER}"), "lacks its fp32 master"),
    "a master of integers": (_integers, "no master of a parameter in bfloat16"),
    "a shard is there twice": (
        rename(f"{EXTRA}_0.0_2.4", f"{EXTRA}_0.01_2.4"),
        "no name of an object's shard",
    ),
    "a layer has two names": (_collide, "twice once layers are taken apart"),
}


@pytest.mark.parametrize("lie", list(LIES))
def test_experts_that_lie(megatron_runs: Saved, tmp_path: Path, lie: str) -> None:
    """Whatever `.metadata` says wrongly of experts ends in one sentence."""
    edit, sentence = LIES[lie]
    folder = tmp_path / "it"
    shutil.copytree(megatron_runs.folder / "experts", folder)
    with pytest.raises(InputInvalid, match=sentence) as told:
        open_source(edited(folder, edit))
    assert "\n" not in str(told.value)


def _bomb() -> dict[Any, Any]:
    """Optimizers that chain one another sixty-fold, where nothing is plain data.

    A reader without a limit looks at 216,000 of them, in seconds: it fails, and does not hang.
    """
    value: dict[Any, Any] = {}
    for _ in range(3):
        value = {**dict.fromkeys(range(60), value), None: 0}
    return value


def _each(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], None]:
    """Change every chained optimizer."""

    def edit(told: dict[str, Any]) -> None:
        for each in told["optimizer"].values():
            change(each)

    return edit


OF_OPTIMIZER = {
    "bomb": (lambda told: told.update(optimizer=_bomb()), "over and over"),
    "another step": (
        lambda told: told["optimizer"][1]["state"].update(common_step=torch.tensor(3.0)),
        "different steps",
    ),
    "a step as a number": (
        lambda told: told["optimizer"][0]["state"].update(common_step=2),
        "different steps",
    ),
    "no number": (
        _each(lambda each: each["state"].update(common_step=torch.tensor(float("nan")))),
        "step is no number",
    ),
    "before the first": (_each(lambda each: each["state"].update(common_step=-1)), "is no number"),
    "no groups": (_each(lambda each: each.pop("param_groups")), "tells no groups"),
    "no optimizer": (lambda told: told.pop("optimizer"), "tells no groups"),
    "a group that is none": (
        lambda told: told["optimizer"][1].update(param_groups=[1]),
        "no list of settings",
    ),
}


@pytest.mark.parametrize("lie", list(OF_OPTIMIZER))
def test_chained_optimizers_that_lie(megatron_runs: Saved, tmp_path: Path, lie: str) -> None:
    """An optimizer that cannot be trusted is refused; the weights can be read without it."""
    edit, sentence = OF_OPTIMIZER[lie]
    folder = tmp_path / "it"
    shutil.copytree(megatron_runs.folder / "chained", folder)
    changed_common(folder, edit)
    with pytest.raises(InputInvalid, match=sentence):
        open_source(folder)
    source = open_source(folder, choices=WEIGHTS)
    assert {entry.state for entry in source.index.entries} == {"param", "pickle"}
    assert "common.optimizer" not in source.values["other"]
    assert lie == "no optimizer" or "common.optimizer" in source.values["left_out"]


def test_settings_on_which_chained_optimizers_agree(megatron_runs: Saved, tmp_path: Path) -> None:
    """What one of them, or one group, has otherwise is told of no parameter."""
    folder = tmp_path / "it"
    shutil.copytree(megatron_runs.folder / "chained", folder)
    assert open_source(folder).values["param_groups"][FC1]["lr"] == 0.01
    changed_common(folder, lambda told: told["optimizer"][1]["param_groups"][-1].update(lr=0.5))
    settings = open_source(folder).values["param_groups"][FC1]
    assert "lr" not in settings
    assert settings["eps"] == 1e-8


@pytest.mark.parametrize(
    "more",
    [
        {"args": {1: 2, "1": 3}},
        {"args.a": {"b": torch.ones(1)}, "args": {"a.b": torch.ones(1)}},
        {"args.a": {"b": torch.ones(1)}, "args": Namespace(**{"a": {"b": torch.ones(1)}})},
    ],
)
def test_keys_that_become_one(megatron_runs: Saved, tmp_path: Path, more: dict[str, Any]) -> None:
    """No value of common.pt takes another's place."""
    folder = tmp_path / "it"
    shutil.copytree(megatron_runs.folder / "chained", folder)
    changed_common(folder, lambda told: told.update(more))
    with pytest.raises(InputInvalid, match="two of its keys are one"):
        open_source(folder)


@pytest.mark.parametrize("said", ["non_homogeneous_layers", "singleton_local_shards"])
def test_stack_that_megatron_says_is_none(megatron_runs: Saved, tmp_path: Path, said: str) -> None:
    """Where layers were saved by number, a tensor with one row to a chunk is no stack."""
    folder = tmp_path / "it"
    shutil.copytree(megatron_runs.folder / "chained", folder)
    changed_common(folder, lambda told: told["content_metadata"].update({said: True}))
    shapes = {entry.key: entry.shape for entry in open_source(folder).index.entries}
    assert shapes[STACK, "param"] == shapes[STACK, "exp_avg"] == (LAYERS, 4, 64, 16)
    changed_common(folder, lambda told: told.pop("content_metadata"))
    assert (FC1, "param") in {entry.key for entry in open_source(folder).index.entries}


def test_rows_that_are_no_layers(megatron_runs: Saved, tmp_path: Path) -> None:
    """Nothing is taken apart below `layers.` where a tensor's chunks are more than one row."""
    folder = tmp_path / "it"
    shutil.copytree(megatron_runs.folder / "chained", folder)

    def edit(told: Metadata) -> None:
        for prefix in ("", "optimizer.state.exp_avg.", "optimizer.state.exp_avg_sq."):
            rename(f"{prefix}{POSITIONS}", f"{prefix}decoder.layers.positions")(told)

    shapes = {entry.key: entry.shape for entry in open_source(edited(folder, edit)).index.entries}
    assert shapes["decoder.layers.positions", "param"] == (8, 16)
    assert shapes[ROUTER, "param"] == shapes[ROUTER, "exp_avg"] == (LAYERS, 4, 16)


def test_stacks_of_other_depths_are_refused(megatron_runs: Saved, tmp_path: Path) -> None:
    """Stacks below one `layers.` have one number of layers."""
    folder = tmp_path / "it"
    shutil.copytree(megatron_runs.folder / "chained", folder)

    def edit(told: Metadata) -> None:
        tensor = told.state_dict_metadata[ROUTER]
        assert isinstance(tensor, TensorStorageMetadata)
        tensor.size = torch.Size([1, *tensor.size[1:]])
        tensor.chunks = tensor.chunks[:1]

    with pytest.raises(InputInvalid, match=re.escape("has 1 layers, others of")):
        open_source(edited(folder, edit), choices=WEIGHTS)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_folder_beside_another_common_file(tmp_path: Path) -> None:
    """A DCP folder stays one, whatever lies beside it under Megatron's names."""
    dcp_save({"model": torch.nn.Linear(4, 4).state_dict()}, checkpoint_id=tmp_path, no_dist=True)
    (tmp_path / "common.pt").write_bytes(b"mine")
    (tmp_path / "metadata.json").write_text('{"mine": 1}')
    assert locate(tmp_path) == (tmp_path, "dcp")
    assert open_source(tmp_path).kind == "dcp"
    (tmp_path / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    assert locate(tmp_path) == (tmp_path, "megatron")
