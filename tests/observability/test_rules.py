"""Every alert fires by its cause, waits out one missed scrape, clears, and says what to do."""

import re
from pathlib import Path

import pytest

from scripts.pages import metrics
from tests.observability.rule_cases import CASES
from tests.observability.rule_files import (
    RULES,
    AlertCase,
    Rule,
    alerts,
    failed,
    minutes,
    promtool,
    rules,
)

RUNBOOK = Path(__file__).parents[2] / "docs/runbook.md"


def test_every_alert_has_a_case() -> None:
    """Each alert once, and no case of an alert that is gone."""
    assert sorted(each.alert for each in CASES) == sorted(alerts())


def test_every_alert_waits_fires_and_clears(tmp_path: Path) -> None:
    """With its labels, its severity and its sentence, by real promtool."""
    status, said = promtool(tmp_path, CASES)
    assert status == 0, said


def never(rule: Rule) -> Rule:
    """An alert that cannot fire."""
    return rule | ({"expr": "vector(0) > 1"} if "alert" in rule else {})


def always(rule: Rule) -> Rule:
    """An alert that cannot clear."""
    return rule | ({"expr": "vector(1)"} if "alert" in rule else {})


def at_once(rule: Rule) -> Rule:
    """An alert that calls a person for one odd scrape."""
    return rule | ({"for": "0s"} if "alert" in rule else {})


def mute(rule: Rule) -> Rule:
    """An alert that says nothing."""
    return rule | ({"annotations": {}} if "alert" in rule else {})


@pytest.mark.parametrize("spoil", [never, always, at_once, mute])
def test_a_spoilt_rule_is_caught(tmp_path: Path, spoil: object) -> None:
    """Sabotaged twins: each alert, spoilt in four ways, fails its own case."""
    status, said = promtool(tmp_path, CASES, spoil)  # type: ignore[arg-type]
    assert status != 0
    assert failed(said) == set(alerts())


@pytest.mark.parametrize("name", sorted(rules()))
def test_a_rule_asks_for_what_is_served(name: str) -> None:
    """Every metric and label in it stands in the reference; recorded names are recorded."""
    assert unserved(rules()[name]) == set()


def test_a_rule_that_asks_for_nothing_is_caught() -> None:
    """Sabotaged twins: an unknown metric, an unknown label, a record that nobody makes."""
    for expression in ("wattmesh_trubble > 0", 'wattmesh_nodes{sate="heard"}', "wattmesh:x:rate5m"):
        assert unserved([{"expr": expression}]) != set()


def unserved(found: list[Rule]) -> set[str]:
    """Name what expressions ask for and nobody serves."""
    recorded = {each["record"] for every in rules().values() for each in every if "record" in each}
    served = {each.name: {*each.labels, "job", "instance"} for each in metrics.metrics()}
    wrong = set()
    for each in found:
        expression = each["expr"]
        wrong |= set(re.findall(r"wattmesh:[\w:]+", expression)) - recorded
        for name, inside in re.findall(r"(wattmesh_\w+)(?:{([^}]*)})?", expression):
            asked = set(re.findall(r"(\w+)=", inside))
            wrong |= {name} if name not in served else asked - served[name]
    return wrong


def unready(found: dict[str, Rule], runbook: str) -> set[str]:
    """Name the alerts without a sentence, a known severity, patience, or a runbook section."""
    sections = dict(re.findall(r"^### (Wattmesh\w+)\n\n((?:.+\n)+)", runbook, re.MULTILINE))
    return {
        name
        for name, each in found.items()
        if each["labels"].get("severity") not in ("critical", "warning", "info")
        or minutes(each["for"]) < 1
        or not all(len(each["annotations"].get(key, "")) > 20 for key in ("summary", "description"))
        or each["annotations"].get("runbook_url") != f"docs/runbook.md#{name.lower()}"
        or "`" not in sections.get(name, "")
    }


def test_every_alert_has_its_section_in_the_runbook() -> None:
    """Severity, a wait of four scrapes, sentences, and a section that says what to type."""
    assert unready(alerts(), RUNBOOK.read_text("utf-8")) == set()


def test_a_section_that_is_gone_is_caught() -> None:
    """Sabotaged twins: a section without a command, none at all, and an alert in a hurry."""
    text, found = RUNBOOK.read_text("utf-8"), alerts()
    name = "WattmeshTrouble"
    assert unready(found, text.replace(f"### {name}\n", "### Wattmesh\n")) == {name}
    hasty = {**found, name: found[name] | {"for": "15s"}}
    assert unready(hasty, text) == {name}


def test_the_runbook_has_no_section_too_many() -> None:
    """A section of an alert that is gone would send nobody there."""
    sections = re.findall(r"^### (Wattmesh\w+)$", RUNBOOK.read_text("utf-8"), re.MULTILINE)
    assert sorted(sections) == sorted(alerts())


def test_a_daemon_that_starts_anew_raises_nothing(tmp_path: Path) -> None:
    """Counters since the start fall to 0; those of the journal stand: no switch failed twice."""
    case = next(each for each in CASES if each.alert == "WattmeshLoopBug")
    quiet = AlertCase(
        alert=case.alert,
        series={name: "7x20 0x60" for name in case.series},
        early=10,
        fires=22,
        clears=60,
        labels=case.labels,
        summary=case.summary,
    )
    status, said = promtool(tmp_path, [quiet])
    assert status != 0
    assert "time: 22m" in said
    assert "got:[]" in said.replace(" ", "").replace("\n", "")


def test_recorded_series_are_one_for_two_daemons_on_one_journal() -> None:
    """Every record of sums leaves the instance out; only single GPUs keep theirs."""
    records = [each for found in rules().values() for each in found if "record" in each]
    assert len(records) == 4
    for each in records:
        per_gpu = "gpu" in each["record"]
        assert per_gpu or each["expr"].startswith("max by (cluster, run, run_id")
    assert (RULES / "recording.yml").is_file()
