"""Two classes of GPUs: as one where they are equal, unequal shares where they are not."""

import json
from dataclasses import replace

import numpy as np
import pytest

from wattmesh.controller.cli.main import main
from wattmesh.controller.cost_model.fitted import shipped
from wattmesh.policies.layout_search.gpu_parts import GpuPart, MixedJob
from wattmesh.policies.layout_search.mixed import MixedLayouts, search_mixed
from wattmesh.policies.layout_search.search import megatron_like, search
from wattmesh.policies.parallelism.hardware import CLASSES
from wattmesh.policies.parallelism.presets import PRESETS

TWIN = replace(CLASSES["h100"], name="twin")
SLOW = replace(CLASSES["h100"], name="slow", matmul_flops=CLASSES["h100"].matmul_flops / 2)


def mixed(second: GpuPart, batch: int = 96) -> tuple[MixedJob, MixedLayouts]:
    """Search llama3-8b on 16 H100 and others."""
    job = MixedJob(
        shape=PRESETS["llama3-8b"],
        global_batch=batch,
        seq_len=8192,
        parts=(GpuPart(gpus=16, gpu=CLASSES["h100"]), second),
    )
    return job, search_mixed(job, shipped())


def test_two_equal_classes_are_as_fast_as_one() -> None:
    """16 and 16 of a kind take what 32 take, to the reduction's share."""
    job, found = mixed(GpuPart(gpus=16, gpu=TWIN))
    alone = replace(job.alone(job.parts[0]), gpus=32)
    one = search(alone, megatron_like(alone), shipped())
    assert found.step_s.min() == pytest.approx(one.step_s.min(), rel=0.03)


def test_all_samples_and_layers_are_dealt_and_fit() -> None:
    """In both ways, in whole microbatches and layers; the slower class gets less of both."""
    job, found = mixed(GpuPart(gpus=8, gpu=SLOW))
    replicas = ~found.by_stages
    dealt = sum(
        np.asarray(layout.dp) * layout.micro_batch * batches
        for layout, batches in zip(found.layout, found.batches, strict=True)
    )
    assert (np.asarray(dealt)[replicas] == job.global_batch).all()
    stages = found.by_stages
    assert replicas.any()
    assert stages.any()
    each = [
        part.gpus / (np.asarray(found.layout[0].tp) * found.layout[0].cp * found.layout[0].dp)
        for part in job.parts
    ]
    layers = each[0] * found.layers[0] + each[1] * found.layers[1]
    assert (layers[stages] == float(job.shape.layers)).all()
    assert (found.memory_share <= 1).all()
    fastest = int(np.flatnonzero(replicas)[0])
    assert found.batches[0][fastest] > found.batches[1][fastest]
    first_stages = int(np.flatnonzero(stages)[0])
    assert found.layers[0][first_stages] > found.layers[1][first_stages]


def test_a_faster_second_class_never_makes_the_best_step_longer() -> None:
    """The twin of the above: with the same GPUs at full speed shares are equal, steps shorter."""
    _, slow = mixed(GpuPart(gpus=8, gpu=SLOW))
    _, equal = mixed(GpuPart(gpus=8, gpu=TWIN))
    assert equal.step_s.min() <= slow.step_s.min()
    fastest = int(np.flatnonzero(~equal.by_stages)[0])
    assert equal.batches[0][fastest] == equal.batches[1][fastest]


def test_the_command_takes_two_classes(capsys: pytest.CaptureFixture[str]) -> None:
    """Screen, JSON, a cluster on which nothing fits, and what is only for one class."""
    asked = ["configs", "search", "--model", "llama3-8b", "--batch", "96", "--gpus"]
    assert main([*asked, "16xh100,8xa100"]) == 0
    said = capsys.readouterr().out
    assert "16 h100 + 8 a100" in said
    assert "BY CLASS" in said
    assert main([*asked, "16xh100,8xa100", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {each["dealt"] for each in answer["points"]} == {"replicas", "stages"}
    assert answer["excluded"]
    assert main([*asked, "1xl40s,1xa100-40gb"]) == 0
    assert "no layout is possible on both" in capsys.readouterr().out
    assert main([*asked, "16xh100,8xa100", "--why", "tp2"]) != 0
    assert "for one class of GPUs" in capsys.readouterr().err
