"""Folders in git, the map in pyproject.toml and the links in wattmesh/ say the same."""

import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

from tests.packaging.mapping import Description, faults

REPOSITORY = Path(__file__).resolve().parents[2]


def _described() -> Description:
    tables = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    inside = (REPOSITORY / "wattmesh").iterdir()
    return Description(
        files=listed.stdout.splitlines(),
        packages=tables["packages"],
        package_dir=tables["package-dir"],
        links={path.name: str(path.readlink()) for path in inside if path.is_symlink()},
    )


def test_the_three_agree() -> None:
    """Every folder with code is built, from where it is, and nothing is built twice."""
    assert faults(_described()) == []


def test_forgotten_package_is_caught() -> None:
    """Sabotaged twin: a new sub-package that nobody listed is named twice."""
    said = _described()
    new = ["controller/new/__init__.py", "controller/new/work.py"]
    assert faults(replace(said, files=[*said.files, *new])) == [
        "wattmesh.controller.new is not in packages",
        "package-dir says wattmesh.controller.new is in None, not 'controller/new'",
    ]


def test_folder_without_init_is_caught() -> None:
    """Sabotaged twin: a package without `__init__.py` is named."""
    said = _described()
    files = [name for name in said.files if name != "policies/__init__.py"]
    assert faults(replace(said, files=files)) == ["policies/ has no __init__.py"]


def test_wrong_map_and_links_are_caught() -> None:
    """Sabotaged twins: a wrong folder, a leftover package and a lost link are named."""
    said = _described()
    moved = {**said.package_dir, "wattmesh.policies": "reconfig"}
    lost = {name: target for name, target in said.links.items() if name != "policies"}
    assert len(faults(replace(said, package_dir=moved))) == 1
    assert len(faults(replace(said, packages=[*said.packages, "wattmesh.gone"]))) == 1
    assert len(faults(replace(said, links=lost))) == 1
