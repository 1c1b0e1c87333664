"""Fixtures: a place for sockets, and this process as the only rank of a group."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.hook.conftest import socket_path

__all__ = ["one_rank", "socket_path"]


@pytest.fixture
def one_rank() -> Iterator[None]:
    """This process as the only rank of a group."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
