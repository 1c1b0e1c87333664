"""Nothing that somebody else wrote moves a cursor, colours a line or forges one."""

import json
import logging
import sys

import pytest
from rich.text import Text

from wattmesh.controller.cli.checkpoint.checkpoint_screen import facts_lines
from wattmesh.controller.cli.output import cleaned, print_json, print_lines, styled
from wattmesh.controller.cli.tables import Column, table
from wattmesh.controller.process.life import CleanFormatter

EVIL = "a\x1b[31m\x9b2J\u202e\u2066\ud800\x07b"
FORGED = "name\n! all is lost"


def test_screens_are_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines, styled parts and cells; a cell stays one line, and JSON keeps what was said."""
    rows = table((Column(title="RUN"),), [[EVIL], [FORGED]])
    print_lines([EVIL, styled(("x", "bold"), EVIL), *rows, Text("plain")])
    print_json({"name": EVIL})
    said = capsys.readouterr().out
    assert not set(said) & {"\x1b", "\x9b", "\u202e", "\u2066", "\ud800", "\x07"}
    assert "\n! all" not in said
    assert "plain" in said
    assert json.loads(said[said.index("{") :]) == {"name": EVIL}


def test_what_a_checkpoint_holds_is_cleaned_before_it_is_laid_out() -> None:
    """Names of tensors and files in somebody's checkpoint are one line each."""
    assert cleaned({FORGED: [EVIL, 1, None]}) == {
        "name ! all is lost": ["a\ufffd[31m\ufffd2J\ufffd\ufffd\ufffd\ufffdb", 1, None]
    }
    assert callable(facts_lines)


def test_a_log_line_is_one_line_of_ours() -> None:
    """What follows a line end is indented, in messages and in tracebacks."""
    formatter = CleanFormatter("%(levelname)s %(message)s")
    try:
        raise ValueError(EVIL)
    except ValueError:
        seen = sys.exc_info()
    record = logging.LogRecord("w", logging.INFO, "f", 1, "run %s", (FORGED + EVIL,), seen)
    first, *others = formatter.format(record).split("\n")
    assert first == "INFO run name"
    assert others[0].startswith("  ! all is lost")
    assert all(line.startswith("  ") for line in others)
    assert not set("".join(others)) & {"\x1b", "\x9b", "\u202e", "\ud800"}
