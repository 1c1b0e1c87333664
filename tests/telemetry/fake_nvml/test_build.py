"""Compiling the library: once, safely, and with a word that helps when it cannot be done."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from wattmesh.errors import InputInvalid
from wattmesh.telemetry.fake_nvml import build, native

BUILD = "from wattmesh.telemetry.fake_nvml.build import built; print(built().library)"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "wattmesh" / "fake-nvml"


def test_builders_at_once_end_with_one_build(cache: Path) -> None:
    """Both use the same files, and nothing half made is left."""
    builders = [
        subprocess.Popen([sys.executable, "-c", BUILD], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    seen = {each.communicate(timeout=120)[0] for each in builders}
    assert [each.returncode for each in builders] == [0, 0]
    (folder,) = cache.iterdir()
    assert seen == {f"{folder / build.LIBRARY}\n"}
    assert sorted(each.name for each in folder.iterdir()) == [build.CONTROL, build.LIBRARY]
    again = build.built()
    assert again.library.stat().st_mtime_ns == (folder / build.LIBRARY).stat().st_mtime_ns


def test_without_a_compiler_it_says_what_to_install(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The names of the packages are in the message."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(InputInvalid, match="gcc libc6-dev"):
        build.built()
    assert list(cache.iterdir()) == []


def test_a_compiler_that_fails_is_quoted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves nothing behind."""
    broken = cache.parent.parent / "cc"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\necho no room on board >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(InputInvalid, match=r"fails \(3\): no room on board"):
        build.built()
    assert list(cache.iterdir()) == []


def test_a_cache_that_others_may_write_to_is_not_loaded_from(cache: Path) -> None:
    """Code comes from there."""
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with pytest.raises(InputInvalid, match="others may write"):
        build.built()


def test_a_cache_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file where a folder must be."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputInvalid, match="XDG_CACHE_HOME"):
        build.built()


def test_a_control_library_of_another_layout_is_noticed(tmp_path: Path) -> None:
    """The sabotaged twin: one more knob in C, and the two sides no longer fit."""
    source = Path(build.__file__).parent
    for path in (*source.glob("*.c"), *source.glob("*.h")):
        text = path.read_text().replace("    KNOBS,\n", "    KNOB_SABOTAGE,\n    KNOBS,\n")
        (tmp_path / path.name).write_text(text)
    target = tmp_path / "libsabotaged.so"
    build.compile_library("cc", [tmp_path / "control.c", tmp_path / "state.c"], target)
    sabotaged = ctypes.CDLL(str(target))
    sabotaged.fake_layout.restype = ctypes.c_uint64
    assert sabotaged.fake_layout() != native.expected_layout()


def test_the_library_exports_what_nvml_exports_and_nothing_else() -> None:
    """Every name begins with nvml and is one that nvidia-ml-py knows; control has none of them."""
    known = Path(pynvml.__file__).read_text()
    names = _exported(build.built().library)
    assert "nvmlDeviceGetFieldValues" in names
    strange = [each for each in names if f'"{each}"' not in known and each != "nvmlInit_v2"]
    assert strange == []
    assert all(each.startswith("fake_") for each in _exported(build.built().control))


def _exported(library: Path) -> list[str]:
    """List the symbols that a library gives to others."""
    command = ["nm", "-D", "--defined-only", str(library)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    return [line.split()[-1].split("@")[0] for line in listed.stdout.splitlines()]
