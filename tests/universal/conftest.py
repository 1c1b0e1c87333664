"""Fixtures: a process group of one rank, what four ranks said of DCP."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.hook.harness import Zygote
from tests.universal.dcp_runs import dcp_runs
from tests.universal.deepspeed_runs import deepspeed_runs

__all__ = ["dcp_runs", "deepspeed_runs", "one_rank", "said"]


@pytest.fixture
def one_rank() -> Iterator[None]:
    """This process as the only rank of a group."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def said(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What four ranks said of the cases in `dcp_job`."""
    out = tmp_path_factory.mktemp("dcp")
    launch = zygote.start(4, {"OUT": str(out)}, out, "tests.universal.dcp_job:main")
    assert zygote.wait(launch) == 0, [path.read_text() for path in out.glob("*.log")]
    found: dict[str, Any] = json.loads((out / "said.json").read_text())
    return found
