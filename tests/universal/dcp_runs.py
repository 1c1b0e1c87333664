"""Real torch DCP folders, saved once per session by four gloo ranks, and what the ranks held."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hook.harness import Zygote
from tests.universal.comparing import Held, held_in

QKV_WIDTHS = ((4, 2, 2), (4, 2, 2))
"""Rows of q, k and v on each of two tensor-parallel ranks, in the case `declared`."""

ORDER = (3, 0, 5, 1, 4, 2)
"""Experts in the order they are stored in, in the case `declared`."""

CASES = (
    "dp2-tp2",
    "pp2-tp2",
    "pp2-dp2",
    "hsdp",
    "titan",
    "nested",
    "not-flattened",
    "strided",
)
"""Folders that need no declarations; `declared` is one more."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What came of the saves; `folder / case` is a DCP folder."""

    folder: Path

    def held(self, case: str) -> Held:
        """What the ranks held in memory, whole, by (name, state)."""
        return held_in(self.folder / f"{case}.safetensors")


def save_all(zygote: Zygote, out: Path) -> Saved:
    """Save every case."""
    launch = zygote.start(4, {"OUT": str(out)}, out, "tests.universal.dcp.dcp_saver:main")
    assert zygote.wait(launch, 180.0) == 0, [path.read_text() for path in out.glob("*.log")]
    return Saved(out)


@pytest.fixture(scope="session")
def dcp_runs(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Every case, saved once."""
    return save_all(zygote, tmp_path_factory.mktemp("dcp_runs"))
