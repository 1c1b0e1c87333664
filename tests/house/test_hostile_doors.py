"""A fixed number of hostile inputs at each door of `benchmarks.hostile`; `make fuzz` has no end."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import schemathesis

from benchmarks.hostile import actuator, answers, calls, relay, settings
from benchmarks.hostile.tried import Tried
from tests.api.stranger import needs_root
from wattmesh.integrations.carbon.reading import http
from wattmesh.telemetry import desired

SEED = 15
HUGE = 7
"""A seed whose ninth answer has a number of 400 digits in a place that counts."""

Door = Callable[[int, int], Tried]


@pytest.mark.parametrize(
    ("door", "count"),
    [
        pytest.param(calls.on_sqlite, 12, marks=needs_root),
        pytest.param(relay.measure, 40, marks=needs_root),
        pytest.param(actuator.measure, 40, marks=needs_root),
        (answers.measure, 30),
        (settings.measure, 40),
    ],
    ids=["calls", "relay", "actuator", "answers", "settings"],
)
def test_nothing_that_comes_in_breaks_anything(door: Door, count: int) -> None:
    """No crash, and nobody else is refused."""
    tried = door(SEED, count)
    assert tried.crashes == ()
    assert not tried.others_refused
    assert tried.inputs >= count * 0.5


@needs_root
def test_an_answer_that_is_not_as_described_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sabotaged twin: the description promises what no status has."""
    read = schemathesis.openapi.from_dict

    def promising(described: dict[str, Any]) -> Any:
        described["components"]["schemas"]["StatusView"]["required"] = ["the weather"]
        kept = {"/v1/status": described["paths"]["/v1/status"]}
        return read(described | {"paths": kept})

    monkeypatch.setattr(schemathesis.openapi, "from_dict", promising)
    crashes = calls.on_sqlite(SEED, 6).crashes
    assert crashes
    assert all("/v1/status" in each for each in crashes)


def test_a_careless_reader_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotaged twins: settings and answers that are read as Python reads them."""
    monkeypatch.setattr("wattmesh.controller.settings.read.read_toml", tomllib.loads)
    assert any("Recursion" in each for each in settings.measure(SEED, 12).crashes)
    monkeypatch.setattr(http, "_whole", int)
    assert any("OverflowError" in each for each in answers.measure(HUGE, 9).crashes)


@needs_root
def test_an_actuator_that_believes_what_it_is_told_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A sabotaged twin: with names of any letters a legal wish is longer than a record may be."""
    (tmp_path / "sitecustomize.py").write_text(
        "import re, sys\n"
        "if 'wattmesh.telemetry.actuator' in sys.orig_argv:\n"
        "    from wattmesh.telemetry import desired\n"
        "    desired._NAME = re.compile('(?s).{1,200}')\n"
    )
    monkeypatch.setattr(desired, "_NAME", re.compile("(?s).{1,200}"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert any("forgotten over a restart" in each for each in actuator.measure(SEED, 2).crashes)
