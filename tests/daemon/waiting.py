"""Wait for a condition with a deadline; never for a time."""

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], what: str, limit_s: float = 180.0) -> None:
    """Poll until `condition` is true; fail with `what` after `limit_s`."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, f"{what} did not happen within {limit_s:g} s"
        time.sleep(0.01)
