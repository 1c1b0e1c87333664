"""The way from the daemon's start to a decision, as docs/architecture.md tells it."""

import re
from pathlib import Path

from tests.laws.sources import graph

ROOT = Path(__file__).parents[2]
MOST = 8
CALLED_FROM = {
    "wattmesh.controller.daemon.wiring": "wattmesh.controller.daemon.__main__",
    "wattmesh.controller.daemon.loop_bodies": "wattmesh.controller.daemon.wiring",
    "wattmesh.controller.cycle.cycle": "wattmesh.controller.daemon.loop_bodies",
    "wattmesh.controller.cycle.observe": "wattmesh.controller.daemon.wiring",
    "wattmesh.controller.cycle.journal_snapshot": "wattmesh.controller.cycle.observe",
    "wattmesh.policies.rules.decide": "wattmesh.controller.cycle.cycle",
    "wattmesh.controller.cycle.act": "wattmesh.controller.daemon.wiring",
}


def test_from_start_to_decision_in_eight_files_that_call_each_other() -> None:
    """Each file of the page's table is imported by the one that it is called from."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("From the start of the daemon to a decision:")[2]
    rows = re.findall(r"^\| `([a-z_/]+)\.py` \|", table.partition("The cycle is level")[0], re.M)
    named = [f"wattmesh.{each.replace('/', '.')}" for each in rows]
    assert len(named) <= MOST
    assert set(named[1:]) == set(CALLED_FROM)
    real = graph()
    for name, caller in CALLED_FROM.items():
        assert name in real[caller], f"{caller} does not import {name}"
