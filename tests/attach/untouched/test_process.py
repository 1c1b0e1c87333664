"""What `attach` and `observe` change in a user's process: what docs/attach.md says, and no more."""

import json
from pathlib import Path

import pytest

from tests.docs.blocks import REPOSITORY
from tests.hook.harness import Zygote

HEADING = "## What attach changes in your process"
ALWAYS = {"threads", "atexit", "SIGTERM", "sys.excepthook", "process group"}
MEANWHILE = {
    ("attached", "no"): ALWAYS,
    ("attached", "yes"): {*ALWAYS, "gc.freeze"},
    ("observed", "no"): {"threads", "atexit"},
}
ELSEWHERE = {"at a switch", "at its end"}
"""Rows of the page that other tests hold: of teardown, and of the watchdog."""


def changed(before: dict[str, str], now: dict[str, str]) -> set[str]:
    """What is other than it was; what was set aside by others may have become less."""
    names = {name for name, each in now.items() if each != before[name]}
    return names - ({"gc.freeze"} if int(now["gc.freeze"]) <= int(before["gc.freeze"]) else set())


@pytest.mark.parametrize(("job", "freeze"), MEANWHILE)
def test_a_process_is_changed_as_documented_and_back(
    zygote: Zygote, tmp_path: Path, job: str, freeze: str
) -> None:
    """While a script trains; and when its session is done and closed, nothing is left of it."""
    told = tmp_path / "told.json"
    environment = {
        "FOLDER": str(tmp_path / "run"),
        "OUT": str(told),
        "FREEZE": freeze,
        "WATTMESH_URL": f"unix://{tmp_path}/nobody",
    }
    launch = zygote.start(1, environment, tmp_path, f"tests.attach.untouched.process_job:{job}")
    assert zygote.wait(launch) == 0, (tmp_path / "rank-0.log").read_text()
    found: dict[str, dict[str, str]] = json.loads(told.read_text())
    before = found.pop("before")
    assert changed(before, found["meanwhile"]) == MEANWHILE[job, freeze]
    # Python counts a callback that was taken back on; what was frozen stays so, as it was asked.
    stays = {"atexit", *({"gc.freeze"} & MEANWHILE[job, freeze])}
    assert changed(before, found["done"]) - {"threads"} == stays
    assert changed(before, found["after"]) == stays


def test_the_page_has_a_row_of_each() -> None:
    """And no other rows."""
    page = (REPOSITORY / "docs" / "attach.md").read_text("utf-8")
    table = page.partition(f"{HEADING}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1].strip(" `") for line in table.splitlines() if line[:1] == "|"]
    assert set(rows[2:]) == set.union(ELSEWHERE, *MEANWHILE.values())
