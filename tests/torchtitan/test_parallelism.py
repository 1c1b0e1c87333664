"""A Layout and torchtitan's own parallel dimensions mean the same."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.components.checkpointer.dcp import CheckpointManager
from torchtitan.config.configs import ParallelismConfig, TrainingConfig
from torchtitan.distributed import parallel_dims
from torchtitan.distributed.parallel_dims import ParallelDims

from wattmesh.errors import InputInvalid
from wattmesh.integrations import torchtitan as titan
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state.per_data_rank import data_rank

LAYOUTS = [
    Layout(),
    Layout(dp_shard=4),
    Layout(dp_replicate=2, dp_shard=2, tp=2),
    Layout(pp=2, dp_shard=2, cp=2, tp=2, schedule="Interleaved1F1B"),
    Layout(dp_shard=2, cp=2, tp=2, ep=8),
    Layout(pp=2, dp_replicate=2, dp_shard=2, tp=2, ep=2, schedule="ZBVZeroBubble"),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_layout_goes_to_torchtitan_and_back(layout: Layout) -> None:
    """Through torchtitan's own validation of the degrees."""
    config = titan.parallelism(layout, ParallelismConfig(tensor_parallel_degree=8))
    dims = ParallelDims.from_config(config, layout.world_size)
    assert dims.world_size == layout.world_size
    assert titan.layout_of(config, layout.world_size) == layout


def test_what_torchtitan_derives_is_resolved() -> None:
    """-1 takes the ranks that are left."""
    assert titan.layout_of(ParallelismConfig(tensor_parallel_degree=2), 8) == Layout(
        dp_shard=4, tp=2
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (ParallelismConfig(data_parallel_shard_degree=3), "WORLD_SIZE"),
        (ParallelismConfig(expert_parallel_degree=3), "must divide"),
    ],
)
def test_degrees_that_do_not_fit_are_refused_in_our_words(
    config: ParallelismConfig, words: str
) -> None:
    """Torchtitan asserts one of them, and rounds the other down in silence."""
    with pytest.raises(InputInvalid, match=words):
        titan.layout_of(config, 4)


def test_stages_named_one_by_one_are_refused() -> None:
    """They fit one pipeline degree only."""
    config = ParallelismConfig(module_fqns_per_model_part=[["layers.0"], ["layers.1"]])
    with pytest.raises(InputInvalid, match="fixes the stages"):
        titan.parallelism(Layout(pp=2), config)


@dataclass(kw_only=True)
class Config:
    """The parts of torchtitan's Trainer.Config that the adapter changes, of its own classes."""

    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(global_batch_size=16, local_batch_size=2)
    )
    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
    checkpoint: Any = field(default_factory=lambda: CheckpointManager.Config(interval=50))


def test_a_configuration_is_made_for_a_layout() -> None:
    """The session saves; the data loader's snapshots keep their interval."""
    config = titan.configured(Config(), Layout(dp_shard=4, tp=2))
    assert config.parallelism.data_parallel_shard_degree == 4
    assert isinstance(config.checkpoint, titan.SessionCheckpoints.Config)
    assert (config.checkpoint.enable, config.checkpoint.interval) == (True, 50)
    own = titan.configured(Config(), Layout(dp_shard=4), own_saves=True)
    assert isinstance(own.checkpoint, CheckpointManager.Config)


@pytest.mark.parametrize(("batch", "words"), [(-1, "set it"), (12, "cannot be made of 8 samples")])
def test_a_global_batch_that_would_follow_the_layout_is_refused(batch: int, words: str) -> None:
    """It would change the mathematics."""
    config = Config()
    config.training = replace(config.training, global_batch_size=batch)
    with pytest.raises(InputInvalid, match=words):
        titan.configured(config, Layout(dp_shard=4))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"cp_method": "ring"}, "cp_method = ring"),
        ({"cp_layers": "1x2"}, "cp_lay"),
        ({"ep_bottleneck": 4}, "ep_bottleneck = 4"),
    ],
)
def test_another_way_to_attend_or_to_dispatch_is_refused(
    how: dict[str, str | int], words: str
) -> None:
    """Torchtitan would train on in its own, under the layout's name; without cp nothing is read."""
    with pytest.raises(InputInvalid, match=f"has {words}"):
        titan.parallelism(Layout(cp=2, **how), ParallelismConfig())  # type: ignore[arg-type]
    alone = titan.parallelism(Layout(cp_method="ring"), ParallelismConfig())
    assert alone.context_parallel_degree == 1


def test_a_pipeline_is_refused_where_torch_does_not_take_its_microbatches() -> None:
    """No torch that we are tested with does: torchtitan 0.3 was made for a newer one."""
    with pytest.raises(InputInvalid, match=r"has pp = 2, and torchtitan 0.3 gives its pipelines"):
        titan.configured(Config(), Layout(pp=2, dp_shard=2))


@pytest.fixture(params=range(8))
def rank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """One of eight ranks, without the seven others."""
    monkeypatch.setattr(parallel_dims, "device_type", "cpu")
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=8)
    yield request.param
    dist.destroy_process_group()


def test_a_data_parallel_rank_is_the_same_number_in_both(rank: int) -> None:
    """A loader's state goes to the rank that torchtitan reads with."""
    layout = Layout(pp=2, dp_shard=2, tp=2)
    config = titan.parallelism(layout, ParallelismConfig())
    dims = ParallelDims.from_config(config, 8)
    dims.build_mesh()
    assert dims.get_mesh("batch").get_local_rank() == data_rank(layout, rank)
