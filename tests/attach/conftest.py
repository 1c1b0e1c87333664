"""Fixtures: the losses of a job that was left alone."""

import pytest

from tests.attach.running import UserRun
from tests.hook.harness import Zygote


@pytest.fixture(scope="session")
def plain(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of the job of `user` that has nothing special and was never switched."""
    run = UserRun(zygote, tmp_path_factory.mktemp("plain"), 2, layout={"dp_shard": 2})
    assert run.once() == 0, run.log()
    return run.losses()
