"""A certificate for the session, and a cluster for each test."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.cluster import Cluster, running


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "ca.crt", folder / "tls.key"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1"]
    words += ["-keyout", str(files[1]), "-out", str(files[0])]
    subprocess.run(words, check=True, capture_output=True)
    return files


@pytest.fixture
def cluster(tmp_path: Path, certificate: tuple[Path, Path]) -> Iterator[Cluster]:
    """A cluster without jobs."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with running(folder, *certificate) as started:
        yield started
