"""What `configs show` says of the stall of each pair, and how it is known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders.points import catalogue
from tests.cli.screens.test_screens import plain
from tests.policies.deciding.test_switch_model import KNOWN, OWN, spend
from wattmesh.controller.cli.configs.configs_json import catalogue_json, shown_json
from wattmesh.controller.cli.configs.configs_screen import details
from wattmesh.controller.cli.configs.configs_switches import records_of
from wattmesh.controller.journal.runs import frozen_catalogue
from wattmesh.errors import InputInvalid, SettingsInvalid
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Catalogue, SwitchCost, SwitchSpend

PROFILED = replace(KNOWN, switch=replace(KNOWN.switch, spends=(*OWN, spend("A", "B", seed=9))))


def saved(folder: Path, known: Catalogue = PROFILED) -> Catalogue:
    """The catalogue, as its file gives it."""
    return catalogue_file.save(known, folder / "catalogue.toml")


def told(each: SwitchSpend, **changes: Any) -> dict[str, Any]:
    """A switch as the daemon's answer has it."""
    parts = (each.save_s, each.teardown_s, each.groups_s, each.build_s, each.load_s, each.verify_s)
    total_s = sum(parts) + each.agree_s
    evidence = {
        "state_bytes": each.state_bytes,
        "save_s": each.save_s,
        "teardown_s": each.teardown_s,
        "leave_s": each.groups_s / 2,
        "groups_s": each.groups_s / 2,
        "build_s": each.build_s + each.groups_s / 2,
        "load_s": each.load_s,
        "verify_s": each.verify_s,
        "total_s": total_s,
        "at_pace_s": total_s + (each.first_s or 0.0),
    }
    facts = {
        "attempt": 3,
        "from_point": each.origin,
        "to_point": each.target,
        "order": {"mode": "in_place"},
        "state": "confirmed",
        "evidence": evidence,
    }
    return facts | changes


def answer(known: Catalogue, *switches: dict[str, Any]) -> dict[str, Any]:
    """The daemon's answer on a run of a catalogue, in its third launch."""
    return {
        "run": {"name": "job", "attempt": 3},
        "catalogue": {"digest": known.digest},
        "switches": list(switches),
    }


def test_a_pair_is_measured_or_predicted_or_stated(tmp_path: Path) -> None:
    """With the number of switches behind it, the size of the state and a band."""
    known = saved(tmp_path)
    said = plain(details(known, known.point("A"), 120))
    assert "A to B" in said
    assert "measured 3 times by the profile" in said
    assert "predicted for 1 GB of state from 9 switches of the profile" in said
    assert "A to paused 5 min stated in the catalogue, not measured" in " ".join(said.split())
    assert "The first one predicted: save" in said


def test_the_keys_say_the_same(tmp_path: Path) -> None:
    """Null for what is not known; phases add up to the seconds."""
    known = saved(tmp_path)
    found = {each["other"]: each for each in shown_json(known, known.point("A"))["switches"]}
    stall = found["C"]["leaving"]["stall"]
    assert (stall["basis"], stall["times"], stall["of"]) == ("predicted", 9, "profile")
    assert stall["low_s"] < stall["seconds"] < stall["high_s"]
    assert sum(stall["phases"].values()) == pytest.approx(stall["seconds"])
    assert found["C"]["leaving"]["seconds"] == pytest.approx(stall["seconds"])
    assert found["C"]["leaving"]["basis"] == "predicted"
    assert found["B"]["leaving"]["basis"] == "pair"
    assert found["paused"]["leaving"]["stall"]["times"] is None
    assert catalogue_json(known)["switch"]["spent"][0]["from"] == "A"


def test_a_run_s_own_switches_come_first(tmp_path: Path) -> None:
    """Those of its present launch; failed ones, older launches and odd evidence tell nothing."""
    known = saved(tmp_path)
    own = [told(spend("A", "C", seed=seed, factor=1.1)) for seed in range(3)]
    odd = [
        told(spend("A", "C", factor=50.0), state="rolled_back"),
        told(spend("A", "C", factor=50.0), attempt=2),
        told(spend("A", "C", factor=50.0), order={"mode": "in_place", "placement": [[1, 0]]}),
        told(spend("A", "C"), evidence={}),
        told(spend("A", "C"), evidence={"total_s": "soon"}),
    ]
    records = records_of(answer(known, *odd, *own), known)
    assert len(records) == 3
    said = plain(details(known, known.point("A"), 120, records))
    assert "measured 3 times by the run" in said
    assert plain(details(known, known.point("A"), 120)).count("by the run") == 0


def test_a_run_of_another_catalogue_is_refused(tmp_path: Path) -> None:
    """Its points may be others under the same names."""
    known = saved(tmp_path)
    other = replace(known, digest="f" * 64)
    with pytest.raises(InputInvalid, match="did not begin with this catalogue"):
        records_of(answer(other), known)
    with pytest.raises(InputInvalid, match="of none"):
        records_of({**answer(known), "catalogue": None}, known)


def test_spends_survive_the_file_and_the_journal(tmp_path: Path) -> None:
    """And a catalogue without any is stored as before there were any."""
    partly = replace(PROFILED.switch, spends=(*OWN, replace(OWN[0], first_s=None, cold=True)))
    known = saved(tmp_path, replace(PROFILED, switch=partly))
    assert known.switch == partly
    assert frozen_catalogue.from_text(frozen_catalogue.to_stored(known)) == known
    assert "spends" not in frozen_catalogue.to_stored(KNOWN)


@pytest.mark.parametrize(
    ("row", "mistake"),
    [
        ('from = "A", to = "Z"', '"Z" is not one of the points'),
        ('from = "A", to = "B", save_s = -1', "must be at least 0"),
        ('from = "A", to = "B", state_bytes = 0', "at least 1"),
        ('from = "A", to = "B", paint_s = 1', "is not known here"),
    ],
)
def test_mistakes_in_spends_are_named(tmp_path: Path, row: str, mistake: str) -> None:
    """With the others of the file."""
    text = catalogue_file.render(catalogue(*KNOWN.points, switch=SwitchCost()))
    text = text.replace('source = "assumed"', f'source = "assumed"\nspent = [{{ {row} }}]')
    with pytest.raises(SettingsInvalid, match=mistake):
        catalogue_file.parse(text.encode(), str(tmp_path))
