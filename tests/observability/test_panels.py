"""Every panel's queries run on a real Prometheus that scraped a real site, and find something."""

import re
import time
from collections.abc import Mapping
from typing import Any

import pytest

from scripts.pages import metrics
from tests.daemon.waiting import wait_for
from tests.observability.conftest import Watched
from tests.observability.live import POWER_W, WATCHED_W, B
from tests.observability.prometheus import LocalServer
from tests.observability.shown import (
    ShownQuery,
    asked,
    boards,
    drawn,
    filled,
    panels,
    queries,
    variables,
)

CHOSEN = {
    "cluster": ".*",
    "node": ".*",
    "run": "llama-8b",
    "run_id": ".*",
    "signal": "csv:GB:average:direct:CO2",
}

NOT_HERE = (
    ("Alerts that fire", "", "nothing is wrong here"),
    ("Burn", "", "no budget is a window old"),
    ("Counter over power", "", "ten minutes have not passed"),
    ("Error of the forecast", "", "no forecast came true over days"),
    ("Intensity over time", 'bound="', "a recorded forecast has no quantiles"),
    ("Intensity, and what was expected of it six hours before", 'bound="low"', "the same"),
    ("Intensity, and what was expected of it six hours before", 'bound="high"', "the same"),
    ("Saved against the baseline", "saved_part", "the parts need more of the baseline's tokens"),
    ("Saved by a better point, and by following the grid", "", "the same"),
    ("Scheduled jobs that did not run well, in an hour", "", "every job ran well"),
    ("Spent beside planned", "on_course", "no day has passed"),
)
"""Queries without series at this site: their panel, a piece of them, and why."""

UNITS = {
    "watts": {"watt"},
    "seconds": {"s", "dateTimeAsIso"},
    "grams": {"massg"},
    "bytes": {"bytes"},
    "hertz": {"hertz"},
    "hour": {"suffix: g/kWh"},
}
"""What a metric whose name ends so may be shown in, where nothing is reckoned from it."""


def expected_empty(title: str, expr: str) -> bool:
    """Whether a query has no series here, for a reason."""
    return any(title == panel and piece in expr for panel, piece, _ in NOT_HERE)


def found(server: LocalServer, query: ShownQuery) -> list[dict[str, Any]]:
    """Ask for a query as Grafana would."""
    return server.vector(filled(query.expr, CHOSEN))


def sooner_or_later(server: LocalServer, query: ShownQuery) -> list[dict[str, Any]]:
    """Ask again until something is found, or for twenty seconds."""
    until = time.monotonic() + 20.0
    while not (series := found(server, query)) and time.monotonic() < until:
        time.sleep(0.2)
    return series


@pytest.mark.parametrize("name", sorted(boards()))
def test_every_query_finds_something(watched: Watched, name: str) -> None:
    """And what a legend names is a label of what is found."""
    empty, nameless = set(), set()
    for query in queries():
        if query.board != name:
            continue
        series = found(watched.prometheus, query)
        if not series and not expected_empty(query.title, query.expr):
            # A slot of this grid lasts two seconds, and a busy daemon may be late with the next.
            series = sooner_or_later(watched.prometheus, query)
        labels = {label for each in series for label in each["metric"]}
        if not series:
            empty.add((query.title, query.expr))
        elif missing := set(re.findall(r"{{(\w+)}}", query.legend)) - labels:
            nameless.add((query.title, *sorted(missing)))
    assert {each for each in empty if not expected_empty(*each)} == set()
    assert nameless == set()


def test_a_query_that_finds_nothing_is_caught(watched: Watched) -> None:
    """Sabotaged twins: a metric, a label value and a run that nobody has."""
    query = next(each for each in queries() if "wattmesh_run_config_info" in each.expr)
    assert found(watched.prometheus, query)
    for spoilt in (
        query.expr.replace("_config_info", "_confg_info"),
        query.expr.replace('cluster=~"$cluster"', 'cluster="x"'),
    ):
        assert watched.prometheus.vector(filled(spoilt, CHOSEN)) == []
    assert watched.prometheus.query("sum by (")["status"] == "error"


def test_panels_that_are_empty_here_say_why() -> None:
    """In a sentence that a person reads behind the i; no other panel excuses itself in vain."""
    excused = {title for title, _, _ in NOT_HERE}
    silent = {title for (_, title), each in drawn().items() if title in excused and not each.empty}
    assert silent == set()
    assert excused <= {title for _, title in drawn()}


@pytest.mark.parametrize("name", sorted(boards()))
def test_what_can_be_chosen_is_there(watched: Watched, name: str) -> None:
    """Every variable has values, but `cluster`, which is a label that one site does not need."""
    for variable in variables(boards()[name]).values():
        selector, label = asked(variable)
        answer = watched.prometheus.get("/api/v1/series", **{"match[]": filled(selector, CHOSEN)})
        values = {each.get(label, "") for each in answer["data"]} - {""}
        assert values or label == "cluster", variable["name"]
        if variable["includeAll"]:
            assert variable["allValue"] == ".*"


def test_a_switch_is_marked_where_it_was(watched: Watched) -> None:
    """The mark's value is its time, in milliseconds; its text names points, person and reason."""
    (mark,) = boards()["wattmesh-run.json"]["annotations"]["list"]
    (one,) = watched.prometheus.vector(filled(mark["expr"], CHOSEN))
    words = set(re.findall(r"{{(\w+)}}", mark["titleFormat"] + mark["textFormat"]))
    assert words <= set(one["metric"])
    assert one["metric"]["from_point"] == "A"
    assert one["metric"]["to_point"] == "B"
    assert (one["metric"]["by"], one["metric"]["state"]) == ("policy", "confirmed")
    at_s, ordered_ms = one["value"][0], float(one["value"][1])
    assert 0 < at_s - ordered_ms / 1000 < 600
    assert mark["useValueForTime"] is True


def test_power_is_the_truth_and_counted_once(watched: Watched) -> None:
    """Two daemons serve the same journal, one of them was restarted: the watts are the GPUs'."""
    query = next(each for each in queries() if each.title == "Power" and "sum(" in each.expr)
    assert len(watched.prometheus.vector('up{job="wattmesh"} == 1')) == 2
    truth_w = pytest.approx(sum(POWER_W[B]) + WATCHED_W, rel=0.15)

    def shown_w() -> float:
        (one,) = found(watched.prometheus, query)
        return float(one["value"][1])

    # The rate is over some seconds, which were before the switch or its restart at first.
    wait_for(lambda: shown_w() == truth_w, "the power that the GPUs draw")
    # The sabotaged twin adds both daemons.
    twice = filled(query.expr, CHOSEN).replace("max by (cluster, run, run_id, line) ", "")
    wait_for(
        lambda: float(watched.prometheus.vector(twice)[0]["value"][1]) > 1.5 * shown_w(),
        "both to be added",
    )


def test_nothing_fires_at_a_healthy_site(watched: Watched) -> None:
    """Every rule was evaluated by the real Prometheus, without an error."""
    groups = watched.prometheus.get("/api/v1/rules")["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 40
    assert {
        (rule["name"], rule.get("lastError", "")) for rule in rules if rule["health"] != "ok"
    } == set()
    firing = watched.prometheus.vector('ALERTS{alertstate="firing"}')
    assert firing == []
    for record in (rule["name"] for rule in rules if rule["type"] == "recording"):
        assert watched.prometheus.vector(record), record


def unit_of(panel: Mapping[str, Any]) -> str:
    """Give the unit of a panel's values; of a table it is no column's but the value's."""
    if panel["type"] != "table":
        return str(panel["fieldConfig"]["defaults"]["unit"])
    assert "unit" not in panel["fieldConfig"]["defaults"], "it would turn labels into dates"
    assert "noValue" not in panel["fieldConfig"]["defaults"], "it would stand in a label's place"
    (found,) = (
        each["value"]
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"] == {"id": "byName", "options": "Value"}
        for each in override["properties"]
        if each["id"] == "unit"
    )
    return str(found)


def test_every_panel_is_whole() -> None:
    """Title, unit, a legend for each query, an explanation, room of its own, and a datasource."""
    for name, board in boards().items():
        seen: set[tuple[int, int]] = set()
        assert len({each["id"] for each in board["panels"]}) == len(board["panels"])
        for panel in panels(board):
            what = (name, panel["title"])
            assert unit_of(panel), what
            assert len(panel["description"]) > 30, what
            assert panel["datasource"]["uid"] == "${datasource}", what
            assert all(each["legendFormat"] for each in panel["targets"]), what
            assert len({each["refId"] for each in panel["targets"]}) == len(panel["targets"]), what
            place = panel["gridPos"]
            taken = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert place["x"] + place["w"] <= 24, what
            assert not taken & seen, what
            seen |= taken


def test_units_are_those_of_the_metrics() -> None:
    """A query that only selects a metric is shown in what the metric's name ends in."""
    wrong = []
    for query in queries():
        bare = re.fullmatch(
            r"(?:(?:max|min|sum) by \([^)]*\) \()*(wattmesh_\w+){[^}]*}[\s\S]*", query.expr
        )
        if bare is None or re.search(r"rate\(|increase\(|time\(\)| / | - |== 1", query.expr):
            continue
        ending = bare[1].removesuffix("_total").rpartition("_")[2]
        unit = unit_of(query.panel)
        if unit not in UNITS.get(ending, {unit}):
            wrong.append((query.title, bare[1], unit))
    assert wrong == []


MANY = {each.name for each in metrics.metrics() if "gpu_uuid" in each.labels}
MANY |= {each.name for each in metrics.metrics() if each.name.startswith("wattmesh_agent_")}
"""Metrics with a series for each GPU or node: ten thousand at a large site."""


def crowded(expr: str) -> bool:
    """Whether a query would draw a line for each GPU or node of a large site."""
    asked = set(re.findall(r"wattmesh_\w+", expr)) & MANY - {"wattmesh_gpu_info"}
    if not asked or 'node=~"$node"' in expr:
        return False
    outer = re.match(r"(?:sum|avg|max|min|count)(?: by \(([^)]*)\))? ?\(", expr)
    return outer is None or bool(
        {"instance", "gpu_uuid", "node"} & set(re.findall(r"\w+", outer[1] or ""))
    )


def test_no_panel_draws_ten_thousand_lines() -> None:
    """Single GPUs are drawn of the chosen node only; everything else is summed."""
    assert [query.title for query in queries() if crowded(query.expr)] == []
    for board in boards().values():
        for variable in variables(board).values():
            assert variable["name"] != "node" or not variable["includeAll"]


def test_a_crowded_panel_is_caught() -> None:
    """Sabotaged twins: bare, by GPU, and with the node forgotten."""
    for expr in (
        "wattmesh_gpu_power_watts",
        "max by (gpu_uuid) (wattmesh_gpu_power_watts)",
        "sum by (instance) (wattmesh_agent_refused_rows)",
    ):
        assert crowded(expr)


def test_numbers_are_of_now() -> None:
    """Over a range, the last value of a series that has ended would stand beside the new one."""
    for board in boards().values():
        for panel in panels(board):
            now = panel["type"] in ("stat", "bargauge", "table")
            assert all(each.get("instant", False) is now for each in panel["targets"]), panel[
                "title"
            ]


def test_every_query_asks_for_what_is_served() -> None:
    """Metrics and labels stand in the reference, and no function is newer than Prometheus 2.42."""
    served = {each.name: {*each.labels, "job", "instance", "cluster"} for each in metrics.metrics()}
    for query in queries():
        for name, inside in re.findall(r"(wattmesh_\w+){([^}]*)}", query.expr):
            assert name in served, query
            assert set(re.findall(r"(\w+)=", inside)) <= served[name], query
        assert not re.search(r"limitk|limit_ratio|sort_by_label|histogram_(avg|std)", query.expr)
