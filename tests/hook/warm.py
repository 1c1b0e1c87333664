"""Does once, in the process that forks ranks, what each of them would do in its first steps.

Torch resolves operators, imports its optimizers' parts and learns the shapes of what they return
when they are first used. Invariant: what is left is of the process alone: no thread, no process
group, and no cache that knows a mesh.
"""

import numpy.ma  # noqa: F401 - NumPy imports it when a checkpoint's index is first checked
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from wattmesh.reconfig.state.caches import MeshCaches

WIDTH = 16
MESHES = ((2, 1), (1, 2), (2, 2))
"""Degrees of dp_shard and tp."""


def warm() -> None:
    """Train a few layers for two steps in each mesh, with nobody: the group only says it sends."""
    for degrees in MESHES:
        size = degrees[0] * degrees[1]
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
        _train(degrees)
        # Its entries would send to these groups.
        MeshCaches().forget("cpu")
        dist.destroy_process_group()


def _train(degrees: tuple[int, int]) -> None:
    mesh = init_device_mesh("cpu", degrees, mesh_dim_names=("dp", "tp"))
    up, down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
    net = torch.nn.Sequential(up, torch.nn.Tanh(), down, torch.nn.Tanh())
    if degrees[1] > 1:
        parallelize_module(net, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(net, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
    for _ in range(2):
        x = torch.randn(4, WIDTH)
        torch.autograd.backward(torch.nn.functional.mse_loss(net(x), x))
        optimizer.step()
        optimizer.zero_grad()
