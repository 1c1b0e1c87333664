"""The newest recording in a run's folder: whether it is whole, and of this run as it is now."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattmesh.controller.cli.experts.json_file import LARGEST_BYTES, known_keys, listed, read_object
from wattmesh.controller.cli.experts.placement_file import FILE_KEYS, MOST_LAYERS
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.launch.folder import RunFolder
from wattmesh.reconfig.recorded_routing import check_recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recording. `run`: the UUID; `step`: in which its newest tokens were trained.

    `given`: what the file holds, checked. `placed`: by layer the expert in each row, in the newest
    checkpoint; [] where experts lie by number.
    """

    path: Path
    given: dict[str, Any]
    name: str
    run: str
    step: int
    tokens: int
    placed: list[Any]

    def to_json(self) -> dict[str, Any]:
        """Say what it is of."""
        return {"run": self.run, "step": self.step, "tokens": self.tokens}

    def sentence(self) -> str:
        """Say what it is of."""
        return f"{self.tokens} tokens of {self.name}, recorded up to step {self.step}"


def find_recording(named: str, checkpoint_dir: Path | None) -> Recording:
    """Find the recording of a run by its name or id, in the folder that it gives to `attach`.

    Raises:
        InputInvalid: there is none, it cannot be used, or the folder is another run's.
    """
    if checkpoint_dir is None:
        raise InputInvalid(
            f"no file is at {named!r:.80}; for a run of this name give --checkpoint-dir, the "
            "folder that it gives to `attach`: the daemon does not know it"
        )
    folder = RunFolder(checkpoint_dir)
    identity = _object(folder.run_file)
    run, name = identity.get("run"), identity.get("name")
    if not isinstance(run, str) or not isinstance(name, str):
        raise InputInvalid(f"{checkpoint_dir} is no run's folder: {folder.run_file} names none")
    if named not in (run, name):
        raise InputInvalid(
            f"{checkpoint_dir} is of the run {name!r:.80} ({run!r:.80}), not of {named!r:.80}"
        )
    path = folder.routing_file
    if not os.path.lexists(path):
        raise InputInvalid(
            f"the run {name!r:.80} has no recording of its routing yet; its job asks for one with "
            "`record_routing(session, routers)`, and it is there two save steps later "
            "(docs/experts.md)"
        )
    given = read_object(path)
    recorded_by, step = check_recorded(given, f"{path}")
    if recorded_by != run:
        raise InputInvalid(
            f"{path} was recorded by the run {recorded_by!r:.80}, not by {run!r:.80}"
        )
    chosen = listed(given.get("chosen"), "chosen", MOST_LAYERS)
    tokens = len(listed(chosen[0], "chosen", LARGEST_BYTES))
    placed = _placed(len(chosen), given.get("experts"), folder)
    given = known_keys(given, FILE_KEYS, f"{path}")
    return Recording(
        path=path, given=given, name=name, run=run, step=step, tokens=tokens, placed=placed
    )


def _object(path: Path) -> dict[str, Any]:
    """Read what a run wrote; nothing where it cannot be read."""
    try:
        return read_object(path)
    except InputInvalid:
        return {}


def _placed(layers: int, experts: object, folder: RunFolder) -> list[Any]:
    """Give the placement in the newest checkpoint, [] where it has none.

    Raises:
        InputInvalid: the recording is of other experts than those.
    """
    header: object = None
    with suppress(OSError):
        newest = next(iter(folder.checkpoints()), folder.path)
        header = _object(newest / "trainer.json").get("header")
    placed = header.get("placement") if isinstance(header, dict) else None
    if not isinstance(placed, list) or not placed or not isinstance(placed[0], list):
        return []
    now = (len(placed), len(placed[0]))
    if (layers, experts) != now:
        raise InputInvalid(
            f"the recording is of {layers} layers of {experts} experts, and the run's newest "
            f"checkpoint has {now[0]} layers of {now[1]}; wait for the next recording"
        )
    return placed
