"""The screens of `configs list` and `configs show`: in 80 columns, with sources and marks."""

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.builders.observations import PAIR, A, B
from tests.builders.points import catalogue, point
from tests.cli.screens.test_screens import plain
from wattmesh.controller.cli.configs.configs_json import catalogue_json, shown_json
from wattmesh.controller.cli.configs.configs_screen import details, listing
from wattmesh.controller.cli.configs.configs_state import next_lines, state_json, states
from wattmesh.controller.cli.main import main
from wattmesh.controller.cli.output import PIPE_WIDTH
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import (
    PAUSED,
    Catalogue,
    Evidence,
    PairCost,
    ProbeEvidence,
    Release,
    SwitchCost,
)
from wattmesh.reconfig.fingerprint import Fingerprint
from wattmesh.reconfig.layout import Layout

LLAMA = Path(__file__).parents[3] / "examples" / "catalogues" / "llama-70b.toml"
OWN_COST = PairCost(origin="A", target="B", seconds=1.2, energy_j=310.0)
ASLEEP = PairCost(origin="A", target=PAUSED, seconds=0.8, energy_j=200.0)
PAIRED = SwitchCost(
    layout_s=60.0, layout_energy_j=20_000.0, source="measured", pairs=(OWN_COST, ASLEEP)
)


def llama(**changes: Any) -> Catalogue:
    """The example, changed."""
    return replace(catalogue_file.load(LLAMA), **changes)


def text(known: Catalogue, columns: int = 80) -> str:
    """The screen of `configs list`."""
    return plain(listing(known, columns))


def flat(screen: str) -> str:
    """A screen without its line breaks."""
    return " ".join(screen.split())


LONG = catalogue(
    *(
        point(
            f"P{at}",
            512,
            1000.0 + at,
            1600.0 + 2 * at,
            clock_mhz=1980,
            layout=Layout(pp=4, dp_replicate=2, dp_shard=8, cp=2, tp=4, micro_batch=at + 1),
            sources={"tokens_per_s": "simulated", "power_w": "simulated"},
        )
        for at in range(3)
    ),
    switch=replace(PAIRED, pairs=()),
    embodied_g_per_gpu_hour=5.0,
    simulated=("tokens_per_s", "power_w", "idle_power_w_per_gpu", "switch.layout_energy_j"),
)


@pytest.mark.parametrize("release", list(Release))
@pytest.mark.parametrize("known", [llama(embodied_g_per_gpu_hour=10.0), LONG, PAIR])
def test_everything_fits_into_80_columns(known: Catalogue, release: Release) -> None:
    """Nothing is lost for it: long layouts go into lines of their own."""
    known = replace(known, release=release)
    screens = [listing(known, 80), *(details(known, each, 80) for each in known.points)]
    for screen in screens:
        assert max(len(line) for line in plain(screen).splitlines()) <= 80
    for each in known.points:
        assert str(each.layout) in text(known)


def test_the_hull_is_told_with_its_ratios_and_what_is_never_worth_running() -> None:
    """As docs/catalogue.md says: marginal joules, ratio to the point before, and in all."""
    said = text(llama(), PIPE_WIDTH)
    rows = {line.split()[0]: line.split() for line in said.split("worth running")[1].splitlines()
            if line}  # fmt: skip
    assert rows["F"][5:7] == ["J", "first"]
    assert rows["A"][3:8] == ["0.961", "3.11", "J", "2.55x", "4.11x"]
    assert "so D is never worth running." in said
    assert "job.embodied_g_per_gpu_hour is not stated" in said


def test_the_break_even_intensity_is_told_where_grams_of_making_are_stated() -> None:
    """Above it slowing down pays; and what it means stands below."""
    said = text(llama(embodied_g_per_gpu_hour=10.0))
    assert "above 31 g/kWh" in said
    assert "always" in said
    assert "in grids cleaner than that" in flat(said)
    assert "not stated" not in said
    held = text(llama(embodied_g_per_gpu_hour=10.0, release=Release.HELD))
    assert "to shift work" in held


def test_what_switches_take_is_told_by_pair_with_its_source() -> None:
    """Those of pairs by name, the rest as [switch] says."""
    said = text(replace(PAIR, switch=PAIRED))
    assert "switches, measured" in said
    assert "A to B" in said
    assert "1.2 s, 310 J" in said
    assert "any other layout  1 min, 20 kJ" in said
    bare = text(replace(PAIR, switch=SwitchCost()))
    assert "switches, assumed" in bare
    assert "joules not stated" in bare


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"release": Release.HELD}, "they idle at 70 W each"),
        ({"release": Release.PARKED}, "their processes wait at 70 W each"),
        ({"release": Release.RELEASED}, "only held GPUs count for the guard"),
        (
            {"release": Release.RELEASED, "switch": SwitchCost(reacquire_s=600.0)},
            "within 10 min (95 of 100 times)",
        ),
        ({"release": Release.RELEASED, "switch": SwitchCost(reacquire_s=0.0)}, "again at once"),
        ({"idle_power_w_per_gpu": 0.0}, "! job.idle_power_w_per_gpu is 0"),
    ],
)
def test_what_becomes_of_unused_gpus_is_a_sentence(changes: dict[str, Any], words: str) -> None:
    """And what a plan and the guard may count on."""
    assert words in flat(text(replace(PAIR, **changes)))


def test_one_point_shows_its_switches_with_all_others_and_on_whose_word() -> None:
    """A pair is marked; joules that nobody stated are; GPUs that may not come back say never."""
    known = replace(PAIR, switch=PAIRED)
    said = plain(details(known, known.point("A"), 80))
    assert "1.2 s, 310 J*" in said
    assert "* of this pair" in said
    assert "paused" in said
    blank = replace(PAIR, switch=SwitchCost())
    said = plain(details(blank, blank.point("A"), 80))
    assert "5 min, ~" in said
    assert "nobody stated the joules" in said
    given = catalogue(A, B, release=Release.RELEASED)
    said = plain(details(given, given.point("A"), 80))
    assert "never: how long given-back GPUs take to return is not stated" in flat(said)


def test_one_point_shows_what_the_probe_did_where_it_was_proven() -> None:
    """With its measured noise; a point that nobody was switched to shows a dash, and null."""
    seen = ProbeEvidence(moved=6.6e-5, allowed=2e-4, noise=5e-5, orders=1, computed_in="bfloat16")
    known = replace(PAIR, points=(replace(A, probe=seen), B))
    said = flat(plain(details(known, known.point("A"), 80)))
    assert "moved by 6.6e-05 of 2.0e-04 allowed; its noise in bfloat16 is 5.0e-05" in said
    assert "moved by" not in plain(details(known, B, 80))
    found = [each["probe"] for each in catalogue_json(known)["points"]]
    assert found == [asdict(seen), None]


def test_the_keys_of_list_are_stable_and_what_is_not_stated_is_null() -> None:
    """Never 0."""
    found = catalogue_json(replace(PAIR, switch=PAIRED))
    assert found["embodied_g_per_gpu_hour"] is None
    assert found["switch"]["reacquire_s"] is None
    assert found["switch"]["pairs"][0] == {
        "from": "A",
        "to": "B",
        "seconds": 1.2,
        "energy_j": 310.0,
        "warm_s": None,
        "warm_energy_j": None,
    }
    assert [each["point"] for each in found["worth"]] == ["B", "A"]
    assert found["worth"][0]["break_even"] is None
    told = catalogue_json(llama(embodied_g_per_gpu_hour=10.0))["worth"]
    assert told[0]["break_even"]["g_per_kwh"] == 0.0
    assert told[3]["break_even"]["g_per_kwh"] == pytest.approx(5.1, abs=0.1)
    assert (told[-1]["useful"], told[-1]["ratio"]) == (False, None)


def test_the_keys_of_show_hold_switches_both_ways() -> None:
    """With the basis of each: a pair, any layout, a clock; null where there is no way."""
    known = catalogue(A, B, release=Release.RELEASED, switch=replace(PAIRED, pairs=(OWN_COST,)))
    found = shown_json(known, known.point("A"))
    assert found["worth"]["point"] == "A"
    first = found["switches"][0]
    assert first["other"] == "B"
    stall = first["leaving"].pop("stall")
    assert first["leaving"] == {
        "seconds": 1.2,
        "energy_j": 310.0,
        "basis": "pair",
        "energy_estimated": False,
    }
    assert (stall["seconds"], stall["basis"], stall["times"]) == (1.2, "stated", None)
    assert stall["low_s"] is stall["high_s"] is stall["state_bytes"] is stall["phases"] is None
    assert first["back"] is None
    clocks = shown_json(llama(), llama().point("A"))["switches"]
    assert [each["leaving"]["basis"] for each in clocks[:3]] == ["clock", "clock", "layout"]


def test_the_commands_print_them(capsys: pytest.CaptureFixture[str]) -> None:
    """List and show, as screens and as JSON."""
    assert main(["configs", "list", str(LLAMA)]) == 0
    assert "worth running, slowest first" in capsys.readouterr().out
    assert main(["configs", "show", str(LLAMA), "C", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["worth"]["useful"] is True


WHEN = datetime(2026, 11, 23, tzinfo=UTC)


def proven(days_ago: int, **facts: Any) -> Catalogue:
    """A pair whose second point was proven so long before `WHEN`."""
    other = replace(
        B,
        validated_at=WHEN - timedelta(days=days_ago),
        validated_by="ann@head",
        tolerance=2e-4,
        fingerprint=Fingerprint(torch="2.11.0"),
    )
    return replace(PAIR, points=(A, replace(other, **facts)))


def test_what_each_point_is_and_what_to_run_next() -> None:
    """Predicted, measured, validated or stale; only a fresh proof needs no command."""
    validate = "wattmesh configs validate JOB --catalogue 'my cat.toml' --point B"
    profile = "wattmesh configs profile JOB --out 'my cat.toml'"
    for known, state, command in (
        (proven(89), "validated", ""),
        (proven(91), "stale", validate),
        (proven(91, evidence=Evidence.MEASURED), "measured", validate),
        (proven(91, evidence=Evidence.PREDICTED), "predicted", profile),
        (proven(91, evidence=Evidence.ASSUMED), "assumed", profile),
    ):
        first, other = states(known, "my cat.toml", WHEN)
        assert (first.state, first.command) == ("validated", "")
        assert (other.state, other.command) == (state, command)
        assert state_json(other)["command"] == (command or None)
        said = " ".join(next_lines((first, other), 80))
        assert said.endswith(f"Next: {command}") if command else said == ""
        assert all(len(line) <= 80 for line in next_lines((first, other), 80))


def test_a_stale_point_is_shown_as_such_by_list_and_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a file, at the present time, on the screen and in JSON; a fresh one as validated."""
    path = tmp_path / "cat.toml"
    today = datetime.now(UTC)
    for at, state in ((today, "validated"), (today - timedelta(days=1000), "stale")):
        catalogue_file.save(proven(0, validated_at=at), path)
        for words in (["list", str(path)], ["show", str(path), "B"]):
            assert main(["configs", *words]) == 0
            assert ("stale" in flat(capsys.readouterr().out)) == (state == "stale")
        assert main(["configs", "list", str(path), "--json"]) == 0
        listed = json.loads(capsys.readouterr().out)
        assert [each["state"] for each in listed["states"]] == ["validated", state]
        assert main(["configs", "show", str(path), "B", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["standing"]["state"], shown["validated_by"]) == (state, "ann@head")
        assert shown["fingerprint"] == {"torch": "2.11.0"}
