"""Whose code a traceback's file is, and the line of the user's script in an error."""

import json
import sysconfig
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
