"""Every folder with code is a package, and the links in wattmesh/ lead to the rooms."""

import subprocess
from dataclasses import replace
from pathlib import Path

from tests.packaging.mapping import Description, faults

REPOSITORY = Path(__file__).resolve().parents[2]


def _described() -> Description:
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
        links={path.name: str(path.readlink()) for path in inside if path.is_symlink()},
    )


def test_folders_and_links_agree() -> None:
    """Nothing with code is no package, which a build would pass over without a word."""
    assert faults(_described()) == []


def test_folder_without_init_is_caught() -> None:
    """Sabotaged twin: a package without `__init__.py` is named."""
    said = _described()
    files = [name for name in said.files if name != "policies/__init__.py"]
    assert faults(replace(said, files=files)) == ["policies/ has no __init__.py"]


def test_a_lost_link_is_caught() -> None:
    """Sabotaged twin: what editors and type checkers would not find is named."""
    said = _described()
    lost = {name: target for name, target in said.links.items() if name != "policies"}
    assert len(faults(replace(said, links=lost))) == 1
