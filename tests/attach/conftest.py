"""Fixtures: a place for sockets, and this process as the only rank of a group."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.attach.running import UserRun
from tests.hook.harness import Zygote


@pytest.fixture
def one_rank() -> Iterator[None]:
    """This process as the only rank of a group."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def plain(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of the job of `user` that has nothing special and was never switched."""
    run = UserRun(zygote, tmp_path_factory.mktemp("plain"), 2, layout={"dp_shard": 2})
    assert run.once() == 0, run.log()
    return run.losses()
