"""The shipped rules as facts; promtool over them, or over a spoilt copy."""

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).parents[2] / "integrations/prometheus/rules"

Rule = dict[str, Any]
Spoil = Callable[[Rule], Rule]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCase:
    """Samples, a minute apart, that raise one alert and then clear it.

    Attributes:
        series: values of each series in promtool's notation (`0x4 1x10 0x20`).
        early, fires, clears: minutes at which it must wait, stand, and be gone.
        hours: everything above is in hours instead, for an alert that waits for days.
        labels: of the alert, beside its name and severity. `summary`: what a person reads.
    """

    alert: str
    series: Mapping[str, str]
    early: int
    fires: int
    clears: int
    labels: Mapping[str, str]
    summary: str
    hours: bool = False


def rules() -> dict[str, list[Rule]]:
    """Read every rule, by file."""
    return {
        path.name: [
            rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]
        ]
        for path in sorted(RULES.glob("*.yml"))
    }


def alerts() -> dict[str, Rule]:
    """Read every alert, by name."""
    return {each["alert"]: each for found in rules().values() for each in found if "alert" in each}


def minutes(duration: str) -> float:
    """Read a duration of one unit."""
    number, unit = re.fullmatch(r"(\d+)([smhd])", duration).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1 / 60, "m": 1, "h": 60, "d": 1440}[unit]


def promtool(folder: Path, cases: Iterable[AlertCase], spoil: Spoil = dict) -> tuple[int, str]:
    """Test the rules by the cases; give promtool's exit status and what it said."""
    for name, found in rules().items():
        group = {"name": name, "rules": [spoil(dict(each)) for each in found]}
        (folder / name).write_text(json.dumps({"groups": [group]}))
    # Each file is evaluated for its own cases only, and with what is recorded for it.
    files: dict[str, list[dict[str, Any]]] = {}
    homes = {
        rule["alert"]: (name, rule)
        for name, found in rules().items()
        for rule in found
        if "alert" in rule
    }
    for each in cases:
        home, rule = homes[each.alert]
        name = f"tests-{home.partition('.')[0]}-{'1h' if each.hours else '1m'}.json"
        files.setdefault(name, []).append(_test(each, rule))
    for name, tests in files.items():
        _, stem, every = name.removesuffix(".json").split("-")
        content = {
            "rule_files": ["recording.yml", f"{stem}.yml"],
            "evaluation_interval": every,
            "tests": tests,
        }
        (folder / name).write_text(json.dumps(content))
    done = subprocess.run(
        ["promtool", "test", "rules", *sorted(files)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def failed(said: str) -> set[str]:
    """Name the alerts that promtool found other than expected."""
    return set(re.findall(r"alertname: ?(\w+)", said))


def _test(case: AlertCase, rule: Rule) -> dict[str, Any]:
    def filled(text: str) -> str:
        return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: case.labels[found[1]], text)

    stated = rule["annotations"]
    annotations = {name: filled(text) for name, text in stated.items() if name != "summary"}
    fires = {
        "exp_labels": {**rule["labels"], **case.labels},
        "exp_annotations": {"summary": case.summary, **annotations},
    }
    unit = "h" if case.hours else "m"
    return {
        "interval": f"1{unit}",
        "input_series": [{"series": name, "values": each} for name, each in case.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{at}{unit}", "alertname": case.alert, "exp_alerts": expected}
            for at, expected in ((case.early, []), (case.fires, [fires]), (case.clears, []))
        ],
    }
