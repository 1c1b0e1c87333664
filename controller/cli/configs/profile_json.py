"""What `wattmesh configs profile --json` prints, and its picture draws."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from wattmesh.controller.cli.configs.configs_json import catalogue_json
from wattmesh.controller.profile.profile import Profile
from wattmesh.reconfig.catalogue import Catalogue


def profile_json(found: Profile, catalogue: Catalogue, file: Path) -> dict[str, Any]:
    """Return the catalogue's object with what profiling adds to it."""
    measured = found.progress
    return {
        **catalogue_json(catalogue),
        "measured": [{**asdict(each), "j_per_token": each.j_per_token} for each in measured.points],
        "switched": [asdict(each) for each in measured.switches],
        "idle_gpu_w": measured.idle_gpu_w,
        "idle_host_w": measured.idle_host_w,
        "refused": measured.refused,
        "proposed": [asdict(each) for each in measured.proposed],
        "unproven": found.unproven,
        "wall_s": found.wall_s,
        "file": str(file),
        "folder": str(found.folder),
    }
