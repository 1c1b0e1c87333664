"""Fixtures: the losses of a job that was left alone, and a state that went through layouts."""

import json
from typing import Any

import pytest

from tests.attach.running import UserRun
from tests.hook.harness import Zygote


@pytest.fixture(scope="session")
def plain(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of the job of `user` that has nothing special and was never switched."""
    run = UserRun(zygote, tmp_path_factory.mktemp("plain"), 2, layout={"dp_shard": 2})
    assert run.once() == 0, run.log()
    return run.losses()


@pytest.fixture(scope="session")
def moved(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What four ranks said of a state that went from pp2 tp2 to dp4, to dp2 tp2 and back."""
    out = tmp_path_factory.mktemp("moved")
    launch = zygote.start(4, {"OUT": str(out)}, out, "tests.attach.jobs.moved_job:main")
    assert zygote.wait(launch) == 0, [path.read_text() for path in out.glob("*.log")]
    said: dict[str, Any] = json.loads((out / "said.json").read_text())
    return said
