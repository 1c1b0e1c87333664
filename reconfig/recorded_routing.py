"""The file in which a job leaves what its routers chose: written by the job, read by a command.

`experts` and `chosen` are those of a file for `wattmesh experts place`; `recorded` says of which
run and step they are, and holds a checksum of all of it. Torch-free.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wattmesh import durable
from wattmesh.errors import InputInvalid

KEY = "recorded"
"""Beside `experts` and `chosen`: `run`, `step` and `sha256`."""


def write_routing(
    path: Path,
    *,
    run: str,
    step: int,
    experts: int,
    chosen: Sequence[Sequence[Sequence[int]]],
) -> None:
    """Replace the recording in one step. It is not synced: after a power cut it may be gone.

    Args:
        path: the file.
        run: UUID of the run.
        step: in which its newest tokens were trained.
        experts: of each layer.
        chosen: by layer, the experts of each token.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    text = _text({"experts": experts, "chosen": chosen, KEY: {"run": run, "step": step}})
    # `recorded` is the last key: the checksum goes in at its end, and all is encoded once.
    checksum = f',"sha256":"{_digest(text)}"'
    durable.write_text(path, f"{text[:-2]}{checksum}}}}}\n", sync=False)


def check_recorded(given: Mapping[str, Any], what: str) -> tuple[str, int]:
    """Check a recording that was read; give its run and its step.

    Raises:
        InputInvalid: it is none, or is not what was written.
    """
    recorded = given.get(KEY)
    if not isinstance(recorded, dict):
        raise InputInvalid(f"{what} was not recorded by a job: it has no {KEY!r}")
    run, step, digest = (recorded.get(key) for key in ("run", "step", "sha256"))
    told = {key: given.get(key) for key in ("experts", "chosen")}
    told[KEY] = {key: each for key, each in recorded.items() if key != "sha256"}
    if type(run) is not str or type(step) is not int or _digest(_text(told)) != digest:
        raise InputInvalid(
            f"{what} is damaged: its content is not that of its checksum; the job writes it anew"
        )
    return run, step


def _text(told: Mapping[str, Any]) -> str:
    return json.dumps(told, sort_keys=True, separators=(",", ":"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
