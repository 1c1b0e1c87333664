"""AdamW on shards gives torch's own numbers, and keeps its state as torch's does."""

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.optim import AdamW

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.optimizer import ShardAdamW


@pytest.fixture
def mesh(one_rank: None) -> DeviceMesh:
    """A mesh of this process alone."""
    return init_device_mesh("cpu", (1,))


def test_the_numbers_are_those_of_torch(mesh: DeviceMesh) -> None:
    """Three steps leave parameters and both moments bitwise equal, in DTensors as before."""
    left, right = (
        [
            torch.nn.Parameter(distribute_tensor(torch.randn(6, 4), mesh, [Shard(0)])),
            torch.nn.Parameter(distribute_tensor(torch.randn(5), mesh, [Shard(0)])),
        ]
        for _ in map(torch.manual_seed, (1, 1))
    )
    ours = ShardAdamW(left, lr=1e-2, weight_decay=0.1, fused=True)
    theirs = AdamW(right, lr=1e-2, weight_decay=0.1, fused=True)
    for step in range(3):
        for parameters in (left, right):
            torch.manual_seed(step)
            for parameter in parameters:
                drawn = torch.randn(parameter.shape)
                parameter.grad = distribute_tensor(drawn, mesh, [Shard(0)])
        ours.step()
        theirs.step()
    for mine, other in zip(left, right, strict=True):
        pairs = [(mine.detach(), other.detach())]
        pairs += [
            (ours.state[mine][slot], theirs.state[other][slot]) for slot in theirs.state[other]
        ]
        for a, b in pairs:
            assert type(a) is type(b)
            assert torch.equal(
                a.to_local() if isinstance(a, DTensor) else a,
                b.to_local() if isinstance(b, DTensor) else b,
            )


def test_a_gradient_placed_otherwise_is_refused(mesh: DeviceMesh) -> None:
    """A gradient that is still a partial sum is not taken for this rank's shard of it."""
    parameter = torch.nn.Parameter(distribute_tensor(torch.randn(4), mesh, [Replicate()]))
    parameter.grad = DTensor.from_local(torch.randn(4), mesh, [Partial()], run_check=False)
    with pytest.raises(InputInvalid, match="reduce the gradient"):
        ShardAdamW([parameter], fused=True).step()
