"""Fake GPUs of a test's own, and nvidia-ml-py on top of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.telemetry.fake_nvml.through import Nvml, nvml_of
from wattmesh.telemetry.fake_nvml import Board, FakeNvml


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    """Give two idle H100 whose readings are always up to date."""
    return FakeNvml.create(tmp_path / "gpus", 2, Board.H100, update_ms=0)


@pytest.fixture
def nvml(fake: FakeNvml) -> Iterator[Nvml]:
    """Give nvidia-ml-py, unmodified, on `fake`."""
    with nvml_of(fake) as module:
        yield module
