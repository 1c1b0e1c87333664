"""What a profile left in its folder is taken up only as it was written."""

import json
from pathlib import Path
from typing import Any

import pytest

from wattmesh.controller.profile.results import PROGRESS, MeasuredSwitch, ProfileState, load
from wattmesh.errors import InputInvalid

STATE = ProfileState(
    digest="d",
    switches=(MeasuredSwitch(origin="A", target="B", seconds=1.0, energy_j=None, cold=True),),
    closed=(("B", "A"),),
)


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    """As it was, tuples and all."""
    STATE.save(tmp_path)
    assert load(tmp_path, "d") == STATE


@pytest.mark.parametrize(
    ("harm", "place"),
    [
        ({"points": 5}, "points"),
        ({"switches": [{"origin": "A"}]}, "switches.0"),
        ({"switches": [{"origin": "A", "target": 1}]}, "switches.0"),
        ({"closed": [["A"]]}, "closed.0"),
        ({"refused": {"A": 3}}, "refused.A"),
        ({"launches": 1.5}, "launches"),
        ({"digest": None}, "digest"),
    ],
)
def test_damage_is_one_sentence_that_names_its_place(
    tmp_path: Path, harm: dict[str, Any], place: str
) -> None:
    """Whatever stands where a number should."""
    STATE.save(tmp_path)
    data = json.loads((tmp_path / PROGRESS).read_text()) | harm
    (tmp_path / PROGRESS).write_text(json.dumps(data))
    with pytest.raises(InputInvalid, match=rf"cannot be read \({place}.*name a new folder"):
        load(tmp_path, "d")


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\xff", "null"])
def test_what_is_no_state_is_refused(tmp_path: Path, text: str) -> None:
    """Cut, nested without end, or something else."""
    (tmp_path / PROGRESS).write_text(text, encoding="latin-1")
    with pytest.raises(InputInvalid, match="cannot be read"):
        load(tmp_path, "d")
