"""Whose code a traceback's file is, and the line of the user's script in an error."""

import json
import runpy
import sysconfig
import tempfile
from pathlib import Path

import numpy as np
import pytest

import wattmesh
from wattmesh.controller.cli import main as command_line
from wattmesh.reconfig.launch.failures import script_line as it

HERE = Path(__file__)


@pytest.mark.parametrize(
    "file",
    [it.__file__, command_line.__file__, wattmesh.__file__, np.__file__, json.__file__, "<string>"],
)
def test_libraries_are_nobody_s_script(file: str | None) -> None:
    """Any room of wattmesh, an installed package, Python's own, and code without a file."""
    assert file is not None
    assert not it.is_users(file)
    assert not it.is_users(f"{sysconfig.get_path('stdlib')}/runpy.py")
    assert it.is_users(f"{HERE}")
    assert it.is_users("train.py")


def test_code_that_torch_compile_generated_is_nobody_s_script(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In its default folder, and in one that the environment names; beside it a script may lie."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    here = tempfile.gettempdir()
    assert not it.is_users(f"{here}/torchinductor_root/ab/cab.py")
    assert it.is_users(f"{here}/train.py")
    assert not it.is_users(f"{Path.home()}/.triton/cache/ABC/kernel.py")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        assert it.is_users(f"{tmp_path}/real/ab/cab.py")
        monkeypatch.setenv(variable, f"{tmp_path}/link/")
        assert not it.is_users(f"{tmp_path}/real/ab/cab.py")
        assert not it.is_users(f"{tmp_path}/link/ab/cab.py")
        assert it.is_users(f"{tmp_path}/real.py")
        monkeypatch.delenv(variable)


def test_below_generated_code_the_line_of_the_script_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As an index that compiled code checks."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    generated = tmp_path / "cab.py"
    generated.write_text("raise IndexError('index out of bounds')\n")
    with pytest.raises(IndexError) as caught:
        runpy.run_path(str(generated))
    assert it.script_line(caught.value).rpartition(":")[0] == str(HERE)


def test_the_innermost_line_of_the_script_is_named() -> None:
    """Also where a library raised below it; an error without a traceback has none."""
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    line = next(
        number
        for number, text in enumerate(HERE.read_text().splitlines(), 1)
        if 'loads("{")' in text
    )
    assert it.script_line(caught.value) == f"{HERE}:{line}"
    assert it.script_line(ValueError("never raised")) == ""
