"""The two descriptions of our packages: the folders in git, and the links for tools.

Pure: facts in, faults out as sentences. That a build holds every folder is asked of the wheel.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

ROOMS = ("telemetry", "reconfig", "policies", "integrations", "controller", "migrations")
WITH_CODE = {*ROOMS, "wattmesh", "examples"}
"""Folders whose code a build holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What the repository says of itself.

    Attributes:
        files: tracked paths, relative to the root.
        links: name in wattmesh/ -> what the link holds.
    """

    files: Sequence[str]
    links: Mapping[str, str]


def _folders(files: Iterable[str]) -> set[str]:
    """Give the folders of the package that hold Python files."""
    parents = {str(PurePosixPath(name).parent) for name in files if name.endswith(".py")}
    return {folder for folder in parents if folder.split("/")[0] in WITH_CODE}


def faults(said: Description) -> list[str]:
    """List folders that a build would leave out, and links that lead elsewhere."""
    found = [
        f"{folder}/ has no __init__.py"
        for folder in sorted(_folders(said.files))
        if f"{folder}/__init__.py" not in said.files
    ]
    if dict(said.links) != {room: f"../{room}" for room in ROOMS}:
        found.append(f"the links in wattmesh/ are {dict(said.links)}")
    return found
