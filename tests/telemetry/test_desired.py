"""What is wished for a node: each number has its range, also at the actuator's socket."""

from typing import Any

import pytest

from wattmesh.errors import InputInvalid
from wattmesh.telemetry.desired import (
    HIGHEST_CAP_W,
    HIGHEST_CLOCK_MHZ,
    HIGHEST_EPOCH,
    LONGEST_LEASE_S,
    MOST_WISHES,
    Desired,
)

WISH: dict[str, Any] = {"gpu_uuid": "GPU-0", "kind": "economy", "holder": "r", "clock_mhz": 1200}
RANGES = (
    ("lease_s", LONGEST_LEASE_S, (0.0, -1.0, LONGEST_LEASE_S + 1, float("inf"), float("nan"))),
    ("clock_mhz", HIGHEST_CLOCK_MHZ, (0, -1, HIGHEST_CLOCK_MHZ + 1, 2**70)),
    ("cap_w", HIGHEST_CAP_W, (0.0, -1.0, HIGHEST_CAP_W + 1, float("inf"), float("nan"))),
)


def wished(*wishes: dict[str, Any], epoch: object = 1) -> Desired:
    """Read a wish for a node, as its actuator does."""
    return Desired.from_json({"node": "n", "epoch": epoch, "serial": "s", "wishes": list(wishes)})


@pytest.mark.parametrize(("name", "most", "beyond"), RANGES)
def test_a_wish_has_its_range(name: str, most: float, beyond: tuple[float, ...]) -> None:
    """The highest is taken, and nothing above it, below it or beside all numbers."""
    wish = WISH | {"lease_s": 60.0}
    (read,) = wished(wish | {name: most}).wishes
    assert getattr(read, name) == most
    for value in beyond:
        with pytest.raises(InputInvalid, match=name):
            wished(wish | {name: value})


def test_a_node_has_so_many_wishes_and_an_epoch_that_the_journal_can_keep() -> None:
    """As many as are ever wished, and no more."""
    wishes = [WISH | {"lease_s": 60.0, "gpu_uuid": f"GPU-{n}"} for n in range(MOST_WISHES + 1)]
    assert len(wished(*wishes[1:], epoch=HIGHEST_EPOCH).wishes) == MOST_WISHES
    with pytest.raises(InputInvalid, match="not a list of at most 1024"):
        wished(*wishes)
    for epoch in (-1, HIGHEST_EPOCH + 1, 2**62, 1.5, True, "1", None):
        with pytest.raises(InputInvalid, match="epoch"):
            wished(epoch=epoch)
