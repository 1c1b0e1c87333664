"""The three descriptions of our packages: the folders in git, pyproject.toml's map, the links.

Pure: facts in, faults out as sentences.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

ROOMS = ("telemetry", "reconfig", "policies", "integrations", "controller", "migrations")


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What the repository says of itself.

    Attributes:
        files: tracked paths, relative to the root.
        packages, package_dir: the two tables of `[tool.setuptools]`.
        links: name in wattmesh/ -> what the link holds.
    """

    files: Sequence[str]
    packages: Sequence[str]
    package_dir: Mapping[str, str]
    links: Mapping[str, str]


def _folders(files: Iterable[str]) -> set[str]:
    """Give the folders of the package that hold Python files."""
    parents = {str(PurePosixPath(name).parent) for name in files if name.endswith(".py")}
    return {folder for folder in parents if folder.split("/")[0] in {*ROOMS, "wattmesh"}}


def _package(folder: str) -> str:
    dotted = folder.replace("/", ".")
    return dotted if dotted == "wattmesh" else f"wattmesh.{dotted}"


def faults(said: Description) -> list[str]:
    """List where the three disagree."""
    wanted = {_package(folder): folder for folder in _folders(said.files)}
    found = [f"{name} is not in packages" for name in wanted if name not in said.packages]
    found += [f"{name} in packages has no folder" for name in said.packages if name not in wanted]
    found += [
        f"package-dir says {name} is in {said.package_dir.get(name)!r}, not {folder!r}"
        for name, folder in wanted.items()
        if said.package_dir.get(name) != folder
    ]
    found += [
        f"package-dir names {name}, packages does not"
        for name in said.package_dir
        if name not in said.packages
    ]
    found += [
        f"{folder}/ has no __init__.py"
        for folder in wanted.values()
        if f"{folder}/__init__.py" not in said.files
    ]
    if dict(said.links) != {room: f"../{room}" for room in ROOMS}:
        found.append(f"the links in wattmesh/ are {dict(said.links)}")
    return found
