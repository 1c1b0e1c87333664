"""The wheel holds `wattmesh` and nothing else, whole, and works far away from the checkout."""

import json
import sqlite3
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from tests.laws import sources
from tests.packaging import wheel
from tests.packaging.wheel import Installed

IMPORT_ALL = """
import importlib, json, pkgutil, wattmesh
names = ["wattmesh"]
for found in pkgutil.walk_packages(wattmesh.__path__, "wattmesh."):
    if not found.name.endswith(("__main__", "migrations.env")):
        names.append(found.name)
print(json.dumps({name: importlib.import_module(name).__file__ for name in names}))
"""


DEMO = """
import importlib.util
assert importlib.util.find_spec("examples") is None
from wattmesh.controller.cli.main import main
main(["demo", "--out", "/proc/none"])
from examples.demo import job, plan
from wattmesh.controller.profile.job import read_job
read_job(job.TRAINER_PROFILE)
assert plan.TRACE.is_file()
print(job.ROOT)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, by way of its sdist."""
    return wheel.build(wheel.copy_checkout(tmp_path_factory.mktemp("checkout")))


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """That wheel, in a clean environment."""
    return wheel.install(built, tmp_path_factory.mktemp("venv"))


def _tops(files: set[str]) -> set[str]:
    return {name.partition("/")[0] for name in files}


def _lost(files: set[str]) -> list[str]:
    """Name the modules of the checkout that a wheel lacks."""
    expected = {
        "/".join(("wattmesh", *_without_wattmesh(module.path)))
        for module in sources.modules().values()
    }
    return sorted(expected - files)


def _data_files() -> list[str]:
    """List what stands beside the code in our rooms and is read or handed out at run time."""
    return [
        str(path.relative_to(sources.REPOSITORY))
        for room in sources.ROOMS
        for path in sorted((sources.REPOSITORY / room).rglob("*"))
        if path.is_file() and path.suffix not in {".py", ".pyc"}
    ]


def _without_wattmesh(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(sources.REPOSITORY).parts
    return parts[1:] if parts[0] == "wattmesh" else parts


def test_only_wattmesh(built: Path) -> None:
    """Site-packages gets one name: no tests, no docs, no bare `controller`."""
    assert _tops(wheel.files_of(built)) == {"wattmesh"}


def test_nothing_is_lost(built: Path) -> None:
    """Every module is in the wheel, and so is the data that they read."""
    files = wheel.files_of(built)
    assert _lost(files) == []
    assert "wattmesh/py.typed" in files
    assert [name for name in _data_files() if f"wattmesh/{name}" not in files] == []


def test_spoilt_map_is_caught(tmp_path: Path) -> None:
    """Sabotaged twin: a forgotten room and a bare folder both show in the wheel."""
    checkout = wheel.copy_checkout(tmp_path)
    rule = checkout / "setup.py"
    packages = '["wattmesh", *found]'
    assert packages in rule.read_text()
    others = '*(each for each in found if not each.startswith("wattmesh.p"))'
    rule.write_text(rule.read_text().replace(packages, f'["wattmesh", "policies", {others}]'))
    files = wheel.files_of(wheel.build(checkout))
    assert _tops(files) == {"wattmesh", "policies"}
    assert "wattmesh/policies/rules/decide.py" in _lost(files)


def test_hook_needs_no_torch_wheel(built: Path) -> None:
    """A plain install asks for the hook's four packages: clusters carry their own torch."""
    with zipfile.ZipFile(built) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith("dist-info/METADATA"))
        metadata = message_from_string(archive.read(name).decode())
    plain = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {line.split(">")[0] for line in plain} == {
        "numpy",
        "nvidia-ml-py",
        "safetensors",
        "xxhash",
    }


def test_every_module_imports(installed: Installed) -> None:
    """From `/`, every module imports, and from the wheel."""
    where: dict[str, str] = json.loads(installed.run("python", "-c", IMPORT_ALL))
    assert len(where) > 50
    strays = {name for name, path in where.items() if not path.startswith(str(installed.folder))}
    assert strays == set()


def test_command_runs(installed: Installed) -> None:
    """The `wattmesh` command starts."""
    assert installed.run("wattmesh", "--version").startswith("wattmesh ")


@pytest.mark.parametrize("name", ["demo", "fsdp2", "pretrain"])
def test_the_demo_and_what_it_trains_are_no_part_of_the_package(built: Path, name: str) -> None:
    """Both are in the wheel, whole, in a folder that is no package; no room holds any of it."""
    kept = {path.name for path in (sources.REPOSITORY / "examples" / name).glob("*.*")}
    files = {file for file in wheel.files_of(built) if name in file.split("/")[:-1]}
    assert files == {f"wattmesh/shipped/examples/{name}/{each}" for each in kept}


def test_the_command_finds_the_demo(installed: Installed) -> None:
    """`wattmesh demo` alone puts it on a path, and it runs: as far as a folder it cannot make."""
    folder = Path(installed.run("python", "-c", DEMO).strip().splitlines()[-1])
    assert folder.is_relative_to(installed.folder)


def test_migrations_run(installed: Installed, tmp_path: Path) -> None:
    """`wattmesh db upgrade` makes a journal from the migrations inside the wheel."""
    journal = tmp_path / "journal.db"
    installed.run("wattmesh", "db", "upgrade", "--url", f"sqlite:///{journal}")
    with sqlite3.connect(journal) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    assert {"alembic_version", "runs", "switches"} <= tables
