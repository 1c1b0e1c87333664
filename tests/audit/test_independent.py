"""The independent script agrees with audits of real journals, and with no sabotaged twin."""

import ast
import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.accounting.worlds import small_site as small
from tests.accounting.worlds.site import SIGNAL, Site, Sites
from tests.audit import independent
from wattmesh.controller.accounting.audit import audit
from wattmesh.controller.views import as_json

Twin = Callable[[dict[str, Any]], None]
AFTER = small.MOVED.end + 10 * small.SLOT_S


def written(site: Site, at: int = AFTER) -> dict[str, Any]:
    """Give the audit of the only run as `--json` prints it."""
    text = json.dumps(as_json(audit(site.journal, site.row(at), str(SIGNAL))))
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@pytest.fixture(scope="module")
def sites() -> Iterator[Sites]:
    """Journals in memory."""
    with Sites() as opened:
        yield opened


@pytest.fixture(scope="module")
def found(sites: Sites) -> dict[str, Any]:
    """The audit of a run that was moved, with odd numbers, one GPU dark and another at times."""
    site = small.live(small.begun(sites, small.MOVED, small.DIM))
    site.price(AFTER)
    return written(site)


def verdict(found: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script on an audit, as anybody would."""
    path = folder / "audit.json"
    path.write_text(json.dumps(found))
    script = [sys.executable, "-I", independent.__file__, str(path)]
    return subprocess.run(script, capture_output=True, text=True, check=False)


def test_the_script_agrees_to_the_microgram(found: dict[str, Any], tmp_path: Path) -> None:
    """A band, which is not parted: exit 0; and the same from standard input."""
    assert found["saved_ug"] < found["saved_high_ug"]
    assert found["unobserved_ug"] > 0
    assert found["better_point_ug"] is None
    assert {row["line"] for row in found["reference"]} == {"as_run", "modelled"}
    answer = verdict(found, tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert f"saved_ug         {found['saved_ug']}" in answer.stdout
    with (tmp_path / "audit.json").open() as stream:
        script = [sys.executable, "-I", independent.__file__]
        assert subprocess.run(script, stdin=stream, check=False).returncode == 0


def test_the_script_agrees_on_the_parts(sites: Sites, tmp_path: Path) -> None:
    """Of a run all of which was read, long after it ended: the best single point is level too."""
    site = small.live(small.begun(sites, small.MOVED, small.BRIGHT))
    site.price(AFTER)
    bright = written(site)
    assert bright["better_point_ug"]
    assert bright["better_point_ug"] + bright["carbon_aware_ug"] == bright["saved_ug"]
    answer = verdict(bright, tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    bright["better_point_ug"] += 1
    assert verdict(bright, tmp_path).returncode


def test_the_script_agrees_where_the_pue_was_changed(sites: Sites, tmp_path: Path) -> None:
    """On a band, and not with a headline that takes the better PUE."""
    site = small.begun(sites, small.MOVED, small.DIM)
    small.live(site, 2_100)
    site.pue_milli = 1_600
    site.restart()
    small.live(site)
    site.price(AFTER)
    several = written(site)
    assert "(1 and 1.6)" in several["pue_note"]
    answer = verdict(several, tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    several["saved_ug"] += 1
    assert verdict(several, tmp_path).returncode


def index(found: dict[str, Any], part: str, line: str) -> int:
    """Find the first row of a line; the first of all for ""."""
    rows = found[part]
    return next(place for place, row in enumerate(rows) if line in ("", row["line"]))


def change(part: str, field: str, by: int, line: str = "") -> Twin:
    """Change a number of one row."""

    def sabotage(found: dict[str, Any]) -> None:
        found[part][index(found, part, line)][field] += by

    return sabotage


def drop(part: str, line: str = "") -> Twin:
    """Drop a row; of the second slot, for the first one may be any."""

    def sabotage(found: dict[str, Any]) -> None:
        del found[part][index(found, part, line) + 1]

    return sabotage


def repeat(part: str) -> Twin:
    """Count a row twice."""

    def sabotage(found: dict[str, Any]) -> None:
        found[part].append(found[part][0])

    return sabotage


def figure(name: str, by: int) -> Twin:
    """Change one figure."""

    def sabotage(found: dict[str, Any]) -> None:
        found[name] = (found[name] or 0) + by

    return sabotage


def flipped(found: dict[str, Any]) -> None:
    """Let a modelled slot pass for the run itself."""
    row = found["reference"][index(found, "reference", "modelled")]
    row.update(line="as_run", energy_mj=None, carbon_ug=None, upper_mj=0, upper_ug=None)
    row.update(g_milli_per_kwh=None, quality="")


def modelled(found: dict[str, Any]) -> None:
    """Let the run's own slot pass for a modelled one that drew a fifth more."""
    row = found["reference"][index(found, "reference", "as_run")]
    mine = [each for each in found["actual"] if each["slot_start"] == row["slot_start"]]
    energy_mj = 6 * sum(each["energy_mj"] or 0 for each in mine) // 5
    rate = (mine[0]["g_milli_per_kwh"], mine[0]["pue_milli"])
    row.update(line="modelled", energy_mj=energy_mj, g_milli_per_kwh=rate[0], upper_ug=0)
    row.update(carbon_ug=independent.grams_ug(energy_mj, *rate))


def inflated(found: dict[str, Any]) -> None:
    """Let the baseline draw a tenth more, consistently within each row."""
    for row in found["reference"]:
        if row["energy_mj"] is not None:
            row["energy_mj"] = row["energy_mj"] * 11 // 10
            rate = (row["g_milli_per_kwh"], row["pue_milli"])
            row["carbon_ug"] = independent.grams_ug(row["energy_mj"], *rate)


def brightened(found: dict[str, Any]) -> None:
    """Forget what was dark, in the ledger and in what was priced."""
    for part in ("actual", "energy"):
        for row in found[part]:
            row["upper_mj"] = 0
            if row.get("upper_ug"):
                row["upper_ug"] = 0


def assumed(found: dict[str, Any]) -> None:
    """Call a slot assumed: no saving may be told from it."""
    found["reference"][index(found, "reference", "modelled")]["line"] = "assumed"


def mixed(found: dict[str, Any]) -> None:
    """Account one row in another signal."""
    found["actual"][0]["signal"] = "other:GB:average:direct:CO2"


TWINS: dict[str, Twin] = {
    "an actual row's energy": change("actual", "energy_mj", 100),
    "an actual row's energy by one": change("actual", "energy_mj", 1),
    "an actual row's intensity": change("actual", "g_milli_per_kwh", 1000),
    "an actual row's grams": change("actual", "carbon_ug", -1),
    "an actual row's darkness": change("actual", "upper_mj", -1_000_000, "unobserved"),
    "a dark row's grams": change("actual", "upper_ug", -1, "unobserved"),
    "a baseline row's energy": change("reference", "energy_mj", 1_000, "modelled"),
    "a baseline row's intensity": change("reference", "g_milli_per_kwh", 1000, "modelled"),
    "a baseline row's grams": change("reference", "carbon_ug", 1, "modelled"),
    "a baseline row's band": change("reference", "upper_ug", 1, "modelled"),
    "tokens of the run's own slot": change("reference", "tokens", 500, "as_run"),
    "tokens of a modelled slot": change("reference", "tokens", 500, "modelled"),
    "a best single row's grams": change("single", "carbon_ug", 1, "modelled"),
    "an energy row": change("energy", "energy_mj", 1),
    "unobserved joules": change("energy", "upper_mj", 100_000, "unobserved"),
    "a dropped actual row": drop("actual"),
    "a dropped baseline row": drop("reference"),
    "a dropped modelled row": drop("reference", "modelled"),
    "a dropped best single row": drop("single"),
    "a dropped energy row": drop("energy"),
    "a dropped dark row": drop("energy", "unobserved"),
    "a repeated actual row": repeat("actual"),
    "a repeated baseline row": repeat("reference"),
    "the tokens": figure("tokens", -1_000),
    "more tokens than the baseline has": figure("tokens", 10_000_000),
    "the saving": figure("saved_ug", 1),
    "the upper end": figure("saved_high_ug", -1),
    "a part": figure("better_point_ug", -1),
    "the other part": figure("carbon_aware_ug", 1),
    "what was spent": figure("actual_ug", -1),
    "what was dark": figure("unobserved_ug", -1),
    "the baseline's grams": figure("reference_ug", 1),
    "a modelled row that passes for the run": flipped,
    "a row of the run that passes for a modelled one": modelled,
    "an inflated baseline": inflated,
    "no darkness": brightened,
    "a slot that is only assumed": assumed,
    "two signals": mixed,
}


@pytest.mark.parametrize("name", TWINS)
def test_the_script_catches_a_sabotaged_twin(found: dict[str, Any], name: str) -> None:
    """One number changed, one row dropped, repeated or flipped: it is seen."""
    assert independent.differences(found) == []
    twin = copy.deepcopy(found)
    TWINS[name](twin)
    assert independent.differences(twin)


def test_the_script_names_the_place(found: dict[str, Any], tmp_path: Path) -> None:
    """Exit 1, with the place in words."""
    twin = copy.deepcopy(found)
    TWINS["an actual row's intensity"](twin)
    answer = verdict(twin, tmp_path)
    assert answer.returncode == 1
    assert "DIFFERS  actual row 2026-11-20T00:00:00Z g0" in answer.stdout


def test_a_run_that_still_trains_is_audited_too(sites: Sites) -> None:
    """Before and after it is moved, with joules booked since, and prices that are missing."""
    site = small.begun(sites, small.MOVED, small.DIM, told=6)
    seen = set()
    for now in (900, 1_471, 1_500, 2_100, 3_000):
        site.tell_prices(range(6, 20) if now == 3_000 else [], now)
        small.live(site, now)
        site.deliver(now + 31)
        told = written(site, now)
        assert told["unbooked_mj"] > 0
        assert independent.differences(told) == []
        seen.add(told["saved_ug"] is None)
    assert seen == {True, False}


def test_a_run_that_was_never_touched_is_audited_to_0(sites: Sites) -> None:
    """Every slot of its baseline stands for itself."""
    told = written(small.live(small.begun(sites, small.KEPT, small.DIM)))
    assert (told["saved_ug"], told["saved_high_ug"]) == (0, 0)
    assert {row["line"] for row in told["reference"]} == {"as_run"}
    assert independent.differences(told) == []


def test_a_run_of_which_nothing_was_read_is_audited_to_nothing(sites: Sites) -> None:
    """No saving, and none can be recomputed."""
    sights = dict.fromkeys(small.GPUS, small.DIM["g3"])
    site = small.live(small.begun(sites, small.MOVED, sights))
    site.price(AFTER)
    told = written(site)
    assert told["saved_ug"] is None
    assert independent.differences(told) == []
    told["saved_ug"] = 0
    assert independent.differences(told)


def test_slots_that_were_summed_up_are_not_passed(found: dict[str, Any]) -> None:
    """What is gone cannot be recomputed, and is not taken for right."""
    assert independent.differences(found | {"summed_up": True})


def test_nonsense_is_refused(tmp_path: Path) -> None:
    """Not an audit: exit 2 and a sentence."""
    answer = verdict({"name": "llm"}, tmp_path)
    assert answer.returncode == 2
    assert "cannot be read" in answer.stderr


def test_the_script_is_independent() -> None:
    """It imports the standard library only."""
    tree = ast.parse(Path(independent.__file__).read_text())
    names = {
        each.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for each in node.names
    } | {
        (node.module or "").split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert names <= set(sys.stdlib_module_names)
