"""The universal layout of DeepSpeed, loaded by a real DeepSpeed."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.universal.deepspeed_runs import RUNS, Trained
from tests.universal.exports import scattered
from tests.universal.exports.scattered import Tensors, bits, scatter
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.convert.exporting import ExportFormat
from wattmesh.reconfig.universal.convert.exporting import export as export_checkpoint
from wattmesh.reconfig.universal.convert.physical import write_physical
from wattmesh.reconfig.universal.exports import deepspeed
from wattmesh.reconfig.universal.exports.deepspeed import EngineState
from wattmesh.reconfig.universal.exports.values import ByParameter
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.folder import open_checkpoint
from wattmesh.reconfig.universal.index.index import Index
from wattmesh.reconfig.universal.index.rules import ExpertStack, Rule, Shard, VocabPad
from wattmesh.reconfig.universal.sources.detect import open_source

PATIENCE_S = 240


def free_port() -> str:
    """A port nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Two ranks that train and save under ZeRO-1, 2 and 3, then load; and what each rank lost."""
    folder = tmp_path_factory.mktemp("deepspeed")
    command = [
        sys.executable,
        "-m",
        "tests.universal.exports.deepspeed_resume",
        str(folder),
        free_port(),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return folder, [json.loads((folder / f"losses-{r}.json").read_bytes()) for r in range(2)]


@pytest.mark.parametrize("run", [run.name for run in RUNS])
def test_real_runs_hold_what_their_ranks_held(
    deepspeed_runs: Trained, tmp_path: Path, run: str
) -> None:
    """ZeRO's files of every stage, converted and exported, are what the ranks had in memory."""
    source = open_source(deepspeed_runs.folder / run)
    checkpoint = open_checkpoint(write_physical(source, tmp_path / "uc", jobs=1))
    export_checkpoint(checkpoint, tmp_path / "out", ExportFormat.DEEPSPEED)
    held = deepspeed_runs.held(run)
    written = sorted((tmp_path / "out" / "zero").glob("*/*.pt"))
    assert len(written) > 6
    for path in written:
        found = torch.load(path, weights_only=True)
        state = "param" if path.stem == "fp32" else path.stem
        if state != "step":
            assert bits(found["param"]) == bits(held[path.parent.name, state]), path
        else:
            assert float(found) == 2


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_deepspeed_goes_on_with_identical_losses(
    jobs: tuple[Path, list[dict[str, Any]]], stage: str
) -> None:
    """ZeRO's files, converted and exported: after loading, losses are those of never stopping.

    So are client data, schedule and counters. `latest_universal` names ours.
    """
    for losses in jobs[1]:
        found = losses[stage]
        assert found["latest_universal"] == found["went on"]
        assert found["theirs"] == found["went on"]
        assert found["facts of latest_universal"] == found["facts of theirs"]
        assert found["facts of theirs"][0] == ["hello"]
        assert found["spoilt"] != found["went on"], "sabotaged twin: an exchanged moment is noticed"


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_files_hold_the_same_as_deepspeeds_own(
    jobs: tuple[Path, list[dict[str, Any]]], stage: str
) -> None:
    """Every tensor below zero/ has the bits of DeepSpeed's, and needs no trust to be read."""
    theirs, ours = jobs[0] / stage / "theirs" / "zero", jobs[0] / stage / "ours" / "zero"
    for path in sorted(theirs.glob("*/*.pt")):
        if path.parent.name == "scale":
            continue  # a buffer: ours lies in the model states file, nothing reads theirs
        wanted = torch.load(path, weights_only=False)
        found = torch.load(ours / path.parent.name / path.name, weights_only=True)
        if path.name != "step.pt":
            wanted = wanted["param"] if isinstance(wanted, dict) else wanted
            found = found["param"]
        assert bits(found) == bits(wanted), path
    one = torch.load(ours / "optimizer_state.pt", weights_only=True)
    assert one["param_groups"][0]["betas"] == [0.9, 0.999]
    assert (ours / "optimizer_state.pt").stat().st_size < 10_000


def test_fused_blocks_are_cut_one_by_one(jobs: tuple[Path, list[dict[str, Any]]]) -> None:
    """DeepSpeed's own loader gives each tensor parallel rank its part of Q, of K and of V."""
    assert json.loads((jobs[0] / "slices.json").read_bytes()) == [[0, 1, 4, 6], [2, 3, 5, 7]]


def model() -> dict[tuple[str, str], torch.Tensor]:
    """A small model with all a trainer may hold."""
    tensors = scattered.small_model()
    tensors["rng", "extra"] = torch.arange(5, dtype=torch.uint8)
    return tensors


def export(folder: Path, index: Index, *, numbers: ByParameter | None = None, **facts: Any) -> Path:
    """Export an index whose files lie below `folder`/source."""
    engine = EngineState(**{"global_steps": 7, **facts})
    with Files(folder / "source") as files:
        deepspeed.export(index, files, folder / "out", engine=engine, numbers=numbers or {})
    return folder / "out"


def test_steps_that_are_plain_numbers(tmp_path: Path) -> None:
    """They become step files, and the step that ZeRO-3 looks for."""
    tensors = {key: tensor for key, tensor in model().items() if key[1] != "step"}
    names = {name for name, state in tensors if state == "exp_avg"}
    index = scatter(tmp_path / "source", tensors)
    out = export(tmp_path, index, numbers={name: {"step": 7} for name in names})
    assert torch.load(out / "zero/norm/step.pt", weights_only=True) == 7
    optimizer = torch.load(out / "zero/optimizer_state.pt", weights_only=True)
    assert optimizer["optimizer_state_dict"]["state"] == {0: {"step": 7}}


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ({"norm": {"step": 7}, "layers.0.b": {"step": 8}}, "norm and layers.0.b are at different"),
        ({"norm": {"calls": 7}}, r"norm \(calls\) is a plain number"),
        ({"counter": {"step": 7}}, "counter has a step, but no slot of its shape"),
    ],
)
def test_numbers_that_deepspeed_cannot_carry(
    tmp_path: Path, numbers: ByParameter, told: str
) -> None:
    """Each is named, and nothing is left behind."""
    tensors = {key: tensor for key, tensor in model().items() if key[1] != "step"}
    index = scatter(tmp_path / "source", tensors)
    with pytest.raises(InputInvalid, match=told):
        export(tmp_path, index, numbers=numbers)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_everything_else_is_in_the_model_states(tmp_path: Path) -> None:
    """Buffers, frozen parameters, extra tensors, counters and client data, under both names."""
    tensors = model()
    index = scatter(tmp_path / "source", tensors)
    out = export(tmp_path, index, client={"note": [1, (2, None)]}, lr_scheduler={"last": 3})
    assert (tmp_path / "latest_universal").read_text() == "out"
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
        found = torch.load(out / name, weights_only=True)
        assert bits(found["module"]["counter"]) == bits(tensors["counter", "param"])
        assert bits(found["module"]["layers.0.half"]) == bits(tensors["layers.0.half", "param"])
        assert bits(found["extra"]["rng"]) == bits(tensors["rng", "extra"])
        assert (found["note"], found["lr_scheduler"]) == ([1, (2, None)], {"last": 3})
        assert (found["global_steps"], found["mp_world_size"]) == (7, 1)


@pytest.mark.parametrize(
    ("rule", "marks"),
    [
        (Shard(1), {"cat_dim": 1}),
        (VocabPad(0, 13), {"cat_dim": 0, "vocab_tensor": True}),
        (ExpertStack(0), {"cat_dim": 0, "is_expert_param": True, "ep_num_experts": 13}),
    ],
)
def test_marks_for_tensor_and_expert_parallel_ranks(
    tmp_path: Path, rule: Rule, marks: dict[str, Any]
) -> None:
    """What a layout rule says is passed on in DeepSpeed's words."""
    index = scatter(tmp_path / "source", model())
    entries = tuple(
        replace(entry, rule=rule) if entry.name == "embed.weight" else entry
        for entry in index.entries
    )
    out = export(tmp_path, replace(index, entries=entries))
    found = torch.load(out / "zero" / "embed.weight" / "exp_avg.pt", weights_only=True)
    assert {key: value for key, value in found.items() if key != "param"} == marks


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        ({("norm", "row_sums"): torch.ones(3)}, r"norm \(row_sums\) has the shape \(3,\)"),
        ({("norm", "step"): torch.tensor(8.0)}, "are at different steps"),
        ({("norm", "param"): torch.ones(6, dtype=torch.float64)}, "does not hold its values"),
        ({("lost", "exp_avg"): torch.ones(6)}, r"lost \(exp_avg\) is the state of a parameter"),
        ({("norm", "fp32"): torch.ones(6)}, "has the name of DeepSpeed's own file"),
        (
            {("optim.param_groups.norm.lr", "extra"): torch.tensor(0.1)},
            r"setting optim.param_groups.norm.lr is a tensor",
        ),
        (
            {("a/b", "param"): torch.ones(2), ("a/b", "exp_avg"): torch.ones(2)},
            "no folder can have",
        ),
    ],
)
def test_what_deepspeed_cannot_carry_is_refused(tmp_path: Path, spoil: Tensors, told: str) -> None:
    """Each is named, and nothing is left behind."""
    index = scatter(tmp_path / "source", {**model(), **spoil})
    with pytest.raises(InputInvalid, match=told):
        export(tmp_path, index)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"groups": ()}, "would load no parameter, and not say so"),
        ({"client": {"module": 3}}, "may not be called 'module'"),
    ],
)
def test_facts_that_would_mislead_deepspeed(
    tmp_path: Path, facts: dict[str, Any], told: str
) -> None:
    """No group would load nothing in silence; client data may not replace what the engine reads."""
    index = scatter(tmp_path / "source", model())
    with pytest.raises(InputInvalid, match=told):
        export(tmp_path, index, **facts)


def test_a_checkpoint_without_optimizer_state(tmp_path: Path) -> None:
    """There is nothing to go on with."""
    index = scatter(tmp_path / "source", {("w", "param"): torch.ones(2)})
    with pytest.raises(InputInvalid, match="export to Hugging Face instead"):
        export(tmp_path, index)
