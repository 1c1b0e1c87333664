"""Fixtures of the hook's tests: a place for sockets, the losses of a run left alone."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hook.harness import DP2, Run, Zygote


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """A short path for a Unix socket (the kernel allows 107 bytes)."""
    with tempfile.TemporaryDirectory(prefix="wm") as folder:
        yield Path(folder) / "d.sock"


@pytest.fixture(scope="session")
def undisturbed(
    zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, str], dict[int, float]]:
    """Losses of a run of N steps that nothing happened to, by dtype; trained once each."""
    known: dict[str, dict[int, float]] = {}
    longest = 40

    def losses(steps: int, dtype: str = "float32") -> dict[int, float]:
        if dtype not in known:
            folder = tmp_path_factory.mktemp(f"undisturbed-{dtype}")
            run = Run(zygote, folder, 2, layout=DP2, steps=longest, boundary_every=10, dtype=dtype)
            assert run.once() == 0, run.log()
            known[dtype] = run.losses()
        return {step: known[dtype][step] for step in range(1, steps + 1)}

    return losses
