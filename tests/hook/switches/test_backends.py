"""Which backends a generation's process group has, and what it leaves behind."""

import sys
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.layout import Ranks


class OneStore:
    """As much of a launch's store as a group of one rank needs."""

    def under(self, name: str) -> HashStore:
        """Give a store of its own."""
        del name
        return HashStore()


@pytest.mark.parametrize(
    ("device", "backend", "cuda"),
    [("cpu", "", ""), ("cuda", "cpu:gloo,cuda:gloo", "gloo")],
)
def test_a_group_has_the_backends_that_were_asked_for(device: str, backend: str, cuda: str) -> None:
    """Gloo alone on the CPU; for devices another choice than NCCL, and facts go by the CPU."""
    launch_store = cast(LaunchStore, OneStore())
    ranks, before = Ranks(participants=(0,), global_rank=0), sys.excepthook
    group.begin(launch_store, 1, ranks, device=device, timeout_s=20.0, backend=backend)
    try:
        assert group.gather({"step": 3}) == [{"step": 3}]
        config = dist.distributed_c10d._world.pg_backend_config[dist.group.WORLD]  # type: ignore[index]
        assert f"cuda:{cuda}" in config if cuda else torch.device("cpu").type in config
        assert "nccl" not in config
    finally:
        group.end()
    # torch's own, which puts the rank before each line, would be there twice in the next one.
    assert sys.excepthook is before
