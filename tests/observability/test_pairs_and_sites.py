"""Panels where one Prometheus scrapes a pair of daemons, and two sites: all is counted once."""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.observability.rule_series import named
from tests.observability.shown import filled, queries

JOB = "wattmesh"
WATTS = {"oslo": 60, "bergen": 240}
"""Joules a minute, by site: the idle GPUs of both have the same labels but `cluster`."""


def idle(site: str, instance: str, values: str) -> dict[str, str]:
    """What a daemon tells of its idle GPUs; there is no run, so the labels are alike everywhere."""
    labels = {"job": JOB, "instance": instance, "line": "idle"}
    name = named("wattmesh_energy_joules_total", labels | ({"cluster": site} if site else {}))
    return {"series": name, "values": values}


def power(chosen: str) -> str:
    """The query of the panel, where a cluster was chosen."""
    query = next(
        each for each in queries() if (each.board, each.title) == ("wattmesh-cluster.json", "Power")
    )
    return filled(query.expr, {"cluster": chosen}).replace("[12s]", "[4m]")


def holds(folder: Path, series: list[dict[str, str]], expected: dict[str, float | None]) -> bool:
    """Whether promtool finds these values, at the 20th minute, by what was chosen."""
    tests: list[dict[str, Any]] = [
        {
            "expr": power(chosen),
            "eval_time": "20m",
            "exp_samples": [] if value is None else [{"labels": "{}", "value": value}],
        }
        for chosen, value in expected.items()
    ]
    content = {
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}],
    }
    (folder / "tests.json").write_text(json.dumps(content))
    done = subprocess.run(
        ["promtool", "test", "rules", "tests.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode == 0


def test_a_pair_counts_once_and_two_sites_add_up(tmp_path: Path) -> None:
    """One watt in Oslo by two daemons, four in Bergen; all, and each by itself."""
    series = [
        idle("oslo", "o1:9464", "0+60x40"),
        idle("oslo", "o2:9464", "0+60x40"),
        idle("bergen", "b1:9464", "0+240x40"),
    ]
    right: dict[str, float | None] = {".*": 5.0, "oslo": 1.0, "bergen": 4.0, "tromso": None}
    assert holds(tmp_path, series, right)
    assert not holds(tmp_path, series, right | {".*": 6.0})


def test_one_site_needs_no_label(tmp_path: Path) -> None:
    """All that can be chosen then is everything."""
    assert holds(tmp_path, [idle("", "o1:9464", "0+60x40")], {".*": 1.0})


def test_a_daemon_that_starts_anew_moves_nothing(tmp_path: Path) -> None:
    """Sums are the journal's: a missed scrape or a restart between two makes no step."""
    assert holds(tmp_path, [idle("", "o1:9464", "0+60x17 _x2 1200+60x9")], {".*": 1.0})


def test_an_empty_ledger_is_a_gap_and_no_zero(tmp_path: Path) -> None:
    """Nothing was booked for minutes: that is unknown."""
    assert holds(tmp_path, [idle("", "o1:9464", "600x40")], {".*": None})
    assert not holds(tmp_path, [idle("", "o1:9464", "600x40")], {".*": 0.0})


def test_names_with_signs_of_patterns_mean_themselves() -> None:
    """A dot in a name is a dot where a run is chosen; quotes and backslashes are escaped."""
    odd = 'a.b|c"d\\e'
    assert filled('x{run="$run"}', {"run": odd}) == 'x{run="a.b|c\\"d\\\\e"}'
    assert filled('x{run=~"$run"}', {"run": "a.b"}) == 'x{run=~"a\\\\.b"}'
    alone = [each.expr for each in queries() if '"$run"' in each.expr]
    assert alone
    assert all('run="$run"' in each and 'run=~"$run"' not in each for each in alone)
