"""The daemon without its fence, for the sabotaged twin."""

import logging
import sys
from collections.abc import Callable

from wattmesh.controller.daemon import __main__ as process
from wattmesh.controller.daemon.fence import Fence

log = logging.getLogger("wattmesh.unfenced")


def _open(self: Fence, name: str, turn: Callable[[], None]) -> Callable[[], None]:
    """Say when a turn has ended; `self` has no say."""

    def turned() -> None:
        turn()
        if name.startswith("carbon "):
            log.warning("%s: stored", name)

    return turned


if __name__ == "__main__":
    Fence.of = _open  # type: ignore[method-assign]
    sys.exit(process.main())
