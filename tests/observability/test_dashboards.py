"""The shipped JSON is what the Python makes, for a Grafana that its builder knows."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from scripts import dashboards
from scripts.dashboards.__main__ import SHIPPED, stale
from scripts.dashboards.panels import encode
from tests.observability.shown import boards


def test_what_is_shipped_is_current() -> None:
    """File by file, to the letter."""
    assert stale() == []


def test_a_file_that_was_edited_is_caught(tmp_path: Path) -> None:
    """Sabotaged twins: one letter, a file that is gone, and one that nobody makes."""
    for each in SHIPPED.glob("*.json"):
        (tmp_path / each.name).write_bytes(each.read_bytes())
    assert stale(tmp_path) == []
    edited = tmp_path / "wattmesh-run.json"
    edited.write_text(edited.read_text().replace("Speed", "Sped", 1))
    (tmp_path / "wattmesh-safety.json").unlink()
    (tmp_path / "other.json").write_text("{}")
    assert stale(tmp_path) == ["other.json", "wattmesh-run.json", "wattmesh-safety.json"]


def test_the_same_everywhere() -> None:
    """Another process, with another seed of its hashes, makes the same bytes."""
    code = "from scripts.dashboards import made; import sys; sys.stdout.write(str(made()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == str(dashboards.made())


def lost(text: str) -> set[str]:
    """Name the keys of a dashboard that Grafana's own types do not know: it drops them silently."""
    register_default_plugins()
    given = json.loads(text)
    known = json.loads(JSONEncoder().encode(Dashboard.from_json(json.loads(text))))
    # What marks have beyond the dashboard's schema belongs to the Prometheus plugin.
    given["annotations"] = known["annotations"]
    return _missing(given, known, "")


def _missing(given: object, known: object, at: str) -> set[str]:
    if isinstance(given, dict) and isinstance(known, dict):
        gone = {f"{at}.{key}" for key in given.keys() - known.keys()}
        return gone.union(
            *(_missing(given[k], known[k], f"{at}.{k}") for k in given.keys() & known.keys())
        )
    if isinstance(given, list) and isinstance(known, list):
        return set[str]().union(
            *(_missing(one, other, f"{at}[]") for one, other in zip(given, known, strict=True))
        )
    return set()


def test_grafana_knows_every_key() -> None:
    """Read back by the types that Grafana generates from its schemas, nothing is lost."""
    for name, text in dashboards.made().items():
        assert lost(text) == set(), name


def test_a_key_that_grafana_does_not_know_is_caught() -> None:
    """Sabotaged twins: misspelt in the dashboard, a panel, its options, a field, a query."""
    text = dashboards.made()["wattmesh-run.json"]
    for key in (
        *("schemaVersion", "allValue", "gridPos", "textMode", "mergeValues", "lineWidth"),
        *("spanNulls", "legendFormat"),
    ):
        assert lost(text.replace(f'"{key}"', f'"{key}x"', 1)), key


def test_titles_and_uids_are_one_of_a_kind() -> None:
    """Links go by uid; provisioning refuses two of one."""
    found = boards().values()
    assert len({each["uid"] for each in found}) == len({each["title"] for each in found}) == 3
    assert all(each["id"] is None if "id" in each else True for each in found)


def test_a_longer_row_breaks_into_lines() -> None:
    """Panels that do not fit beside each other go below, whatever their number."""
    board = dashboards.BOARDS["wattmesh-cluster.json"]
    row = board.rows[1]
    many = replace(board, rows=(replace(row, panels=row.panels * 3),))
    places = [each["gridPos"] for each in json.loads(encode(many))["panels"]]
    corners = {(each["x"], each["y"]) for each in places}
    assert len(corners) == len(places)
