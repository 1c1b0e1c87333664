"""docs/reference/metrics.md: every metric that daemon and agent serve, read off the source.

Reading the source, and not a running daemon, finds the metrics that only some moments show.
Invariant: a metric whose name, help or labels are not plain text in the code is an error here.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from scripts.pages.markdown import code, page, table

SUFFIX = {"CounterMetricFamily": "_total", "GaugeMetricFamily": "", "InfoMetricFamily": "_info"}

INTRODUCTION = """Served at `metrics.listen` (default `http://127.0.0.1:9464/metrics`), read-only.
Counters of energy, time and grams are absolute values from the journal: they survive a restart. A
value that is unknown has no sample; it is never 0. What joules, watts and grams are beside measured
(estimated, provisional, simulated) stands in the label `flags`, or beside a counter in
`wattmesh_*_flag` and `wattmesh_*_info`. Series of single devices (`gpu_uuid`, `zone`)
are served where the devices are read: by `wattmesh agent` on its node (`agent.metrics`), or by the
daemon when it reads the GPUs of its own machine. How to read them: [energy](../energy.md)."""

SOURCES = (
    ("wattmesh.controller.agent", "metrics.py"),
    ("wattmesh.controller.metrics", "budgets.py"),
    ("wattmesh.controller.metrics", "caps.py"),
    ("wattmesh.controller.metrics", "ledger.py"),
    ("wattmesh.controller.metrics", "metrics.py"),
    ("wattmesh.controller.metrics", "nodes.py"),
    ("wattmesh.controller.metrics", "planner.py"),
    ("wattmesh.controller.metrics", "points.py"),
    ("wattmesh.controller.metrics", "runs.py"),
    ("wattmesh.controller.metrics", "signals.py"),
    ("wattmesh.controller.metrics", "storage.py"),
    ("wattmesh.telemetry.energy", "exporter.py"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDoc:
    """One metric by the name that a query uses."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def metrics() -> list[MetricDoc]:
    """List every metric, by name."""
    sources = [files(package).joinpath(name).read_text("utf-8") for package, name in SOURCES]
    found = [metric for source in sources for metric in _in_source(source)]
    return sorted(found, key=lambda metric: metric.name)


def _in_source(source: str) -> Iterator[MetricDoc]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            family = node.func.id
            if family in SUFFIX:
                name, meaning = (ast.literal_eval(argument) for argument in node.args[:2])
                given = {word.arg: word.value for word in node.keywords if word.arg}
                labels = ast.literal_eval(given["labels"]) if "labels" in given else ()
                yield MetricDoc(
                    name=name + SUFFIX[family],
                    kind=family.removesuffix("MetricFamily").lower(),
                    labels=tuple(labels),
                    meaning=meaning,
                )


def render() -> str:
    """Write the page."""
    rows = (
        (code(metric.name), metric.kind, ", ".join(map(code, metric.labels)), metric.meaning)
        for metric in metrics()
    )
    return page("Metrics", INTRODUCTION, table(("metric", "type", "labels", "meaning"), rows))
