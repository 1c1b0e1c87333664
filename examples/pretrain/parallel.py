"""Distributes a model over ranks in all five dimensions, and initializes its parameters.

Stages are made on the meta device, split and sharded, and only then given memory, so no rank ever
holds more than its part. Initial values are drawn per parameter from (seed, name), so that every
layout begins with the same model; they are not drawn if a checkpoint follows.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from examples.pretrain.config import DTYPES, TrainConfig, check_layout, micro_batch
from examples.pretrain.experts import MixtureOfExperts
from examples.pretrain.model import Block, LanguageModel, Where
from examples.pretrain.ttt import TttLinear
from wattmesh.integrations.pytorch.context_parallel.context import Context
from wattmesh.integrations.pytorch.data_parallel import give_memory, shard_data, sum_gradients
from wattmesh.integrations.pytorch.expert_parallel import split_experts
from wattmesh.integrations.pytorch.experts.router import EnergyRouter
from wattmesh.integrations.pytorch.loss import token_loss
from wattmesh.integrations.pytorch.masked_diffusion import diffusion_loss
from wattmesh.integrations.pytorch.meshes import Meshes
from wattmesh.integrations.pytorch.pipeline import (
    Runner,
    Shapes,
    SingleStage,
    layers_of,
    make_pipeline,
    stage_count,
    stages_of,
)
from wattmesh.integrations.pytorch.tensor_parallel import TensorParallel
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.placement import Placement
from wattmesh.reconfig.state.boxes import box_of
from wattmesh.reconfig.state.expert_stacks import ExpertStacks


def lay_out(
    config: TrainConfig, meshes: Meshes, *, fresh: bool = True, placement: Placement = ()
) -> tuple[list[LanguageModel], Runner]:
    """Build this rank's stages of the model, and how to run them. Collective.

    Args:
        config: what is trained.
        meshes: the layout's device meshes.
        fresh: whether to initialize parameters; otherwise their content is undefined.
        placement: by layer, the expert in each slot; () in the order of their numbers.

    Raises:
        InputInvalid: the model does not fit the layout.
    """
    layout = meshes.layout
    check_layout(config, layout)
    count = stage_count(layout)
    stages = []
    for number in stages_of(layout, meshes.place.pp):
        stage = make_stage(config, number, count, recompute=layout.recompute)
        cut(stage, meshes)
        narrow_experts(stage, config, layout)
        place_experts(stage, placement, meshes.device)
        stages.append(stage)
    sum_gradients(stages)
    where = find_place(config, meshes)
    for stage in stages:
        give_memory(stage, meshes.device)
        stage.where = where
        zero_buffers(stage)
        if fresh:
            draw(stage, config)
    return stages, _make_runner(config, meshes, stages, where)


def make_stage(
    config: TrainConfig, stage: int, stages: int, *, recompute: bool = False
) -> LanguageModel:
    """Make one stage of the model on the meta device."""
    with torch.device("meta"):
        module = LanguageModel(
            config,
            layers_of(stage, stages, config.model.layers),
            first=stage == 0,
            last=stage == stages - 1,
            recompute=recompute,
        )
    return module.to(DTYPES[config.dtype])


def find_place(config: TrainConfig, meshes: Meshes) -> Where:
    """Find which positions of every sequence this rank works on."""
    layout, place = meshes.layout, meshes.place
    context = Context.deal(
        config.model.seq_len,
        layout.cp,
        place.cp,
        meshes.context,
        device=meshes.device,
        causal=not config.model.noise_levels,
        method=layout.cp_method,
    )
    if layout.cp_layers:
        context = context.narrowed(
            layout.cp_by_layer,
            meshes.narrowed,
            length=config.model.seq_len,
            causal=not config.model.noise_levels,
            method=layout.cp_method,
        )
    stream_S = context.positions_S.chunk(layout.tp)[place.tp]
    return Where.make(config.model, context, stream_S, DTYPES[config.dtype])


def cut(stage: LanguageModel, meshes: Meshes) -> None:
    """Split a stage's tensors over tp and ep, then shard them over the data-parallel ranks."""
    layout = meshes.layout
    if layout.tp > 1:
        _cut_tensors(stage, meshes)
    for layer in stage.layers.values():
        if isinstance(layer.feed_forward, MixtureOfExperts):
            _cut_experts(layer.feed_forward, meshes)
    if layout.world_size > 1:  # over a single rank, too: the optimizer wants DTensors or none
        for module in (*stage.layers.values(), stage):
            shard_data(module, meshes.data)


def narrow_experts(stage: LanguageModel, config: TrainConfig, layout: Layout) -> None:
    """Tell every mixture's maps whether tokens are sent narrow, and what a mean is taken over."""
    for mixture in (each for each in stage.modules() if isinstance(each, MixtureOfExperts)):
        for each in mixture.maps:
            each.narrow = layout.ep_bottleneck > 1
            each.tokens = config.tokens_per_step


def place_experts(stage: LanguageModel, placement: Placement, device: str) -> None:
    """Have every mixture of a stage dispatch to experts that lie as placed."""
    for block in stage.layers.values():
        assert isinstance(block, Block)
        mixture = block.feed_forward
        if placement and isinstance(mixture, MixtureOfExperts):
            mixture.parallel = mixture.parallel.placed_as(placement[block.number], device)


def stacks_of(
    config: TrainConfig, stages: Sequence[LanguageModel], placement: Placement
) -> ExpertStacks | None:
    """Declare this rank's stacks of experts, so that they may be placed anew; None if dense."""
    if not config.model.experts:
        return None
    return ExpertStacks(
        layers=config.model.layers,
        experts=config.model.experts,
        layer_of={
            f"layers.{number}.feed_forward.experts.{name}": block.number
            for stage in stages
            for number, block in stage.layers.items()
            if isinstance(block, Block) and isinstance(block.feed_forward, MixtureOfExperts)
            for name, _ in block.feed_forward.experts.named_parameters()
        },
        placement=placement,
    )


def _cut_tensors(stage: LanguageModel, meshes: Meshes) -> None:
    """Split heads, hidden features and vocabulary over tp, and sequences between these parts."""
    parallel = TensorParallel(meshes.parameters["tp"])
    if stage.embedding is not None:
        parallel.cut_embedding(stage.embedding)
    if stage.norm is not None and stage.head is not None:
        parallel.keep_whole(stage.norm)
        parallel.cut_head(stage.head)
    for layer in stage.layers.values():
        assert isinstance(layer, Block)
        parallel.keep_whole(layer.attention_norm, layer.feed_forward_norm)
        mix, feed = layer.attention, layer.feed_forward
        columns = [mix.query, mix.key, mix.value]
        if isinstance(mix, TttLinear):
            columns += [mix.rate, mix.first]
        parallel.cut_block(mix, columns=columns, row=mix.out)
        if isinstance(feed, MixtureOfExperts):
            parallel.keep_whole(*feed.routing(), *feed.maps)
        else:
            parallel.cut_block(feed, columns=(feed.gate, feed.up), row=feed.down)


def _cut_experts(mixture: MixtureOfExperts, meshes: Meshes) -> None:
    """Spread experts over ep, and shard each over the other ranks of the stage."""
    layout = meshes.layout
    if layout.ep > 1:
        assert meshes.experts is not None
        split_experts(mixture.experts, meshes.experts["ep"])
        mixture.parallel = replace(mixture.parallel, group=meshes.experts["ep"].get_group())
    if layout.world_size > 1:
        # Along the width, because there may be more ranks than experts.
        shard_data(mixture.experts, meshes.expert_data, dim=1)


def zero_buffers(stage: nn.Module) -> None:
    """Initialize buffers: all of them count from zero, but a router's factors from one."""
    for buffer in stage.buffers():
        buffer.zero_()
    for module in stage.modules():
        if isinstance(module, EnergyRouter):
            module.factor_X.fill_(1.0)


def draw(stage: LanguageModel, config: TrainConfig) -> None:
    """Initialize a stage's parameters; projections into the residual get smaller values."""
    for name, parameter in stage.named_parameters():
        key = f"{config.seed}:{name}"
        if parameter.dim() < 2:
            nn.init.ones_(parameter)  # norms
            continue
        if name.endswith("attention.first.weight"):  # what it gives is as large as what it gets
            _fill(parameter, _normal(parameter, key) / math.sqrt(parameter.shape[1]), name)
            continue
        into_residual = name.endswith(("attention.out.weight", "down.weight", "experts.down"))
        scale = 1 / math.sqrt(2 * config.model.layers) if into_residual else 1.0
        _fill(parameter, _normal(parameter, key) * (0.02 * scale), name)


def _normal(parameter: Tensor, key: str) -> Tensor:
    """Draw a whole tensor from its own random stream, seeded by `key`."""
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "big")
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(parameter.shape, generator=generator)


def _fill(parameter: Tensor, whole: Tensor, name: str) -> None:
    box = box_of(name, parameter)
    if box is None:
        return
    ends = zip(box.offset, box.local.shape, strict=True)
    box.local.copy_(whole[tuple(slice(start, start + size) for start, size in ends)])


def _make_runner(
    config: TrainConfig, meshes: Meshes, stages: list[LanguageModel], where: Where
) -> Runner:
    """Make a runner for all layers on this rank, or for a pipeline."""
    layout = meshes.layout
    size = micro_batch(config, layout)

    def loss_of(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
        levels, tokens = config.model.noise_levels, config.tokens_per_step
        if levels:
            return diffusion_loss(logits_BSV, targets_BS, levels, tokens)
        return token_loss(logits_BSV, targets_BS, tokens)

    if layout.pp == 1:
        return SingleStage(stages[0], size, loss_of, layout.tp)
    shapes = Shapes.of(
        samples=size,
        tokens=len(where.context.positions_S),
        hidden=len(where.stream_S),
        dim=config.model.dim,
        vocab=config.model.vocab,
        dtype=DTYPES[config.dtype],
    )
    return make_pipeline(
        stages,
        layout,
        rank=meshes.place.pp,
        group=meshes.parameters.get_group("pp"),
        device=torch.device(meshes.device),
        shapes=shapes,
        microbatches=config.global_batch // layout.data_parallel // size,
        loss_of=loss_of,
    )
