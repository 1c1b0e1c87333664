"""Real `torch_dist` checkpoints of Megatron-core read bit for bit; anything else is refused."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.universal.comparing import damaged
from tests.universal.megatron_runs import CASES, SPOILT, Saved, differing
from tests.universal.sources.megatron_job import LAYERS, PADDED, SAMPLES, VOCABULARY, Case
from tests.universal.sources.megatron_lies import (
    changed_common,
    edited,
    flattened,
    longer,
    lose,
    packed,
    rename,
    sharing,
    without_chunk,
)
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.index.declared import Declared, Rename
from wattmesh.reconfig.universal.index.rules import VocabPad
from wattmesh.reconfig.universal.sources.detect import locate, open_source
from wattmesh.reconfig.universal.sources.source import Choices
from wattmesh.reconfig.universal.sources.torch_dist.megatron import open_megatron

NOTHING = Declared()
NAMED = [case for case in CASES if case.targets]
FC1 = "decoder.layers.0.mlp.linear_fc1.weight"
WORDS = "embedding.word_embeddings.weight"


@pytest.mark.parametrize("case", NAMED, ids=lambda case: case.name)
def test_every_tensor_is_what_megatron_loads(megatron_runs: Saved, case: Case) -> None:
    """Weights, masters and moments are, bit for bit, what its loader gives in another layout."""
    source = open_source(megatron_runs.folder / case.name)
    pieces = megatron_runs.pieces(case)
    assert source.kind == "megatron"
    assert len({each.name for each in pieces}) >= 11 * LAYERS
    assert differing(source, pieces) == []
    mastered = "from their fp32 masters" in source.described
    assert mastered == case.bf16
    assert set(source.index.files) <= set(source.files)


@pytest.mark.parametrize("how", list(SPOILT))
@pytest.mark.parametrize("case", NAMED, ids=lambda case: case.name)
def test_differences_are_seen(megatron_runs: Saved, case: Case, how: str) -> None:
    """Negative controls: a bit, a row, a layer or a tensor that differs is named."""
    source = open_source(megatron_runs.folder / case.name)
    spoilt = SPOILT[how](megatron_runs.pieces(case), (FC1, "weight"))
    assert (FC1, "param") in differing(source, spoilt)


@pytest.mark.parametrize("case", NAMED, ids=lambda case: case.name)
def test_values_that_are_no_tensors(megatron_runs: Saved, case: Case) -> None:
    """Settings on which all groups agree come by parameter, all groups beside them."""
    source = open_source(megatron_runs.folder / case.name)
    values = source.values
    assert source.position == {"step": 2, "samples": SAMPLES}
    groups = values["param_groups"]
    assert set(groups) == {entry.name for entry in source.index.entries if entry.state == "param"}
    assert groups[FC1]["lr"] == 0.01
    assert groups[FC1]["betas"] == [0.9, 0.999]
    assert "wd_mult" not in groups[FC1]
    whole = values["other"]["common.optimizer"]
    whole = whole.get("optimizer", whole)
    assert [each["wd_mult"] for each in whole["param_groups"]] == [1.0, 0.0]
    assert values["other"]["common.opt_param_scheduler"] == {"num_steps": SAMPLES, "max_lr": 0.01}
    assert values["left_out"] == ["common.args.params_dtype"]
    states = {entry.key for entry in source.index.entries}
    shards = [f"rng_state/shard_{p}.{t}_{case.pp}.{case.tp}" for p in range(case.pp)
              for t in range(case.tp)]  # fmt: skip
    assert {(each, "pickle") for each in shards} <= states


def test_step_of_every_parameter(megatron_runs: Saved) -> None:
    """The common step is every parameter's: a tensor, or the number in the groups."""
    plain = open_source(megatron_runs.folder / "staged")
    with Files(plain.folder) as files:
        reader = Reader(plain.index, files)
        assert reader.read(plain.index.row_of(FC1, "step")) == 2.0
    assert open_source(megatron_runs.folder / "sharded").values["slots"][FC1] == {"step": 2.0}


def test_padding_of_the_vocabulary(megatron_runs: Saved) -> None:
    """Rows that are padding are cut from the weight and its slots, where a rule says so."""
    declared = Declared(
        rules=((re.compile(f"^{WORDS}"), VocabPad(0, VOCABULARY)),),
        renames=(Rename(re.compile(r"^decoder\.final_layernorm"), "norm"),),
    )
    source = open_megatron(megatron_runs.folder / "sharded", declared)
    shapes = {entry.key: entry.shape for entry in source.index.entries}
    assert shapes[WORDS, "param"] == shapes[WORDS, "exp_avg"] == (VOCABULARY, 16)
    assert shapes["norm.weight", "exp_avg_sq"] == (16,)
    whole = open_source(megatron_runs.folder / "sharded").index
    assert whole.entries[whole.row_of(WORDS, "param")].shape == (PADDED, 16)


def test_tied_embedding_is_there_once(megatron_runs: Saved) -> None:
    """The output layer is the embedding, which its stages saved once."""
    tied = {entry.name for entry in open_source(megatron_runs.folder / "sharded").index.entries}
    other = {entry.name for entry in open_source(megatron_runs.folder / "staged").index.entries}
    assert "output_layer.weight" in other - tied


def test_buckets_are_refused(megatron_runs: Saved) -> None:
    """Megatron's default form of the distributed optimizer names no parameter; weights are read."""
    folder = megatron_runs.folder / "buckets"
    with pytest.raises(InputInvalid, match=r"which parameter lies where; save with --dist-ckpt"):
        open_source(folder)
    source = open_source(folder, choices=Choices(weights_only=True))
    assert {entry.state for entry in source.index.entries} == {"param", "pickle"}
    assert {entry.dtype for entry in source.index.entries} == {"bfloat16", "uint8"}
    assert len([each for each in source.values["left_out"] if "bucket_idx_0" in each]) == 3


def test_iteration_that_the_tracker_names(megatron_runs: Saved, tmp_path: Path) -> None:
    """Megatron's own file names the iteration; a later one was not saved to its end."""
    for name in ("iter_0000002", "iter_0000010"):
        shutil.copytree(megatron_runs.folder / "staged", tmp_path / name)
    (tmp_path / "iter_0000010" / "metadata.json").unlink()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("2")
    assert locate(tmp_path) == (tmp_path / "iter_0000002", "megatron")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    with pytest.raises(InputInvalid, match="not saved to its end"):
        open_source(tmp_path)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("../elsewhere")
    with pytest.raises(InputInvalid, match="not the name of a folder"):
        open_source(tmp_path)
    (tmp_path / "latest_checkpointed_iteration.txt").unlink()
    assert locate(tmp_path) == (tmp_path / "iter_0000010", "megatron")


CONFIG = {"sharded_backend": "torch_dist", "sharded_backend_version": 1,
          "common_backend": "torch", "common_backend_version": 1}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sharded_backend": "zarr"}, "sharded_backend is 'zarr'; only 'torch_dist' is read"),
        ({"sharded_backend": "fsdp_dtensor"}, "sharded_backend is 'fsdp_dtensor'"),
        ({"sharded_backend_version": 2}, "sharded_backend_version is 2; only 1"),
        ({"sharded_backend_version": True}, "sharded_backend_version is True; only 1"),
        ({"common_backend": "sealed"}, "common_backend is 'sealed'; only 'torch'"),
        ({"encryption": "aes"}, "tells 'encryption', which this reader does not know"),
    ],
)
def test_other_formats_are_refused(
    megatron_runs: Saved, tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    """Another backend, another version, or more than this reader knows."""
    folder = tmp_path / "it"
    shutil.copytree(megatron_runs.folder / "staged", folder)
    assert json.loads((folder / "metadata.json").read_text()) == CONFIG
    (folder / "metadata.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(InputInvalid, match=re.escape(sentence)):
        open_source(folder)


STACK = "decoder.layers.mlp.linear_fc1.weight"
LIES = {
    "a slot of no parameter": (lose(STACK), "slot of a parameter that is not there"),
    "a moment lost": (lose(f"optimizer.state.exp_avg.{STACK}"), "lacks the optimizer slots"),
    "a layer lost": (without_chunk(STACK, 1), "layer 1 of"),
    "the first layer lost": (without_chunk(STACK, 0), r"layer \d of .* is missing"),
    "a layer too many": (longer(STACK), "has 3 layers, others"),
    "half a vocabulary": (without_chunk(WORDS, 0), re.escape(WORDS)),
    "a shard of an object lost": (lose("rng_state/shard_0.0_2.1"), "1 shards are there, 2 were"),
    "an object beside its grid": (
        rename("rng_state/shard_0.0_2.1", "rng_state/shard_2.0_2.1"),
        "no name of an object's shard",
    ),
    "an object without a number": (
        rename("rng_state/shard_0.0_2.1", "rng_state"),
        "no name of an object's shard",
    ),
    "another slot's shape": (
        rename(f"optimizer.state.exp_avg.{STACK}", f"optimizer.state.exp_avg.{WORDS}2"),
        "slot of a parameter that is not there",
    ),
    "an unknown part of the optimizer": (
        rename(f"optimizer.state.exp_avg.{STACK}", "optimizer.moments"),
        "which parameter lies where",
    ),
    "a moment under two optimizers": (
        rename(f"optimizer.state.exp_avg.{STACK}", f"chained_0.optimizer.state.exp_avg_sq.{STACK}"),
        "has its 'exp_avg_sq' twice",
    ),
    "flattened ranges": (
        rename(f"optimizer.state.exp_avg.{STACK}", "optimizer.state.exp_avg.decoder.norm"),
        "slot of a parameter that is not there",
    ),
    "compressed archives": (packed, "its archives are compressed"),
    "archives that share bytes": (sharing, "are in two archives at once"),
    "flattened shapes": (
        flattened(f"optimizer.state.exp_avg.{WORDS}"),
        "one dim more than its parameter",
    ),
    "a layer beside the stack": (rename(WORDS, FC1), "slot of a parameter that is not there"),
}


@pytest.mark.parametrize("lie", list(LIES))
def test_metadata_that_lies(megatron_runs: Saved, tmp_path: Path, lie: str) -> None:
    """What `.metadata` leaves out, adds or calls otherwise ends in one sentence."""
    edit, sentence = LIES[lie]
    folder = tmp_path / "it"
    shutil.copytree(megatron_runs.folder / "staged", folder)
    with pytest.raises((InputInvalid, CheckpointDamaged), match=sentence) as told:
        open_source(edited(folder, edit))
    assert "\n" not in str(told.value)


def test_edited_metadata_is_read_where_it_is_true(megatron_runs: Saved, tmp_path: Path) -> None:
    """Sabotaged twin turned round: writing `.metadata` again alone changes nothing."""
    folder = tmp_path / "it"
    shutil.copytree(megatron_runs.folder / "staged", folder)
    source = open_source(edited(folder, lambda _: None))
    assert source.index.entries == open_source(megatron_runs.folder / "staged").index.entries


@pytest.mark.parametrize("value", [5, torch.ones(2)], ids=["value", "tensor"])
def test_names_that_clash(megatron_runs: Saved, tmp_path: Path, value: Any) -> None:
    """What common.pt holds does not take the place of an object that ranks saved."""
    folder = tmp_path / "it"
    shutil.copytree(megatron_runs.folder / "staged", folder)
    for shard in ("shard_0.0_2.1", "shard_1.0_2.1"):
        edited(folder, rename(f"rng_state/{shard}", f"common.mine/{shard}"))
    assert ("common.mine/shard_0.0_2.1", "pickle") in open_source(folder).index.rows
    changed_common(folder, lambda told: told.update({"mine/shard_0.0_2.1": value}))
    with pytest.raises(InputInvalid, match=r"'common.mine/shard_0.0_2.1' is the name of another"):
        open_source(folder)


def test_tensors_far_larger_than_their_files(megatron_runs: Saved, tmp_path: Path) -> None:
    """A tensor that repeats one element may not fill a disk when it is copied."""
    folder = tmp_path / "it"
    shutil.copytree(megatron_runs.folder / "staged", folder)
    changed_common(folder, lambda told: told.update(big=torch.zeros(1).expand(1 << 10)))
    assert ("common.big", "extra") in open_source(folder).index.rows
    changed_common(folder, lambda told: told.update(big=torch.zeros(1).expand(1 << 26)))
    with pytest.raises(InputInvalid, match="repeat the same bytes over and over"):
        open_source(folder)


@pytest.mark.parametrize("name", ["common.pt", ".metadata", "metadata.json", "__1_0.distcp"])
def test_lost_files(megatron_runs: Saved, tmp_path: Path, name: str) -> None:
    """A file that is gone is named, and what is left is never taken for another kind."""
    folder = tmp_path / "it"
    shutil.copytree(megatron_runs.folder / "staged", folder)
    (folder / name).unlink()
    with pytest.raises((InputInvalid, CheckpointDamaged), match=re.escape(name)):
        open_source(folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda told: told["optimizer"]["state"].update(common_step="two"), "step is no number"),
        (lambda told: told["optimizer"]["state"].update(common_step=torch.ones(2)), "no number"),
        (lambda told: told.update({"a\nb": 1}), "no printable text"),
        (
            lambda told: told.update(optimizer={0: told["optimizer"], 1: {"state": {
                "common_step": torch.tensor(3.0)}}}),
            "different steps",
        ),
        (
            lambda told: told.update(optimizer={"param_groups": [{"step": 1}, {"step": 2}]}),
            "different steps",
        ),
    ],
)  # fmt: skip
def test_common_state_that_lies(
    megatron_runs: Saved, tmp_path: Path, change: Callable[[dict[str, Any]], None], sentence: str
) -> None:
    """A step that is none, or more than one."""
    folder = tmp_path / "it"
    shutil.copytree(megatron_runs.folder / "staged", folder)
    with pytest.raises(InputInvalid, match=sentence):
        open_source(changed_common(folder, change))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_damage(megatron_runs: Saved, tmp_path: Path, data: st.DataObject) -> None:
    """One byte changed or a file cut is refused, or the tensors keep their names and shapes."""
    whole = megatron_runs.folder / "staged"
    names = [".metadata", "common.pt", "metadata.json", "__0_0.distcp"]
    name, found = damaged(data, whole, tmp_path / "it", names, open_source)
    if found is not None and name == "__0_0.distcp":
        true = open_source(whole)
        assert found.index.entries == true.index.entries
