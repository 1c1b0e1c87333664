"""The actuator's own reading of its settings is that of the settings model."""

import grp
import os
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from wattmesh.controller.settings.model import ActuatorSection
from wattmesh.controller.settings.text import sample
from wattmesh.errors import SettingsInvalid
from wattmesh.telemetry.actuator.settings import ActuatorSettings, load, mixed_groups, parse

ROOT = grp.getgrgid(os.getegid()).gr_name


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
    "agent": "energy",
    "obligation_days": 7,
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
    "agent": [54],
    "obligation_days": [0, -1, 367, "31", True],
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


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ('[api]\ngroup = "wattmesh-actuator"\n', ["actuator.group"]),
        ('[actuator]\ngroup = "wattmesh-operators"\n', ["actuator.group"]),
        (f'[api]\ngroup = "{ROOT}"\n[actuator]\ngroup = "{ROOT}"\n', ["actuator.group"]),
        ('[api]\ngroup = "wattmesh-operators"\n', ["api.group"]),
        ('[api]\ngroup = "wattmesh-jobs"\n[actuator]\nmode = "enforce"\n', []),
        ("", []),
    ],
)
def test_job_owners_operators_and_the_actuators_group_are_three(
    text: str, keys: list[str], tmp_path: Path
) -> None:
    """The one privileged process itself refuses to start where two of them are one."""
    file = tmp_path / "w.toml"
    file.write_text(text)
    if not keys:
        load(file)
        return
    with pytest.raises(SettingsInvalid) as caught:
        load(file)
    assert [key for key, _ in caught.value.mistakes] == keys


def test_two_names_of_one_group_are_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared by number where this machine knows both: a directory may have aliases."""
    one = grp.getgrnam(ROOT)
    known = {ROOT: one, "wheel": one}
    monkeypatch.setattr(grp, "getgrnam", known.__getitem__)
    assert [key for key, _ in mixed_groups("wheel", "", ROOT)] == ["actuator.group"]
    assert not list(mixed_groups("", "", ROOT))
    assert not list(mixed_groups("wheel", "operators", "actuator"))


def test_the_sample_names_three_groups() -> None:
    """The file that a site starts from, with its examples taken."""
    text = re.sub(r"(?m)^# (group = )", r"\1", sample())
    read = tomllib.loads(text)
    groups = {read["api"]["group"], read["api"]["operators_group"], read["actuator"]["group"]}
    assert len(groups) == 3
