"""Products in another order, around whole training steps of sharded parameters."""

import subprocess
import sys

SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from wattmesh.reconfig.probe.reordered import Products

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
fully_shard(net, mesh=init_device_mesh("cpu", (1,)))
optimizer = torch.optim.AdamW(net.parameters())
with Products(2) as products:
    net(torch.ones(4, 8)).sum().backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
print(products.cut)
dist.destroy_process_group()
"""


def test_what_dtensor_meets_first_within_them_still_works() -> None:
    """The first clipping and an optimizer's first step; all five products were still cut."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["5"]
