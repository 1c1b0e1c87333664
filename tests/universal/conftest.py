"""Fixtures: runs that several files read, what four ranks said of DCP."""

import json
from typing import Any

import pytest

from tests.hook.harness import Zygote
from tests.universal.dcp_runs import dcp_runs
from tests.universal.deepspeed_runs import deepspeed_runs
from tests.universal.megatron_runs import megatron_runs

__all__ = [
    "dcp_runs",
    "deepspeed_runs",
    "megatron_runs",
    "said",
]


@pytest.fixture(scope="session")
def said(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What four ranks said of the cases in `dcp_job`."""
    out = tmp_path_factory.mktemp("dcp")
    launch = zygote.start(4, {"OUT": str(out)}, out, "tests.universal.dcp.dcp_job:main")
    assert zygote.wait(launch) == 0, [path.read_text() for path in out.glob("*.log")]
    found: dict[str, Any] = json.loads((out / "said.json").read_text())
    return found
