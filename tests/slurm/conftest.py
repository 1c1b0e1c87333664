"""One private Slurm for the whole session, clean for each test."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.slurm import cluster
from tests.slurm.cluster import Cluster
from tests.slurm.jobs.training import Training, rank_server


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


@pytest.fixture
def places() -> Iterator[Path]:
    """A folder with a short path for Unix sockets (the kernel allows 107 bytes)."""
    with tempfile.TemporaryDirectory(prefix="wm") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def ranks() -> Iterator[Path]:
    """The socket of a process that forks ranks, after one import of torch."""
    with tempfile.TemporaryDirectory(prefix="wm") as folder:
        where = Path(folder) / "ranks.sock"
        with rank_server(where, "tests.slurm.jobs.rank_server", GLOO_SOCKET_IFNAME="lo"):
            yield where


@pytest.fixture(scope="session")
def undisturbed(
    slurm_server: Cluster, ranks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[int, float]:
    """The losses of a training that never moved."""
    still = Training(slurm_server, tmp_path_factory.mktemp("still") / "out", ranks, None)
    still.submit()
    still.wait_until()
    return still.losses()
