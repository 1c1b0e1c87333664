"""The offline sweep that a run's settings name: the costs' prior, by GPU.

`{"gpus": [{"gpu": "GPU-a", "sweep": {...}}]}`: the file of `wattmesh experts costs`, whose spans
are not read here (docs/experts.md).
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.policies.experts.costs import OfflineSweep

log = logging.getLogger(__name__)

LONGEST_BYTES = 1 << 24
KEYS = ("joules_per_token", "idle_w", "joules_per_token_deviation", "idle_w_deviation")


def sweeps_in(path: Path) -> dict[str, OfflineSweep]:
    """Read the sweep of each GPU.

    Raises:
        InputInvalid: the file cannot be read, or is no such file; with the reason.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST_BYTES + 1)
        if len(content) > LONGEST_BYTES:
            raise InputInvalid(f"{path} has more than {LONGEST_BYTES} bytes; it is no sweep")
        data = json.loads(content)
        return {str(each["gpu"]): _sweep(each["sweep"]) for each in data["gpus"]}
    except (OSError, ValueError, RecursionError) as error:
        raise InputInvalid(f"{path} cannot be read as a sweep ({error})") from error
    except (KeyError, TypeError) as error:
        raise InputInvalid(
            f'{path} is no sweep ({error!r}); write {{"gpus": [{{"gpu": "GPU-...", "sweep": '
            f"{{{', '.join(KEYS)}}}}}]}}"
        ) from error


def _sweep(given: Mapping[str, Any]) -> OfflineSweep:
    found = {key: given[key] for key in KEYS}
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in found.values()):
        raise InputInvalid(f"a sweep's {', '.join(KEYS)} must be numbers")
    try:
        return OfflineSweep(**{key: float(each) for key, each in found.items()})
    except OverflowError:
        raise InputInvalid("a number of the sweep is too large") from None


def sweeps_by_run(files: Mapping[str, Path | None]) -> dict[str, dict[str, OfflineSweep]]:
    """Read the sweep of every run that has one, by name; a file that went bad is left out."""
    found: dict[str, dict[str, OfflineSweep]] = {}
    for name, path in files.items():
        try:
            found[name] = {} if path is None else sweeps_in(path)
        except InputInvalid as error:
            log.warning("run %s: %s; its costs begin without a sweep", name, error)
    return found
