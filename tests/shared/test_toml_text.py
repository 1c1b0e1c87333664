"""TOML that nobody can bear is refused in half a sentence, by every reader of it."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from wattmesh.controller.profile import job
from wattmesh.controller.settings import read as settings
from wattmesh.errors import WattmeshError
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.universal.index import declared
from wattmesh.telemetry.actuator import settings as actuator
from wattmesh.toml_text import DEEPEST, NotToml, read_toml

UNBEARABLE = {
    "lists in lists": "a = " + "[" * 50_000,
    "tables in line": "a = " + "{a=" * 50_000,
    "tables in tables": f"[{'.'.join('a' * 5000)}]",
    "one too deep": "a = " + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
    "more than 64 bits": f"a = {2**63}",
    "more than Python reads": f"a = {'9' * 100_000}",
    "no TOML": "a = = 1",
    "a NUL": "a = 1\0",
}
READERS: dict[str, Callable[[Path], object]] = {
    "settings": settings.load,
    "catalogue": catalogue_file.load,
    "declarations": declared.read,
    "actuator": actuator.load,
    "job": job.read_job,
}


@pytest.mark.parametrize("what", UNBEARABLE)
def test_what_nobody_can_bear_is_refused(what: str, tmp_path: Path) -> None:
    """By each reader with an error of the tree, and shortly."""
    with pytest.raises(NotToml) as told:
        read_toml(UNBEARABLE[what])
    assert len(str(told.value)) < 200
    path = tmp_path / "it.toml"
    path.write_text(UNBEARABLE[what])
    for read in READERS.values():
        with pytest.raises(WattmeshError):
            read(path)


def test_what_can_be_borne_is_read() -> None:
    """The twin: one less deep, one less large, and what Python itself would read."""
    text = f"a = {'[' * DEEPEST}{']' * DEEPEST}\nb = {2**63 - 1}\nc = {{d = [1.5]}}"
    assert read_toml(text) == tomllib.loads(text)
