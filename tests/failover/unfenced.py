"""The daemon without its fence, for the sabotaged twin."""

import logging
import sys
from collections.abc import Callable

from wattmesh.controller.daemon import __main__ as process
from wattmesh.controller.daemon.epoch_fence import EpochFence

log = logging.getLogger("wattmesh.unfenced")


def _open(self: EpochFence, name: str, turn: Callable[[], None]) -> Callable[[], None]:
    """Say when a turn has ended; `self` has no say."""

    def turned() -> None:
        turn()
        if name.startswith("carbon "):
            log.warning("%s: stored", name)

    return turned


if __name__ == "__main__":
    EpochFence.of = _open  # type: ignore[method-assign]
    sys.exit(process.main())
