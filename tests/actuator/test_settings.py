"""The actuator's own reading of its settings is that of the settings model."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from wattmesh.controller.settings.model import ActuatorSection
from wattmesh.errors import SettingsInvalid
from wattmesh.telemetry.actuator.settings import ActuatorSettings, load, parse


def test_keys_and_defaults_are_those_of_the_model() -> None:
    """Two readers of one table that differ would be two truths."""
    model, ours = ActuatorSection(), ActuatorSettings()
    assert set(ActuatorSection.model_fields) == {each.name for each in fields(ActuatorSettings)}
    for each in fields(ActuatorSettings):
        assert getattr(ours, each.name) == getattr(model, each.name), each.name


GOOD: dict[str, Any] = {
    "mode": "enforce",
    "socket": "/run/a.sock",
    "group": "gpu",
    "journal": "/var/lib/j",
    "library": "/usr/lib/libnvidia-ml.so.1",
    "baseline_lock_mhz": 1500,
    "cap_floor_share": 0.6,
    "write_every_s": 30,
    "step_share": 0.2,
    "boards": ["My Board"],
}
BAD: dict[str, list[object]] = {
    "mode": ["enforced", "ENFORCE", 1, True],
    "group": [7],
    "baseline_lock_mhz": [0, -1, 1.5, True, "1500"],
    "cap_floor_share": [0, 1.1, "0.5", True],
    "write_every_s": [-1, "60"],
    "step_share": [0, 2],
    "boards": ["My Board", [1]],
    "unknown": [1],
}


def test_what_the_model_takes_is_taken_alike() -> None:
    """Every key, changed, gives the same value in both."""
    ours = parse(GOOD, where=Path("/etc/wattmesh/wattmesh.toml"))
    for key, value in GOOD.items():
        # As TOML arrives: lists are arrays; the model's own reading turns paths and tuples.
        expected = tuple(value) if isinstance(value, list) else value
        read = getattr(ours, key)
        assert (str(read) if isinstance(read, Path) else read) == expected


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, vs in BAD.items() for v in vs])
def test_what_is_wrong_is_named_with_its_key(key: str, value: object, tmp_path: Path) -> None:
    """Each mistake is named; several are named at once."""
    with pytest.raises(SettingsInvalid) as caught:
        parse({key: value, "other": 1}, where=tmp_path / "w.toml")
    assert {name for name, _ in caught.value.mistakes} == {f"actuator.{key}", "actuator.other"}


def test_relative_paths_count_from_the_files_folder(tmp_path: Path) -> None:
    """And a file without the table gives the defaults."""
    file = tmp_path / "w.toml"
    file.write_text('[actuator]\njournal = "j"\n')
    assert load(file).journal == tmp_path / "j"
    file.write_text('mode = "act"\n')
    assert load(file) == ActuatorSettings()


@pytest.mark.parametrize("text", ["not toml", "actuator = 1\n"])
def test_a_file_that_cannot_be_read_is_said(text: str, tmp_path: Path) -> None:
    """One sentence, no traceback."""
    file = tmp_path / "w.toml"
    file.write_text(text)
    with pytest.raises(SettingsInvalid):
        load(file)
