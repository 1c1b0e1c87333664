"""Lay a model out over a mesh: tensor parallel, then fully sharded data parallel, then pipeline.

Only PyTorch's own parts. What makes every layout train the same model: each rank draws all
parameters from the seed and keeps its shard, gradients are *summed* over ranks (the loss is
already divided by the global token count), and names stay global.
"""

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from examples.pretrain.config import DTYPES, TrainConfig, check_layout, micro_batch
from examples.pretrain.model import LanguageModel
from examples.pretrain.runner import Pipelined, Runner, Whole, token_loss
from wattmesh.reconfig.layout import Layout


def make_mesh(layout: Layout, device: str = "cpu") -> DeviceMesh:
    """Arrange the process group's ranks, pipeline stages outermost. Collective."""
    return init_device_mesh(
        device,
        (layout.pp, layout.dp_replicate, layout.dp_shard, layout.tp),
        mesh_dim_names=("pp", "dp_replicate", "dp_shard", "tp"),
    )


def shard_tensors(model: LanguageModel, mesh: DeviceMesh) -> None:
    """Split heads and hidden features over the tensor-parallel ranks."""
    whole = Replicate()
    block_plan = {
        "attention": PrepareModuleInput(
            input_layouts=(whole, None, None), desired_input_layouts=(whole, None, None)
        ),
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(),
    }
    # Embedding and head stay whole: 256 rows are not worth a collective.
    # src_data_rank=None: every rank holds the same full tensor, so nothing needs to be sent.
    for layer in model.layers.values():
        parallelize_module(layer, mesh, block_plan, src_data_rank=None)


def shard_data(model: LanguageModel, mesh: DeviceMesh) -> None:
    """Shard parameters, gradients and optimizer over the data-parallel ranks (FSDP2)."""
    for module in (*model.layers.values(), model):
        fully_shard(module, mesh=mesh, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # Sum, do not average; and gloo has no pre-multiplied sum for the factor's default.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def lay_out(config: TrainConfig, layout: Layout, mesh: DeviceMesh) -> tuple[LanguageModel, Runner]:
    """Build this rank's part of the model, and how to run it. Collective.

    Raises:
        InputInvalid: the model cannot be laid out like that.
    """
    check_layout(config, layout)
    stage = mesh.get_local_rank("pp")
    model = LanguageModel(config)
    model.keep_stage(stage, layout.pp)
    if layout.tp > 1:
        shard_tensors(model, mesh["tp"])
    if layout.world_size > 1:  # over a single rank, too: the optimizer wants DTensors or none
        shard_data(
            model, mesh["dp_replicate", "dp_shard"] if layout.dp_replicate > 1 else mesh["dp_shard"]
        )
    size = micro_batch(config, layout)
    if layout.pp == 1:
        return model, Whole(model, size, config.tokens_per_step, layout.tp)
    return model, _pipeline(config, layout, mesh, model, size)


def _pipeline(
    config: TrainConfig, layout: Layout, mesh: DeviceMesh, model: LanguageModel, size: int
) -> Pipelined:
    """Put the stage into PyTorch's schedule; shapes are given, so nothing is inferred at run."""
    stage = mesh.get_local_rank("pp")
    first, last = stage == 0, stage == layout.pp - 1
    shape, dtype = (size, config.model.seq_len), DTYPES[config.dtype]
    hidden = torch.empty(*shape, config.model.dim, dtype=dtype, device="meta", requires_grad=True)
    logits = torch.empty(*shape, config.model.vocab, dtype=dtype, device="meta", requires_grad=True)
    part = PipelineStage(
        model,
        stage,
        layout.pp,
        torch.device("cpu"),
        input_args=torch.empty(shape, dtype=torch.long, device="meta") if first else hidden,
        output_args=logits if last else hidden,
        group=mesh.get_group("pp"),
    )
    schedules = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}
    count = config.global_batch // layout.data_parallel // size
    schedule = schedules[layout.schedule](
        part,
        count,
        loss_fn=lambda logits, targets: token_loss(logits, targets, config.tokens_per_step),
        scale_grads=False,
    )
    return Pipelined(model, schedule, first, last, layout.tp)
