"""Every joule, watt and gram says what it is: on every screen, in every answer, in every metric."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
from prometheus_client.core import Metric

from tests.api.conftest import Served, open_folder, served, settings
from tests.cli import marked, world
from tests.cli.world import World
from wattmesh.controller import marks
from wattmesh.controller.api.app import CALLS
from wattmesh.controller.cli.accounting import report_picture
from wattmesh.controller.cli.main import main
from wattmesh.controller.cli.policy import plan_picture
from wattmesh.controller.metrics.figures import FigureReader
from wattmesh.controller.metrics.metrics import FiguresCollector
from wattmesh.controller.process.scheduler import Jobs
from wattmesh.controller.views import as_json
from wattmesh.telemetry.readings import FLAGS

__all__ = ["open_folder", "served", "settings"]

SCREENS = (
    ("status",),
    ("budget",),
    ("budget", "--audit", "llm"),
    ("report",),
    ("report", "llm"),
    ("why", "llm"),
    ("decisions",),
    ("runs",),
    ("policy", "plan", "llm"),
    ("powercap", "show"),
    ("carbon", "now"),
    ("carbon", "forecast"),
    ("carbon", "history"),
)
LEDGER = (("budget",), ("budget", "--audit", "llm"), ("report",))
"""What shows emitted grams only, and those are provisional where every interval is."""

PLACES = {"run": "r", "node": "n1"}
WORLDS = {"simulated": world.SIMULATED, "estimated": world.ESTIMATED}

Show = Callable[..., str]


@pytest.fixture
def show(served: Served, capsys: pytest.CaptureFixture[str]) -> Show:
    """Type a command, and give what it prints."""

    def shown(*typed: str) -> str:
        code = main([*typed, "--socket", str(served.socket)])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    return shown


@contextmanager
def whole(served: Served, chosen: World) -> Iterator[Served]:
    """Give the daemon everything to show."""
    world.everything(served, chosen)
    yield served


def answers(served: Served) -> dict[str, Any]:
    """Ask every reading call of the API."""
    found = {}
    for call in CALLS:
        if call.method == "GET":
            path = re.sub(r"{(\w+)}", lambda name: PLACES[name[1]], call.path)
            answer = served.get(path)
            assert answer.status == 200, (path, answer.body)
            found[path] = answer.body
    return found


def metrics(served: Served) -> list[Metric]:
    """Collect every metric."""
    reader = FigureReader(served.journal, served.loop_facts)
    return list(FiguresCollector(served.loop_facts, Jobs(), reader.read).collect())


@pytest.mark.parametrize("flag", list(WORLDS))
def test_every_quantity_says_what_it_is(served: Served, show: Show, flag: str) -> None:
    """A journal of simulated devices, and one whose joules are estimated and grams provisional."""
    with whole(served, WORLDS[flag]):
        for typed in SCREENS:
            assert marked.bare_on(show(*typed), [flag]) == [], typed
        picture = as_json(served.get("/v1/report").body)
        title = f"{report_picture._title(picture)}\n{report_picture._subtitle(picture)}"
        title += f"\n{plan_picture._title(served.get('/v1/runs/r/plan').body)}"
        assert marked.bare_on(title, [flag]) == []
        table = show("report", "--format", "csv").splitlines()
        assert all(flag in row.rpartition(",")[2] for row in table[1:]), table
        for path, answer in answers(served).items():
            assert marked.bare_in(answer, [flag], path) == []
        assert marked.bare_metrics(metrics(served), [flag]) == []


def test_flags_add_up_and_none_displaces_another(served: Served, show: Show) -> None:
    """Estimated joules at a provisional intensity: both, beside every gram that was emitted."""
    both = ["estimated", "provisional"]
    with whole(served, world.ESTIMATED):
        assert marked.bare_on(show("budget").split("beside")[0], ["estimated"]) == []
        for typed in LEDGER:
            grams = re.findall(r"\d (?:m|k|u)?g \S+", show(*typed))
            told = [
                each for each in grams if " g of" not in each and each.endswith(("est", "prov"))
            ]
            assert grams, typed
            assert told, typed
            assert all("prov" in each for each in told if "est" in each), (typed, told)
        view = served.get("/v1/budget").body
        for each in (view["total"], *view["runs"][:1], *view["saved"], view["periods"][0]):
            assert set(both) <= set(each["flags"]), each
        saved = [each for each in metrics(served) if "carbon_saved" in each.name]
        assert saved
        samples = [one for each in saved for one in each.samples]
        assert {one.labels["flags"] for one in samples} == {"+".join(both)}


def test_a_replayed_signal_makes_its_grams_simulated_and_no_joule(served: Served) -> None:
    """A recording is not the grid of today, however well the devices were read."""
    csv = World(
        joules="measured",
        catalogue=world.MEASURED,
        signal=world.NESO.__class__(provider="csv", zone="GB"),
    )
    with whole(served, csv):
        view = served.get("/v1/budget").body
        assert view["total"]["flags"] == ["simulated"]
        assert view["saved"][0]["flags"] == ["simulated"]
        assert served.get("/v1/status").body["power"]["flags"] == []
        assert served.get("/v1/status").body["carbon"]["flags"] == ["simulated"]
        report = served.get("/v1/report").body
        assert all("simulated" in each["flags"] for each in report["lines"])


def test_a_mark_that_lacks_is_caught(
    served: Served, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twin: every screen, object and series without its mark is listed."""
    with whole(served, world.SIMULATED):
        texts = {typed: show(*typed) for typed in SCREENS}
        for typed, text in texts.items():
            for found in re.finditer(r" (?:est\+)?sim\b(?!:)", text):
                if not _is_flag_column(typed) and not text[: found.start()].endswith(" 0 g"):
                    spoilt = text[: found.start()] + " " * len(found[0]) + text[found.end() :]
                    around = text[max(0, found.start() - 60) : found.end() + 20]
                    assert marked.bare_on(spoilt, ["simulated"]), (typed, around)
        for path, answer in answers(served).items():
            for place, _ in marked.quantities(answer):
                spoilt_answer = deepcopy(answer)
                _at(spoilt_answer, place).pop("flags", None)
                if _at(answer, place).get("flags"):
                    assert marked.bare_in(spoilt_answer, ["simulated"]), (path, place)
        whole_metrics = metrics(served)
        for name in sorted(set(marked.BESIDE.values())):
            rest = [each for each in whole_metrics if each.name != name]
            assert marked.bare_metrics(rest, ["simulated"]), name
        monkeypatch.setattr(marks, "mark", lambda flags: "")
        for typed in (("status",), ("budget",), ("report",), ("why", "llm"), ("decisions",)):
            assert marked.bare_on(show(*typed), ["simulated"]), typed


def _is_flag_column(typed: tuple[str, ...]) -> bool:
    """Whether a screen's rows have their marks in a column of their own."""
    return "--audit" in typed


def _at(answer: Any, place: str) -> Any:
    """Give the object at a place like `.runs[0].switch`."""
    for key, number in re.findall(r"\.([^.\[]+)|\[(\d+)\]", place):
        answer = answer[key] if key else answer[int(number)]
    return answer


def test_the_flags_are_those_of_readings() -> None:
    """One list: a fourth flag needs a word on the screens."""
    assert set(marks.SHORT) == set(FLAGS)
    assert {each.value: short for each, short in marks.SHORT.items()} == marked.SHORT
