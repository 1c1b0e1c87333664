"""One private Slurm for the whole session, clean for each test."""

from collections.abc import Iterator

import pytest

from tests.slurm import cluster
from tests.slurm.cluster import Cluster


@pytest.fixture(scope="session")
def slurm_server() -> Iterator[Cluster]:
    """The daemons; skips where Slurm is not installed."""
    if not cluster.is_installed():
        pytest.skip(cluster.MISSING)
    with cluster.running() as started:
        yield started


@pytest.fixture
def slurm(slurm_server: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster without jobs; clients of this process find it too."""
    for name, value in slurm_server.environment.items():
        monkeypatch.setenv(name, value)
    yield slurm_server
    slurm_server.clear()
