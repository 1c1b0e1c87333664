"""The launcher that forks ranks, shared by all tests of the room."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from tests.validate.forked import Forked

if TYPE_CHECKING:
    from tests.hook.harness import Zygote


@pytest.fixture(scope="session")
def forked(zygote: "Zygote") -> Iterator[Forked]:
    """Launches ranks by fork."""
    with (
        TemporaryDirectory(prefix="wattmesh-") as short,
        Forked(zygote, Path(short), "tests.validate.trained:main") as launcher,
    ):
        yield launcher
